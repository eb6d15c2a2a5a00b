"""Dealing, digests, and the rules that every shipped panel keeps."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

from evolvent.errors import ConfigError
from evolvent.trajectory import Task
from evolvent.worlds.backoffice.world import Backoffice
from evolvent.worlds.base import SPLITS, World
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.deduction.world import Deduction
from evolvent.worlds.functions.world import Functions
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.household.nouns import HouseholdNouns
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.kitchen.world import Kitchen
from evolvent.worlds.lookup import Lookup
from evolvent.worlds.maze import Maze
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes, check_names, choose_split, deal, digest
from evolvent.worlds.preference.world import Preference
from evolvent.worlds.reasoning.arithmetic import Arithmetic
from evolvent.worlds.reasoning.entailment import Entailment
from evolvent.worlds.reasoning.problems import Problems
from evolvent.worlds.reasoning.reading import Reading
from evolvent.worlds.reasoning.rules import Rules
from evolvent.worlds.recipes import workshop_book
from evolvent.worlds.science.world import Science
from evolvent.worlds.searchqa.world import SearchQA
from evolvent.worlds.shop.world import Shop
from evolvent.worlds.site.world import Site
from evolvent.worlds.sql.world import SqlWorld
from evolvent.worlds.teams.rescue import RescueWorld
from evolvent.worlds.tools.academia import Academia
from evolvent.worlds.tools.movie import Movie
from evolvent.worlds.tools.sheet import Sheet
from evolvent.worlds.tools.todo import Todo
from evolvent.worlds.tools.weather import Weather
from evolvent.worlds.wordle import Wordle

DIGESTS = Path(__file__).with_name("digests.json")
WORLDS = {
    "crafting": lambda: Crafting(),
    "crafting level 1": lambda: Crafting(level=1),
    "crafting level 2": lambda: Crafting(level=2),
    "crafting level 3": lambda: Crafting(level=3),
    "workshop": lambda: Crafting("own"),
    "lookup": lambda: Lookup(),
    "countdown": lambda: Countdown(),
    "gridworld": lambda: GridWorld(),
    "maze": lambda: Maze(),
    "wordle": lambda: Wordle(),
    "wordle lmrl": lambda: Wordle(rules="lmrl"),
    "household": lambda: HouseholdWorld(),
    "searchqa": lambda: SearchQA(),
    "sql": lambda: SqlWorld(),
    "weather": lambda: Weather(),
    "movie": lambda: Movie(),
    "academia": lambda: Academia(),
    "todo": lambda: Todo(),
    "sheet": lambda: Sheet(),
    "arithmetic": lambda: Arithmetic(),
    "problems": lambda: Problems(),
    "problems program": lambda: Problems(form="program"),
    "deduction": lambda: Deduction(),
    "entailment": lambda: Entailment(),
    "reading": lambda: Reading(),
    "rules": lambda: Rules(),
    "rules conflict": lambda: Rules(form="conflict"),
    "kitchen": lambda: Kitchen(),
    "household nouns": lambda: HouseholdNouns(),
    "preference": lambda: Preference(),
    "functions": lambda: Functions(),
    "backoffice": lambda: Backoffice(),
    "science": lambda: Science(),
    "shop": lambda: Shop(),
    "site": lambda: Site(),
}
WORLDS_OF_ANOTHER_PROCESS = ("lookup", "maze", "kitchen", "todo", "wordle", "preference")
PROGRAM = """
import json, sys
from evolvent.cli.setup.registry import load_world
from evolvent.worlds.base import SPLITS
from evolvent.worlds.panel import digest
found = {}
for name in reversed(sys.argv[1:]):
    one = load_world(name)
    for tier in reversed(one.tiers):
        for split in reversed(SPLITS):
            found[f"{name}/{tier}/{split}"] = digest(one.tasks(split, tier))
print(json.dumps(found))
"""


def numbers(tier: str = "seen", kinds: int = 7) -> list[Candidate]:
    return [Candidate({"n": n}, f"kind {n % kinds}", tier, f"key {n}") for n in range(3000)]


@pytest.mark.parametrize("world", [Backoffice, HouseholdWorld, HouseholdNouns, RescueWorld])
def test_settings_that_no_task_fits_end_in_an_error(world, monkeypatch):
    """Without a limit, a world would draw for ever; a task that does not fit is no candidate."""
    monkeypatch.setattr("evolvent.worlds.panel._MAX_UNFIT", 100)
    with pytest.raises(ConfigError, match=r"100 drawn tasks of '[\w-]+' in a row .*longer horizon"):
        world(horizon=1).tasks("train", "seen")


def test_unfit_draws_without_end_are_refused():
    with pytest.raises(ConfigError, match=r"2,000 drawn tasks of 'x' in a row"):
        deal("x", "1", (None for _ in count()), sizes=Sizes(), tiers=("seen",))


def test_draws_that_do_not_fit_are_left_out():
    """1,999 of them in a row are borne, and those between two candidates begin to count anew."""
    candidates = [Candidate({"n": n}, f"kind{n}", "seen", f"key{n}") for n in range(40)]
    spaced = [draw for one in candidates for draw in (*[None] * 1_999, one)]
    sizes = Sizes(train=20, dev=1, test=1)
    assert deal("x", "1", spaced, sizes=sizes, tiers=("seen",)) == deal(
        "x", "1", candidates, sizes=sizes, tiers=("seen",)
    )


def test_deal_fills_panels_in_order_and_keeps_kinds_few() -> None:
    sizes = Sizes(train=100, dev=20, test=30, per_kind=5)
    panels = deal("toy", "1", numbers(), sizes=sizes, tiers=("seen",))
    assert {at: len(tasks) for at, tasks in panels.items()} == {
        ("train", "seen"): 100,
        ("dev", "seen"): 20,
        ("test", "seen"): 30,
    }
    for (split, tier), tasks in panels.items():
        assert [task.spec["n"] for task in tasks] == sorted(task.spec["n"] for task in tasks)
        assert all((task.split, task.tier) == (split, tier) for task in tasks)
        if split != "train":
            assert max(Counter(task.kind for task in tasks).values()) <= 5


def test_untrained_tiers_have_no_training_tasks() -> None:
    panels = deal("toy", "1", numbers("combo"), sizes=Sizes(train=10, dev=20, test=40), tiers=("combo",))
    assert [len(panels[split, "combo"]) for split in SPLITS] == [0, 20, 40]
    places = Counter(choose_split("toy", candidate) for candidate in numbers("longer"))
    assert set(places) == {"dev", "test"}
    assert 900 < places["dev"] < 1100  # a third of 3,000


def test_split_is_80_10_10_and_depends_on_the_key_alone() -> None:
    places = [choose_split("toy", candidate) for candidate in numbers()]
    assert 2300 < places.count("train") < 2500
    assert 240 < places.count("dev") < 360
    again = [choose_split("toy", Candidate({"other": n}, "k", "evo", f"key {n}")) for n in range(3000)]
    assert again == places
    assert [choose_split("other", candidate) for candidate in numbers()] != places


def test_equal_keys_are_dealt_once() -> None:
    twice = [candidate for candidate in numbers()[:200] for _ in range(3)]
    panels = deal("toy", "1", twice, sizes=Sizes(train=500, per_kind=100), tiers=("seen",))
    keys = [task.spec["n"] for tasks in panels.values() for task in tasks]
    assert sorted(keys) == list(range(200))


def test_finite_candidates_may_leave_panels_short_and_endless_ones_may_not() -> None:
    assert len(deal("toy", "1", numbers()[:5], sizes=Sizes(), tiers=("seen",))["train", "seen"]) <= 5
    endless = (Candidate({"n": n % 50}, "k", "seen", str(n % 50)) for n in count())
    with pytest.raises(ConfigError, match=r"cannot be filled.*train/seen"):
        deal("toy", "1", endless, sizes=Sizes(), tiers=("seen",))


def test_other_tiers_and_empty_panels_take_nothing() -> None:
    panels = deal("toy", "1", numbers("evo"), sizes=Sizes(), tiers=("seen",))
    assert not any(panels.values())
    endless = (Candidate({"n": n}, "k", "longer", str(n)) for n in count())
    assert not any(deal("toy", "1", endless, sizes=Sizes(10, 0, 0), tiers=("longer",)).values())


def test_digest_sees_every_change() -> None:
    one, two = Task("w", "1", {"a": 1}, "k"), Task("w", "1", {"a": 2}, "k")
    digests = {
        digest(tasks)
        for tasks in (
            [],
            [one],
            [two],
            [one, two],
            [two, one],
            [Task("w", "2", {"a": 1}, "k")],
            [Task("w", "1", {"a": 1}, "j")],
            [Task("w", "1", {"a": 1}, "k", "evo")],
            [Task("w", "1", {"a": 1}, "k", "seen", "dev")],
        )
    }
    assert len(digests) == 9
    assert digest([one]) == digest([Task("w", "1", {"a": 1}, "k")])


def test_names_and_sizes_are_checked_all_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check_names("trian", "sean", ("seen",))
    assert [problem.hint for problem in caught.value.problems] == ["did you mean 'train'?", "did you mean 'seen'?"]
    with pytest.raises(ConfigError) as caught:
        Sizes(train=-1, per_kind=0)
    assert len(caught.value.problems) == 2


def test_panels_are_dealt_when_asked_for_and_once() -> None:
    drawn = []

    def draw(tier: str) -> list[Candidate]:
        drawn.append(tier)
        return numbers(tier)

    panels = Panels("toy", "1", ("seen", "longer"), sizes=Sizes(10, 5, 5), draw=draw)
    assert not drawn
    assert panels.tasks("dev", "longer") is panels.tasks("dev", "longer")
    assert drawn == ["longer"]
    with pytest.raises(ConfigError):
        panels.tasks("dev", "evo")


class Numbers(DealtOnce):
    """Three tasks whose numbers begin at an argument; `drawn` counts the draws of all instances."""

    drawn: ClassVar[list[object]] = []

    def __init__(self, first: object = 0, *, sizes: Sizes | None = None) -> None:
        self.first = first
        self._panels = Panels(
            "numbers", "1", ("seen",), sizes=sizes or Sizes(3, 0, 0), draw=self._draw, recipe=self.recipe
        )

    def _draw(self, tier: str) -> list[Candidate]:
        self.drawn.append(self.first)
        return [Candidate({"n": f"{self.first} {n}"}, "kind", tier, f"{self.first} {n}") for n in range(20)]

    def tasks(self) -> list[object]:
        return [task.spec["n"] for task in self._panels.tasks("train", "seen")]


class OtherNumbers(Numbers):
    pass


def test_worlds_with_equal_arguments_are_dealt_once() -> None:
    Numbers.drawn.clear()
    assert Numbers(7).tasks() == Numbers(7).tasks() == Numbers(first=7).tasks()
    assert Numbers.drawn == [7, 7], "the name of an argument makes another recipe, which costs time alone"
    assert copy.copy(Numbers(7)).tasks() == Numbers(7).tasks() and len(Numbers.drawn) == 2


def test_worlds_that_differ_have_their_own_panels() -> None:
    """Equal numbers of other types are other arguments, and so is another class."""
    Numbers.drawn.clear()
    for first in (1, 1.0, "1", True, None, (1,)):
        assert all(str(n).startswith(f"{first} ") for n in Numbers(first).tasks())
    assert len(Numbers(1, sizes=Sizes(2, 0, 0)).tasks()) == 2
    OtherNumbers(1).tasks()
    assert [repr(first) for first in Numbers.drawn] == ["1", "1.0", "'1'", "True", "None", "(1,)", "1", "1"]


def test_panels_of_other_arguments_are_not_shared() -> None:
    """A list may change, and two functions may have one name."""
    Numbers.drawn.clear()
    for first in ([1], [1], ([1],), ([1],)):
        Numbers(first).tasks()
    assert Numbers([1]).recipe is None and Numbers.drawn == [[1], [1], ([1],), ([1],)]


def test_worlds_of_files_are_not_dealt_once() -> None:
    """Their files may change between two worlds of one process."""
    assert not issubclass(Wordle, DealtOnce) and Crafting(workshop_book()).recipe is None


@pytest.fixture(scope="module", params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> World:
    made: World = WORLDS[request.param]()
    made.label = request.param  # type: ignore[attr-defined]
    return made


def test_committed_digests(world: World) -> None:
    """A change of a panel is a new study: the digests are committed, and a new version of the world says so.

    Another process with another hash seed wrote the digests, and asked for tiers and splits in the other order.
    """
    committed = json.loads(DIGESTS.read_text())[world.label]  # type: ignore[attr-defined]
    found = {
        f"{split}/{tier}": digest(world.tasks(split, tier))
        for tier in reversed(world.tiers)
        for split in reversed(SPLITS)
    }
    assert found == committed


def test_panels_are_disjoint_up_to_renaming(world: World) -> None:
    tasks = [task for tier in world.tiers for split in SPLITS for task in world.tasks(split, tier)]
    keys = Counter(world.key(task) for task in tasks)  # type: ignore[attr-defined]
    assert [key for key, times in keys.items() if times > 1] == []
    tiers: dict[str, set[str]] = {}
    for task in tasks:
        tiers.setdefault(task.kind, set()).add(task.tier)
    assert all(len(of) == 1 for of in tiers.values())


def test_default_panels_have_the_agreed_sizes(world: World) -> None:
    if world.name == "workshop":
        pytest.skip("one task for each of its goals")
    for tier in world.tiers:
        train, dev, test = (world.tasks(split, tier) for split in SPLITS)
        assert len(train) == (1200 if tier in ("seen", "evo") else 0)
        assert (len(dev), len(test)) == (100, 200)
        assert len({task.kind for task in test}) >= 30
        for panel in (dev, test):
            assert max(Counter(task.kind for task in panel).values()) <= 10


def test_panels_do_not_depend_on_the_process() -> None:
    """A fixed hash seed and another order of worlds: every world with this process's own seed is tested above."""
    committed = json.loads(DIGESTS.read_text())
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *WORLDS_OF_ANOTHER_PROCESS],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout)
    assert {at.partition("/")[0] for at in found} == set(WORLDS_OF_ANOTHER_PROCESS)
    for at, value in found.items():
        name, tier, split = at.split("/")
        assert committed[name][f"{split}/{tier}"] == value, at
