"""Names become objects in one place: embedded worlds, worlds of other packages, policies."""

from __future__ import annotations

import json
import sys

import pytest

from evolvent.cli.main import main
from evolvent.cli.setup import registry
from evolvent.errors import ConfigError, CorruptRecord, EvolventError, Incomplete, WorldError
from evolvent.worlds import panel
from evolvent.worlds.crafting import Crafting

GOOD = """
from evolvent.worlds.base import TextWorld
class Guess(TextWorld):
    name = "guess"
    def specs(self):
        return [{"number": n} for n in range(9)]
    def play(self, spec):
        yield "guess"
        return 1.0
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with three worlds: a good one, one whose module raises, one that is no world."""
    info = tmp_path / "strange_worlds-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strange-worlds\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[evolvent.worlds]\nguess = sw_good:Guess\nbroken = sw_broken:World\n"
        "nothing = sw_good:GOOD\nlookup = sw_broken:World\n",
        encoding="utf-8",
    )
    (tmp_path / "sw_good.py").write_text(GOOD + "GOOD = dict\n", encoding="utf-8")
    (tmp_path / "sw_broken.py").write_text("raise RuntimeError('no licence')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for module in ("sw_good", "sw_broken"):
        sys.modules.pop(module, None)


def test_embedded_worlds():
    assert registry.load_world("lookup").name == "lookup"
    assert registry.load_world("workshop").name == "workshop"
    easy, hard = registry.load_world("crafting:0"), registry.load_world("crafting:3")
    assert isinstance(easy, Crafting) and isinstance(hard, Crafting) and easy.level != hard.level


def test_a_folder_of_recipes(tmp_path):
    recipe = {
        "type": "minecraft:crafting_shapeless",
        "ingredients": [{"item": "minecraft:oak_log"}],
        "result": {"item": "minecraft:oak_planks", "count": 4},
    }
    (tmp_path / "planks.json").write_text(json.dumps(recipe), encoding="utf-8")
    assert registry.load_world(f"textcraft:{tmp_path}").name == "textcraft"
    with pytest.raises(ConfigError, match="needs a folder"):
        registry.load_world("textcraft")


def test_every_wrong_world_at_once():
    with pytest.raises(ConfigError) as caught:
        registry.load_worlds(["lokup", "crafting", "crafting:1", "moon"])
    assert [str(problem) for problem in caught.value.problems] == [
        "world: unknown world 'lokup' (did you mean 'lookup'?)",
        "worlds: 'crafting:1' occurs twice (list each world once)",
        f"world: unknown world 'moon' (known: {', '.join(sorted(registry.describe_worlds()))})",
    ]
    with pytest.raises(ConfigError, match="at least one world"):
        registry.load_worlds([])


def test_installed_worlds_are_listed_without_being_loaded(installed, capsys):
    assert main(["worlds", "list"]) == 0
    shown = capsys.readouterr().out
    assert "strange-worlds" in shown and "broken" in shown
    assert "sw_good" not in sys.modules and "sw_broken" not in sys.modules


def test_an_installed_world_is_used(installed):
    assert registry.load_world("guess").tasks("train", "seen")
    assert registry.load_world("lookup").name == "lookup", "an embedded name cannot be taken over"
    with pytest.raises(ConfigError, match="does not take an option, got"):
        registry.load_world("guess:3")


def test_an_installed_world_that_raises_is_named(installed, capsys):
    with pytest.raises(WorldError, match=r"'broken' cannot be loaded.*sw_broken.*RuntimeError: no licence"):
        registry.load_world("broken")
    assert main(["worlds", "show", "broken"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(WorldError, match="'nothing' does not implement World: got missing name, version"):
        registry.load_world("nothing")


def test_an_unknown_policy():
    with pytest.raises(ConfigError, match="unknown policy 'no-such-folder'"):
        registry.resolve_policy("no-such-folder", [])


def test_a_run_without_a_policy(tmp_path):
    (tmp_path / "stages.jsonl").write_text('{"verb": "collect", "name": "a"}\n', encoding="utf-8")
    with pytest.raises(Incomplete, match="does not hold a policy"):
        registry.resolve_policy(str(tmp_path), [])
    with (tmp_path / "stages.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"verb": "fi')  # a killed run leaves such an end
    with pytest.raises(Incomplete, match="1 stages"):
        registry.resolve_policy(str(tmp_path), [])
    (tmp_path / "stages.jsonl").write_text("{broken\n", encoding="utf-8")
    with pytest.raises(CorruptRecord, match="broken line"):
        registry.resolve_policy(str(tmp_path), [])


def test_a_policy_by_size_and_from_a_run(tmp_path):
    world = registry.load_world("lookup")
    fresh = registry.resolve_policy("xs", [world], seed=3)
    for number, arm in enumerate(("base", "evolve", "control")):
        fresh = fresh.next_version()
        fresh.save(tmp_path / "stages" / f"{number}-fit" / "policy")
        with (tmp_path / "stages.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"verb": "fit", "name": f"{number}-fit", "arm": arm}) + "\n")
    assert registry.resolve_policy(str(tmp_path), [world]).version == 2, "the last policy of the main arm"


@pytest.mark.parametrize(
    "name",
    [
        *registry.ALL_WORLDS,
        "household:large",
        "household:alfworld03",
        "weather:json",
        "babyai:agentgym",
        "household:nouns",
        "kitchen",
        "kitchen:macro",
        "kitchen:small",
        "datasci",
        "microwave",
        "virtualhome",
        "virtualhome:entertainment",
        "preference",
        "preference:32",
        "backoffice",
        "science",
        "science:easy",
        "shop",
        "shop:1",
        "site",
        "site:1",
        "webreplay",
        "functions",
        "functions:json",
        "arithmetic:3",
        "deduction:5",
        "entailment",
        "problems",
        "problems:program",
        "reading",
        "rules:conflict",
    ],
)
def test_every_name_of_all_makes_a_world_with_an_expert(name, monkeypatch):
    """With panels of a few tasks; `test_panel.py` deals the whole ones of every world."""
    whole = panel.deal
    monkeypatch.setattr(panel, "deal", lambda *told, **more: whole(*told, **{**more, "sizes": panel.Sizes(4, 2, 2)}))
    made = registry.load_world(name)
    task = made.tasks("dev", made.tiers[0])[0]
    assert made.expert(task)


def test_all_stands_for_every_embedded_world():
    assert tuple(registry.load_worlds(["all"])) == registry.ALL_WORLDS
    with pytest.raises(ConfigError, match="occurs twice"):
        registry.load_worlds(["all", "lookup"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("crafting:\u00b2", "expected a number"),  # a digit that is no decimal
        ("countdown:\u00b2", "expected the number of numbers, or 24 for the game of 24"),
        ("maths", "needs a file or folder"),
        ("maths:nowhere", "nowhere"),
        ("functions:yaml", "known: json"),
        ("bfcl", "needs the folder"),
        ("bfcl:nowhere", "nowhere"),
        ("code", "needs a file or folder"),
        ("code:nowhere", "nowhere"),
        ("preference:long", "expected a length"),
        ("preference:31", "32 to 256"),
        ("plume:26", "25"),
        ("weather:jsn", "did you mean 'json'"),
        ("household:nowhere", "nowhere"),
        ("searchqa:nowhere", "nowhere"),
        ("sql:nowhere", "nowhere"),
        ("agentgym:textcraft", "DIALECT@URL#FIRST-LAST"),
        ("agentgym:textcraft@http://127.0.0.1:9#9-3", "got the tasks 9-3 .give an ascending range"),
        ("agentgym:maze#nowhere", "nowhere cannot be read: the file does not exist"),
        ("agentgym:webshop#0-3", "needs the address of AgentGym's server"),
        ("agentgym:textcroft@http://127.0.0.1:9#0-3", "did you mean 'textcraft'"),
        ("openenv:http://127.0.0.1:9#x", "URL#SEEDS"),
        ("http://127.0.0.1:x/", "expected the address of a server"),
        ("agentgym:textcraft@http://[::1#0-3", "expected the address of a server"),
        ("agentgym:textcraft@http://127.0.0.1:x#0-3", "expected the address of a server"),
        ("openenv:http://127.0.0.1:x", "expected the address of a server"),
    ],
)
def test_wrong_options_are_one_sentence(name, said):
    with pytest.raises(EvolventError, match=said):
        registry.load_world(name)


def test_a_team_among_worlds_is_answered_with_its_command():
    with pytest.raises(ConfigError, match=r"teams learn by: evolvent train mat pettingzoo:mpe2.simple_v3"):
        registry.load_world("pettingzoo:mpe2.simple_v3")
