"""The page of `yard report` in a real browser: themes, a phone's width, the keyboard, and no error on its console."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from tests.job.test_report import a_run
from tools.cli import invoke

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# A page around the report measures it: the report itself runs no script.
MEASURE = """<!doctype html><iframe src="page.html" width="{width}" height="700"></iframe><pre id="found"></pre><script>
addEventListener("load", () => {{
  const page = document.querySelector("iframe").contentDocument, root = page.documentElement;
  const asked = [...page.querySelectorAll("summary, [tabindex]")];
  const got = asked.filter((one) => {{ one.focus(); return page.activeElement === one; }});
  const charts = [...page.querySelectorAll("svg[role=img]")].map((one) => one.getBoundingClientRect().width);
  const found = [root.scrollWidth, asked.length, got.length, Math.min(...charts)];
  document.querySelector("#found").textContent = found.join(" ");
}});</script>"""


@pytest.fixture(scope="session")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    return found


@pytest.fixture
def page(tmp_path: Path) -> Path:
    runs = [str(a_run(tmp_path / name, rate).path) for name, rate in (("one", 0.1), ("two", 0.2))]
    assert invoke(["report", *runs, "--to", str(tmp_path / "page.html")]) == 0
    return tmp_path / "page.html"


def run(browser: str, *words: str) -> str:
    """Run the browser without a window; return what it prints, and assert that no console has a message."""
    fixed = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")
    done = subprocess.run([browser, *fixed, *words], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    return done.stdout


def corner(picture: bytes) -> tuple[int, ...]:
    """The first pixel of a PNG of 8 bits a colour: of the first row and column, every filter leaves it as it is."""
    data, at = b"", 8
    while at < len(picture):
        length, kind = int.from_bytes(picture[at : at + 4], "big"), picture[at + 4 : at + 8]
        data += picture[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return tuple(zlib.decompress(data)[1:4])


@pytest.mark.parametrize(("theme", "colour"), [(1, (255, 255, 255)), (0, (18, 18, 18))], ids=["light", "dark"])
def test_it_follows_the_theme(browser: str, page: Path, tmp_path: Path, theme: int, colour: tuple[int, ...]) -> None:
    picture = tmp_path / "page.png"
    run(browser, f"--screenshot={picture}", f"--blink-settings=preferredColorScheme={theme}", page.as_uri())
    assert corner(picture.read_bytes()) == colour


@pytest.mark.parametrize("width", [360, 1200])
def test_it_fits_the_screen_and_the_keyboard_reaches_what_scrolls_and_opens(
    browser: str, page: Path, tmp_path: Path, width: int
) -> None:
    around = tmp_path / "around.html"
    around.write_text(MEASURE.format(width=width))
    shown = run(browser, "--allow-file-access-from-files", "--dump-dom", "--virtual-time-budget=5000", around.as_uri())
    found = re.search(r'id="found">([\d. ]+)<', shown)
    assert found is not None, shown
    wide, asked, got, narrowest = map(float, found[1].split())
    assert wide <= width, "nothing is wider than the screen"
    assert asked == got >= 8
    assert narrowest > min(300, width - 60)
