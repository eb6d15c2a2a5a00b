"""Searches as pictures: what is drawn lies where it is, the loop shows every moment once, pages are safe and whole."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from evolvent.belief.comparison import make_chooser, play_episodes
from evolvent.belief.stopping import StdBelow
from evolvent.belief.tracing import concentration_field, trace_episode
from evolvent.errors import ConfigError
from evolvent.trajectory import Start
from evolvent.view.plume import belief_film, belief_map, select_looks
from evolvent.view.seeking import COLUMNS, build_seeking_rows, seeking_page
from evolvent.worlds.plume.world import PlumeWorld

WORLD = PlumeWorld()
START = Start(WORLD.tasks("train", "seen")[0])
HOSTILE = '<script>alert(1)</script>" onload="x\u202e&{{ 7*7 }}'
ROW = {
    "name": "dqn",
    "success": [0.9, 0.8, 0.95],
    "false_cessation": [0.01, 0.0, 0.02],
    "withheld": 1,
    "unfinished": 2,
    "episodes": 30,
    "steps": [40.0, 38.0, 42.0],
    "distance": [40.0, None, None],
    "decision_ms": [0.01, 0.009, 0.011],
}
DATA = {
    "title": "a search",
    "facts": {"Sensor": "s"},
    "learned": ["dqn"],
    "rows": [ROW],
    "curve": [[100.0, 0.1, 0.2, 90.0], [200.0, 0.5, 0.5, 60.0]],
}


@pytest.fixture(scope="module")
def one():
    return trace_episode(
        make_chooser("go_to_mean"), WORLD, START, name="mean", detector=StdBelow(2.5), particles=100, num_particles=30
    )


def drawn(svg):
    return ElementTree.fromstring(str(svg))


def test_a_trace_is_the_episode_that_is_played(one):
    played = play_episodes(
        make_chooser("go_to_mean"), WORLD, [START], name="mean", detector=StdBelow(2.5), particles=100
    )
    (episode,) = played.trajectories
    seen = [[*step.observation[:2], step.observation[3]] for step in episode.steps]
    seen.append([*episode.final_observation[:2], episode.final_observation[3]])
    np.testing.assert_allclose([[*look.position, look.reading] for look in one.looks], seen)
    assert [look.score for look in one.looks[1:]] == [row.value for row in played.scores]
    assert (one.ended_by, one.right) == (episode.ended_by, episode.success)
    source = WORLD.source(START.task)
    assert one.source == (source.x, source.y)
    assert np.hypot(*(one.looks[-1].mean - one.source)) == pytest.approx(episode.meta["error_m"])


def test_particles_stand_for_the_belief(one):
    first = one.looks[0]
    assert first.particles.shape == (30, 2) and first.score is None
    assert ((first.particles >= 0) & (first.particles <= 25)).all()
    last = one.looks[-1]
    assert last.particles.mean(0) == pytest.approx(last.mean, abs=0.5)
    assert last.spread == pytest.approx(np.sqrt(np.trace(last.covariance)), rel=1e-5)
    assert last.spread < first.spread / 2


def test_the_field_lies_as_the_map_does(one):
    field = concentration_field(WORLD, START, cells=25)
    row, column = np.unravel_index(field.argmax(), field.shape)
    assert abs(column + 0.5 - one.source[0]) < 3 and abs(row + 0.5 - one.source[1]) < 3, "rows go north, columns east"
    with pytest.raises(ConfigError, match="cells"):
        concentration_field(WORLD, START, cells=0)


def test_a_map_shows_places_where_they_are(one):
    at = len(one.looks) - 1
    svg = drawn(belief_map(one, at))
    sensor = next(each for each in svg.iter() if each.get("class") == "sensor")
    mean = next(each for each in svg.iter() if each.get("class") == "mean")
    east, north = one.looks[at].position
    assert float(sensor.get("cx")) == pytest.approx(26 + 12 * east, abs=0.06)
    assert float(sensor.get("cy")) == pytest.approx(306 - 12 * north, abs=0.06)
    x, y = map(float, re.match(r"M([\d.-]+) ([\d.-]+)", mean.get("d")).groups())
    assert (x, y) == pytest.approx((26 + 12 * one.looks[at].mean[0], 306 - 12 * one.looks[at].mean[1]), abs=0.06)
    walk = next(each for each in svg.iter() if each.get("class") == "walk")
    assert len(re.findall("[ML]", walk.get("d"))) == len(one.looks)
    dots = next(each for each in svg.iter() if each.get("class") == "particles")
    assert dots.get("d").count("M") == 30
    start = drawn(belief_map(one, 0))
    assert not [each for each in start.iter() if each.get("class") == "walk"], "nothing was walked yet"


def test_the_ellipse_has_the_axes_and_the_turn_of_the_covariance(one):
    look = replace(one.looks[0], covariance=np.array([[2.5, 1.5], [1.5, 2.5]]))  # variances 4 and 1, at 45 degrees
    svg = drawn(belief_map(replace(one, looks=[look]), 0))
    ellipse = next(each for each in svg.iter() if each.get("class") == "sure")
    assert (float(ellipse.get("rx")), float(ellipse.get("ry"))) == (48.0, 24.0), "two deviations of 2 m and 1 m"
    assert ellipse.get("transform").startswith("rotate(-45.0 "), "north-east is up and to the right"


def test_a_film_shows_each_moment_in_turn_and_stays_on_the_last(one):
    text = str(belief_film(one, 3))
    frames = re.findall(
        r'<g class="moment( last)?" style="animation:film-3(-last)? ([\d.]+)s step-end infinite;'
        r'animation-delay:-([\d.]+)s">',
        text,
    )
    shown = select_looks(one, min(60, len(one.looks)))
    assert len(frames) == len(shown) and len({loop for _, _, loop, _ in frames}) == 1
    loop = float(frames[0][2])
    begins = [loop - float(delay) for _, _, _, delay in frames]
    assert begins == pytest.approx([0.22 * i for i in range(len(shown))], abs=0.011)
    assert [last for last, _, _, _ in frames] == [""] * (len(shown) - 1) + [" last"]
    shares = [float(each) for each in re.findall(r"\{opacity:1\}([\d.]+)%", text)]
    assert shares[0] * loop / 100 == pytest.approx(0.22, abs=1e-3)
    assert (len(shown) - 1) * shares[0] + shares[1] == pytest.approx(100, abs=1e-2), "somebody is always shown"
    drawn(text)


def test_moments_are_even_and_whole():
    class Long:
        looks = range(101)

    assert select_looks(Long(), 5) == [0, 25, 50, 75, 100]
    Long.looks = range(1)
    assert select_looks(Long(), 4) == [0]


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen, self.open = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_safe(one):
    hostile = {
        **DATA,
        "title": HOSTILE,
        "learned": [HOSTILE],
        "rows": [{**ROW, "name": HOSTILE}],
        "facts": {HOSTILE: HOSTILE},
    }
    page = seeking_page(hostile, [replace(one, name=HOSTILE)])
    parser = Tags()
    parser.feed(page)
    assert not parser.open
    assert not [tag for tag, _ in parser.seen if tag in ("script", "img", "a", "iframe", "link")]
    assert not [name for _, attrs in parser.seen for name in attrs if name.startswith("on")]
    assert "\u202e" not in page and "49" not in re.findall(r"<h1>.*</h1>", page)[0]
    policy = next(
        attrs["content"] for tag, attrs in parser.seen if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")


def test_the_page_tells_every_figure(one):
    page = seeking_page(DATA, [one])
    for told in ("90.0", "80.0 to 95.0", "10.0", "40.0", "38.0 to 42.0", "0.0100", f"{len(one.looks) - 1} steps"):
        assert told in page, told
    empty = seeking_page({**DATA, "curve": []})
    assert "Learning" not in empty and "Episodes</h2>" not in empty
    (cells,) = build_seeking_rows([ROW])
    assert len(cells) == len(COLUMNS) and cells[1:4] == ("90.0", "80.0 to 95.0", "1.0")
    assert build_seeking_rows([{**ROW, "success": None}])[0][1] == "–", "no truth, no rate"
