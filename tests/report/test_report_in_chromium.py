"""The report as a browser shows it: Debian's Chromium, headless, driven through its own driver, from a file on disk."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from gdpfed.report.load import load_planned, load_report
from gdpfed.report.page import report_html
from tests.chromium import LOW_CONTRAST, SCHEMES, SIZES, found_browser, requests, show
from tests.report.synthetic import QUICK_SIX, write_runs

pytestmark = pytest.mark.browser

# Charts that show nothing: no size, nothing drawn, or drawn outside of the window.
EMPTY_CHARTS = """
const bad = [];
let seen = 0;
for (const chart of document.querySelectorAll("svg.chart")) {
  if (!chart.checkVisibility()) continue;
  seen += 1;
  const box = chart.getBoundingClientRect();
  const drawn = [...chart.querySelectorAll("path, .p use")].filter((part) => {
    const { width, height } = part.getBoundingClientRect();
    return width > 0 || height > 0;
  });
  const inside = box.left >= 0 && box.right <= innerWidth + 0.5;
  if (box.width < 120 || box.height < 60 || drawn.length < 3 || !inside) bad.push(chart.getAttribute("aria-label"));
}
return [seen, bad];
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    started = found_browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    path = folder / "report.html"
    path.write_text(report_html(load_report([write_runs(folder / "runs", methods=QUICK_SIX)])))
    return path.as_uri()


def settle(browser: webdriver.Chrome) -> None:
    """Until what was scrolled has been drawn."""
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def overflows(browser: webdriver.Chrome) -> bool:
    """Whether the page can be scrolled sideways."""
    widths = "const page = document.documentElement; return page.scrollWidth > page.clientWidth"
    return bool(browser.execute_script(widths))


def background(browser: webdriver.Chrome) -> str:
    return str(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_wrong_with_the_page(browser: webdriver.Chrome, page: str, size: str, scheme: str) -> None:
    """No console message, no request but for the file itself, no empty figure, nothing too wide, nothing too faint."""
    requests(browser)
    show(browser, page, size=size, scheme=scheme)
    assert browser.get_log("browser") == []
    assert [address for address in requests(browser) if not address.startswith("data:")] == [page]
    seen, empty = browser.execute_script(EMPTY_CHARTS)
    assert seen >= 18
    assert empty == []
    assert browser.execute_script("return innerWidth") == SIZES[size][0]
    assert not overflows(browser)
    assert browser.execute_script("return [...document.querySelectorAll('figure')].every((f) => f.offsetHeight > 150)")
    for part in browser.find_elements(By.TAG_NAME, "details")[:2]:
        part.find_element(By.TAG_NAME, "summary").click()
    seen, low = browser.execute_script(LOW_CONTRAST)
    assert seen > 300
    assert low == []
    assert not overflows(browser)


def test_nothing_is_wrong_with_the_page_of_a_plan(browser: webdriver.Chrome, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    path.write_text(report_html(load_planned("60@1,90@2,50@6")))
    for size, scheme in itertools.product(SIZES, SCHEMES):
        requests(browser)
        show(browser, path.as_uri(), size=size, scheme=scheme)
        assert browser.get_log("browser") == []
        assert [address for address in requests(browser) if not address.startswith("data:")] == [path.as_uri()]
        seen, empty = browser.execute_script(EMPTY_CHARTS)
        assert (seen, empty) == (5, [])
        seen, low = browser.execute_script(LOW_CONTRAST)
        assert seen > 100
        assert low == []
        assert not overflows(browser)
        assert [one.text for one in browser.find_elements(By.CSS_SELECTOR, "nav a")] == [
            "What is promised",
            "The plan",
            "Check it",
        ]


def test_the_checks_can_fail(browser: webdriver.Chrome, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<body style='background:#fff'><p style='color:#bbb'>faint</p><div style='width:3000px'>wide</div>"
        "<img src='http://127.0.0.1:9/x.png'><svg class='chart' aria-label='empty'></svg>"
        "<script>console.error('oh')</script>"
    )
    requests(browser)
    show(browser, bad.as_uri())
    assert any("oh" in entry["message"] for entry in browser.get_log("browser"))
    assert "http://127.0.0.1:9/x.png" in requests(browser)
    assert browser.execute_script(EMPTY_CHARTS) == [1, ["empty"]]
    assert [words for _, words in browser.execute_script(LOW_CONTRAST)[1]] == ["faint"]
    assert overflows(browser)


def test_schemes_follow_the_system_and_the_button(browser: webdriver.Chrome, page: str) -> None:
    show(browser, page, scheme="light")
    light = background(browser)
    show(browser, page, scheme="dark")
    dark = background(browser)
    assert light != dark
    button = browser.find_element(By.ID, "theme")
    button.click()
    assert background(browser) == light
    show(browser, page, scheme="dark")
    assert background(browser) == light, "the choice is remembered"
    show(browser, page, scheme="dark", media="print")
    browser.find_element(By.TAG_NAME, "body")
    assert background(browser) == light
    shown = "return [...document.querySelectorAll('nav, #theme, .stamp')].map((e) => getComputedStyle(e).display)"
    assert browser.execute_script(shown) == ["block", "none", "none"]
    browser.execute_script("localStorage.clear()")
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {})["data"]
    assert len(pdf) > 50_000


@pytest.mark.parametrize("size", SIZES)
def test_pointing_at_a_value_shows_it(browser: webdriver.Chrome, page: str, size: str) -> None:
    show(browser, page, size=size)
    tip = browser.find_element(By.ID, "tip")
    assert not tip.is_displayed()
    for name in ("convergence", "promises", "accuracy", "cohorts"):
        figure = browser.find_element(By.ID, f"figure-{name}")
        point = next(p for p in figure.find_elements(By.CSS_SELECTOR, ".p .hit") if p.is_displayed())
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", point)
        settle(browser)
        ActionChains(browser, duration=0).move_to_element(point).perform()
        assert tip.is_displayed(), name
        labels = browser.execute_script(
            "return [...arguments[0].querySelectorAll('.p')].map((p) => p.getAttribute('aria-label'))", figure
        )
        assert tip.text in labels
        left, right = browser.execute_script(
            "const b = arguments[0].getBoundingClientRect(); return [b.left, b.right]", tip
        )
        assert left >= 0
        assert right <= SIZES[size][0]
        ActionChains(browser, duration=0).move_by_offset(0, 200).perform()
        browser.execute_script("scrollTo(0, 0)")
        settle(browser)
    ActionChains(browser, duration=0).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()


def test_the_keyboard_reaches_every_value(browser: webdriver.Chrome, page: str) -> None:
    show(browser, page)
    tip = browser.find_element(By.ID, "tip")

    def active() -> str:
        return str(browser.execute_script("return document.activeElement.getAttribute('aria-label')"))

    def press(key: str) -> str:
        ActionChains(browser, duration=0).send_keys(key).perform()
        return active()

    browser.execute_script("document.querySelector('#figure-convergence svg.wide .p').focus()")
    first = active()
    assert ", round 1: " in first
    assert tip.text == first
    assert ", round 2: " in press(Keys.ARROW_RIGHT)
    assert tip.text == active()
    below = press(Keys.ARROW_DOWN)
    assert ", round 2: " in below
    assert below.split(",")[0] != first.split(",")[0]
    press(Keys.ARROW_UP)
    assert press(Keys.ARROW_LEFT) == first
    press(Keys.ESCAPE)
    assert not tip.is_displayed()
    assert ", round 1: " in press(Keys.TAB), "the next series is one Tab away"
    assert active() != first
    browser.execute_script("document.querySelector('.skip').focus()")
    reached = {press(Keys.TAB) for _ in range(12)}
    assert any("against whoever sees the models" in label for label in reached)


def test_it_reads_without_scripts(browser: webdriver.Chrome, page: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, page)
        content = browser.execute_cdp_cmd("DOM.getDocument", {"depth": 0})
        found = browser.execute_cdp_cmd(
            "DOM.querySelectorAll", {"nodeId": content["root"]["nodeId"], "selector": "svg.chart .p > title"}
        )
        assert len(found["nodeIds"]) > 200
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
