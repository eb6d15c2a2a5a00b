"""`evolvent train mat`: a run from the first word to the table, gone on with, and begun from another team's policy."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from evolvent.cli.train.mat import (
    FOREIGN_WORLDS,
    TEAM_WORLDS,
    TrainMATConfig,
    _list_tasks,
    make_foreign_world,
    make_team_world,
    run,
)
from evolvent.config import resolve
from evolvent.errors import ConfigError, MissingExtra, ShapeMismatch
from evolvent.models.team_files import load_team
from evolvent.store.store import Store
from evolvent.worlds.teams.battles import BattlesWorld
from evolvent.worlds.teams.extras import MAKERS

SMALL = [
    "--mat.rows",
    "8",
    "--mat.steps",
    "4",
    "--mat.decisions",
    "96",
    "--mat.width",
    "16",
    "--episodes",
    "6",
    "--mat.update.ppo_epochs",
    "1",
]


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
    with pytest.raises(ShapeMismatch, match="does not hold a policy of this team"):
        said(["spread", "--start", str(folder), "--to", str(tmp_path / "other"), *SMALL])


def test_battle_is_a_world_of_the_command(tmp_path):
    folder = tmp_path / "run"
    said(["battle", "--to", str(folder), *SMALL])
    (row,) = json.loads((folder / "table.json").read_text())
    assert row["episodes"] == 6 and row["lost"] == 0 and 0 <= row["return"][0] <= 20
    assert {one.task.kind for one in Store.open(folder / "trajectories").trajectories()} == {"3 agents, 3m"}


def test_layouts_of_battle_are_named_after_a_colon():
    config = TrainMATConfig(world="battle:2s3z")
    assert {task.spec["layout"] for task in _list_tasks(config, "train")} == {"2s3z"}
    assert len(_list_tasks(config, "train")) == 32 and make_team_world("battle").layout == "3m"
    with pytest.raises(ConfigError, match=r"unknown layout '3n'.*MMM2"):
        TrainMATConfig(world="battle:3n")
    with pytest.raises(ValueError, match="unknown world 'rescue:3m'"):
        TrainMATConfig(world="rescue:3m")


def test_a_run_is_made_longer(tmp_path):
    folder = tmp_path / "run"
    said(["chain", "--to", str(folder), *SMALL])
    said(["--resume", str(folder), "--mat.decisions", "160"])
    assert [row["decisions"] for row in json.loads((folder / "history.json").read_text())] == [32, 64, 96, 128, 160]
    stages = [one.id.partition("/")[0] for one in Store.open(folder / "trajectories").trajectories()]
    assert stages == ["measured-96"] * 6 + ["measured-160"] * 6


def test_worlds_of_the_extra_are_named_and_set():
    assert set(FOREIGN_WORLDS) == set(MAKERS) and not set(FOREIGN_WORLDS) & set(TEAM_WORLDS)
    words = ["--world", "mamujoco", "--settings", "scenario=Ant,parts=4x2", "--disabled", "1,2"]
    config = resolve(TrainMATConfig, overrides=words)
    (task,) = _list_tasks(config, "train")
    assert task.spec["settings"] == {"scenario": "Ant", "parts": "4x2"}
    assert task.spec["row"] == {"disabled": [1, 2], "horizon": 1000} and task.split == "train"
    assert _list_tasks(config, "test")[0].split == "test"
    foraging = TrainMATConfig(world="foraging", settings=("size=10", "cooperate=false"), agents=3, horizon=7)
    spec = make_foreign_world(foraging).task().spec
    assert spec["settings"] == {"size": 10, "cooperate": False, "agents": 3} and spec["row"] == {"horizon": 7}


def test_mistakes_about_them_are_found_without_their_packages():
    with pytest.raises(ConfigError, match=r"unknown setting of mamujoco 'scenaro'(.|\n)*did you mean 'scenario'"):
        TrainMATConfig(world="mamujoco", settings=("scenaro=Ant",))
    with pytest.raises(ConfigError, match="unknown setting of mamujoco 'agents'"):
        TrainMATConfig(world="mamujoco", agents=3)
    with pytest.raises(ConfigError, match="expected name=value"):
        TrainMATConfig(world="foraging", settings=("size",))
    with pytest.raises(ConfigError) as error:
        TrainMATConfig(world="rescue", horizon=9, disabled=(0,))
    assert [problem.where for problem in error.value.problems] == ["horizon", "disabled"]


def test_a_package_that_is_missing_is_told_before_a_run_begins(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "lbforaging.foraging", None)
    with pytest.raises(MissingExtra, match=r"evolvent\[marl\]"):
        said(["foraging", "--to", str(tmp_path / "run"), *SMALL])
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("default")  # of other packages: what they warn of is theirs
@pytest.mark.parametrize(
    ("name", "package", "more"),
    [
        ("mamujoco", "gymnasium_robotics", ["--settings", "scenario=Walker2d,parts=2x3", "--disabled", "1"]),
        ("foraging", "lbforaging", ["--agents", "3", "--workers", "2"]),
        ("warehouse", "rware", []),
        ("particles", "mpe2", []),
        ("vmas", "vmas", []),
    ],
)
def test_a_run_in_a_world_of_the_extra(tmp_path, monkeypatch, name, package, more):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings into a file where it runs
    said([name, "--to", "run", "--horizon", "5", *more, *SMALL])
    (row,) = json.loads((tmp_path / "run" / "table.json").read_text())
    assert row["episodes"] == 6 and row["world"] == f"team_{name}" and row["lost"] == 0
    said(["--resume", "run"])
    assert json.loads((tmp_path / "run" / "table.json").read_text()) == [row]


def test_a_parallel_environment_of_ones_own(tmp_path):
    said(
        [
            "parallel",
            "--settings",
            "make=tests.team_support:Counting",
            "--horizon",
            "4",
            "--workers",
            "1",
            "--to",
            str(tmp_path / "run"),
            *SMALL,
        ]
    )
    (row,) = json.loads((tmp_path / "run" / "table.json").read_text())
    assert row["return"][0] == 6.0, "1.5 at each of four steps"


def test_every_world_has_tasks():
    for name in TEAM_WORLDS:
        world = make_team_world(name)
        tasks = world.tasks("train", "seen")
        assert world.batch(tasks, 2).size == 2


def test_tasks_are_those_of_the_asked_size_and_not_those_it_is_measured_on():
    for world, tier, agents in (("rescue", "longer", 6), ("chain", "longer", 12), ("relay", "seen", 3)):
        config = TrainMATConfig(world=world, tier=tier, agents=agents)
        learned, measured = _list_tasks(config, "train"), _list_tasks(config, "test")
        assert all(task.kind.split()[0] == str(agents) for task in (*learned, *measured))
        assert world == "relay" or not {task.id for task in learned} & {task.id for task in measured}
    with pytest.raises(ConfigError, match="has no tasks of this team size and tier"):
        _list_tasks(TrainMATConfig(world="chain", tier="longer", agents=2), "train")  # not those of 12


def test_few_training_tasks_are_told_beside_the_measurement(tmp_path):
    small = ["--episodes", "4", "--mat.rows", "2", "--mat.steps", "2", "--mat.decisions", "4"]
    told = said(["distinct", "--agents", "4", *small, "--to", str(tmp_path / "few")])
    assert "test tasks are not among the 5 training tasks, which are few" in " ".join(told.split())
    assert "which are few" not in said(["relay", "--agents", "3", *small, "--to", str(tmp_path / "many")])


def test_what_cannot_be(tmp_path):
    with pytest.raises(ConfigError, match="world"):
        said(["rescu", "--to", str(tmp_path / "a")])
    with pytest.raises(ConfigError, match="has no tasks of this team size and tier"):
        said(["chain", "--agents", "99", "--to", str(tmp_path / "b")])
    with pytest.raises(ConfigError, match="tier"):
        said(["climbing", "--tier", "longer", "--to", str(tmp_path / "c")])


def test_an_environment_of_pettingzoo_is_a_team_by_name(tmp_path):
    pytest.importorskip("pygame")
    name = "pettingzoo:butterfly/knights_archers_zombies-v11?max_cycles=6&num_archers=1"
    words = [name, "--horizon", "6", "--episodes", "2", "--mat.rows", "2", "--mat.steps", "6", "--mat.decisions", "24"]
    shown = said([*words, "--mat.update.minibatches", "1", "--to", str(tmp_path / "run")])
    assert "knights_archers_zombies-v11" in shown
    world = make_foreign_world(resolve(TrainMATConfig, overrides=["--world", name]))
    (task,) = world.tasks("train", "seen")
    assert (world.name, world.horizon) == ("team_pettingzoo", 1000)
    assert task.spec["settings"] == {
        "id": "butterfly/knights_archers_zombies-v11",
        "arguments": {"max_cycles": 6, "num_archers": 1},
    }
    assert world.batch([task], 1).spec.agents == 3  # one archer, two knights


def test_a_module_with_a_parallel_environment_is_a_team_by_name(tmp_path, monkeypatch):
    (tmp_path / "my_chain_v0.py").write_text(
        "from evolvent.worlds.teams.as_parallel import as_parallel\n"
        "from evolvent.worlds.teams.games import GameWorld\n"
        "def parallel_env(rounds):\n"
        "    world = GameWorld('chain', rounds=rounds)\n"
        "    return as_parallel(world, world.tasks('train', 'seen')[0])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    world = make_foreign_world(resolve(TrainMATConfig, overrides=["--world", "pettingzoo:my_chain_v0?rounds=3"]))
    batch = world.batch(world.tasks("test", "seen"), 2)
    assert batch.spec.agents >= 2 and batch.reset([0, 1]).alive.all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pettingzoo", "pettingzoo needs the id of an environment"),
        ("pettingzoo:no.such_module_v1", "unknown environment 'no.such_module_v1'"),
        ("pettingzoo:classic/rps-v9", "unknown environment 'classic/rps-v9' .did you mean 'classic/rps-v2'"),
        ("pettingzoo:classic/tictactoe-v3", "has no parallel environment: its agents take turns"),
        ("pettingzoo:json", "json has no parallel environment"),
        ("pettingzoo:classic/rps_v2?zombies=3", "cannot be made: TypeError"),
        ("rescue:3", "unknown world 'rescue:3'"),
    ],
)
def test_a_name_that_is_no_environment_of_pettingzoo_is_refused(name, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        run(["mat", name, "--to", str(tmp_path / "run")], Console(file=io.StringIO()))
    assert not (tmp_path / "run").exists()


TINY = ["--mat.rows", "2", "--mat.steps", "4", "--mat.decisions", "8", "--mat.width", "8", "--episodes", "2"]
TINY += ["--mat.update.ppo_epochs", "1", "--mat.update.minibatches", "1"]


@pytest.fixture
def short_battles(monkeypatch):
    """Battles end after five steps."""
    make = "evolvent.cli.train.mat.make_team_world"
    monkeypatch.setattr(make, lambda name: BattlesWorld(name.partition(":")[2].split(","), horizon=5))


@pytest.mark.usefixtures("short_battles")
def test_a_team_goes_on_with_held_out_layouts(tmp_path):
    """Three rows a layout, a finished layout is not played again, and the policy of the training stays as it was."""
    folder = tmp_path / "run"
    words = ["battles:3m", "--held_out", "2s3z", "--few_shot_decisions", "16", "--mat.kind", "happo"]
    shown = said([*words, "--to", str(folder), *TINY])
    rows = json.loads((folder / "table.json").read_text())
    assert [(row["name"], row["world"]) for row in rows] == [
        ("happo", "team_battle"),
        ("happo, zero-shot", "battles:2s3z"),
        ("happo, few-shot", "battles:2s3z"),
        ("happo, scratch", "battles:2s3z"),
    ]
    assert all(row["episodes"] == 2 and row["lost"] == 0 for row in rows)
    assert "2s3z: scratch, 16 decisions" in shown and "happo, few-shot" in shown
    policy = (folder / "policy" / "team.safetensors").read_bytes()
    kept = (folder / "few_shot.json").stat().st_mtime_ns
    assert "scratch, 16" not in said(["--resume", str(folder)])
    assert json.loads((folder / "table.json").read_text()) == rows
    assert (folder / "few_shot.json").stat().st_mtime_ns == kept
    assert (folder / "policy" / "team.safetensors").read_bytes() == policy
    assert "zero-shot" in (folder / "report.html").read_text()


@pytest.mark.usefixtures("short_battles")
def test_weights_of_one_selection_of_layouts_fit_another(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    said(["battles:3m", "--to", str(one), *TINY])
    said(["battles:2s3z", "--start", str(one), "--to", str(two), *TINY])
    assert (load_team(one / "policy").shape.agents, load_team(two / "policy").shape.agents) == (3, 5)
    with pytest.raises(ShapeMismatch, match="observation: saved with 242, expected 30"):
        load_team(one / "policy", expected=replace(load_team(one / "policy").shape, observation=30))


def test_held_out_layouts_are_checked():
    with pytest.raises(ConfigError, match="'8m' is a layout of the training"):
        TrainMATConfig(world="battles:3m,8m", held_out=("8m",))
    with pytest.raises(ConfigError, match="has no layouts in one form"):
        TrainMATConfig(world="battle:3m", held_out=("8m",))
    with pytest.raises(ConfigError, match="unknown layout '9m'"):
        TrainMATConfig(world="battles:3m", held_out=("9m",))
    with pytest.raises(ConfigError, match="unknown layout '9m'"):
        TrainMATConfig(world="battles:3m,9m")
    assert {task.spec["layout"] for task in _list_tasks(TrainMATConfig(world="battles:3m,8m"), "train")} == {"3m", "8m"}
