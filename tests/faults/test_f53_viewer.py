"""Fault 53 at the viewer: runs and trajectories full of scripts, links, overrides and pictures are inert text there.

The attacks are those that test_f53_hostile_report.py shows to do harm where nothing protects.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.viewer_browser import opened_tab
from evolvent.store.store import Store
from evolvent.trajectory import Annotation, AnnotationTarget, Generation, Score, Step, Task, Trajectory
from tests.faults.test_f53_hostile_report import attacks, counting_server, hostile_run

sys.path.append(str(Path(__file__).parents[1] / "view"))

from html_page import Page
from viewed import viewed

HIDDEN = "\u202e\u2066\u200b\ufeff\x00\x1b\x7f"
NEVER = {"img", "iframe", "object", "base", "image", "foreignobject", "style", "textarea"}


def hostile_folder(folder: Path, texts: list[str]) -> Path:
    """A run whose files, trees, beliefs, tokens and stored episodes are all attacks."""
    run = hostile_run(folder / "x", texts)
    plain = [text.replace("\ud800", "") for text in texts]
    every = " ".join(plain)
    generation = Generation(
        np.arange(4, dtype=np.int32), np.array([False, True, True, True]), np.array([0, -1, -2, -3], np.float32)
    )
    with Store.open(run / "trajectories", writing=True) as store:
        for number, text in enumerate(plain):
            task = Task(text[:60], "1", {"spec": text, "n": number}, text, text[:40], "test")
            steps = (Step(text, text, 1.0, text, (generation,), text, {text: text, "tool_calls": [{"name": text}]}),)
            one = Trajectory(
                f"stage{number}/{task.id}/0",
                task,
                steps,
                every,
                score=Score(1.0, 1.0, True),
                group=text.replace("\x00", ""),
                meta={text: every},
            )
            store.append(one)
            store.annotate(Annotation(one.id, text, AnnotationTarget(0, 0, None, 1), 0.5))
            store.annotate(Annotation(one.id, "step", AnnotationTarget(0), text))
    (run / "trees").mkdir()
    tree = {"parent": [-1, 0], "action": ["", every], "kind": ["", every], "title": every, "ended_by": every}
    row = {"world": every, "task": every, "method": every, "answer": every, "budget": 3, "of": every, "tree": tree}
    (run / "trees" / "a.json").write_text(json.dumps(row))
    (run / "beliefs").mkdir()
    look = {"place": [1, 1], "reading": 1, "mean": [1, 1], "covariance": [[1, 0], [0, 1]], "spread": 1, "particles": []}
    belief = {
        "name": every,
        "ended_by": every,
        "area": [[0, 2], [0, 2]],
        "source": [1, 1],
        "field": [[1.0]],
        "looks": [look],
    }
    (run / "beliefs" / "b.json").write_text(json.dumps(belief))
    return run


def pages_of(server) -> list[str]:
    """Every kind of page, with attacks in the address too."""
    key = server.key("x")
    base = f"/run/{key}"
    rows = json.loads(server.get(f"{base}/rows"))["html"]
    links = [part.partition('"')[0].replace("&amp;", "&") for part in rows.split('href="')[1:]]
    odd = "%22%3E%3Cscript%3Edocument.title='owned'%3C/script%3E"
    return [
        "/",
        f"/?q={odd}",
        "/boards",
        base,
        f"{base}/trajectories",
        f"{base}/trajectories?q={odd}&world={odd}",
        *links,
        *(f"{link}&colour=%40{odd}" for link in links[:1]),
        f"{base}/trees",
        f"{base}/trees?name=a.json",
        f"{base}/beliefs",
        f"{base}/beliefs?name=b",
        f"{base}/load",
        f"/compare?run={key}&which={odd}",
        f"/compare?run={key}&run={key}",
        f"{base}/trajectory?id={odd}",
        f"/nowhere/{odd}",
    ]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    with counting_server() as (elsewhere, asked):
        folder = tmp_path_factory.mktemp("hostile")
        hostile_folder(folder, attacks(elsewhere))
        with viewed(folder) as server:
            yield server, asked


def test_f53_every_page_holds_text_alone(hostile):
    server, _ = hostile
    for path in pages_of(server):
        text = server.client.get(path).text
        page = Page(text)
        assert not NEVER & set(page.tags), path
        assert page.tags.count("script") == 1 and page.tags.count("link") == 2, path
        assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"], path
        addresses = [value or "" for name, value in page.attributes if name in ("href", "src", "action", "data")]
        assert all(one.startswith(("/", "#", "data:,")) and not one.startswith("//") for one in addresses), path
        assert not any(hidden in text for hidden in HIDDEN), path


def test_f53_windows_of_a_list_are_escaped_too(hostile):
    server, _ = hostile
    answer = server.client.get(f"/run/{server.key('x')}/rows")
    assert answer.headers["content-type"] == "application/json"
    page = Page(json.loads(answer.text)["html"])
    assert set(page.tags) <= {"tr", "td", "th", "a", "bdi", "span", "small"}
    assert "<script>document.title='owned'" in page.text


@pytest.mark.browser
def test_f53_in_a_browser_nothing_runs_and_nothing_is_asked_for(hostile, chromium):
    server, asked = hostile
    with opened_tab(chromium) as tab:
        tab.go(server.door)
        for path in pages_of(server):
            tab.go(server.url + path)
            assert tab.value("document.title").endswith(": evolvent"), path
            assert tab.value("document.querySelectorAll('script').length") == 1, path
        tab.go(f"{server.url}/run/{server.key('x')}/trajectories")
        tab.value("document.getElementById('search').focus()")
        tab.type("markdown.png)")
        tab.until("document.getElementById('found').textContent.includes(' of ')")
        assert tab.value("document.querySelectorAll('#rows script, #rows img').length") == 0
        assert "![y](" in tab.value("document.getElementById('rows').innerText")
        tab.press("Enter")
        tab.press("Enter")
        tab.until("!!document.querySelector('.turns')")
        wrong = [one for one in tab.troubles() if "404" not in json.dumps(one) and "400" not in json.dumps(one)]
        own = [url for url in tab.requested() if not url.startswith((server.url, "data:"))]
    assert asked == [] and own == []
    assert wrong == []
