"""The page of a sequence policy: what was asked and earned, pictures of episodes, nothing from outside."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.store.episodes import concatenate_episodes
from evolvent.view.sequence_strips import draw_best_and_worst, draw_frames, draw_maze_path
from evolvent.view.sequences import sequence_page
from evolvent.worlds.stitching import Stitching, demonstrations
from tests.sequence_support import ragged

DATA = {
    "title": "Decision Transformer on <b>cartpole",
    "facts": {"World": "cartpole", "Seed": "0"},
    "random": 20.0,
    "expert": 500.0,
    "data": [10.0, 100.0, 400.0],
    "played": [30.0, 50.0, 90.0],
    "history": [{"update": 10.0, "loss": 0.7}, {"update": 20.0, "loss": 0.5}],
    "rows": [
        {"asked": asked, "returns": [asked - 5, asked + 7], "mean": asked + 1, "score": 12.34}
        for asked in (100.0, 200.0)
    ],
}


def test_the_page_holds_its_numbers():
    page = sequence_page(DATA, [("An episode", "<svg></svg>")])
    assert "<b>cartpole" not in page and "&lt;b&gt;cartpole" in page and "<script" not in page
    for text in (
        "101.00",
        "95.00 to 107.00",
        "12.34",
        'id="asked"',
        'id="learning"',
        'id="episodes"',
        "as asked",
        "best in the data",
        "played online",
    ):
        assert text in page
    plain = {**DATA, "played": [], "history": [], "rows": [{**DATA["rows"][0], "asked": None}]}
    page = sequence_page(plain)
    assert 'id="asked"' not in page and 'id="learning"' not in page and 'id="episodes"' not in page and "–" in page


def test_a_path_in_the_maze():
    """A to P: two steps to the left of A, which stands in the third column."""
    data = demonstrations(Stitching(), copies=1).select([0])
    ((title, picture),) = draw_best_and_worst("stitching", data)
    assert "return 2.00 after 2 steps" in title
    assert 'points="90,18 54,18 18,18"' in picture and 'cx="18" cy="18"' in picture
    assert all(f">{mark}<" in picture for mark in "APDGC") and picture.count("<rect") == Stitching().cells


def test_moments_of_a_pole():
    seen = np.zeros((21, 4), np.float32)
    seen[-1] = [2.4, 0, np.pi / 2, 0]  # at the end of the track, the pole lying to the right
    picture = draw_frames("cartpole", seen, title="a pole")
    assert picture.count("<text") == 8 and ">step 0<" in picture and ">step 20<" in picture
    assert 'x1="0.000" y1=".55" x2="0.000" y2="-0.650"' in picture, "it begins upright"
    assert 'x1="1.000" y1=".55" x2="2.200" y2="0.550"' in picture
    assert 'x2="-0.000" y2="-1.150"' in draw_frames("pendulum", np.array([[1, 0, 0]], np.float32), title="upright")
    assert 'x2="-1.150"' in draw_frames("pendulum", np.array([[0, 1, 0]], np.float32), title="to the left")
    with pytest.raises(ConfigError):
        draw_frames("hopper", seen, title="none")


def test_the_best_and_the_worst_are_drawn():
    data = concatenate_episodes([ragged(4, 3, observation=4, dim=1)])
    found = draw_best_and_worst("cartpole", data)
    assert [title.partition(":")[0] for title, _ in found] == ["The best of these episodes", "The worst"]
    assert draw_best_and_worst("hopper", data) == []
    assert len(draw_best_and_worst("cartpole", data.select([0]))) == 1
    assert draw_maze_path(np.eye(11, dtype=np.float32)[:1], title="one").count("<circle") == 1


def test_a_title_is_text():
    for picture in (
        draw_frames("cartpole", np.zeros((2, 4), np.float32), title="<script>\u202e"),
        draw_maze_path(np.eye(3, dtype=np.float32), title="<script>\u202e"),
    ):
        assert "<script" not in picture and "&lt;script&gt;[U+202E]" in picture
