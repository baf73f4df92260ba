"""The page in a real browser: drawn, photographed, used by keyboard, in light and dark, on a phone; names stay text."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from patience import patience
from repository import SOURCE

pytest.importorskip("fastapi", reason="needs hemiola[serve]")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
from journal_helpers import OPENING, ended
from web_helpers import EVIL, Scene, busy, job, scene, topology

from hemiola.core.decisions import Placement
from hemiola.core.events import Adopted, Arrived, Finished, Timer
from hemiola.live.journal import Journal
from hemiola.trace.topologies.native import topology_text

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="no browser: install chromium"),
]
DRAWN = "body[data-snapshot]"
STATIC = SOURCE / "hemiola/live/web/static"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("web")) as found:
        busy(found)
        yield found


class Tab:
    """A page that is open.

    Attributes:
        complaints: what its console said, and requests to anybody else.
    """

    def __init__(
        self, browser: Any, url: str, scheme: str = "light", width: int = 1280, height: int = 900
    ) -> None:
        self.page = browser.new_page(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
        )
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append("dialog"), dialog.dismiss()))
        self.page.on(
            "request",
            lambda request: None if request.url.startswith(url) else self.complaints.append(request.url),
        )
        self.page.goto(url)

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()

    def focused(self) -> str:
        return self.page.evaluate(
            "document.activeElement.dataset.key || document.activeElement.id || document.activeElement.className"
        )  # type: ignore[no-any-return]


def rgb(text: str) -> list[int]:
    return [int(part) for part in text.removeprefix("rgb(").removesuffix(")").split(",")]


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
)
def test_the_page_is_drawn_and_photographed(
    here: Scene, browser: Any, tmp_path: Path, scheme: str, width: int
):
    with Tab(browser, here.url, scheme, width) as tab:
        page = tab.page
        page.wait_for_selector(DRAWN)
        picture = page.screenshot(path=tmp_path / f"{scheme}-{width}.png", full_page=True)
        assert picture.startswith(b"\x89PNG") and len(picture) > 30_000
        assert tab.complaints == []
        assert page.evaluate("document.documentElement.scrollWidth") == width, "it does not scroll sideways"
        paper = rgb(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        ink = rgb(page.evaluate("getComputedStyle(document.body).color"))
        assert (sum(paper) > sum(ink)) == (scheme == "light") and abs(sum(paper) - sum(ink)) > 400
        assert page.locator("#cluster .host").count() == 8 and page.locator("#cluster .rack").count() == 2
        assert page.locator("#gantt rect.stint").count() >= 7, "a bar per job and host"
        assert page.locator("#running-body tbody tr").count() == 5
        assert page.locator("#queue-body tbody tr").count() == 4


def test_what_is_seen_is_what_the_api_says(here: Scene, browser: Any):
    with Tab(browser, here.url) as tab:
        page = tab.page
        page.wait_for_selector(DRAWN)
        assert (
            page.locator("#figures")
            .inner_text()
            .replace("\n\n", "\n")
            .startswith("50 of 64 GPUs used\n50 used, 2 free, 4 not ours, 8 down")
        )
        assert "it wants 8 GPUs, and 2 are free: 6 short" in page.locator("#queue-body").inner_text()
        uplink = next(link for link in here.get("links")["items"] if link["name"] == "rack r0 uplink")
        share = round(100 * uplink["predicted_bytes_per_s"] / uplink["capacity_bytes_per_s"])
        assert f"({share} %)" in page.locator(".rack-head").first.inner_text()
        assert "predicted" in page.locator(".rack-head .bar").first.get_attribute("aria-label")
        assert page.locator("#decisions-body tbody tr").count() == 3


def test_names_are_text_wherever_they_stand(here: Scene, browser: Any):
    with Tab(browser, here.url) as tab:
        page = tab.page
        page.wait_for_selector(DRAWN)
        page.locator("#running-body button", has_text=EVIL).click()
        assert page.locator("#h-job").inner_text() == EVIL
        assert page.locator("body script").count() == 0 and page.locator("svg script").count() == 0
        assert tab.complaints == []


def test_a_job_is_chosen_and_left_by_keyboard(here: Scene, browser: Any):
    with Tab(browser, here.url) as tab:
        page = tab.page
        page.wait_for_selector(DRAWN)
        page.keyboard.press("/")
        assert tab.focused() == "filter"
        page.keyboard.type("GPT-PRE")
        assert page.locator("#running-body tbody tr").count() == 1
        for _ in range(6):
            page.keyboard.press("Tab")
            if tab.focused() == "running a":
                break
        assert tab.focused() == "running a"
        page.keyboard.press("Enter")
        assert page.locator("#h-job").inner_text() == "gpt-pretrain"
        assert (
            "rack r0 uplink" in page.locator("#job-body").inner_text()
            and "gpt-ablation" in page.locator("#job-body").inner_text()
        )
        assert (
            page.locator("#cluster button.chosen").count() == 3
            and page.locator("#gantt rect.chosen").count() == 3
        )
        assert page.locator('button[data-key="running a"]').get_attribute("aria-pressed") == "true"
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", "one sees where the focus is"
        page.keyboard.press("Escape")
        assert page.locator(".chosen").count() == 0


def test_every_picture_and_control_has_words(here: Scene, browser: Any):
    with Tab(browser, here.url) as tab:
        page = tab.page
        page.wait_for_selector(DRAWN)
        pictures = page.locator('[role="img"], svg').all()
        assert len(pictures) > 10 and all(picture.get_attribute("aria-label") for picture in pictures)
        hosts = page.locator("#cluster .hidden").all_inner_texts()
        assert hosts[0] == "n0: 8 GPUs job gpt-pretrain" and hosts[7] == "n7: 8 GPUs down"
        assert hosts[5] == f"n5: 4 GPUs job {EVIL}, 4 GPUs not ours"
        nameless = page.evaluate(
            """[...document.querySelectorAll('button:not([aria-hidden]), input, select')]
               .filter(e => !e.textContent.trim() && !e.labels?.length && !e.ariaLabel).length"""
        )
        assert nameless == 0
        assert page.evaluate("document.documentElement.lang") == "en"


def test_the_page_follows_what_happens_and_keeps_the_focus(tmp_path: Path, browser: Any):
    with scene(tmp_path) as here:
        here.happen(Arrived(time.time(), job("a", 8)))
        with Tab(browser, here.url) as tab:
            page = tab.page
            page.wait_for_selector('button[data-key="running a"]')
            page.locator('button[data-key="running a"]').focus()
            here.happen(Arrived(time.time(), job("b", 8)))
            page.wait_for_selector('button[data-key="running b"]', timeout=patience(8000))
            assert tab.focused() == "running a"
            here.happen(Finished(time.time(), "b"))
            page.wait_for_selector('button[data-key="ended b"]', timeout=patience(8000))
            assert tab.complaints == []


def test_a_page_that_nobody_sees_asks_nothing_until_it_is_shown(tmp_path: Path, browser: Any):
    hide = "document.dispatchEvent((Object.defineProperty(document, 'hidden', { configurable: true, value: %s }), new Event('visibilitychange')))"
    with scene(tmp_path) as here, Tab(browser, here.url) as hidden, Tab(browser, here.url) as seen:
        for tab in hidden, seen:
            tab.page.wait_for_selector(DRAWN)
        hidden.page.evaluate(hide % "true")
        asked: list[str] = []
        hidden.page.on("request", lambda request: asked.append(request.url))
        for name in ("a", "b"):
            here.happen(Arrived(time.time(), job(name, 8)))
            seen.page.wait_for_selector(f'button[data-key="running {name}"]', timeout=patience(8000))
        assert asked == []
        hidden.page.evaluate(hide % "false")
        hidden.page.wait_for_selector('button[data-key="running b"]', timeout=patience(8000))
        assert len(asked) == 9, "once"


def test_the_page_asks_for_a_token_and_keeps_it_in_the_tab(tmp_path: Path, browser: Any):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"view {'v' * 24}\n")
    tokens.chmod(0o600)
    with scene(tmp_path, tokens=tokens) as here:
        here.happen(Arrived(time.time(), job("a", 8)))
        with Tab(browser, here.url) as tab:
            page = tab.page
            page.wait_for_selector("#token:not([hidden])")
            assert (
                page.locator("#main").is_hidden() and page.evaluate("document.activeElement.name") == "token"
            )
            page.keyboard.type("wrong-wrong-wrong-wrong")
            page.keyboard.press("Enter")
            page.get_by_text("this token is not known").wait_for()
            page.locator("#token input").fill("v" * 24)
            page.keyboard.press("Enter")
            page.wait_for_selector('button[data-key="running a"]')
            assert page.locator("#token").is_hidden()
            page.reload()
            page.wait_for_selector('button[data-key="running a"]')
            assert page.evaluate("localStorage.length") == 0 and page.evaluate("document.cookie") == ""


def test_the_page_says_that_the_server_is_gone_and_comes_back(tmp_path: Path, browser: Any):
    with scene(tmp_path) as here, Tab(browser, here.url) as tab:
        here.happen(Arrived(time.time(), job("a", 8)))
        tab.page.wait_for_selector(DRAWN)
        tab.page.route("**/api/**", lambda route: route.abort())
        here.happen(Arrived(time.time(), job("b", 8)))
        tab.page.get_by_text("The server cannot be asked").wait_for(timeout=patience(8000))
        tab.page.unroute("**/api/**")
        here.happen(Arrived(time.time(), job("c", 8)))
        tab.page.wait_for_selector('button[data-key="running c"]', timeout=patience(15000))
        assert tab.page.locator("#warnings").inner_text() == ""


def test_who_runs_is_shown_however_many_wait_before(tmp_path: Path, browser: Any):
    """The API gives at most 1,000 jobs at a time, in order of arrival."""
    with scene(tmp_path) as here:
        now_s = time.time()
        many = [Arrived(now_s, job(f"w{i}", 64, age_s=60.0)) for i in range(1001)]
        here.happen(*many, Adopted(now_s, job("late", 8), Placement((0,), (0xFF,)), now_s))
        with Tab(browser, here.url) as tab:
            page = tab.page
            page.wait_for_selector('button[data-key="running late"]')
            assert page.locator("#gantt rect.stint").count() == 1
            assert "want 64,064 GPUs" in page.locator("#figures").inner_text()
            queue = page.locator("#queue-body")
            assert "801 more jobs not shown; the API has them." in queue.inner_text()
            page.locator("#filter").fill("w999")
            assert queue.inner_text().endswith("\n1 job not looked through; the API has them.")
            assert tab.complaints == []


def test_the_gantt_chart_draws_what_ran_and_says_what_it_leaves_out(tmp_path: Path, browser: Any):
    """A job that the engine put back has waited in between; many more have ended."""
    ended_s = time.time() - 600.0
    began_s = ended_s - 36_000.0
    back = ended(
        "back", began_s, placement=Placement((0,), (0b11,)), first_started_s=began_s, served_s=7200.0, since_s=ended_s,
        ended_s=ended_s,
    )  # fmt: skip
    with Journal.open(tmp_path / "journal.db") as journal:
        epoch = journal.lead("before", began_s, 10.0)
        opening = msgspec.structs.replace(OPENING, topology=topology_text(topology()))
        run = journal.begin_run(epoch, opening, began_s)
        before = [ended(f"j{i}", began_s - 60.0) for i in range(300)]
        journal.record_events(run, 1, [Timer(ended_s, "")], [back, *before])
        journal.end_run(run, "asked to stop", ended_s)
        journal.resign(epoch)
    with scene(tmp_path) as here, Tab(browser, here.url) as tab:
        tab.page.wait_for_selector(DRAWN)
        title = tab.page.locator('#gantt rect[data-job="back"] title').text_content()
        assert title.endswith(", 2 h"), title
        about = tab.page.locator("#gantt-about").inner_text()
        assert about.endswith("only the 300 jobs submitted last are drawn.")


def test_the_files_need_no_network_and_no_build():
    for file in STATIC.iterdir():
        text = file.read_text()
        found = text.replace("http://www.w3.org/2000/svg", "")
        assert (
            "http://" not in found
            and "https://" not in found
            and "innerHTML" not in found
            and "eval(" not in found
        ), file.name
