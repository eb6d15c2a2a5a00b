"""What other packages add by entry points, and the skeletons of such packages: installed for real, used by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evolvent.cli.main import main
from evolvent.cli.setup import extensions, registry
from evolvent.cli.train import rl as train_rl
from evolvent.errors import ConfigError, WorldError

CODE = """
import numpy as np
from evolvent.config import Config
from evolvent.grade.base import Grade
from evolvent.methods.base import Method

class Settings(Config):
    pass

METHOD = Method(Settings, lambda policy, tasks, *, config, run: policy, "does nothing")
NOT_ONE = "a text"

def grade(response, gold):
    if "raise" in response:
        raise RuntimeError("no licence")
    return None if "none" in response else Grade(response.strip()[-1:] == gold, response.strip()[-1:])

class Letters:
    id = "letters-1"
    def __call__(self, texts):
        return np.array([[text.count(letter) + 1e-3 for letter in "abcdefgh"] for text in texts])

def nameless():
    return len
"""
POINTS = """[evolvent.methods]
idle = ext_code:METHOD
text = ext_code:NOT_ONE
gone = ext_missing:METHOD
ppo = ext_code:METHOD
[evolvent.graders]
last = ext_code:grade
[evolvent.encoders]
letters = ext_code:Letters
nameless = ext_code:nameless
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "ext-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ext\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    (site / "ext_code.py").write_text(CODE, encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    yield site
    sys.modules.pop("ext_code", None)


def test_a_method_of_a_package(installed, capsys):
    assert train_rl.describe_methods()["idle"] == "package ext" and train_rl.describe_methods()["ppo"].startswith(
        "PPO over whole"
    )
    assert "ext_code" not in sys.modules, "names are listed without an import"
    assert main(["train", "rl", "--method", "idle", "--help"]) == 0
    assert "idle: does nothing." in capsys.readouterr().out
    assert main(["train", "rl"]) == 0
    assert "idle          package ext" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "said"), [("text", "is a str; *expected|is a str"), ("gone", "cannot be loaded")])
def test_a_method_that_is_none(installed, name, said):
    with pytest.raises(ConfigError, match=said):
        train_rl.make_command(name)


def test_a_grader_of_a_package(installed, tmp_path):
    rows = [{"problem": "two and three?", "answer": "5", "solution": "2 + 3 = 5"}]
    (tmp_path / "asked.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    world = registry.load_world(f"graded:last:{tmp_path / 'asked.jsonl'}")
    (task,) = world.tasks("test", "all")
    question = world.question(task)
    assert world.name == "graded-last" and question.demonstration == "2 + 3 = 5"
    assert world.grade("it is 5", question).correct and world.grade("it is 6", question).correct is False
    for said, why in (("raise", "no licence"), ("none", "did not return a Grade")):
        with pytest.raises(WorldError, match=why):
            world.grade(said, question)
    with pytest.raises(ConfigError, match="last"):
        registry.load_world("graded:lost:file")
    with pytest.raises(ConfigError, match="expected an installed grader and a file"):
        registry.load_world("graded:last")


def test_an_encoder_of_a_package(installed, tmp_path, capsys):
    assert extensions.load_encoder("letters").id == "letters-1"
    with pytest.raises(ConfigError, match="a callable with an id"):
        extensions.load_encoder("nameless")
    with pytest.raises(ConfigError, match="folder 'nothing' not found"):
        extensions.load_encoder("nothing")
    assert main(["memory", "query", str(tmp_path), "text", "--encoder", "nothing"]) == 2
    assert "folder 'nothing' not found" in capsys.readouterr().err


def made(what: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Write a skeleton and run its own tests."""
    assert main(["new", what, "tally", "--to", str(folder)]) == 0
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)


def installs(folder: Path, site: Path) -> dict[str, str]:
    """An environment in which the package is installed, without a build: its metadata beside its folder."""
    import tomllib

    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / "tally-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n", "utf-8")
    points = [
        f"[{group}]\n" + "".join(f"{name} = {at}\n" for name, at in rows.items())
        for group, rows in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(points), "utf-8")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(folder)])}


def evolvent(words: list[str], environment: dict[str, str], where: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "evolvent", *words],
        env=environment,
        cwd=where,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_skeleton_of_a_world_works(tmp_path):
    done = made("world", tmp_path / "tally")
    assert done.returncode == 0 and "5 passed" in done.stdout, done.stdout + done.stderr
    environment = installs(tmp_path / "tally", tmp_path / "site")
    assert "package tally-world" in evolvent(["worlds", "list"], environment, tmp_path)
    assert "solved by: 64" in evolvent(["worlds", "show", "tally"], environment, tmp_path)


@pytest.mark.long
def test_the_skeleton_of_a_method_works(tmp_path):
    done = made("method", tmp_path / "tally")
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
    environment = installs(tmp_path / "tally", tmp_path / "site")
    words = [
        "train",
        "rl",
        "--method",
        "tally",
        "--worlds",
        "lookup",
        "--demonstrations",
        "8",
        "--tasks",
        "4",
        "--clone_tokens",
        "2000",
        "--panel.limit",
        "4",
        "--rl.rounds",
        "1",
        "--to",
        "run",
    ]
    assert "run/model" in evolvent(words, environment, tmp_path)


def test_nothing_is_written_over(tmp_path, capsys):
    assert main(["new", "world", "lookup", "--to", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "world 'lookup' already exists" in told and "choose another folder" in told
    assert main(["new", "method", "poad"]) == 2 and main(["new", "world", "Class"]) == 2
    for what, name in (("world", "task"), ("world", "none"), ("world", "script"), ("method", "run")):
        assert main(["new", what, name, "--to", str(tmp_path / "taken")]) == 2
        assert "choose another name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


LOSS = """
from evolvent.rl.estimators import GroupEstimator
from evolvent.rl.objective import Aggregate, Clip, PolicyGradient
from evolvent.rl.presets import Preset

LOSS = Preset(
    "narrow", GroupEstimator(), PolicyGradient(aggregate=Aggregate("sequence_mean"), surrogate=Clip(0.1, 0.1))
)
"""
SEARCH = """
from functools import partial
from evolvent.search.samples import best_of_n
from evolvent.search.settings import SearchMethod

SEARCH = SearchMethod("two samples, the better one", lambda config, stop: partial(best_of_n, n=2), grows_tree=False)
"""
WORLD = """
from evolvent.worlds.base import TextWorld

class Parrot(TextWorld):
    name = "parrot"
    horizon = 1
    blocking = False

    def specs(self):
        return [{"say": word, "copy": n} for word in ("red", "green") for n in range(40)]

    def play(self, spec):
        said = yield f"say {spec['say']}"
        return float(said.strip() == spec["say"])

    def vocabulary(self):
        return ("say", "red", "green")
"""
THIRD_PARTY = """[evolvent.losses]
narrow = ext_loss:LOSS
broken = ext_gone:LOSS
[evolvent.searches]
two = ext_search:SEARCH
broken = ext_gone:SEARCH
[evolvent.worlds]
parrot = ext_world:Parrot
broken = ext_gone:World
"""


@pytest.fixture
def third_party(tmp_path) -> dict[str, str]:
    """An environment with a package of one file each for a loss, a search and a world, and three that do not load."""
    site = tmp_path / "site"
    info = site / "third-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(THIRD_PARTY, encoding="utf-8")
    for name, code in (("loss", LOSS), ("search", SEARCH), ("world", WORLD)):
        (site / f"ext_{name}.py").write_text(code, encoding="utf-8")
    return {"PYTHONPATH": str(site)}


def test_a_loss_of_a_package_appears_in_help_and_runs(third_party, command, tmp_path):
    shown = command("train", "rl", "--method", "grpo", "--help", **third_party).stdout
    assert "'narrow'" in " ".join(shown.split())
    quick = ("--demonstrations", "4", "--clone_tokens", "200", "--tasks", "8", "--panel.limit", "2")
    words = ("train", "rl", "--method", "grpo", "--worlds", "parrot", "--rl.kind", "narrow", *quick)
    words = (
        *words,
        "--rl.practice.iterations",
        "1",
        "--rl.practice.tasks_per_iteration",
        "2",
        "--to",
        tmp_path / "run",
    )
    done = command(*words, **third_party)
    assert done.returncode == 0, done.stderr
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert settings["rl"]["kind"] == "narrow"


def test_a_search_of_a_package_appears_in_help_and_runs(third_party, command, tmp_path):
    shown = command("search", "--help", **third_party).stdout
    assert "'two'" in " ".join(shown.split())
    words = ("search", "--worlds", "parrot", "--methods", "two", "--search.value", "rollouts", "--limit", "2")
    done = command(*words, "--to", tmp_path / "run", **third_party)
    assert done.returncode == 0, done.stderr
    assert "two" in done.stdout


def test_a_world_of_a_package_appears_in_the_list_and_is_played(third_party, command):
    assert "parrot" in command("worlds", "list", **third_party).stdout
    done = command("worlds", "play", "parrot", stdin="red\n", **third_party)
    assert done.returncode == 0 and "say " in done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("train", "rl", "--method", "grpo", "--worlds", "lookup", "--rl.kind", "broken", "--to", "run"),
        ("search", "--methods", "broken", "--to", "run"),
        ("worlds", "show", "broken"),
    ],
    ids=lambda words: words[0],
)
def test_a_plugin_that_cannot_be_imported_is_named_and_the_rest_works(third_party, command, tmp_path, words):
    done = command(*words, cwd=tmp_path, **third_party)
    assert done.returncode in (1, 2)
    assert "'broken' cannot be loaded" in done.stderr and "ext_gone" in done.stderr
    assert "Traceback" not in done.stderr
