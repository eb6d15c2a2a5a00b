"""Macros against an independent search: the same actions are possible, they take as few moves, and do what they say."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.worlds.grid.map import DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE, Board, Pose, apply_move, read_map
from evolvent.worlds.grid.plan import MOVES, expand_macro, list_actions
from evolvent.worlds.grid.view import map_cell, observe

WAYS = ((1, 0), (0, 1), (-1, 0), (0, -1))
ROOM = ["############", "##....rb..##", "##>.......##", "##..bk..rb##", "############"]


def names(board: Board, pose: Pose | None = None, *, plain: bool = True) -> list[str]:
    pose = pose or board.start
    return list(list_actions(board, pose, observe(board, pose), short_text=plain))


def carry_out(board: Board, pose: Pose, name: str, *, plain: bool = True) -> list[Pose]:
    """The poses that an action leads through; each of its moves changes something."""
    sight = observe(board, pose)
    found = [pose]
    for move in expand_macro(list_actions(board, pose, sight, short_text=plain)[name], sight):
        after = apply_move(board, found[-1], move)
        assert after is not None
        found.append(after)
    return found


def test_what_is_possible_in_a_room() -> None:
    board = read_map(ROOM)
    assert names(board) == [
        "turn left",
        "turn right",
        "move forward",
        "go to blue key 1",
        "pick up blue key 1",
        "go to red ball 1",
        "pick up red ball 1",
        "go to red ball 2",
        "pick up red ball 2",
    ]
    assert names(board, plain=False)[4] == "pickup blue key 1"
    last = carry_out(board, board.start, "pick up red ball 2")[-1]
    assert board.position(last.cell) in ((4, 2), (3, 3))
    assert last.cells[board.cell_number(4, 3)] == 0


def test_carrying_changes_what_is_possible() -> None:
    board = read_map(ROOM, hold="gx")
    found = names(board)
    assert "drop" in found and "drop next to red ball 2" in found
    assert not any(name.startswith("pick up") for name in found)
    assert not any(name.startswith("drop next") for name in names(board, plain=False))
    for target, place in (("red ball 1", (3, 1)), ("blue key 1", (2, 3))):
        after = carry_out(board, board.start, f"drop next to {target}")[-1]
        x, y = board.position(after.cell + board.forward_offsets[after.direction])
        assert abs(x - place[0]) + abs(y - place[1]) == 1
        assert after.held_code == 0


def test_doors_by_their_state() -> None:
    rows = ["##########", "##>.....##", "##......##", "##..rc..##", "##..##..##", "##########"]
    for state, expected in (
        ("rc", ["go to red door 1", "toggle and go through red door 1"]),
        ("ro", ["go to red door 1", "go through red door 1"]),
        ("rl", ["go to red door 1"]),
    ):
        shown = [row.replace("rc", state) for row in rows]
        board = read_map(shown)
        assert [name for name in names(board) if "door" in name] == expected
        full = {"rc": "closed", "ro": "open", "rl": "locked"}[state]
        assert all(f"red {full} door 1" in name for name in names(board, plain=False) if "door" in name)
    keyed = read_map([row.replace("rc", "rl") for row in rows], hold="rk")
    after = carry_out(keyed, keyed.start, "toggle and go through red door 1")[-1]
    assert keyed.position(after.cell) == (2, 3)
    assert "toggle and go through red door 1" not in names(read_map([r.replace("rc", "rl") for r in rows], hold="bk"))


def test_nothing_to_go_to_where_one_is() -> None:
    board = read_map(["########", "##>.rb##", "########"])
    assert names(board) == ["turn left", "turn right", "pick up", "pick up red ball 1"]


def test_what_cannot_be_reached_is_not_offered() -> None:
    board = read_map(["############", "##>...yx..##", "######bb..##", "############"])
    assert "go to yellow box 1" in names(board)
    assert not any("blue ball" in name for name in names(board))
    goal = read_map(["##########", "##>...GG##", "##########"])
    assert board.size == (6, 4)
    assert goal.position(carry_out(goal, goal.start, "go to goal")[-1].cell) == (3, 1)


def search(board: Board, pose: Pose, allowed: set[int], *, stand: int | None = None, face: set[int]) -> int | None:
    """Moves of a shortest walk over `allowed` cells until the agent stands on a cell or faces one of some."""
    queue, seen = deque([(pose.cell, pose.direction, 0)]), {(pose.cell, pose.direction)}
    while queue:
        at, way, steps = queue.popleft()
        x, y = board.position(at)
        ahead = board.cell_number(x + WAYS[way][0], y + WAYS[way][1])
        if at == stand or (stand is None and ahead in face):
            return steps
        turns = [(at, (way + 1) % 4), (at, (way + 3) % 4)]
        for then in turns + ([(ahead, way)] if ahead in allowed else []):
            if then not in seen:
                seen.add(then)
                queue.append((*then, steps + 1))
    return None


CELLS = st.sampled_from(["..", "..", "..", "..", "##", "rb", "bk", "gc", "yo", "pl", "rx", "GG"])


@settings(max_examples=120, deadline=None)
@given(data=st.data(), hold=st.sampled_from([None, "pk", "yb"]), plain=st.booleans())
def test_macros_equal_an_independent_search(data: st.DataObject, hold: str | None, plain: bool) -> None:
    width, height = data.draw(st.integers(2, 6)), data.draw(st.integers(2, 6))
    grid = [[data.draw(CELLS) for _ in range(width)] for _ in range(height)]
    grid[data.draw(st.integers(0, height - 1))][data.draw(st.integers(0, width - 1))] = "^."
    edge = "##" * (width + 2)
    board = read_map([edge, *("##" + "".join(row) + "##" for row in grid), edge], hold=hold)
    pose = board.start
    sight = observe(board, pose)
    found = list_actions(board, pose, sight, short_text=plain)
    allowed = {map_cell(board, pose, bit) for bit in range(49) if sight.walkable >> bit & 1}
    floor = {map_cell(board, pose, bit) for bit in range(49) if sight.floor >> bit & 1}
    expected: dict[str, int] = {}
    for seen in sight.objects:
        cell = map_cell(board, pose, seen.view_cell)
        name = f"{seen.name} {seen.rank}" if plain else f"{seen.full_name} {seen.full_rank}"
        if seen.grid_object is None:
            expected |= lengths("go to goal", search(board, pose, allowed, stand=cell, face=set()))
            continue
        facing = search(board, pose, allowed, face={cell})
        if facing:
            expected |= lengths(f"go to {name}", facing)
        state = seen.grid_object.state
        if state == "open":
            expected |= lengths(f"go through {name}", search(board, pose, allowed, stand=cell, face=set()))
        elif state == "closed" or (state == "locked" and hold == "pk"):
            expected |= lengths(f"toggle and go through {name}", facing, 2)
        elif not state and not hold:
            expected |= lengths(f"{'pick up' if plain else 'pickup'} {name}", facing, 1)
        if hold and plain:
            beside = {cell + step for step in board.forward_offsets} & floor
            expected |= lengths(f"drop next to {name}", search(board, pose, allowed, face=beside), 1)
    expected |= {name: 1 for name, move in MOVES.items() if apply_move(board, pose, move) is not None}
    assert {name: len(expand_macro(macro, sight)) for name, macro in found.items()} == expected
    for name in found:
        end = carry_out(board, pose, name, plain=plain)[-1]
        assert end != pose
        if name.startswith(("pick up ", "pickup ")):
            thing = board.objects[end.held_code]
            assert thing is not None and thing.name in name


def lengths(name: str, steps: int | None, more: int = 0) -> dict[str, int]:
    return {} if steps is None else {name: steps + more}


@pytest.mark.parametrize("move", [LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE])
def test_moves_are_offered_exactly_where_they_change_something(move: int) -> None:
    name = next(name for name, number in MOVES.items() if number == move)
    for rows in (ROOM, ["########", "##>.rb##", "########"], ["######", "##>.rc", "######"]):
        for hold in (None, "rk"):
            board = read_map(rows, hold=hold)
            assert (name in names(board)) == (apply_move(board, board.start, move) is not None)
