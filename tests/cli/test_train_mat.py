"""`evolvent train mat`: a run from the first word to the table, gone on with, and begun from another team's policy."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from evolvent.cli.teams import TEAM_WORLDS, TrainMat, _tasks, run, team_world
from evolvent.errors import ConfigError, ShapeMismatch
from evolvent.models.team_files import load_team
from evolvent.store.store import Store

SMALL = ["--mat.rows", "8", "--mat.steps", "4", "--mat.decisions", "96", "--mat.width", "16", "--episodes", "6",
         "--mat.update.epochs", "1"]  # fmt: skip


def said(words: list[str]) -> str:
    console = Console(file=io.StringIO(), width=120)
    assert run(["mat", *words], console) == 0
    return console.file.getvalue()


def test_a_run_is_kept_and_taken_up(tmp_path):
    folder = tmp_path / "run"
    first = said(["chain", "--to", str(folder), *SMALL])
    table = json.loads((folder / "table.json").read_text())
    history = json.loads((folder / "history.json").read_text())
    assert table[0]["episodes"] == 6 and 0.0 <= table[0]["return"][0] <= 1.0
    assert [row["decisions"] for row in history] == [32, 64, 96]
    assert load_team(folder / "policy").shape.kind == "mat"
    again = said(["--resume", str(folder)])
    assert json.loads((folder / "table.json").read_text()) == table and "return" in again
    assert f"policy {folder / 'policy'}" in first.replace("\n", "")


def test_it_begins_from_another_teams_policy(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    said(["chain", "--agents", "2", "--to", str(one), *SMALL])
    said(["chain", "--agents", "4", "--start", str(one), "--to", str(two), *SMALL])
    assert load_team(one / "policy").shape.agents < load_team(two / "policy").shape.agents


def test_what_is_measured_is_kept_and_drawn(tmp_path):
    folder = tmp_path / "run"
    said(["rescue", "--agents", "2", "--to", str(folder), *SMALL])
    (row,) = json.loads((folder / "table.json").read_text())
    episodes = list(Store.open(folder / "trajectories").trajectories())
    assert len(episodes) == 6 and all("2 agents" in one.task.kind for one in episodes)
    assert sum(one.score.raw for one in episodes) / 6 == pytest.approx(row["return"][0]) and row["lost"] == 0
    page = (folder / "report.html").read_text()
    assert "<script" not in page and page.count('class="scroll frames"') == 3
    with pytest.raises(ShapeMismatch, match="is no policy of this team"):
        said(["spread", "--start", str(folder), "--to", str(tmp_path / "other"), *SMALL])


def test_every_world_has_tasks():
    for name in TEAM_WORLDS:
        world = team_world(name)
        tasks = world.tasks("train", "seen")
        assert world.batch(tasks, 2).size == 2


def test_tasks_are_those_of_the_asked_size_and_not_those_it_is_measured_on():
    for world, tier, agents in (("rescue", "longer", 6), ("chain", "longer", 12), ("relay", "seen", 3)):
        config = TrainMat(world=world, tier=tier, agents=agents)
        learned, measured = _tasks(config, "train"), _tasks(config, "test")
        assert all(task.kind.split()[0] == str(agents) for task in (*learned, *measured))
        assert world == "relay" or not {task.id for task in learned} & {task.id for task in measured}
    with pytest.raises(ConfigError, match="no such tasks"):
        _tasks(TrainMat(world="chain", tier="longer", agents=2), "train")  # not those of 12


def test_what_cannot_be(tmp_path):
    with pytest.raises(ConfigError, match="world"):
        said(["rescu", "--to", str(tmp_path / "a")])
    with pytest.raises(ConfigError, match="no such tasks"):
        said(["chain", "--agents", "99", "--to", str(tmp_path / "b")])
    with pytest.raises(ConfigError, match="tier"):
        said(["climbing", "--tier", "longer", "--to", str(tmp_path / "c")])
