"""The pages as a browser shows them: each page, each interaction, from a real server."""

import json
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from gdpfed.serve.app import Served
from tests.chromium import LOW_CONTRAST, SIZES, found_browser, requests, show
from tests.cli.test_cli import call
from tests.report.synthetic import records_of, task_of, write_records, write_run
from tests.serve.conftest import TOKEN

pytestmark = pytest.mark.browser

# Planned in a moment.
QUICK = "source=60@1,90@2,50@6&rounds=6&participation=0.2&method=gdpfed"
# Of a machine that is busy with other things, too.
PATIENCE = 300.0

# A small checker of our own: what has no name, no label, a wrong role or order, or cannot be seen when it has focus.
FAULTS = """
const faults = [];
const seen = (element) => element.checkVisibility({ visibilityProperty: true });
const text = (element) => (element?.textContent ?? "").trim();
const referred = (element, attribute) => (element.getAttribute(attribute) ?? "").split(/\\s+/).filter(Boolean)
  .map((id) => document.getElementById(id));
const named = (element) => Boolean(
  element.getAttribute("aria-label")?.trim()
  || referred(element, "aria-labelledby").some((label) => text(label))
  || [...(element.labels ?? [])].some((label) => text(label))
  || (["BUTTON", "A", "SUMMARY"].includes(element.tagName) && text(element))
  || element.getAttribute("title"));
const about = (element) => element.outerHTML.slice(0, 110);
for (const element of document.querySelectorAll("a, button, input, select, textarea, summary, [role], [tabindex]")) {
  if (!seen(element)) continue;
  const role = element.getAttribute("role");
  const interactive = element.matches("a, button, input, select, textarea, summary, [role=slider], [role=region]");
  if ((interactive || ["img", "group", "region", "progressbar"].includes(role)) && !named(element)) {
    faults.push(`no name: ${about(element)}`);
  }
  for (const attribute of ["aria-labelledby", "aria-describedby", "aria-controls"]) {
    if (referred(element, attribute).includes(null)) faults.push(`${attribute} names nothing: ${about(element)}`);
  }
  const value = (fact) => parseFloat(element.getAttribute(`aria-value${fact}`));
  if (role === "slider" && !["now", "min", "max"].map(value).every(isFinite)) {
    faults.push(`a slider without values: ${about(element)}`);
  }
  if (element.tabIndex > 0) faults.push(`a tab order of its own: ${about(element)}`);
}
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of new Set(ids.filter((one, at) => ids.indexOf(one) !== at))) faults.push(`an id twice: ${id}`);
let level = 0;
for (const heading of document.querySelectorAll("h1, h2, h3, h4")) {
  if (!seen(heading)) continue;
  const own = Number(heading.tagName[1]);
  if (own > level + 1) faults.push(`from h${level} to h${own}: ${text(heading)}`);
  if (!text(heading)) faults.push(`an empty heading: ${about(heading)}`);
  level = own;
}
if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
for (const landmark of ["main", "nav", "header", "footer"]) {
  if (document.querySelectorAll(landmark).length !== 1) faults.push(`not one ${landmark}`);
}
if (!document.documentElement.lang) faults.push("no language");
if (!document.querySelector("[role=status], [aria-live]")) faults.push("nothing is announced");
for (const table of document.querySelectorAll("table")) {
  if (!table.getAttribute("aria-label") && !table.caption) faults.push("a table without a name");
  if (!table.querySelector("th[scope=col]")) faults.push("a table without headings");
}
for (const image of document.querySelectorAll("img")) if (!image.alt) faults.push(`no alternative: ${about(image)}`);
return faults;
"""
# Outline, stroke or shadow must change when something gets the focus.
UNSEEN_FOCUS = """
const unseen = [];
const look = (element) => [element, ...element.querySelectorAll("*"), element.nextElementSibling, element.closest("li")]
  .filter(Boolean).map((one) => {
    const style = getComputedStyle(one);
    const outline = [style.outlineStyle, style.outlineWidth, style.left, style.opacity];
    return [...outline, style.stroke, style.strokeWidth, style.fill].join();
  }).join(";");
const before = document.activeElement;
for (const element of document.querySelectorAll("a, button, input, select, textarea, summary, [tabindex='0']")) {
  if (!element.checkVisibility({ visibilityProperty: true })) continue;
  document.activeElement.blur();
  const plain = look(element);
  element.focus({ focusVisible: true, preventScroll: true });
  if (look(element) === plain) unseen.push(element.outerHTML.slice(0, 110));
}
document.activeElement.blur();
before.focus?.({ preventScroll: true });
return unseen;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    started = found_browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.quit()


@pytest.fixture
def opened(browser: webdriver.Chrome, address: str) -> webdriver.Chrome:
    """As with the printed address; the console is empty."""
    browser.get(f"{address}/?token={TOKEN}")
    browser.get_log("browser")
    requests(browser)
    return browser


def until(browser: webdriver.Chrome, script: str, *arguments: object) -> Any:
    """What a script returns, as soon as it returns something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = browser.execute_script(script, *arguments)
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited in vain for: {script}")


def settled(browser: webdriver.Chrome) -> None:
    until(
        browser,
        "return !document.querySelector('[aria-busy=true]') && !document.querySelector('progress:not([hidden])')",
    )


def planned(browser: webdriver.Chrome, change: Callable[[], None]) -> dict[str, str]:
    """Changes something and waits for its plan: the address, the command and the signal-to-noise that are shown."""
    browser.execute_script("document.getElementById('status').textContent = ''")
    change()
    until(browser, "return document.getElementById('status').textContent === 'Planned.'")
    return {
        "query": str(browser.execute_script("return decodeURIComponent(location.search)")),
        "command": str(browser.execute_script("return document.getElementById('command').textContent")),
        "signal": str(browser.execute_script("return document.getElementById('signal')?.textContent")),
    }


def by_id(browser: webdriver.Chrome, name: str) -> WebElement:
    return browser.find_element(By.ID, name)


def press(browser: webdriver.Chrome, *keys: str) -> None:
    ActionChains(browser, duration=0).send_keys(*keys).perform()


PAGES = {
    "overview": "/",
    "plan": f"/plan?{QUICK}",
    "runs": "/runs?run=runs/plain",
    "ledger": "/ledger",
    "deployment": "/deployment",
}


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wrong_with_a_page(opened: webdriver.Chrome, address: str, name: str) -> None:
    """No console message, no foreign request, nothing unnamed, too faint, too wide, or with focus that is not seen."""
    for size, scheme in (("desk", "light"), ("phone", "dark")):
        show(opened, address + PAGES[name], size=size, scheme=scheme)
        if name == "runs":
            until(opened, "return document.querySelector('#curves svg')")
        if name == "overview":
            until(opened, "return document.querySelectorAll('.runs tbody tr').length")
        settled(opened)
        assert opened.get_log("browser") == []
        assert [one for one in requests(opened) if not one.startswith((address, "data:"))] == []
        assert opened.execute_script(FAULTS) == []
        assert opened.execute_script(UNSEEN_FOCUS) == []
        words, low = opened.execute_script(LOW_CONTRAST)
        assert words > 20
        assert low == []
        width = "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
        scrolled, shown = opened.execute_script(width)
        assert scrolled <= shown, (size, scrolled)
        assert opened.execute_script("return innerWidth") == SIZES[size][0]


def test_the_checks_can_fail(opened: webdriver.Chrome, address: str) -> None:
    show(opened, f"{address}/ledger")
    settled(opened)
    opened.execute_script(
        "document.getElementById('main').insertAdjacentHTML('beforeend', '<h4>deep</h4><input><button></button>"
        '<table><tr><td>1</td></tr></table><a href="#" class="x" style="outline:none;border-radius:0">x</a>'
        '<div role="slider" tabindex="3">y</div>\')'
    )
    faults = " ".join(opened.execute_script(FAULTS))
    for word in (
        "no name: <input",
        "no name: <button",
        "from h2 to h4",
        "table without a name",
        "slider without values",
    ):
        assert word in faults
    assert any('class="x"' in one for one in opened.execute_script(UNSEEN_FOCUS))
    opened.get_log("browser")


def test_planning(opened: webdriver.Chrome, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every control changes the state, the link and the command; the numbers are the command line's."""
    show(opened, f"{address}/plan?{QUICK}")
    first = planned(opened, opened.refresh)
    assert first["command"].startswith("gdpfed plan 60@1,90@2,50@6 --method gdpfed --rounds 6")

    def typed(name: str, text: str) -> Callable[[], None]:
        def change() -> None:
            field = by_id(opened, name)
            field.send_keys(Keys.CONTROL, "a")
            field.send_keys(text, Keys.TAB)

        return change

    def slid() -> None:
        by_id(opened, "rounds-slider").send_keys(Keys.ARROW_RIGHT * 20)

    def chosen(selector: str) -> Callable[[], None]:
        return lambda: opened.execute_script("document.querySelector(arguments[0]).click()", selector)

    def method() -> None:
        by_id(opened, "method").send_keys("idp-s")

    after = planned(opened, typed("participation", "0.3"))
    assert "--participation 0.3" in after["command"]
    assert "participation=0.3" in after["query"]
    assert after["signal"] != first["signal"]
    after = planned(opened, slid)
    assert "--rounds 7" in after["command"]
    after = planned(opened, method)
    assert "--method idp-scale" in after["command"]
    after = planned(opened, typed("delta", "1e-5"))
    assert "--delta 1e-05" in after["command"]
    assert "1e-05" in by_id(opened, "answer").text
    after = planned(opened, chosen("#delta-auto"))
    assert "--delta" not in after["command"]
    # What the page shows is what the command prints.
    _, out, _ = call(capsys, *shlex.split(after["command"])[1:], "--json")
    plan = json.loads(out)
    assert after["signal"] == f"{plan['signal_to_noise']:.2f}"
    rates = [f"{100 * group['sampling_rate']:.3f}" for group in plan["groups"]]
    shown = opened.execute_script(
        "return [...document.querySelectorAll('#answer tbody tr')].map((row) => row.textContent)"
    )
    assert all(any(rate in row for row in shown) for rate in rates)
    # The same link is the same state.
    again = planned(opened, lambda: opened.get(opened.current_url))
    assert again == after
    assert by_id(opened, "method").get_attribute("value") == "idp-scale"
    settled(opened)
    assert opened.get_log("browser") == []


def test_the_histogram_is_edited(opened: webdriver.Chrome, address: str) -> None:
    """Bars and borders, by pointer and by keyboard; budgets by text and by a pasted file."""
    show(opened, f"{address}/plan?{QUICK}")
    planned(opened, opened.refresh)
    bars = opened.find_elements(By.CSS_SELECTOR, ".bar[role=slider]")
    assert [bar.get_attribute("aria-valuenow") for bar in bars] == ["60", "90", "50"]
    assert len(opened.find_elements(By.CSS_SELECTOR, ".border")) == 2

    def pressed(part: str, *keys: str) -> Callable[[], None]:
        def change() -> None:
            opened.execute_script("document.querySelector(`[data-part=${arguments[0]}]`).focus()", part)
            press(opened, *keys)

        return change

    after = planned(opened, pressed("bar-0", Keys.ARROW_UP))
    assert "gdpfed plan 70@1,90@2,50@6 " in after["command"]
    after = planned(opened, pressed("border-0", Keys.DELETE))
    assert "--groups 1.0,6.0" in after["command"]
    assert len(opened.find_elements(By.CSS_SELECTOR, ".border")) == 1
    after = planned(opened, pressed("border-0", Keys.ARROW_LEFT))
    assert "--groups 1.0,2.0" in after["command"]

    def dragged(selector: str, x: int, y: int) -> Callable[[], None]:
        def change() -> None:
            knob = opened.find_element(By.CSS_SELECTOR, selector)
            opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", knob)
            ActionChains(opened, duration=10).click_and_hold(knob).move_by_offset(x, y).release().perform()

        return change

    after = planned(opened, dragged(".border .knob", 110, 0))
    assert "--groups 1.0,6.0" in after["command"], "a dragged border"
    after = planned(opened, lambda: by_id(opened, "add-border").click())
    assert "--groups 1.0,2.0,6.0" in after["command"]
    before = after["command"]
    after = planned(opened, dragged("[data-part=bar-2] .handle", 0, -40))
    assert "70@1,90@2,50@6" not in after["command"], "a dragged bar"
    assert before != after["command"]

    def text() -> None:
        field = by_id(opened, "budgets")
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys("40@1,40@4", Keys.TAB)

    assert "gdpfed plan 40@1,40@4 " in planned(opened, text)["command"]

    def paste() -> None:
        opened.execute_script("document.querySelector('#controls details').open = true")
        opened.execute_script(
            "document.getElementById('pasted').value = arguments[0]", "client,epsilon\na,1\nb,1\nc,3\nd,3\ne,3\n"
        )
        opened.execute_script("document.getElementById('paste').click()")

    after = planned(opened, paste)
    assert "gdpfed plan 2@1.0,3@3.0 " in after["command"]
    assert "--delta 0.02" in after["command"]
    assert "Names are left out" in by_id(opened, "paste-status").text
    settled(opened)
    assert opened.get_log("browser") == []


def test_errors_progress_and_the_server(opened: webdriver.Chrome, address: str) -> None:
    show(opened, f"{address}/plan?{QUICK}")
    planned(opened, opened.refresh)
    field = by_id(opened, "budgets")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("nonsense@", Keys.TAB)
    until(opened, "return !document.getElementById('fault').hidden")
    assert "expected" in by_id(opened, "fault").text

    def mended() -> None:
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys("60@1,60@3", Keys.TAB)

    planned(opened, mended)
    assert not by_id(opened, "fault").is_displayed()
    switch = "document.querySelector('[name=against][value=server]').click()"
    after = planned(opened, lambda: opened.execute_script(switch))
    assert "--against server" in after["command"]
    assert by_id(opened, "asking").is_displayed()
    assert int(by_id(opened, "asks").get_attribute("value") or 0) >= 1
    until(opened, "return document.querySelector('#figure-frontier svg')")
    assert "cost least" in by_id(opened, "frontier").text
    settled(opened)
    assert opened.get_log("browser") == []


def test_a_plan_is_saved(opened: webdriver.Chrome, address: str, served: Served) -> None:
    show(opened, f"{address}/plan?{QUICK}")
    planned(opened, opened.refresh)
    name = by_id(opened, "name")
    name.send_keys(Keys.CONTROL, "a")
    name.send_keys("from-page.toml", Keys.ENTER)
    until(opened, "return document.getElementById('saved').textContent.startsWith('Saved')")
    assert (served.folder / "from-page.toml").is_file()
    assert not by_id(opened, "replace-label").is_displayed()
    name.send_keys(Keys.ENTER)
    until(opened, "return document.getElementById('saved').textContent.includes('there already')")
    by_id(opened, "replace").click()
    name.send_keys(Keys.ENTER)
    until(opened, "return document.getElementById('saved').textContent.startsWith('Saved')")
    settled(opened)
    assert opened.get_log("browser") == []


def test_runs_are_live(opened: webdriver.Chrome, address: str, served: Served) -> None:
    task = task_of("gdpfed+")
    run = write_run(served.folder / "runs" / "live", task, level=75, rounds=2)
    show(opened, f"{address}/runs")
    row = (
        "return [...document.querySelectorAll('.runs tbody tr')].find((row) => row.textContent.includes(arguments[0]))"
    )
    until(opened, row, "runs/live")
    box = until(opened, "return document.querySelector('[aria-label=\"Select runs/live\"]')")
    box.click()
    until(opened, "return document.querySelector('#curves svg')")
    write_records(run, records_of(run.plan, seed=1, level=75, rounds=5))
    until(opened, row + "?.textContent.includes('5 of 10')", "runs/live")
    assert box.is_selected(), "the row is the same, and stays selected"
    until(opened, "return document.querySelector('#curves').textContent.includes('after 5 of 10 rounds')")
    opened.find_element(By.CSS_SELECTOR, '[aria-label="Select runs/plain"]').click()
    until(opened, "return document.querySelectorAll('#curves h3').length >= 2")
    assert "run=runs%2Flive&run=runs%2Fplain" in str(by_id(opened, "report").get_attribute("href"))
    until(opened, row + "?.textContent.includes('seed 1')", "<img src=x onerror=alert(1)>")
    assert opened.find_elements(By.CSS_SELECTOR, "main img") == []
    # The keyboard walks along the curves.
    for _ in range(10):
        # While the page takes in what is new its figures are drawn again, and who was in one is out.
        opened.execute_script("document.querySelector('#figure-convergence svg.wide .p')?.focus()")
        first = by_id(opened, "tip").text
        press(opened, Keys.ARROW_RIGHT)
        if "round 1" in first and "round 2" in by_id(opened, "tip").text:
            break
        time.sleep(0.5)
    else:
        pytest.fail(f"the keyboard does not walk along the curve: {first!r}")
    opened.get(str(by_id(opened, "report").get_attribute("href")))
    assert "privacy report" in opened.title
    assert opened.get_log("browser") == []


def test_the_ledger_and_names(opened: webdriver.Chrome, address: str) -> None:
    show(opened, f"{address}/ledger")
    until(opened, "return document.querySelector('[data-population=people]')")
    assert opened.find_elements(By.CSS_SELECTOR, "#clients-answer table") == []
    by_id(opened, "names").send_keys("7, 8", Keys.ENTER)
    until(opened, "return document.querySelectorAll('#clients-answer tbody tr').length === 2")
    opened.execute_script(
        "document.getElementById('rounds').value = '4'; document.getElementById('method').value = 'gdpfed'"
    )
    by_id(opened, "participation").send_keys(Keys.ENTER)
    until(opened, "return document.querySelector('#rest-command')")
    assert "gdpfed ledger plan" in by_id(opened, "rest-command").text
    by_id(opened, "names").send_keys("nobody", Keys.ENTER)
    until(opened, "return document.getElementById('clients-status').textContent.includes('nobody')")
    assert opened.get_log("browser") == []


def test_the_theme_is_kept(opened: webdriver.Chrome, address: str) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    show(opened, f"{address}/deployment", scheme="light")
    light = opened.execute_script(ground)
    by_id(opened, "theme").click()
    dark = opened.execute_script(ground)
    assert dark != light
    show(opened, f"{address}/ledger", scheme="light")
    assert opened.execute_script(ground) == dark
    opened.execute_script("localStorage.clear()")
