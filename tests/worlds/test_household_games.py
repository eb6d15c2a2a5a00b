"""Game files of ALFWorld: written and read back, broken in every way, whole folders, and where alfworld's texts are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, CorruptRecord, MissingExtra, UnsafePath, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.household import games as games_module
from evolvent.worlds.household.game import FAMILIES, Game, Goal
from evolvent.worlds.household.games import (
    OfficialTexts,
    find_games,
    parse_problem,
    read_folder,
    read_game,
    read_official_texts,
    render_problem,
    write_game,
)
from evolvent.worlds.household.kinds import list_possible_goals
from evolvent.worlds.household.plans import plan
from evolvent.worlds.household.rooms import canonical_key, draw_game, draw_layout
from evolvent.worlds.household.text import DIALECTS, Speaker
from evolvent.worlds.household.things import SPELLING
from evolvent.worlds.household.world import HouseholdWorld
from evolvent.worlds.panel import Sizes

TEXTS = OfficialTexts("(define (domain alfred))", 'grammar :: """ { "rhs": "Your task is to: UNKNOWN GOAL." } """;')
GOAL = Goal("clean", "mug", "cabinet")
# As ALFWorld writes them: types declared as things, facts in any order, comments, a fact in capitals, distances.
REAL = """
(define (problem plan_trial_1)
(:domain alfred)
(:objects agent1 - agent Bowl - object Pen - object BookType PenType DeskLampType - otype DeskType ShelfType - rtype
  Desk_bar__minus_01_dot_01 Shelf_bar__plus_00_dot_10 Shelf_bar__plus_00_dot_20 - receptacle
  DeskLamp_bar__plus_00_dot_48 Book_bar__plus_00_dot_41 Book_bar__minus_01_dot_37 Chair_bar_7 - object
  loc_bar_0_bar__minus_3 loc_bar_1_bar_1 loc_bar_2 - location)
(:init (= (total-cost) 0) (= (distance loc_bar_0_bar__minus_3 loc_bar_2) 4) ; how far
  (receptacleType Desk_bar__minus_01_dot_01 DeskType) (receptacleType Shelf_bar__plus_00_dot_10 ShelfType)
  (objectType DeskLamp_bar__plus_00_dot_48 DeskLampType) (OBJECTTYPE Book_bar__plus_00_dot_41 BookType)
  (objectType Book_bar__minus_01_dot_37 BookType) (canContain DeskType BookType) (canContain DeskType BookType)
  (pickupable Book_bar__plus_00_dot_41) (toggleable DeskLamp_bar__plus_00_dot_48)
  (inReceptacle Book_bar__plus_00_dot_41 Shelf_bar__plus_00_dot_10)
  (inReceptacle Book_bar__minus_01_dot_37 Desk_bar__minus_01_dot_01)
  (inReceptacle DeskLamp_bar__plus_00_dot_48 Desk_bar__minus_01_dot_01)
  (receptacleAtLocation Desk_bar__minus_01_dot_01 loc_bar_1_bar_1)
  (receptacleAtLocation Shelf_bar__plus_00_dot_10 loc_bar_1_bar_1) (receptacleType Shelf_bar__plus_00_dot_20 ShelfType)
  (objectAtLocation Chair_bar_7 loc_bar_2) (atLocation agent1 loc_bar_0_bar__minus_3))
(:goal (and
  (exists (?x - object ?y - agent) (and (holds ?y ?x) (objectType ?x BookType)))
  (exists (?l - object ?r - receptacle ?y - agent ?p - location) (and (isToggled ?l) (toggleable ?l)
    (objectType ?l DeskLampType) (atLocation ?y ?p) (receptacleAtLocation ?r ?p) (inReceptacle ?l ?r))))))
"""


def record(problem: str, **more: object) -> str:
    return json.dumps({"pddl_domain": "", "grammar": "", "pddl_problem": problem, "solvable": True, **more})


def test_a_game_as_alfworld_writes_it(tmp_path):
    """Shelf 2 stands nowhere and is not seen; only the book on the shelf can be taken; both share a place."""
    (tmp_path / "game.tw-pddl").write_text(
        record(REAL, grammar='"task": [{ "rhs": "Your task is to: look at book under the desklamp." }]')
    )
    game = read_game(tmp_path)
    speaker = Speaker(game, DIALECTS["0.4"])
    assert game.goal == Goal("look", "book", "desklamp")
    assert speaker.first_observation == (
        "You are in the middle of a room. Looking quickly around you, you see a desk 1, and a shelf 2.\n\n"
        "Your task is to: look at book under the desklamp."
    )
    assert game.object_names == ("book 2", "book 1", "chair 1", "desklamp 1")
    assert [speaker.render_action(action) for action in plan(game) or ()] == [
        "go to shelf 2",
        "take book 1 from shelf 2",
        "use desklamp 1",
    ]


@given(st.sampled_from(list_possible_goals()), st.integers(0, 9999), st.sampled_from(["small", "large"]))
@settings(max_examples=40, deadline=None)
def test_a_problem_is_read_as_it_was_written(goal, seed, size):
    layout, _ = draw_layout(goal, seed, size=size)
    text = render_problem(layout, goal, name="any", spelling=SPELLING)
    again, found = parse_problem(text)
    layout.object_places.sort()
    layout.object_receptacles.sort()
    assert (again, found) == (layout, goal)
    assert all(word.endswith("Type") for word in text.split() if word.endswith("type") and word[1:] != "type")
    assert parse_problem(text.upper().replace("_BAR_", "_bar_"))[1] == goal


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_written_game_is_the_same_game(tmp_path, family):
    goal = next(goal for goal in list_possible_goals() if goal.family == family)
    layout, wording = draw_layout(goal, 5, size="small")
    file = write_game(tmp_path / "one", layout, goal, task=goal.describe(wording), texts=TEXTS)
    game, drawn = read_game(file), draw_game(goal, 5, size="small")
    assert (game.names, game.object_names, game.task, game.goal) == (drawn.names, drawn.object_names, drawn.task, goal)
    assert (game.start, canonical_key(game)) == (drawn.start, canonical_key(drawn))
    stored = json.loads(file.read_text())
    assert (stored["pddl_domain"], stored["solvable"]) == (TEXTS.domain, True)
    beside = json.loads(file.with_name("traj_data.json").read_text())
    assert beside["task_type"] == FAMILIES[family].task_type
    assert beside["pddl_params"]["object_target"].lower() == goal.object
    target = beside["pddl_params"]["toggle_target" if family == "look" else "parent_target"]
    assert (target.lower(), beside["pddl_params"]["object_sliced"]) == (goal.target, False)


def problem() -> str:
    layout, _ = draw_layout(GOAL, 1, size="small")
    return render_problem(layout, GOAL, name="p", spelling=SPELLING)


BROKEN = {
    "empty": lambda good: "",
    "not JSON": lambda good: '{"pddl_problem": ',
    "a list": lambda good: "[]",
    "no problem in it": lambda good: json.dumps({"solvable": True}),
    "a problem that is a number": lambda good: record(3),  # type: ignore[arg-type]
    "too deep JSON": lambda good: "[" * 100_000,
    "too deep problem": lambda good: record("(" * 100_000),
    "no text": lambda good: record(""),
    "words": lambda good: record("define problem"),
    "a bracket too many": lambda good: record(good + ")"),
    "a bracket too few": lambda good: record(good.rstrip()[:-1]),
    "closed first": lambda good: record(")("),
    "invalid goal": lambda good: record(good[: good.index("(:goal")] + ")"),
    "no beginning": lambda good: record(good.replace("(:init", "(:start")),
    "no agent": lambda good: record(good.replace("(atLocation agent1", "(wasLocation agent1")),
    "another goal": lambda good: record(good.replace("isClean ?o", "isOn ?o")),
    "two goals": lambda good: record(good.replace("(:goal", "(:goal (and)")),
    "one variable for two": lambda good: record(good.replace("?r", "?o")),
    "an undeclared thing": lambda good: record(good.replace("(:init", "(:init (opened nothing_bar_1)")),
    "known to be unsolvable": lambda good: record(good, solvable=False),
    "nowhere to clean": lambda good: record(good.replace("SinkBasinType)", "ToiletType)")),
    "nothing can be taken": lambda good: record(good.replace("(pickupable", "(moveable")),
    "won already": lambda good: record(good.replace("(:init", f"(:init {_done(good)}")),
}


def _done(good: str) -> str:
    mug = next(word for word in good.split() if word.startswith("mug_bar_"))
    cabinet = next(word for word in good.split() if word.startswith("cabinet_bar_"))
    return f"(isClean {mug}) (inReceptacle {mug} {cabinet})"


@pytest.mark.parametrize("how", list(BROKEN))
def test_a_broken_game_is_named_and_the_others_load(tmp_path, how):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "game.tw-pddl").write_text(record(problem()))
    bad = tmp_path / "b" / "game.tw-pddl"
    bad.write_text(BROKEN[how](problem()))
    with pytest.raises(CorruptRecord, match=r"b/game\.tw-pddl"):
        read_game(bad)
    found, broken = read_folder(tmp_path)
    assert (list(found), len(broken)) == (["a/game.tw-pddl", "c/game.tw-pddl"], 1)
    world = HouseholdWorld(games=tmp_path)
    tasks = [task for split in ("train", "dev", "test") for task in world.tasks(split, "seen")]
    assert sorted(task.spec["game"] for task in tasks) == ["a/game.tw-pddl", "c/game.tw-pddl"]
    assert list(world.broken_files) == ["b/game.tw-pddl"]


def test_the_line_of_a_fault_is_named(tmp_path):
    file = tmp_path / "game.tw-pddl"
    file.write_text(record("(define\n(problem p))\n)"))
    with pytest.raises(CorruptRecord, match="line 3"):
        read_game(file)
    file.write_text('{"pddl_problem":\n oops}')
    with pytest.raises(CorruptRecord, match="line 2") as caught:
        read_game(file)
    assert caught.value.offset == 18


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_damage_is_anything_but_a_game_or_an_error_of_ours(data):
    """Cut, doubled and replaced text: read as a game, or refused with ConfigError."""
    text = problem()
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 200)))
    middle = data.draw(st.sampled_from(["", "(", ")", "- object", "?", text[start:stop] * 2]) | st.text(max_size=8))
    try:
        layout, goal = parse_problem(text[:start] + middle + text[stop:])
        Game(layout, goal, "x")
    except ConfigError:
        pass


def test_a_file_that_is_too_large_or_missing(tmp_path, monkeypatch):
    with pytest.raises(CorruptRecord, match="No such file"):
        read_game(tmp_path / "nothing")
    (tmp_path / "game.tw-pddl").write_text(record(problem()))
    monkeypatch.setattr(games_module, "_MAX_FILE_BYTES", 100)
    with pytest.raises(CorruptRecord, match="larger than 100 bytes"):
        read_game(tmp_path)


def test_kinds_of_tasks_that_alfworld_leaves_out(tmp_path):
    for name in ("train/pick-Mug-1/t1", "train/place_with_movable_recep-Pen-1/t", "train/pick-AppleSliced-2/t"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text(record(problem()))
    assert find_games(tmp_path) == ("train/pick-Mug-1/t1/game.tw-pddl",)
    with pytest.raises(ConfigError, match="folder of games not found"):
        find_games(tmp_path / "nothing")


def test_the_splits_of_alfworld(tmp_path):
    """Its own subfolders are the splits; sizes bound them; experts win what they do not refuse."""
    places = {"train": 3, "valid_train": 1, "valid_seen": 2, "valid_unseen": 2}
    for part, count in places.items():
        for i in range(count):
            layout, wording = draw_layout(GOAL, len(part) * 10 + i, size="small")
            write_game(tmp_path / part / f"g{i}", layout, GOAL, task=GOAL.describe(wording), texts=TEXTS)
    world = HouseholdWorld("0.3", games=tmp_path)
    found = {(split, tier): len(world.tasks(split, tier)) for tier in world.tiers for split in ("train", "dev", "test")}
    assert found == {
        ("train", "seen"): 3,
        ("dev", "seen"): 1,
        ("test", "seen"): 2,
        ("train", "combo"): 0,
        ("dev", "combo"): 0,
        ("test", "combo"): 2,
    }
    assert len(HouseholdWorld(games=tmp_path, sizes=Sizes(2, 0, 1)).tasks("train", "seen")) == 2
    assert (world.name, world.vocabulary(), world.horizon) == ("alfworld-03", None, 30)
    for task in (*world.tasks("train", "seen"), *world.tasks("test", "combo")):
        env = world.make(task)
        env.reset()
        replies = [env.step(action) for action in world.expert(task) or ()]
        assert replies[-1][1:3] == (1.0, True)
        assert any(action.startswith("put ") for action in world.expert(task) or ())
        assert world.key(task) == canonical_key(read_game(tmp_path / task.spec["game"]))
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        world.tasks("tset", "seen")


def test_tasks_of_files(tmp_path):
    """A changed file, one outside of the folder, one that is gone, and specs that are none."""
    layout, _ = draw_layout(GOAL, 1, size="small")
    file = write_game(tmp_path / "in" / "g", layout, GOAL, task="put a clean mug in cabinet", texts=TEXTS)
    world = HouseholdWorld(games=tmp_path / "in")
    task = next(task for split in ("train", "dev", "test") for task in world.tasks(split, "seen"))

    def other(**changes: object) -> Task:
        return Task(task.world, task.version, {**task.spec, **changes}, task.kind)

    with pytest.raises(VersionMismatch, match="another version of the game"):
        world.make(other(sha256="0" * 64))
    with pytest.raises(UnsafePath):
        world.make(other(game="../in/g/game.tw-pddl"))
    with pytest.raises(ConfigError, match="game not found"):
        world.make(other(game="h/game.tw-pddl"))
    with pytest.raises(ConfigError, match="the task does not name a game file"):
        world.make(other(more=1))
    with pytest.raises(ConfigError, match="the task is already a game file"):
        world.write_game(task, tmp_path / "out", texts=TEXTS)
    file.write_text(file.read_text() + " ")
    with pytest.raises(VersionMismatch):
        world.make(task)
    file.unlink()
    with pytest.raises(ConfigError, match="folder without game files"):
        HouseholdWorld(games=tmp_path / "in")


def test_where_the_official_texts_are_found(tmp_path, monkeypatch):
    """A data folder, a downloaded one with `logic`, and any game file, whose own task is taken out of its grammar."""
    for folder in (tmp_path / "data", tmp_path / "downloaded" / "logic"):
        folder.mkdir(parents=True)
        (folder / "alfred.pddl").write_text(TEXTS.domain)
        (folder / "alfred.twl2").write_text(TEXTS.grammar)
    layout, _ = draw_layout(GOAL, 1, size="small")
    file = write_game(tmp_path / "game", layout, GOAL, task="put a clean mug in cabinet", texts=TEXTS)
    assert "put a clean mug in cabinet" in file.read_text()
    for source in (tmp_path / "data", tmp_path / "downloaded", file):
        assert read_official_texts(source) == TEXTS
    (tmp_path / "broken").write_text("{}")
    for source in (tmp_path, tmp_path / "broken", tmp_path / "nothing"):
        with pytest.raises(ConfigError, match=r"alfred\.pddl"):
            read_official_texts(source)
    monkeypatch.setattr(games_module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"evolvent\[alfworld\]"):
        read_official_texts()
    with pytest.raises(ConfigError, match="the grammar has no task"):
        write_game(tmp_path / "x", layout, GOAL, task="t", texts=OfficialTexts("", "no place"))
    assert not (tmp_path / "x").exists()


def test_a_folder_can_be_read_on_another_machine(tmp_path):
    """The ids of tasks depend on the games and their relative paths, not on where the folder is or its order."""
    ids = []
    for root in (tmp_path / "one", tmp_path / "two"):
        for i in range(4) if root.name == "one" else reversed(range(4)):
            layout, wording = draw_layout(GOAL, i, size="small")
            write_game(root / f"g{i}", layout, GOAL, task=GOAL.describe(wording), texts=TEXTS)
        world = HouseholdWorld(games=root)
        ids.append([task.id for split in ("train", "dev", "test") for task in world.tasks(split, "seen")])
    assert ids[0] == ids[1] and len(ids[0]) == 4
    assert Path(tmp_path / "one").is_dir()
