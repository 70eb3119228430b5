"""The colours of a report, light and dark.

Place: variables of the page's style, and the colours of its pictures. Hues are apart for the common kinds of colour
blindness as far as ten can be; dash, marker and name always say the same.

Guarantees (tests of the same name):
  colours_have_contrast   4.5 to 1 or more on every background they are used on, text and marks, light and dark.
"""

__all__ = ["DARK", "LIGHT"]

_METHODS = (
    ("5f6368", "b3410c", "80590a", "00704d", "5b4bb5", "a03679", "12707f", "6b4a2f", "0b57c2", "b81d38"),
    ("b3b9bf", "ff9158", "e3b341", "46d19e", "ab9eff", "f291c7", "62cadd", "d2a883", "74aeff", "ff8491"),
)
_GROUPS = (
    ("4f2d91", "1c609c", "00756a", "75660a", "a34b0c", "8f2f5b"),
    ("bda4ff", "82bbff", "55d3bc", "d8c94f", "ffa86b", "f39ac0"),
)
_PAGE = (
    {
        "paper": "fdfcfa", "card": "ffffff", "tint": "f3f1ec", "ink": "1d1c1a", "soft": "5f5b55", "rule": "e3dfd7",
        "rule-strong": "a8a298", "ghost": "d3cec5", "link": "0b57c2", "good": "00704d", "alarm": "b01b2e",
        "warn": "b5651d", "stamp": "fbe9bd", "stamp-ink": "5c3b00", "server": "a8420b", "release": "00667a",
    },
    {
        "paper": "14161a", "card": "1a1d22", "tint": "22262c", "ink": "ece9e3", "soft": "aca79f", "rule": "2f343b",
        "rule-strong": "646a73", "ghost": "3d434b", "link": "7fb4ff", "good": "55d3a3", "alarm": "ff8f93",
        "warn": "d98a45", "stamp": "463507", "stamp-ink": "ffdf95", "server": "ffab7a", "release": "5fd0e6",
    },
)  # fmt: skip


def _scheme(*, dark: bool) -> dict[str, str]:
    colours = {name: f"#{value}" for name, value in _PAGE[dark].items()}
    colours |= {f"c{number}": f"#{value}" for number, value in enumerate(_METHODS[dark])}
    return colours | {f"g{number}": f"#{value}" for number, value in enumerate(_GROUPS[dark])}


LIGHT, DARK = _scheme(dark=False), _scheme(dark=True)
