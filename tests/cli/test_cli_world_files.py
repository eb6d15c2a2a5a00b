"""`--worlds game.py:MyGame`: the world of a Python file of the user, without a package, in every command."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolvent.cli.main import main
from evolvent.cli.setup.registry import load_world, load_worlds
from evolvent.errors import ConfigError, WorldError
from evolvent.run import world_code

GAME = '''
"""A world of one file."""
import evolvent as ev
from steps import STEP


class Line(ev.TextWorld):
    name, horizon, instructions = "line", 8, "Walk to the goal."

    def specs(self):
        return [{"goal": goal, "from": start} for goal in range(1, 7) for start in range(10)]

    def vocabulary(self):
        return ["left", "right", "at", "there", ".", *"walk to the goal".split(), "Walk", *map(str, range(20))]

    def play(self, spec):
        place = 0
        while place < spec["goal"]:
            notes = {"admissible": ["left", "right"], "metrics": {"place": place}, "image": "." * place + "@"}
            step = STEP if (yield f"at {place}", 0.0, notes) == "right" else -STEP
            place = max(0, place + step)
        return "there", 1.0

    def expert(self, task):
        return ["right"] * task.spec["goal"]


class Broken(Line):
    name = "broken"

    def play(self, spec):
        yield "go"
        yield {}["gone"]


class Half(ev.TextWorld):
    name = "half"


class Picky(Line):
    def __init__(self, size):
        self.size = size


class Plain(Line):
    name = "plain"

    def play(self, spec):
        return "there", 1.0


class Silent(Line):
    name = "silent"

    def play(self, spec):
        return 1.0
        yield


class Numbered(Line):
    name = "numbered"

    def specs(self):
        return [1, 2, 3]


def make():
    return Line()


ready = Line()
number = 3
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "game.py").write_text(GAME, encoding="utf-8")
    (tmp_path / "steps.py").write_text("STEP = 1\n", encoding="utf-8")
    (tmp_path / "alone.py").write_text("from game import Line\n\n\nclass Only(Line):\n    name = 'only'\n")
    (tmp_path / "bad.py").write_text("class World(:\n    pass\n")
    (tmp_path / "fails.py").write_text("import nothing_of_this_name\n")
    return tmp_path


def told(capsys, *words):
    code = main([str(word) for word in words])
    caught = capsys.readouterr()
    return code, caught.out, caught.err


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("Plain", "play of world 'plain' is not a generator: got ('there', 1.0), expected a function that yields"),
        ("Silent", "play of world 'silent' ended before its first observation: got 1.0, expected a yield before the"),
        (
            "Numbered",
            "specs of world 'numbered' lists a task that is not a mapping: got 1, expected JSON values by name",
        ),
    ],
)
def test_world_of_another_form_is_told_as_the_users_mistake(folder, member, message, capsys):
    for words in (["worlds", "play"], ["collect", "--agent", "random", "--limit", 2, "--to", "run", "--worlds"]):
        code, shown, problem = told(capsys, *words, f"game.py:{member}")
        assert code in (1, 2) and message in shown + problem
        assert "fault of evolvent" not in shown + problem and "failed in close" not in shown + problem


@pytest.mark.parametrize("member", ["Line", "make", "ready"])
def test_a_class_a_function_and_an_instance_are_worlds(folder, member):
    world = load_world(f"game.py:{member}")
    assert (world.name, len(world.tasks("train", "seen"))) == ("line", 49)
    assert world_code({"line": world}), "its stages depend on its source"


def test_a_file_with_one_world_needs_no_name_and_absolute_paths_work(folder):
    assert load_world("alone.py").name == "only"
    assert list(load_worlds([str(folder / "game.py:Line"), "lookup"])) == ["line", "lookup"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bad.py:World", r"bad\.py:1: is not valid Python"),
        ("fails.py:World", r"fails\.py:1: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("gone.py:World", r"gone\.py: file not found"),
        ("game.py:Lime", r"game\.py: unknown world 'Lime' \(did you mean 'Line'\?\)"),
        (
            "game.py",
            r"game\.py: which world of the file is meant\? It defines: Line, Broken, Half, Picky, Plain, Silent, ",
        ),
        (
            "game.py:number",
            r"game\.py: number is not a world: it lacks name, .*subclass evolvent",
        ),
        ("game.py:Half", r"game\.py: Half is not a whole world \(define play, specs\)"),
        ("game:Line", r"world: unknown world 'game:Line' \(for the world of a file write game\.py:CLASS\)"),
    ],
)
def test_what_is_no_world_is_told_in_one_sentence(folder, name, message, capsys):
    with pytest.raises(ConfigError, match=message):
        load_world(name)
    code, _, error = told(capsys, "collect", "--worlds", name, "--to", "run")
    assert code == 2 and "Traceback" not in error and not Path("run").exists()


def test_a_class_that_needs_arguments_is_told(folder):
    with pytest.raises(WorldError, match=r"game\.py: Picky cannot be made: TypeError.*'size'"):
        load_world("game.py:Picky")


def test_the_expert_the_random_agent_and_a_policy_play_it(folder, capsys):
    code, shown, error = told(capsys, "collect", "--worlds", "game.py:Line", "--limit", 5, "--to", "expert")
    assert code == 0 and "5 episodes, success 100%" in shown, error
    code, shown, _ = told(capsys, "collect", "--worlds", "game.py:Line", "--agent", "random", "--limit", 5)
    assert code == 0 and "0 not scored" in shown, "it lists its actions"
    code, shown, error = told(capsys, "eval", "xs", "--worlds", "game.py:Line", "--max_tokens", 2, "--to", "eval")
    assert code == 0 and "line seen, mean at the end: place 0" in shown, error
    code, shown, _ = told(capsys, "worlds", "show", "game.py:Line")
    assert code == 0 and "solved by: right" in shown


def test_a_bug_of_the_file_is_told_with_its_line_in_every_verb(folder, capsys, caplog):
    place = "game.py:33: KeyError: 'gone'"
    for words in (("collect",), ("eval", "xs", "--max_tokens", 2)):
        caplog.clear()
        code, _, _ = told(capsys, *words, "--worlds", "game.py:Broken")
        assert code == 1 and caplog.text.count(place) == 1 and "episodes could not be scored" in caplog.text
    code, shown, _ = told(capsys, "worlds", "show", "game.py:Broken")
    assert code == 1 and place in shown
    code, _, error = told(capsys, "worlds", "audit", "game.py:Broken")
    assert (code, error) == (1, f"error: your code failed at {place}\n")


def test_an_audit_without_an_expert_tells_the_line_of_a_bug(folder, capsys):
    game = """import evolvent as ev

class Open(ev.TextWorld):
    name = "open"
    def specs(self):
        return [{"number": number} for number in range(10)]
    def vocabulary(self):
        return ["go", "left"]
    def play(self, spec):
        yield "go"
        yield spec["numbr"]
"""
    (folder / "open.py").write_text(game, encoding="utf-8")
    code, _, error = told(capsys, "worlds", "audit", "open.py:Open")
    assert code == 1 and "the environment failed its check (walk 0) at open.py:11: KeyError: 'numbr'" in error


def test_a_resumed_run_sees_an_edit_of_a_neighbor(folder, command):
    words = ("collect", "--worlds", "game.py:Line", "--limit", 3, "--to", "run")
    assert command(*words, cwd=folder).returncode == 0
    assert command("collect", "--resume", "run", cwd=folder).returncode == 0
    (folder / "steps.py").write_text("STEP = 2\n", encoding="utf-8")
    refused = command("collect", "--resume", "run", cwd=folder)
    assert refused.returncode == 2 and "the code of line has changed since run began" in refused.stderr
