"""What is seen: views worked by hand, and a slow independent version of MiniGrid's rule on random maps."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.worlds.grid.map import Board, Pose, read_map
from evolvent.worlds.grid.view import describe, describe_fully, map_cell, observe

WAYS = ((1, 0), (0, 1), (-1, 0), (0, -1))


def short(*rows: str, hold: str | None = None) -> str:
    board = read_map(rows, hold=hold)
    return describe(board, board.start, observe(board, board.start))


def full(*rows: str, hold: str | None = None) -> str:
    board = read_map(rows, hold=hold)
    return describe_fully(board, board.start, observe(board, board.start))


def test_a_closed_door_and_walls_hide_what_is_behind() -> None:
    rows = ["##########", "##rb..bk##", "######gc##", "##......##", "##..^...##", "##########"]
    assert short(*rows) == "see green door closed right 3"
    rows[2] = "######gl##"
    assert short(*rows) == "see green door locked right 3"


def test_through_an_open_door_sight_spreads() -> None:
    rows = ["##########", "##rb..bk##", "######go##", "##......##", "##..^...##", "##########"]
    assert short(*rows) == "see green door open right 3 , red ball left 4 , blue key right 4"


def test_walls_all_around_hide_and_things_do_not() -> None:
    hidden = [
        "##############",
        "##..######..##",
        "##..##rb##..##",
        "##..######..##",
        "##....^.....##",
        "##############",
    ]
    assert short(*hidden) == "see nothing"
    behind = ["##########", "##..yk..##", "##..rb..##", "##..^...##", "##########"]
    assert short(*behind) == "see red ball ahead 1 , yellow key ahead 2"


def test_the_view_reaches_six_ahead_and_three_aside_and_never_back() -> None:
    grid = [["##"] * 19, *([["##"] + [".."] * 17 + ["##"] for _ in range(17)]), ["##"] * 19]
    grid[9][9] = "^."
    for (x, y), text in {
        (9, 3): "rb",
        (9, 2): "gb",
        (6, 9): "bk",
        (5, 9): "pk",
        (12, 3): "yx",
        (13, 3): "ex",
        (9, 10): "rk",
    }.items():
        grid[y][x] = text
    assert short(*("".join(row) for row in grid)) == "see blue key left 3 , red ball ahead 6 , yellow box right 9"


def test_nearest_first_then_further_ahead_then_further_left_and_numbers_follow() -> None:
    board = read_map(["##############", "##....rb....##", "##..rb..rb..##", "##....^.....##", "##############"])
    seen = observe(board, board.start).objects
    assert [(s.ahead, s.right, s.rank) for s in seen] == [(2, 0, 1), (1, -1, 2), (1, 1, 3)]


def test_doors_are_numbered_by_colour_and_by_colour_and_state() -> None:
    board = read_map(["############", "##rc..ro..##", "##..^.....##", "##rl......##", "############"])
    assert [(s.name, s.rank, s.full_name, s.full_rank) for s in observe(board, board.start).objects] == [
        ("red door", 1, "red closed door", 1),
        ("red door", 2, "red open door", 1),
    ]


def test_what_is_held_is_told_first_and_the_goal_is_seen() -> None:
    assert short("########", "##>.GG##", "########", hold="bk") == "hold blue key . see goal ahead 1"


def test_the_full_text() -> None:
    assert full("############", "##........##", "##>...rb..##", "##..gk....##", "############") == (
        "In front of you in this room, you can see several objects: There is a red ball 1 right in front of you "
        "2 steps away. There is a green key 1 1 steps in front of you and 1 steps to your right. The room has walls "
        "around you. You are facing a wall 4 steps away. You are not carrying anything."
    )
    assert full("########", "##>.rx##", "########", hold="rb").endswith(
        "You are facing a box 1 steps away. You are carrying a red ball."
    )
    door = full("##########", "##>...rc##", "##########")
    assert "a red closed door 1 right in front of you 2 steps away" in door
    assert "facing" not in door
    assert "cannot see any objects" in full("######", "##>.##", "######")


def reference(board: Board, pose: Pose) -> dict[tuple[int, int], int]:
    """The seen cells of the view by (ahead, right), with their codes: MiniGrid's rule on coordinates."""
    to_x, to_y = WAYS[pose.direction]
    right_x, right_y = WAYS[(pose.direction + 1) % 4]
    at_x, at_y = board.position(pose.cell)

    def code(ahead: int, right: int) -> int:
        x, y = at_x + ahead * to_x + right * right_x, at_y + ahead * to_y + right * right_y
        columns, rows = board.size
        return pose.cells[board.cell_number(x, y)] if 0 <= x < columns and 0 <= y < rows else 1

    def through(ahead: int, right: int) -> bool:
        found = code(ahead, right)
        thing = board.objects[found]
        return found != 1 and not (thing is not None and thing.state in ("closed", "locked"))

    seen = {(0, 0)}
    for ahead in range(7):
        for order, side in ((range(-3, 3), 1), (range(3, -3, -1), -1)):
            for right in order:
                if (ahead, right) in seen and through(ahead, right):
                    seen |= {(ahead, right + side), (ahead + 1, right), (ahead + 1, right + side)}
    return {(ahead, right): code(ahead, right) for ahead, right in seen if ahead < 7}


CELLS = st.sampled_from(["..", "..", "..", "..", "##", "rb", "bk", "gc", "yo", "pl", "ex", "GG"])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_views_of_random_maps_equal_the_slow_rule(data: st.DataObject) -> None:
    width, height = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    grid = [[data.draw(CELLS) for _ in range(width)] for _ in range(height)]
    grid[data.draw(st.integers(0, height - 1))][data.draw(st.integers(0, width - 1))] = ">."
    edge = "##" * (width + 2)
    board = read_map([edge, *("##" + "".join(row) + "##" for row in grid), edge])
    for way in range(4):
        pose = board.start._replace(direction=way)
        sight, seen = observe(board, pose), reference(board, pose)
        things = {(s.ahead, s.right) for s in sight.objects}
        assert things == {at for at, code in seen.items() if code > 1 and at != (0, 0)}
        assert all(pose.cells[map_cell(board, pose, s.view_cell)] == seen[s.ahead, s.right] for s in sight.objects)
        for ahead in range(7):
            for right in range(-3, 4):
                bit, code = 7 * ahead + right + 3, seen.get((ahead, right))
                assert bool(sight.floor >> bit & 1) == (code == 0)
                assert bool(sight.walkable >> bit & 1) == (code is not None and board.walkable[code] == 1)
