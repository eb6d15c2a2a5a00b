"""Strips of frames: well-formed, the right moments, nothing of anybody else's text as markup."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.view.teams import draw_strip
from evolvent.worlds.teams.base import Mark, Scene
from evolvent.worlds.teams.particles import ParticleWorld

SVG = "{http://www.w3.org/2000/svg}"


def scene(x: float) -> Scene:
    return Scene((0.0, 0.0, 4.0, 4.0), (Mark("circle", x, 1.0, 0.5, "agent"), Mark("square", 2.0, 3.0, 0.25, "wall")))


def test_moments_from_first_to_last():
    root = ET.fromstring(draw_strip([scene(k) for k in range(11)], num_frames=3))
    assert [text.text for text in root.iter(f"{SVG}text")] == ["step 0", "step 5", "step 10"]
    frames = root.findall(f"{SVG}svg")
    assert [frame.get("viewBox") for frame in frames] == ["0 0 4 4"] * 3
    assert [frame.find(f"{SVG}circle").get("cx") for frame in frames] == ["0", "5", "10"]
    wall = frames[0].findall(f"{SVG}rect")[1]
    assert [wall.get(name) for name in ("x", "y", "width", "height")] == ["1.75", "2.75", "0.5", "0.5"]


def test_fewer_scenes_than_frames():
    root = ET.fromstring(draw_strip([scene(0), scene(1)], num_frames=8))
    assert len(root.findall(f"{SVG}svg")) == 2


def test_a_title_is_text():
    root = ET.fromstring(draw_strip([scene(0)], title='</title><script>x</script> \u202e & "'))
    assert root.find(f"{SVG}title").text == '</title><script>x</script> [U+202E] & "' and not list(
        root.iter(f"{SVG}script")
    )


def test_a_world_that_is_played():
    world = ParticleWorld("spread")
    batch = world.batch([world.task(3, 0)], 1)
    batch.reset([0])
    scenes = [batch.scene(0)]
    batch.step(np.ones((1, 3, 2)))
    root = ET.fromstring(draw_strip([*scenes, batch.scene(0)]))
    assert len(list(root.iter(f"{SVG}circle"))) == 6 and len(list(root.iter(f"{SVG}rect"))) == 2 + 6


def test_nothing_to_draw():
    for call in (lambda: draw_strip([]), lambda: draw_strip([scene(0)], num_frames=0)):
        with pytest.raises(ConfigError, match="1 scene and 1 frame"):
            call()
