"""The embedded worlds under the dialects of their originals: experts play whole episodes through server and client."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

from evolvent.agents.plain import Script
from evolvent.cli.setup.registry import load_worlds
from evolvent.rollout.episode import collect
from evolvent.serve.agentgym.client import AgentGymWorld
from evolvent.serve.agentgym.dialects import default_mounts
from evolvent.serve.agentgym.face import AgentGymDialect, task_by_number
from evolvent.serve.app import build_app
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.pool.host import PooledHost
from evolvent.trajectory import Start
from evolvent.web import Access
from evolvent.worlds.base import SPLITS
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes
from evolvent.worlds.searchqa.world import SearchQA
from evolvent.worlds.sql.world import SqlWorld
from evolvent.worlds.tools.academia import Academia
from evolvent.worlds.tools.movie import Movie
from evolvent.worlds.tools.sheet import Sheet
from evolvent.worlds.tools.todo import Todo
from evolvent.worlds.tools.weather import Weather
from tests.serve.agentgym_support import running, serving

FEW = Sizes(train=4, dev=2, test=2)
MADE = {
    world.name: world
    for world in (
        HouseholdWorld(sizes=FEW),
        SearchQA(sizes=FEW),
        GridWorld(sizes=FEW),
        SqlWorld(sizes=FEW),
        *(tools(style="json", sizes=FEW) for tools in (Weather, Movie, Academia, Todo, Sheet)),
    )
}


@pytest.fixture(scope="module")
def server():
    with serving(MADE, default_mounts(MADE)) as served:
        yield served


@pytest.mark.parametrize("name", sorted(MADE))
def test_an_expert_of_the_embedded_world_wins_through_the_dialect(server, name):
    local, dialect = MADE[name], default_mounts(MADE)[name][1]
    tasks = [task for split in SPLITS for tier in local.tiers for task in local.tasks(split, tier)][:4]
    with AgentGymWorld(server.mount(dialect), dialect, {"test": range(4)}, horizon=local.horizon) as world:
        starts = [Start(task) for task in world.tasks("test", "seen")]
        agent = Script(lambda world, task: local.expert(tasks[task.spec["index"]]))
        played = list(collect({world.name: world}, starts, agent, engine=None, slots=4))
    assert [(one.error, one.success, one.ended_by) for one in played] == [(None, True, "world")] * 4
    assert server.host.status().sessions[name] == 0


def test_birds_rows_have_the_numbers_of_the_original(tmp_path):
    (tmp_path / "dev_databases" / "zoo").mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "dev_databases" / "zoo" / "zoo.sqlite")) as zoo:
        zoo.executescript("CREATE TABLE animal (name TEXT, legs INTEGER); INSERT INTO animal VALUES ('emu', 2)")
    row = {"question_id": 0, "db_id": "zoo", "evidence": "", "difficulty": "simple"}
    asked = [("How many legs has an emu?", "SELECT legs FROM animal"), ("Who is there?", "SELECT name FROM animal")]
    rows = [{**row, "question_id": place, "question": text, "SQL": sql} for place, (text, sql) in enumerate(asked)]
    (tmp_path / "dev.json").write_text(json.dumps(rows))
    bird = SqlWorld.from_bird(tmp_path)
    with serving({"bird": bird}, default_mounts(["bird"])) as server:
        with AgentGymWorld(server.mount("sqlgym"), "sqlgym", {"test": [9428, 9429, 0]}) as world:
            agent = Script(lambda world, task: [asked[task.spec["index"] - 9428][1]])
            starts = [Start(task) for task in world.tasks("test", "seen")]
            played = list(collect({world.name: world}, starts, agent, engine=None))
    told = {one.task.spec["index"]: one for one in played}
    assert told[9428].success and told[9429].success and "emu" in told[9429].final_observation
    assert "emu" in told[9428].steps[0].observation
    assert told[0].error.kind == "ConfigError"


def test_sessions_in_worker_processes_are_no_other():
    names = ["maze:double_t"]
    made = load_worlds(names)
    host = PooledHost(made, load_worlds, names, workers=2, capacity=8)
    mounts = {"maze": ("double_t", "maze")}
    with running(build_app(host, TaskIndex(made), access=Access(), dialects=[AgentGymDialect(mounts)])) as url:
        local, task = made["double_t"], task_by_number(made["double_t"])
        with AgentGymWorld(f"{url}/agentgym/maze", "maze", {"test": range(6)}) as world:
            agent = Script(lambda world, one: local.expert(task(one.spec["index"])))
            starts = [Start(one) for one in world.tasks("test", "seen")]
            played = list(collect({world.name: world}, starts, agent, engine=None, slots=6))
    assert [one.success for one in played] == [True] * 6
    assert host.status().sessions == {"double_t": 0}


def test_a_tool_that_does_not_exist_is_an_observation(server):
    with AgentGymWorld(server.mount("movie"), "movie", {"test": [0]}) as world:
        env = world.make(world.tasks("test", "seen")[0])
        env.reset()
        for text in ("fly with Action Input: {}", "get_movie_cast with Action Input: __import__('os')"):
            observation, reward, terminated, _, info = env.step(text)
            assert observation.startswith("Observation: ") and (reward, terminated) == (0.0, False)
            assert info["invalid"] is True
        env.close()
