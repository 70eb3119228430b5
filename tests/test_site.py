"""The site: built strictly, complete, searchable, and in need of nothing from elsewhere."""

import json
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import gdpfed
import gdpfed.flower
from gdpfed.cli import every_command
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.planning.settings import PlanSettings
from gdpfed.tasks.training_settings import TrainingSettings

ROOT = Path(__file__).parents[1]
pytestmark = [pytest.mark.training, pytest.mark.xdist_group("site")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by the command of `make site`: any warning, and any link or anchor that leads nowhere, ends it."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "build_site.py"), str(folder)], capture_output=True, text=True, timeout=300
    )
    assert built.returncode == 0, built.stderr
    return folder / "site"


class _Page(HTMLParser):
    """What a page is made of: anchors, what it loads, where it leads, and its paragraphs."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given["id"]} if "id" in given else set()
        if tag in ("script", "img", "iframe", "source") and given.get("src"):
            self.loads.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given["href"])
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    return {path.relative_to(site): _Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_page_is_reached(site: Path, pages: dict[Path, _Page]) -> None:
    """A page of the repository is on the site, and in its navigation."""
    config = tomllib.loads((ROOT / "zensical.toml").read_text())

    def named(entries: Any) -> list[str]:
        if isinstance(entries, str):
            return [entries]
        inner = entries.values() if isinstance(entries, dict) else entries
        return [name for entry in inner for name in named(entry)]

    listed = set(named(config["project"]["nav"]))
    docs = site.parent / "build" / "docs"
    staged = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    assert staged - listed == set(), "add these to nav in zensical.toml"
    assert {name.removesuffix(".md") + ".html" for name in listed} <= {str(path) for path in pages}
    for tab in ("Research", "Privacy", "Operations"):
        assert f'href="{tab.lower()}.html"' in (site / "index.html").read_text()


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, _Page]) -> None:
    for path, page in pages.items():
        for source in page.loads:
            assert not re.match(r"([a-z]+:)?//", source), f"{path} loads {source}"
            if path.name != "404.html":
                assert (site / path.parent / source.split("?")[0]).is_file(), f"{path} loads {source}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?https?:", style.read_text()), style


def test_links_and_anchors_lead_somewhere(site: Path, pages: dict[Path, _Page]) -> None:
    """In the pages as they are built: Zensical looks at Markdown only."""
    for path, page in pages.items():
        for link in page.leads:
            if re.match(r"[a-z]+:", link) or path.name == "404.html":
                continue
            target, _, anchor = link.partition("#")
            where = (site / path.parent / target).resolve() if target else site / path
            where = where / "index.html" if where.is_dir() else where
            assert where.is_file(), f"{path} leads to {link}"
            if anchor and where.suffix == ".html":
                assert anchor in pages[where.relative_to(site)].anchors, f"{path} leads to {link}"


def test_lists_and_tables_are_rendered(site: Path) -> None:
    """GitHub makes a list of what follows a line of text, Python-Markdown does not."""
    for path in site.rglob("*.html"):
        article = path.read_text().partition("<article")[2].partition("</article")[0]
        for text in re.findall(r"<p>(.*?)</p>", article, flags=re.S):
            assert not re.search(r"\n(- |\d\. |\| )", text), f"{path.name}: {text[:200]}"


def test_library_covers_every_public_name(pages: dict[Path, _Page]) -> None:
    anchors = {anchor for path, page in pages.items() if "api" in path.parts for anchor in page.anchors}
    wanted = {f"gdpfed.{name}" for name in set(gdpfed.__all__) - {"__version__"}}
    wanted |= {f"gdpfed.flower.{name}" for name in gdpfed.flower.__all__}
    wanted |= {"gdpfed.secure.client.SecureClient", "gdpfed.secure.server.SecureServer"}
    assert wanted <= anchors, wanted - anchors


def test_library_shows_defaults_and_meanings(site: Path) -> None:
    """Of settings, which are known at run time only."""
    text = re.sub(r"<[^>]+>", "", (site / "reference/api/planning.html").read_text())
    assert re.search(r"num_rounds:\s*int\s*=\s*50", text)
    assert "Rounds of training." in text
    assert "setting(" not in text


def test_every_setting_and_command_is_there(site: Path) -> None:
    settings = (site / "reference/settings.html").read_text()
    for cls in (PlanSettings, TrainingSettings, DeploymentSettings):
        for name in cls.__dataclass_fields__:
            assert f"<code>{name}</code>" in settings, name
    commands = (site / "reference/commands.html").read_text()
    for words, _ in every_command():
        if words != "plan of" and not words.startswith("reproduce "):
            assert f">gdpfed {words}<" in commands, words


@pytest.mark.parametrize(
    ("words", "page"),
    [("server epsilon", "howto.html"), ("clip norm", "howto.html"), ("resume", "howto.html"), ("run", "ledger.html")],
)
def test_search_finds(site: Path, words: str, page: str) -> None:
    """All words stand in one section of the index, in a section of this page, among others."""
    index = json.loads((site / "search.json").read_text())
    found = {
        item["location"].partition("#")[0]
        for item in index["items"]
        if all(word in f"{item['title']} {item['text']}".lower() for word in words.split())
    }
    assert page in found
    assert len(found) > 3


def test_the_flow_is_drawn_by_its_command() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import flow_picture  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    for name in ("flow", "mark"):
        assert (ROOT / "docs" / "img" / f"{name}.svg").read_text() == getattr(flow_picture, name)()
