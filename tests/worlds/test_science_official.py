"""The science lab beside ScienceWorld itself: the same actions are done or refused in both. It needs Java."""

from __future__ import annotations

import re
import shutil

import pytest

from evolvent.trajectory import Task
from evolvent.worlds.base import Env, World
from evolvent.worlds.extras.sciworld import JvmLimits, SciWorld
from evolvent.worlds.science.world import Science

pytest.importorskip("scienceworld", reason="scienceworld is not installed")
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java runtime"),
]

_REFUSALS = re.compile(
    r"no known action|already|isn't|is not|not clear|can't|doesn't|not open|there is only one|must be|must specify",
    re.IGNORECASE,
)
# From the hallway, in the things that both houses have; the comments say what both must do.
SCRIPT = """open door to kitchen, open door to kitchen, go to bathroom, go to kitchen, look around, open cupboard,
open cupboard, look in cupboard, close cupboard, close cupboard, look in cupboard, pick up stove, open counter,
pick up thermometer, inventory, use thermometer on stove, activate counter, activate sink, activate sink,
deactivate sink, deactivate sink, read thermometer, eat counter, flush sink, go to moon, put down thermometer,
pick up lighter, put down lighter, open door to bathroom, go to bathroom, flush toilet, activate bathtub,
deactivate bathtub, close door to kitchen, go to kitchen, open door to kitchen, go to kitchen, open freezer,
move thermometer to freezer, close freezer, pick up thermometer, open freezer, pick up thermometer, close freezer,
activate stove, deactivate stove, teleport to bathroom, open fridge, move thermometer to fridge, close fridge,
open oven, activate oven, deactivate oven, close oven, go to hallway, open door to workshop, go to workshop,
disconnect table, wait1, wait, task, look around"""


def _verdicts(world: World, task: Task) -> list[tuple[str, bool]]:
    env: Env = world.make(task)
    try:
        env.reset()
        verdicts = []
        for action in " ".join(SCRIPT.split()).split(", "):
            observation, _, _, _, info = env.step(action)
            if world.name == "sciworld":
                is_listing = action in ("task", "look around", "inventory") or action.startswith("look in")
                is_done = is_listing and "isn't open" not in observation
                verdicts.append((action, is_done or not _REFUSALS.search(observation)))
            else:
                verdicts.append((action, not info.get("invalid")))
        return verdicts
    finally:
        env.close()


def _hallway_task(world: Science) -> Task:
    for seed in range(200):
        task = Task("science", "1", {"parts": [["life stages", "frog", "bedroom"]], "seed": seed})
        if "You are in the hallway." in str(world.make(task).reset()[0]):
            return task
    raise AssertionError("no task starts in the hallway")


def test_the_same_actions_are_done_and_refused() -> None:
    ours = Science()
    official = SciWorld("all", horizon=200, limits=JvmLimits(max_machines=1))
    try:
        theirs = _verdicts(official, Task("sciworld", official.version, {"task": "boil", "variation": 0}))
    finally:
        official.close()
    verdicts = _verdicts(ours, _hallway_task(ours))
    assert len(theirs) == 62
    differences = [pair for pair in zip(verdicts, theirs, strict=True) if pair[0] != pair[1]]
    # ScienceWorld accepts disconnecting a thing that is not connected; here that is refused.
    assert differences == [(("disconnect table", False), ("disconnect table", True))]
