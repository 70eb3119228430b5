"""Builds the site: `make site`, or python docs/build_site.py [FOLDER].

Pages are staged in `build/docs`, then Zensical builds them into `site/`, both in this repository or in FOLDER.
Strictly: a link or an anchor that leads nowhere, and any other warning, ends the build. Staged are the pages of
`docs/`, the tables of `reproduce/tables/`, what stands at the root of the repository, and the reference that
`reference_pages.py` makes. A link to another file of the repository becomes a link to a copy of it: nothing on the site
needs the network.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from reference_pages import api_pages, commands_page, settings_page

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "zensical.toml"

__all__ = ["main", "pages", "stage"]

# Where a page of the repository is on the site; those of docs/ and reproduce/tables/ follow below.
_AT_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "report-a-false-epsilon.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_FENCE = re.compile(r"^( {0,3}(```|~~~).*?^ {0,3}\2[ ]*$)", flags=re.M | re.S)


def pages() -> dict[Path, Path]:
    """Where each page of the repository is on the site. The front page is docs/index.md; README.md leads there."""
    found = {ROOT / source: Path(target) for source, target in _AT_ROOT.items()}
    found |= {path: Path(path.name) for path in sorted((ROOT / "docs").glob("*.md"))}
    return found | {path: Path("tables") / path.name for path in sorted((ROOT / "reproduce" / "tables").glob("*.md"))}


def stage(folder: Path) -> None:
    """Writes every page, with its links as they are on the site, and the files that pages link to."""
    shutil.rmtree(folder, ignore_errors=True)
    where = pages()
    for name in ("img", "style"):
        shutil.copytree(ROOT / "docs" / name, folder / name)
    for source, target in where.items():
        if source.name != "README.md":
            _write(folder / target, _relinked(source, folder / target, folder, where))
    _write(folder / "reference" / "settings.md", settings_page())
    _write(folder / "reference" / "commands.md", commands_page())
    for subject, text in api_pages().items():
        _write(folder / "reference" / "api" / f"{subject}.md", text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _relinked(source: Path, target: Path, folder: Path, where: dict[Path, Path]) -> str:
    """A page's text; what is in fences stays as it is."""

    def link(match: re.Match[str]) -> str:
        before, leads_to, after = match.groups()
        if re.match(r"[a-z]+:", leads_to):
            return match[0]
        path = Path(os.path.normpath(source.parent / leads_to))
        if path.is_relative_to(ROOT / "docs" / "img"):
            there = path.relative_to(ROOT / "docs")
        elif path in where:
            there = where[path]
        elif path.is_file():
            there = Path("files") / path.relative_to(ROOT)
            (folder / there).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / there)
        elif leads_to.startswith("reference/"):
            there = Path(leads_to)  # Made by the build.
        else:
            raise SystemExit(f"{source.relative_to(ROOT)} links to {leads_to}, which is not there")
        return f"{before}{os.path.relpath(folder / there, target.parent)}{after}"

    parts = _FENCE.split(source.read_text(encoding="utf-8"))
    # Every third part is the fence's mark, every one before it a fence.
    return "".join(
        _LINK.sub(link, part) if number % 3 == 0 else part for number, part in enumerate(parts) if number % 3 != 2
    )


def main(folder: Path) -> int:
    """Stages and builds; prints what Zensical says, and fails where it warns."""
    stage(folder / "build" / "docs")
    config = CONFIG
    if folder != ROOT:
        # What the configuration names is relative to it: pages are in the folder, sources are here.
        config = folder / CONFIG.name
        text = CONFIG.read_text(encoding="utf-8")
        for source in ("src", "docs/api_fields.py"):
            text = text.replace(f'"{source}', f'"{ROOT / source}')
        config.write_text(text, encoding="utf-8")
    built = subprocess.run(  # noqa: S603 - our own command
        [Path(sys.executable).with_name("zensical"), "build", "--clean", "--strict", "--config-file", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    said = built.stdout + built.stderr
    if built.returncode or "warning" in said.lower():
        sys.stderr.write(said)
        return 1
    count = sum(1 for _ in (folder / "site").rglob("*.html"))
    sys.stdout.write(
        f"built {count} pages; to read and search them: python -m http.server --directory {folder / 'site'}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT))
