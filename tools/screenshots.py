"""Pictures of `gdpfed serve` for the documentation, from a real server.

python tools/screenshots.py FOLDER [--out docs/img]

FOLDER has runs (`make run` makes them), and may have a ledger and a server's home beside them (--ledger, --deployment).
Writes serve-PAGE.png for every page, in light; with --all also in dark, and as a phone shows it. Needs Chromium
(tools/chromium.sh) and the extra dev.
"""

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from selenium import webdriver  # noqa: E402 - found by the line above
from tests.chromium import SIZES, found_browser, show  # noqa: E402

PATIENCE = 300.0
IDLE = "return !document.querySelector('[aria-busy=true], progress:not([hidden])')"
# Of each page: its address, what to do first, and what must be there before it is shown.
PAGES = {
    "overview": ("/", "", "[...document.querySelectorAll('.plan-facts')].every((p) => p.textContent.includes(':'))"),
    "plan": (
        "/plan?source=500@0.8,300@2,200@5&method=pooled&rounds=100&participation=0.05",
        "",
        "document.querySelector('#compare svg')",
    ),
    "server": (
        "/plan?source=fmnist&method=pooled&against=server",
        "document.getElementById('frontier-title').scrollIntoView()",
        "document.querySelector('#frontier svg')",
    ),
    "runs": (
        "/runs",
        "[...document.querySelectorAll('.runs input')].forEach((box) => box.click())",
        "document.querySelector('#curves svg')",
    ),
    "ledger": ("/ledger", "", "document.querySelector('h1')"),
    "deployment": ("/deployment", "", "document.querySelector('h1')"),
}


def wait(browser: webdriver.Chrome, script: str) -> None:
    """Until the script returns something."""
    end = time.monotonic() + PATIENCE
    while not browser.execute_script(script):
        if time.monotonic() > end:
            raise SystemExit(f"waited in vain for: {script}")
        time.sleep(0.2)


def picture(browser: webdriver.Chrome, path: Path, *, size: str, whole: bool) -> None:
    """What the window shows, or the whole page."""
    height = browser.execute_script("return document.documentElement.scrollHeight") if whole else SIZES[size][1]
    top = 0 if whole else browser.execute_script("return scrollY")
    clip = {"x": 0, "y": top, "width": SIZES[size][0], "height": min(height, 4000), "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    path.write_bytes(base64.b64decode(taken["data"]))


def main() -> None:
    """Starts a server, opens every page, ends the server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--deployment", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img")
    parser.add_argument("--only", nargs="+", default=list(PAGES), choices=list(PAGES))
    parser.add_argument("--all", action="store_true", help="also dark, and on a phone; whole pages")
    asked = parser.parse_args()
    command = [sys.executable, "-m", "gdpfed", "serve", str(asked.folder), "--no-browser", "--port", "0", "--json"]
    for name in ("ledger", "deployment"):
        command += [f"--{name}", str(getattr(asked, name))] if getattr(asked, name) else []
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own command
    try:
        text = ""
        while "}" not in text:
            text += server.stdout.readline() if server.stdout else ""
        address = json.loads(text)["address"]
        asked.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as profile:
            browser = found_browser(Path(profile))
            try:
                browser.get(address)
                looks = [("desk", "light"), ("desk", "dark"), ("phone", "light")] if asked.all else [("desk", "light")]
                for name in asked.only:
                    path, first, ready = PAGES[name]
                    for size, scheme in looks:
                        show(browser, address.partition("/?")[0] + path, size=size, scheme=scheme)
                        wait(browser, "return document.querySelector('main h1')")
                        if name == "runs":
                            wait(browser, "return document.querySelector('.runs input')")
                            browser.execute_script(first)
                        wait(browser, f"return {ready}")
                        wait(browser, IDLE)
                        if name != "runs" and first:
                            browser.execute_script(first)
                        time.sleep(0.5)
                        suffix = f"-{size}-{scheme}" if asked.all else ""
                        target = asked.out / f"serve-{name}{suffix}.png"
                        picture(browser, target, size=size, whole=asked.all)
                        sys.stdout.write(f"{target}\n")
            finally:
                browser.quit()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
