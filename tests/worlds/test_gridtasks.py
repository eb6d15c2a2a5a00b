"""Kinds and tiers of embedded tasks, what their maps promise, and which tasks are the same."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from evolvent.errors import ConfigError
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.base import SPLITS, TIERS
from evolvent.worlds.crafting import words_of
from evolvent.worlds.grid.kinds import UNDEMONSTRATED, AtomKind, Kind, list_kinds_by_tier, pairs_of
from evolvent.worlds.grid.map import COLOURS
from evolvent.worlds.grid.mission import PUT
from evolvent.worlds.grid.spec import build_scene, canonical_key, recolor_spec, rotate_grid, split_cells
from evolvent.worlds.grid.tasks import draw_task
from evolvent.worlds.grid.view import observe
from evolvent.worlds.grid.world import GridWorld

WORLD = GridWorld()


def drawn(number: int = 2) -> list[tuple[str, Kind, dict[str, Any]]]:
    found = [
        (tier, kind, draw_task(kind, n)) for tier in TIERS for kind in list_kinds_by_tier()[tier] for n in range(number)
    ]
    return [(tier, kind, spec) for tier, kind, spec in found if spec is not None]


def test_pairs_of_kinds_worked_by_hand() -> None:
    one = Kind((AtomKind("pick", "type", "door"),))
    assert (str(one), one.doors) == ("pick type door", ("door",))
    assert pairs_of(one) == {("pick", "type"), ("pick", "door"), ("type", "door")}
    put = Kind((AtomKind("put", "full-colour", "view"),))
    assert pairs_of(put) == {
        ("put", "full-"),
        ("put", "-colour"),
        ("put", "view"),
        ("full-", "view"),
        ("-colour", "view"),
        ("full-", "-colour"),
    }
    two = Kind((AtomKind("go", "full", "view"), AtomKind("open", "full", "view")), "after")
    assert str(two) == "go full view after open full view"
    assert {("go", "after"), ("after", "open"), ("go first", "open")} <= pairs_of(two)
    three = Kind(
        (AtomKind("go", "full", "view"), AtomKind("pick", "type", "view"), AtomKind("go", "type", "view")), "and then"
    )
    assert str(three) == "go full view and pick type view then go type view"
    assert {("go", "and"), ("and", "pick"), ("pick", "then"), ("then", "go")} <= pairs_of(three)


def test_tiers_by_pairs() -> None:
    tiers = list_kinds_by_tier()
    shown = frozenset().union(*map(pairs_of, tiers["seen"]))
    assert not shown & UNDEMONSTRATED
    assert all(pairs_of(kind) & UNDEMONSTRATED for kind in tiers["evo"])
    parts = {part.strip("-") for pair in shown for part in pair}
    assert {part.strip("-") for pair in UNDEMONSTRATED for part in pair} <= parts  # each is shown with other parts
    for tier in ("combo", "longer"):
        assert all(pairs_of(kind) <= shown for kind in tiers[tier])
    assert not set(tiers["combo"]) & set(tiers["seen"])
    deepest = max(len(kind.doors) for kind in tiers["seen"]), max(len(kind.atoms) for kind in tiers["seen"])
    assert deepest == (1, 2)
    assert all(len(kind.doors) == 2 or len(kind.atoms) == 3 for kind in tiers["longer"])
    assert all(len(set(kinds)) == len(kinds) >= 30 for kinds in tiers.values())


def test_maps_are_what_their_kinds_say() -> None:
    for _, kind, spec in drawn():
        board = build_scene(spec).board
        doors = Counter(t.state for code in board.start.cells if (t := board.objects[code]) and t.type == "door")
        keys = sum(t.type == "key" for code in board.start.cells if (t := board.objects[code]))
        locks = [atom.access.split().count("lock") for atom in kind.atoms]
        assert doors["locked"] == max(locks)
        assert keys >= 2 * max(locks)  # the right one and a wrong one
        assert sum(doors.values()) >= len(kind.doors)
        for atom, told in zip(kind.atoms, build_scene(spec).mission.stages, strict=False):
            if len(kind.atoms) == 1 and atom.access in ("view", "turn"):
                seen = {id(s.grid_object) for s in observe(board, board.start).objects}
                wanted = told[0].codes | told[0].landmark_codes
                there = [id(board.objects[code]) in seen for code in wanted if code in board.start.cells]
                assert all(there) == (atom.access == "view")


def test_every_word_of_a_mission_counts() -> None:
    """Words tell one thing; and where they tell colour and type, neither alone would do."""
    for _, kind, spec in drawn():
        scene = build_scene(spec)
        board = scene.board
        there = [code for code in board.start.cells if board.objects[code]]
        for atom in (atom for stage in scene.mission.stages for atom in stage):
            for codes in (atom.codes, atom.landmark_codes)[: 2 if atom.verb == PUT else 1]:
                assert len([code for code in there if code in codes]) == 1
        if len(kind.atoms) == 1 and kind.atoms[0].wording == "full" and kind.atoms[0].verb != "open":
            (target,) = (board.get_object(code) for code in there if code in scene.mission.stages[0][0].codes)
            assert sum(board.get_object(code).type == target.type for code in there) > 1
            assert sum(board.get_object(code).colour == target.colour for code in there) > 1


def test_plans_fit_their_limits_and_a_small_context() -> None:
    for tier in TIERS:
        for task in WORLD.tasks("test", tier)[:40]:
            env, plan = WORLD.make(task), WORLD.expert(task)
            assert plan is not None
            observation, _ = env.reset()
            words = len(words_of(str(observation)))
            for action in plan:
                observation, reward, _, _, info = env.step(action)
                assert not info.get("invalid")
                assert len(words_of(str(observation))) <= 45
                words += len(words_of(action)) + len(words_of(str(observation)))
            assert reward > 0
            assert words <= 160
            assert task.spec["tries"] == len(plan) + 2


def test_panels_are_sound() -> None:
    found = audit(WORLD, "test", limit=40)
    assert found.problems == ()
    for tier in TIERS[1:]:
        assert found.tiers[tier].expert == 1.0


def test_keys_do_not_change_by_colours_turns_and_mirrors() -> None:
    rng = Random(4)
    for _, _, spec in drawn(1):
        key = canonical_key(spec)
        assert canonical_key(recolor_spec(spec, rng)) == key
        flipped = {**spec, "map": spec["map"][::-1], "mission": mirrored(spec["mission"])}
        flipped["map"] = [row.translate(str.maketrans("^v", "v^")) for row in flipped["map"]]
        assert canonical_key(flipped) == key
        other = [row.replace(">.", "^.").replace("v.", "<.") for row in spec["map"]]
        assert other == spec["map"] or canonical_key({**spec, "map": other}) != key
    assert canonical_key({"map": ["########", "##>.rb##", "########"], "mission": "go to the ball"}) != canonical_key(
        {"map": ["########", "##>.rb##", "########"], "mission": "go to the red ball"}
    )


def mirrored(mission: str) -> str:
    swap = {"left": "right", "right": "left"}
    return " ".join(swap.get(word, word) for word in mission.split(" "))


def test_four_turns_are_none() -> None:
    grid = split_cells(["########", "##>.rb##", "##..gc##", "########"])
    once = rotate_grid(grid)
    assert once == [["##"] * 4, ["##", "..", "v.", "##"], ["##", "gc", "rb", "##"], ["##"] * 4]
    assert rotate_grid(rotate_grid(rotate_grid(once))) == grid


def test_renamed_tasks_have_the_same_plans_in_other_colours() -> None:
    rng = Random(2)
    for tier in TIERS:
        for task in WORLD.tasks("dev", tier)[:25]:
            other = WORLD.rename(task, rng)
            assert other.id != task.id
            assert (other.kind, other.tier, other.split) == (task.kind, task.tier, task.split)
            assert WORLD.key(other) == WORLD.key(task)
            assert colourless(WORLD.expert(other)) == colourless(WORLD.expert(task))
    with pytest.raises(ConfigError, match="colors of a level cannot change"):
        GridWorld("GoToObj").rename(Task("babyai", "1", {"level": "GoToObj", "seed": 1}), rng)


def colourless(plan: object) -> list[str]:
    assert isinstance(plan, list)
    return [" ".join(word for word in action.split() if word not in COLOURS) for action in plan]


def test_tasks_are_drawn_alike_whatever_was_drawn_before() -> None:
    kind = list_kinds_by_tier()["seen"][5]
    assert draw_task(kind, 3) == draw_task(kind, 3) != draw_task(kind, 4)
    ids = [task.id for split in SPLITS for task in WORLD.tasks(split, "combo")]
    assert ids == [task.id for split in SPLITS for task in GridWorld().tasks(split, "combo")]
