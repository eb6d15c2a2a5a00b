"""The viewer in Chromium: 100,000 trajectories, keys, clicks, a run that goes on, light and dark, without script."""

from __future__ import annotations

import json
import struct
import time
import zlib

import pytest
from test_viewer_pages import played, stored
from viewed import viewed

from benchmarks.viewer_browser import opened_tab
from benchmarks.viewer_runs import sealed_run
from evolvent.cli.main import main
from evolvent.store.store import Store
from tests.view.fabricated import write_run
from tests.view.practised import write_practice
from tests.view.searched_run import write_searches
from tests.view.trained import write_training

pytestmark = pytest.mark.browser
MANY = 100_000


@pytest.fixture(scope="module")
def browser(chromium):
    with opened_tab(chromium) as tab:
        yield tab


@pytest.fixture
def tab(browser):
    """The one page, its events forgotten; whatever a test does, no script fails and nothing is asked of others."""
    browser.events.clear()
    browser.shape(1280, 900)
    yield browser
    assert browser.troubles() == []
    asked = [url for url in browser.requested() if not url.startswith(("http://127.0.0.1:", "data:", "file:"))]
    assert asked == []
    browser.go("about:blank")


def corner(picture):
    """The colour of the first pixel of a PNG: before it there is nothing that a filter could add."""
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    at, data = 8, b""
    while at < len(picture):
        (size,), kind = struct.unpack(">I", picture[at : at + 4]), picture[at + 4 : at + 8]
        data += picture[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    return tuple(zlib.decompress(data)[1:4])


def shown(tab):
    return tab.value("[...document.querySelectorAll('#rows tr[data-row]')].map(r => Number(r.dataset.place))")


def focused(tab):
    return tab.value("document.activeElement.closest('tr')?.dataset.place")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    sealed_run(folder / "large", MANY, tokens=3)
    with viewed(folder) as server:
        yield server


def test_a_hundred_thousand(tab, many):
    tab.go(many.door)
    assert many.door not in tab.value("location.href"), "the token is gone from the address"
    tab.click(".runs th a")
    tab.until("!!document.querySelector('.scripted .tabs')")
    tab.click(".tabs a[href$='/trajectories']")
    tab.until("document.getElementById('found')?.textContent === '100,000'")
    assert tab.value("document.querySelector('.rows').getAttribute('aria-rowcount')") == str(MANY + 1)
    assert 20 < len(shown(tab)) <= 400, "only what is near stands in the page"
    high = tab.value("document.getElementById('viewport').scrollHeight")
    assert abs(high - MANY * 36) < 200

    tab.value("document.getElementById('viewport').scrollTop = 50000 * 36")
    tab.until("!!document.querySelector('tr[data-place=\"50010\"]')")
    top = tab.value("document.querySelector('tr[data-place=\"50010\"]').getBoundingClientRect().top")
    assert 0 < top < 900 and 20 < len(shown(tab)) <= 400

    tab.press("G")
    tab.until("document.activeElement.closest('tr')?.dataset.place === '99999'")
    tab.press("k")
    tab.until("document.activeElement.closest('tr')?.dataset.place === '99998'")

    tab.press("/")
    tab.type("Chrysalis")
    tab.until("document.getElementById('found').textContent === '1,000 of 100,000'")
    assert "q=Chrysalis" in tab.value("location.search")
    tab.press("Enter")
    tab.until("document.activeElement.closest('tr')?.dataset.place === '0'")
    tab.press("j")
    tab.until("document.activeElement.closest('tr')?.dataset.place === '1'")
    tab.press("Enter")
    tab.until("!!document.querySelector('.scripted .turns')")
    first = tab.value("location.href")
    assert "chrysalis" in tab.value("document.querySelector('.turns').innerText")
    tab.press("n")
    tab.until(f"location.href !== {json.dumps(first)} && !!document.querySelector('.scripted .turns')")
    assert "chrysalis" in tab.value("document.querySelector('.turns').innerText")
    tab.press("u")
    tab.until("document.getElementById('found')?.textContent === '1,000 of 100,000'")
    assert tab.value("document.getElementById('search').value") == "Chrysalis"


def test_a_filter_and_an_order_by_hand(tab, many):
    tab.go(many.door)
    tab.go(f"{many.url}/run/{many.key('large')}/trajectories")
    tab.until("document.getElementById('found').textContent === '100,000'")
    tab.value(
        "const s = document.querySelector('select[name=outcome]'); s.value = 'unscored';"
        "s.dispatchEvent(new Event('change', { bubbles: true }))"
    )
    tab.until("document.getElementById('found').textContent === '2,000 of 100,000'")
    tab.value("document.querySelector('select[name=sort]').value = 'length-'")
    tab.value("document.querySelector('select[name=sort]').dispatchEvent(new Event('change', { bubbles: true }))")
    tab.until("location.search.includes('sort=length-')")
    tab.until("document.querySelector('#rows tr[data-row] td:nth-child(5)').textContent === '8'")


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path / "first", rounds=1, tasks=20)
    write_run(tmp_path / "second", rounds=1, tasks=20, seed=1)
    stored(tmp_path / "stored", [played(f"s/{n}/0", steps=4) for n in range(120)])
    with viewed(tmp_path) as server:
        yield server


def test_runs_are_marked_by_keys_and_compared(tab, runs):
    tab.go(runs.door)
    tab.until("document.querySelectorAll('.runs [data-row]').length === 3")
    for key in ("j", "x", "j", "j", "x"):
        tab.press(key)
    assert tab.value("document.querySelectorAll('.runs input:checked').length") == 2
    tab.press("g")
    assert tab.value("[...document.querySelectorAll('.runs [data-row]')].findIndex(r => r.matches('.at'))") == 0
    tab.click(".actions button")
    tab.until("document.querySelector('.scripted h1')?.innerText === 'Two runs'")
    assert tab.value("document.querySelectorAll('svg.chart').length") >= 3
    tab.press("u")
    tab.until("location.pathname === '/'")


def test_help_and_the_theme(tab, runs):
    tab.go(runs.door)
    tab.press("?")
    assert tab.value("document.getElementById('help').open") is True
    tab.press("j")
    assert tab.value("document.querySelector('.at')") is None, "behind the dialog nothing moves"
    tab.press("Escape")
    tab.until("!document.getElementById('help').open")
    light = corner(tab.picture())
    tab.shape(1280, 900, dark=True)
    dark = corner(tab.picture())
    assert min(light) > 230 and max(dark) < 40, "the system's choice"
    tab.shape(1280, 900)
    tab.press("t")
    tab.until("document.documentElement.matches('.scripted[data-theme=dark]')")
    assert corner(tab.picture()) == dark, "the reader's choice, on a light system"
    tab.go(f"{runs.url}/boards")
    assert tab.value("document.documentElement.dataset.theme") == "dark"
    tab.shape(1280, 900, dark=True)
    tab.press("t")
    tab.until("document.documentElement.matches('.scripted[data-theme=light]')")
    assert corner(tab.picture()) == light
    tab.press("t")
    tab.until("!document.documentElement.dataset.theme")


def test_a_run_that_goes_on(tab, runs, tmp_path):
    tab.go(runs.door)
    key = runs.key("stored")
    tab.go(f"{runs.url}/run/{key}/trajectories")
    tab.until("document.getElementById('found').textContent === '120'")
    tab.value("window.same = true")
    with Store.open(tmp_path / "stored" / "trajectories", writing=True) as store:
        store.append(played("s/later/0"))
        store.flush()
        tab.until("document.getElementById('found').textContent === '121'")
    assert tab.value("window.same") is True, "not loaded anew"
    assert tab.value("document.getElementById('live').innerText") == "live"


def test_what_is_unfolded_stays_so(tab, runs, tmp_path):
    tab.go(runs.door)
    key = runs.key("first")
    tab.go(f"{runs.url}/run/{key}")
    last = "[...document.querySelectorAll('[data-part] details')].at(-1)"
    tab.value(f"{last}.open = true, window.same = true")
    info = tmp_path / "first" / "run.json"
    info.write_text(info.read_text().replace("evolve-crafting-lookup", "another name"))
    tab.until("document.querySelector('h1').innerText === 'another name'")
    assert tab.value(f"window.same && {last}.open") is True


def test_a_viewer_that_is_gone_is_told_of(tab, tmp_path):
    write_run(tmp_path / "first", rounds=1, tasks=4)
    with viewed(tmp_path) as server:
        tab.go(server.door)
    tab.until("document.getElementById('live').innerText === 'the viewer does not answer'")
    tab.events.clear()  # what failed to load was meant to


def test_colours_are_switched_by_a_key(tab, tmp_path):
    one = played("s/t/0")
    tokens = [{"text": "boss", "logp": -0.1, "advantage": 1.0, "return": 1.0, "value": 0.5, "learned": True}]
    row = {"iteration": 1, "episodes": [{"trajectory": one.id, "turns": [{"step": 1, "tokens": tokens}]}]}
    (stored(tmp_path / "rl", [one]) / "credit.json").write_text(json.dumps([row]))
    with viewed(tmp_path) as server:
        tab.go(server.door)
        tab.go(f"{server.url}/run/{server.key('rl')}/trajectory?id={one.id}")
        for label in ("credit", "value", "log-probability"):
            tab.press("c")
            told = f"document.querySelector('#colours [aria-current]')?.innerText === '{label}'"
            tab.until(f"{told} && document.documentElement.matches('.scripted')")
        tab.press("j")
        tab.press("j")
        assert tab.value("document.querySelector('.turns .at').id") == "turn-2"


def test_without_the_script_lists_have_pages(tab, runs):
    tab.go(runs.door)
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.call("Page.navigate", url=f"{runs.url}/run/{runs.key('stored')}/trajectories")
        end = time.monotonic() + 60
        while "later" not in (text := visible(tab)) and time.monotonic() < end:
            time.sleep(0.05)
        assert "1 to 100" in text and "later" in text and "Search" in text
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


def visible(tab):
    """What the page says, asked of the browser itself: the page may run nothing. Nothing while it is being left."""
    try:
        root = tab.call("DOM.getDocument")["root"]["nodeId"]
        nodes = [tab.call("DOM.querySelector", nodeId=root, selector=one)["nodeId"] for one in ("#pager", "#filters")]
        return "".join(tab.call("DOM.getOuterHTML", nodeId=node)["outerHTML"] for node in nodes if node)
    except RuntimeError:
        return ""


@pytest.mark.parametrize("width", [390, 820, 1600])
def test_no_page_is_wider_than_its_window(tab, runs, width):
    tab.go(runs.door)
    tab.shape(width, 844)
    base, first, second = (f"/run/{runs.key(name)}" for name in ("stored", "first", "second"))
    pages = (
        "/",
        "/boards",
        first,
        f"{base}/trajectories",
        f"{base}/trajectory?id=s/1/0",
        f"{first}/load",
        f"/compare?run={first[5:]}&run={second[5:]}",
    )
    for page in pages:
        tab.go(runs.url + page)
        assert tab.value("document.documentElement.scrollWidth") <= width, page


@pytest.mark.parametrize("write", [write_run, write_practice, write_searches, write_training])
@pytest.mark.parametrize("width", [390, 1600])
def test_no_report_is_wider_than_its_window(tab, tmp_path, capsys, width, write):
    write(tmp_path / "run")
    assert main(["view", str(tmp_path / "run")]) == 0
    tab.shape(width, 844)
    tab.go((tmp_path / "run/report.html").as_uri())
    assert tab.value("document.querySelectorAll('h2').length") > 1
    assert tab.value("document.documentElement.scrollWidth") <= width
