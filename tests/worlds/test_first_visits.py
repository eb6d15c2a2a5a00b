"""Tasks, observations and identities of worlds that prepare a task when it is first visited are those of version 1.

`first_visits.json` holds digests that were computed at commit 573e5190, before the preparation was made faster: of the
first 20 tasks, what the expert and random legal actions see, and which actions are legal.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from random import Random

import pytest

from evolvent.trajectory import canonical_json
from evolvent.worlds.base import World
from evolvent.worlds.panel import Sizes
from evolvent.worlds.sql.world import SqlWorld
from evolvent.worlds.tools.academia import Academia
from evolvent.worlds.tools.movie import Movie
from evolvent.worlds.tools.sheet import Sheet
from evolvent.worlds.tools.todo import Todo
from evolvent.worlds.tools.weather import Weather

SIZES = Sizes(train=20, dev=4, test=4)
WORLDS = {
    "sql": SqlWorld(sizes=SIZES),
    "sql rounds": SqlWorld(rounds=3, text="create", sizes=SIZES),
    "weather": Weather(sizes=SIZES),
    "weather json": Weather(style="json", sizes=SIZES),
    "sheet": Sheet(sizes=SIZES),
    "sheet json": Sheet(style="json", sizes=SIZES),
    "movie": Movie(sizes=SIZES),
    "academia": Academia(sizes=SIZES),
    "todo": Todo(sizes=SIZES),
}
DIGESTS = json.loads(Path(__file__).with_name("first_visits.json").read_text())


def play(world: World, task, actions) -> list[object]:
    """Returns all that an episode shows for these actions."""
    env = world.make(task)
    observation, info = env.reset()
    seen: list[object] = [[observation, dict(info)]]
    for action in actions:
        reply = env.step(action)
        seen.append([*reply[:4], dict(reply[4])])
        if reply[2] or reply[3]:
            break
    env.close()
    return seen


def describe(world: World) -> list[object]:
    """Returns everything about the first tasks: the expert's episode and one of random legal actions each."""
    tasks = [task for tier in world.tiers for task in world.tasks("train" if tier == "seen" else "dev", tier)][:20]
    rows: list[object] = []
    for task in tasks:
        plan, rng = list(world.expert(task)), Random(task.id)
        admissible = world.make(task).reset()[1]["admissible"]
        random_actions = [rng.choice(admissible) for _ in range(6)]
        wrong_actions = ["SELECT * FROM sqlite_master", "open_sheet nothing", "get_distance 44 18 46 18", "finish"]
        episodes = [play(world, task, actions) for actions in (plan, random_actions, wrong_actions)]
        rows.append([task.id, world.key(task), plan, episodes])
    return rows


@pytest.mark.parametrize("name", list(WORLDS))
def test_first_tasks_are_those_of_version_1(name: str) -> None:
    text = canonical_json(describe(WORLDS[name]))
    assert hashlib.sha256(text.encode()).hexdigest() == DIGESTS[name]
