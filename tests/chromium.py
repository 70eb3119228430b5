"""A headless Chromium for tests of pages: Debian's, driven through its own driver."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

__all__ = ["LOW_CONTRAST", "SCHEMES", "SIZES", "found_browser", "requests", "show"]

SIZES = {"phone": (390, 844), "desk": (1440, 900)}
SCHEMES = ("light", "dark")

# Text whose contrast with what lies behind it is below 4.5, as [ratio, words]; hidden text is nobody's.
LOW_CONTRAST = """
const rgb = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const ground = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const colour = rgb(getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const low = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let seen = 0;
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const words = walker.currentNode.textContent.trim();
  if (!words || !element.checkVisibility() || ["SCRIPT", "STYLE", "title"].includes(element.tagName)) continue;
  const style = getComputedStyle(element);
  const colour = element.ownerSVGElement ? style.fill : style.color;
  const [a, b] = [light(rgb(colour)), light(ground(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  seen += 1;
  if (!(ratio >= 4.5)) low.push([ratio, words]);
}
return [seen, low];
"""


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1")


def found_browser(profile: Path) -> webdriver.Chrome:
    """The browser, or a skipped test; in CI a failed one."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        reason = "needs Chromium and its driver: tools/chromium.sh installs them"
        pytest.fail(reason) if in_ci() else pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    # The page of a new tab asks for some eighty files of the browser's own, now or a moment later.
    browser.get("about:blank")
    return browser


def show(
    browser: webdriver.Chrome, address: str, *, size: str = "desk", scheme: str = "light", media: str = ""
) -> None:
    """Opens an address in a window of this size, light or dark."""
    width, height = SIZES[size]
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"media": media, "features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.get(address)


def requests(browser: webdriver.Chrome) -> list[str]:
    """Every address that was asked for since the last call, but for files of the browser's own."""
    messages: list[dict[str, Any]] = [
        json.loads(entry["message"])["message"] for entry in browser.get_log("performance")
    ]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [address for address in asked if not address.startswith("chrome:")]
