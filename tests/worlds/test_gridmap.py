"""The map of the grid world: reading it, and what each move does."""

from __future__ import annotations

import pytest

from evolvent.errors import ConfigError
from evolvent.worlds.grid.map import (
    DROP,
    FORWARD,
    LEFT,
    PICKUP,
    RIGHT,
    TOGGLE,
    Board,
    GridObject,
    Pose,
    apply_move,
    read_map,
)


def play(board: Board, *moves: int) -> Pose:
    """The pose after moves, each of which changes something."""
    pose = board.start
    for number, move in enumerate(moves):
        after = apply_move(board, pose, move)
        assert after is not None, f"move {number} changes nothing"
        pose = after
    return pose


def front(board: Board, pose: Pose) -> GridObject | None:
    return board.objects[pose.cells[pose.cell + board.forward_offsets[pose.direction]]]


def held(board: Board, pose: Pose) -> GridObject | None:
    return board.objects[pose.held_code]


def test_reading_a_map() -> None:
    board = read_map(["##########", "##v.ek..##", "##..yl..##", "##########"])
    assert board.size == (5, 4)
    assert (board.position(board.start.cell), board.start.direction, board.start.held_code) == ((1, 1), 1, 0)
    assert board.objects[board.start.cells[board.cell_number(2, 1)]] == GridObject("key", "grey")
    assert board.objects[board.start.cells[board.cell_number(2, 2)]] == GridObject("door", "yellow", "locked")


def test_turning_and_walking() -> None:
    board = read_map(["########", "##>...##", "##....##", "########"])
    assert [play(board, *[RIGHT] * n).direction for n in range(5)] == [0, 1, 2, 3, 0]
    assert [play(board, *[LEFT] * n).direction for n in range(5)] == [0, 3, 2, 1, 0]
    assert board.position(play(board, FORWARD).cell) == (2, 1)
    assert board.position(play(board, RIGHT, FORWARD).cell) == (1, 2)
    assert apply_move(board, play(board, FORWARD), FORWARD) is None  # a wall
    assert apply_move(board, play(board, LEFT), FORWARD) is None


def test_things_stop_the_agent_and_are_carried_one_at_a_time() -> None:
    board = read_map(["##########", "##>.rb..##", "##bk....##", "##########"])
    for move in (FORWARD, DROP, TOGGLE):
        assert apply_move(board, board.start, move) is None
    carrying = play(board, PICKUP)
    assert held(board, carrying) == GridObject("ball", "red")
    assert front(board, carrying) is None
    turned = play(board, PICKUP, RIGHT)
    assert front(board, turned) == GridObject("key", "blue")
    assert apply_move(board, turned, PICKUP) is None  # hands are full
    assert apply_move(board, turned, DROP) is None  # not onto the key
    moved_on = play(board, PICKUP, FORWARD, DROP)
    assert held(board, moved_on) is None
    assert board.objects[moved_on.cells[board.cell_number(3, 1)]] == GridObject("ball", "red")
    assert board.objects[moved_on.cells[board.cell_number(2, 1)]] is None


def test_doors_open_close_and_unlock_with_the_key_of_their_colour() -> None:
    board = read_map(["############", "##^.rk....##", "##rl##bl####", "##......bk##", "############"])
    at_door = play(board, RIGHT, PICKUP, RIGHT)
    assert front(board, at_door) == GridObject("door", "red", "locked")
    assert apply_move(board, at_door, FORWARD) is None
    opened = play(board, RIGHT, PICKUP, RIGHT, TOGGLE)
    assert front(board, opened) == GridObject("door", "red", "open")
    assert held(board, opened) == GridObject("key", "red")  # a key is not used up
    assert front(board, play(board, RIGHT, PICKUP, RIGHT, TOGGLE, TOGGLE)) == GridObject("door", "red", "closed")
    through = play(board, RIGHT, PICKUP, RIGHT, TOGGLE, FORWARD)
    assert board.position(through.cell) == (1, 2)
    assert apply_move(board, opened, DROP) is None  # not into a doorway


def test_a_locked_door_needs_its_own_key() -> None:
    board = read_map(["##########", "##^.bk..##", "##rl######", "##......##", "##########"])
    assert apply_move(board, play(board, RIGHT, RIGHT), TOGGLE) is None
    assert apply_move(board, play(board, RIGHT, PICKUP, RIGHT), TOGGLE) is None
    box = read_map(["##########", "##^.rx..##", "##rl######", "##......##", "##########"])
    assert apply_move(box, play(box, RIGHT, PICKUP, RIGHT), TOGGLE) is None  # red, but no key


def test_boxes_hold_things() -> None:
    rows = ["##########", "##>.rx..##", "##########"]
    board = read_map(rows, inside={(2, 1): "gk"})
    assert front(board, play(board, TOGGLE)) == GridObject("key", "green")
    assert held(board, play(board, TOGGLE, PICKUP)) == GridObject("key", "green")
    assert held(board, play(board, PICKUP)) == GridObject("box", "red")
    assert front(board, play(board, PICKUP, DROP, TOGGLE)) == GridObject("key", "green")  # also when it was moved
    assert front(board, play(read_map(rows), TOGGLE)) is None
    assert board.position(play(read_map(rows), TOGGLE, FORWARD).cell) == (2, 1)


def test_what_is_held_at_the_beginning() -> None:
    board = read_map(["########", "##>...##", "########"], hold="px")
    assert held(board, board.start) == GridObject("box", "purple")
    assert front(board, play(board, DROP)) == GridObject("box", "purple")


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([], "the rows do not form a rectangle"),
        (["####", "##>.", "####"], "3 to"),
        (["########", "##>.##", "########"], "the rows do not form a rectangle"),
        (["#######", "##>.###", "#######"], "two characters"),
        (["######", "##zz##", "##>.##", "######"], "unknown cell"),
        (["######", "##..##", "######"], "0 agents"),
        (["########", "##>.>.##", "########"], "2 agents"),
        (["########", "##>.....", "########"], "the edge is open"),
        (["########", "rb>...##", "########"], "the edge is open"),
        (["##" * 70] * 4, "3 to 64 cells per side"),
        (["##" * 20, *["##" + "rb" * 18 + "##"] * 4, "##>." + "##" * 18, "##" * 20], "too many objects"),
        ([3, 4, 5], "the rows do not form a rectangle"),
    ],
)
def test_bad_maps_are_refused(rows: list[str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        read_map(rows)


def test_bad_fillings_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        read_map(["########", "##>.rx##", "########"], inside={(1, 1): "rk", (2, 1): "rc"}, hold="rl")
    assert len(caught.value.problems) == 3
    with pytest.raises(ConfigError, match="unknown object code"):
        read_map(["######", "##>.##", "######"]).get_object(1)
