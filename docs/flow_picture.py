"""Draws `img/flow.svg`, the way from budgets to a report, and `img/mark.svg`, in the colours of the reports.

python docs/flow_picture.py            write
"""

from html import escape
from pathlib import Path

from gdpfed.report.colours import DARK, LIGHT

__all__ = ["flow", "mark"]

IMAGES = Path(__file__).parent / "img"
_BOX = (164, 58)
_COLUMNS = (102, 284, 466, 648, 830)
_BANDS = {"clients": 20, "server": 128, "everybody": 236}
_HEIGHT = 92
# Name, what it does, column, band, colour.
_BOXES = (
    ("Budgets", "what each client allows", 0, "clients", "ink"),
    ("Plan", "groups, rates, noise", 0, "server", "ink"),
    ("plan.toml", "anybody can verify it", 0, "everybody", "release"),
    ("Ask, or sample", "who takes part", 1, "server", "server"),
    ("Train and clip", "norm at most C", 2, "clients", "ink"),
    ("Ledger", "charged before release", 2, "server", "good"),
    ("Noise and masks", "enough if some vanish", 3, "clients", "good"),
    ("Secure sum", "all that the server sees", 3, "server", "server"),
    ("Report and audit", "who learns what", 3, "everybody", "release"),
    ("Step", "weights, Top-k, average", 4, "server", "ink"),
    ("Model", "epsilon, rounded up", 4, "everybody", "release"),
)
_ARROWS = (
    ("Budgets", "Plan"), ("Plan", "plan.toml"), ("Plan", "Ask, or sample"), ("Ask, or sample", "Train and clip"),
    ("Train and clip", "Noise and masks"), ("Noise and masks", "Secure sum"), ("Ask, or sample", "Ledger"),
    ("Ledger", "Secure sum"), ("Secure sum", "Step"), ("Step", "Model"), ("Model", "Report and audit"),
)  # fmt: skip


def _corner(name: str) -> tuple[int, int]:
    _, _, column, band, _ = next(box for box in _BOXES if box[0] == name)
    return _COLUMNS[column], _BANDS[band] + (_HEIGHT - _BOX[1]) // 2


def _arrow(start: str, end: str) -> str:
    (x, y), (to_x, to_y), (width, height) = _corner(start), _corner(end), _BOX
    middle = height // 2
    if x == to_x:
        return f"M{x + width // 2} {y + height}V{to_y - 3}"
    if y == to_y:
        return f"M{x + width} {y + middle}H{to_x - 3}" if to_x > x else f"M{x} {y + middle}H{to_x + width + 3}"
    return f"M{x + width // 2} {y}V{to_y + middle}H{to_x - 3}"


def _variables(colours: dict[str, str]) -> str:
    names = ("paper", "card", "tint", "ink", "soft", "rule", "rule-strong", "good", "server", "release")
    return "".join(f"--{name}:{colours[name]};" for name in names)


def flow() -> str:
    """The whole picture; it follows the reader's colour scheme and stands on a paper of its own."""
    around = _corner("Step"), _corner("Ask, or sample")
    back = f"M{around[0][0] + _BOX[0] // 2 + 34} {around[0][1]}V12H{around[1][0] + 36}V{around[1][1] - 3}"
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1016 340" role="img" aria-labelledby="t d">',
        '<title id="t">From budgets to a report</title>',
        '<desc id="d">Clients state budgets; the server makes a plan that anybody can verify. In each round it asks '
        "clients, who train, clip, add noise and masks; the ledger is charged; the secure sum becomes a step of the "
        "model, which everybody may see.</desc>",
        f"<style>:root{{{_variables(LIGHT)}}}@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
        "text{font:12px ui-sans-serif,system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans',Arial,sans-serif;"
        "fill:var(--soft)}"
        ".n{font-weight:600;font-size:15px;fill:var(--ink)}.b{font-weight:600;fill:var(--soft)}"
        ".a{fill:none;stroke:var(--rule-strong);stroke-width:1.6;marker-end:url(#h)}.r{stroke-dasharray:5 4}"
        "</style>",
        '<defs><marker id="h" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8Z" fill="var(--rule-strong)"/></marker></defs>',
        '<rect width="1016" height="340" rx="6" fill="var(--paper)"/>',
    ]
    for band, top in _BANDS.items():
        parts.append(f'<rect x="8" y="{top}" width="1000" height="{_HEIGHT}" rx="4" fill="var(--tint)"/>')
        parts.append(f'<text class="b" x="22" y="{top + _HEIGHT // 2 + 5}">{band}</text>')
    parts += [f'<path class="a" d="{_arrow(*pair)}"/>' for pair in _ARROWS]
    parts.append(f'<path class="a r" d="{back}"/>')
    for name, words, column, band, colour in _BOXES:
        x, y = _COLUMNS[column], _BANDS[band] + (_HEIGHT - _BOX[1]) // 2
        middle = x + _BOX[0] // 2
        parts.append(
            f'<rect x="{x}" y="{y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="3" fill="var(--card)" '
            'stroke="var(--rule)"/>'
            f'<rect x="{x}" y="{y}" width="{_BOX[0]}" height="3" fill="var(--{colour})"/>'
            f'<text class="n" x="{middle}" y="{y + 26}" text-anchor="middle">{escape(name)}</text>'
            f'<text x="{middle}" y="{y + 45}" text-anchor="middle">{escape(words)}</text>'
        )
    return "".join(
        [*parts, '<text x="560" y="9" text-anchor="middle" style="font-size:11px">next round</text>', "</svg>\n"]
    )


def mark() -> str:
    """The mark of the site: three groups, one sum."""
    colours = (LIGHT["g0"], LIGHT["g2"], LIGHT["g4"])
    bars = "".join(
        f'<rect x="{3 + 7 * place}" y="{20 - height}" width="5" height="{height}" rx="1" fill="{colour}"/>'
        for place, (height, colour) in enumerate(zip((6, 11, 16), colours, strict=True))
    )
    floor = f'<rect x="3" y="21" width="19" height="2" fill="{LIGHT["rule-strong"]}"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 25 24">{bars}{floor}</svg>\n'


def main() -> None:
    """Writes both."""
    (IMAGES / "flow.svg").write_text(flow(), encoding="utf-8")
    (IMAGES / "mark.svg").write_text(mark(), encoding="utf-8")


if __name__ == "__main__":
    main()
