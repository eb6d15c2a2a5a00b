"""BabyAI's language: what it speaks of, and when a mission is fulfilled, in which order, and when it has failed."""

from __future__ import annotations

import pytest

from evolvent.errors import ConfigError
from evolvent.worlds.grid.map import DROP, FORWARD, LEFT, PICKUP, RIGHT, TOGGLE, Board, apply_move, read_map
from evolvent.worlds.grid.mission import Progress, find_codes, read_mission, update_progress

L, R, F, P, D, T = LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE
ROOM = ["############", "##..rb..bk##", "##>.......##", "##..bx..gb##", "######rc####", "##......gc##", "############"]


def verdict(board: Board, text: str, moves: list[int], *, strict: int = 0) -> tuple[int, bool | None]:
    """After which move a mission ended (or how many there were), and how."""
    mission, pose, progress = read_mission(text, board, num_strict_stages=strict), board.start, Progress()
    for number, move in enumerate(moves, 1):
        after = apply_move(board, pose, move)
        assert after is not None, f"move {number} changes nothing"
        progress, ended = update_progress(board, mission, progress, before=pose, move=move, after=after)
        pose = after
        if ended is not None:
            return number, ended
    return len(moves), None


def test_going_is_facing() -> None:
    board = read_map(ROOM)
    assert verdict(board, "go to the red ball", [F, L]) == (2, True)
    assert verdict(board, "go to the red object", [F, L]) == (2, True)
    assert verdict(board, "go to the red ball", [F, R]) == (2, None)
    assert verdict(board, "go to a ball", [F, L]) == (2, True)
    assert verdict(board, "go to the blue box", [F, F, R, R, L]) == (5, None)  # beside it, not before it
    goal = read_map(["##########", "##>...GG##", "##########"])
    assert verdict(goal, "go to the goal", [F, F]) == (2, True)


def test_picking_up_counts_when_it_happens() -> None:
    board = read_map(ROOM)
    assert verdict(board, "pick up the red ball", [F, L, P]) == (3, True)
    assert verdict(board, "pick up the red ball", [F, R, P, L, L]) == (5, None)
    carried = read_map(ROOM, hold="yk")
    assert verdict(carried, "pick up the yellow key", [F, D, P]) == (3, True)
    assert verdict(carried, "pick up the yellow key", [F, F, L, L]) == (4, None)  # carrying alone is not picking up


def test_opening_is_toggling_until_open() -> None:
    board = read_map(ROOM)
    assert verdict(board, "open the red door", [F, F, R, F, T]) == (5, True)
    assert verdict(board, "open the red door", [F, F, R, F]) == (4, None)
    assert verdict(board, "go to the red door", [F, F, R, F]) == (4, True)
    opened = read_map([row.replace("rc", "ro") for row in ROOM])
    assert verdict(opened, "open the red door", [F, F, R, F, T]) == (5, None)  # this closes it
    assert verdict(opened, "open the red door", [F, F, R, F, T, T]) == (6, True)


def test_putting_next_counts_when_dropped_beside() -> None:
    board = read_map(ROOM)
    moves = [F, L, P, F, R, D]  # dropped at (3, 1), beside the key at (4, 1)
    assert verdict(board, "put the red ball next to the blue key", moves) == (6, True)
    assert verdict(board, "put the red ball next to the blue box", moves) == (6, None)
    assert verdict(board, "put the red ball next to the blue key", moves[:-1]) == (5, None)  # carrying it there is not
    assert verdict(board, "put the red ball next to the green ball", [F, L, P, R, F, D]) == (6, True)


def test_putting_next_golden() -> None:
    board = read_map(["############", "##..rb..bk##", "##>.......##", "############"])
    near = [F, L, P, R, F, L, F, R]  # to (3, 1), before the key at (4, 1): nothing can be dropped there
    assert verdict(board, "put the red ball next to the blue key", near) == (8, None)
    beside = [F, L, P, R, F, D]  # dropped at (4, 2), below the key
    assert verdict(board, "put the red ball next to the blue key", beside) == (6, True)
    assert verdict(board, "put the blue key next to the red ball", beside) == (6, None)
    assert verdict(board, "put the red ball next to a key", beside) == (6, True)
    far = [F, L, P, L, D]  # dropped at (1, 2)
    assert verdict(board, "put the red ball next to the blue key", far) == (5, None)


def test_orders() -> None:
    board = read_map(ROOM)
    ball, box = [F, L], [R, R]  # from the beginning: before the red ball, then before the blue box
    assert verdict(board, "go to the red ball, then go to the blue box", ball + box) == (4, True)
    assert verdict(board, "go to the blue box, then go to the red ball", ball + box) == (4, None)
    assert verdict(board, "go to the blue box, then go to the red ball", [*ball, *box, L, L]) == (6, True)
    assert verdict(board, "go to the blue box after you go to the red ball", ball + box) == (4, True)
    assert verdict(board, "go to the red ball after you go to the blue box", ball + box) == (4, None)
    for text in ("go to the red ball and go to the blue box", "go to the blue box and go to the red ball"):
        assert verdict(board, text, ball + box) == (4, True)
        assert verdict(board, text, ball) == (2, None)
    both = "go to the red ball and pick up the blue box, then go to the red ball"
    assert verdict(board, both, [F, R, P, L, L]) == (5, True)  # the last move fulfils the first stage and the second
    assert verdict(board, "go to the red ball, then go to the red object", [F, L]) == (2, True)


def test_strict_missions_fail_by_mistakes() -> None:
    board = read_map(ROOM)
    wrong = [F, R, P]
    assert verdict(board, "pick up the red ball", wrong) == (3, None)
    assert verdict(board, "pick up the red ball", wrong, strict=1) == (3, False)
    assert verdict(board, "pick up the red ball", [F, L, P], strict=1) == (3, True)
    doors = read_map(["##rc##rl##", "##......##", "##^.....##", "##########"])
    second = [R, F, F, L, F]
    assert verdict(doors, "go to a door", [F]) == (1, True)
    other = read_map(["##rc##gc##", "##......##", "##^.....##", "##########"])
    assert verdict(other, "open the red door", [*second, T]) == (6, None)
    assert verdict(other, "open the red door", [*second, T], strict=1) == (6, False)
    both = "open the red door, then open the green door"
    assert verdict(other, both, [F, T, L, L, L, F, F, L, T], strict=2) == (9, True)
    assert verdict(other, both, [F, T, T], strict=2) == (3, False)
    assert verdict(other, both, [F, T, T], strict=1) == (3, None)


def test_sides_are_those_of_the_first_room_and_moment() -> None:
    board = read_map(ROOM)
    codes = {place: board.start.cells[board.cell_number(*place)] for place in ((2, 1), (4, 1), (2, 3), (4, 3))}
    assert find_codes(board, None, "ball", side="on your left") == {codes[2, 1]}
    assert find_codes(board, None, "ball", side="on your right") == {codes[4, 3]}
    assert find_codes(board, "blue", None, side="in front of you") == {codes[4, 1], codes[2, 3]}
    assert not find_codes(board, None, "ball", side="behind you")
    door = find_codes(board, None, "door", side="on your right")
    assert len(door) == 3  # the three states of the red door; the green one is in the next room
    assert len(find_codes(board, None, "door")) == 6
    carried = [F, L, P, R, R, D, P]
    assert verdict(board, "pick up the ball on your left", carried[:3]) == (3, True)
    moved_on = "go to the blue box, then pick up the ball on your left"
    assert verdict(board, moved_on, [F, R, L, L, P, R, D, P]) == (5, True)


def test_walks_are_counted_as_babyai_does() -> None:
    board = read_map(ROOM)
    for text, walks in (
        ("go to the red ball", 1),
        ("put the red ball next to the blue key", 2),
        ("open the red door and pick up a ball, then put a ball next to a key", 4),
    ):
        assert read_mission(text, board).num_walks == walks


@pytest.mark.parametrize(
    "text",
    [
        "",
        "go",
        "go to red ball",
        "go to the purple ball",
        "pick up the door",
        "open the box",
        "pick up the goal",
        "put the red ball next to the moon",
        "put the door next to the red ball",
        "go to the red ball then open the door",
        "go to the red ball, then go to the box, then go to the key",
        "GO TO THE RED BALL",
        "go to the ball behind you",
    ],
)
def test_what_is_no_mission_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_mission(text, read_map(ROOM))
