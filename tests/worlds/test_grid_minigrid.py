"""MiniGrid itself, where it is installed: its levels, read into our maps, look and behave the same move by move."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from evolvent.worlds.grid.expert import solve
from evolvent.worlds.grid.levels import LEVELS
from evolvent.worlds.grid.map import DOOR, FIRST_OBJECT_CODE, LETTERS, PICKUP, TOGGLE, Board, Pose, apply_move
from evolvent.worlds.grid.mission import Progress, update_progress
from evolvent.worlds.grid.plan import expand_macro
from evolvent.worlds.grid.scene import Scene, build_turn
from evolvent.worlds.grid.spec import build_scene
from evolvent.worlds.grid.view import observe

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")
pytestmark = pytest.mark.filterwarnings("ignore")

OTHER_RULE = "BabyAI-OpenDoorsOrderN4Debug-v0"  # there the move that opens the first door fails the second


def text_of(thing: Any) -> str:
    if thing is None:
        return ".."
    if thing.type in ("wall", "goal"):
        return {"wall": "##", "goal": "GG"}[thing.type]
    state = ("open" if thing.is_open else "locked" if thing.is_locked else "closed") if thing.type == DOOR else ""
    return LETTERS[thing.color] + LETTERS[state or thing.type]


def spec_of(env: Any) -> dict[str, Any]:
    grid = env.grid
    cells = [[text_of(grid.get(x, y)) for x in range(grid.width)] for y in range(grid.height)]
    x, y = map(int, env.agent_pos)
    cells[y][x] = ">v<^"[env.agent_dir] + "."
    filled = [(x, y, grid.get(x, y)) for x in range(grid.width) for y in range(grid.height)]
    return {
        "map": ["".join(row) for row in cells],
        "mission": env.mission,
        "moves": env.max_steps,
        "inside": [[x, y, text_of(b.contains)] for x, y, b in filled if b and b.type == "box" and b.contains],
        **({"hold": text_of(env.carrying)} if env.carrying else {}),
    }


def ours(board: Board, pose: Pose) -> list[list[str]]:
    plain = {0: "..", 1: "##", 2: "GG"}
    columns, rows = board.size
    codes = [[pose.cells[board.cell_number(x, y)] for x in range(columns)] for y in range(rows)]
    return [[plain[code] if code < FIRST_OBJECT_CODE else letters(board, code) for code in row] for row in codes]


def letters(board: Board, code: int) -> str:
    thing = board.get_object(code)
    return LETTERS[thing.colour] + LETTERS[thing.state or thing.type]


def same_view(env: Any, board: Board, pose: Pose) -> None:
    grid, seen = env.gen_obs_grid()
    sight = observe(board, pose)
    mine = {(thing.right + 3, 6 - thing.ahead): thing for thing in sight.objects}
    for i in range(7):
        for j in range(7):
            thing, bit = grid.get(i, j), 7 * (6 - j) + i
            if (i, j) == (3, 6):
                continue
            assert bool(sight.floor >> bit & 1) == bool(seen[i, j] and thing is None)
            assert ((i, j) in mine) == bool(seen[i, j] and thing is not None and thing.type != "wall")
            if (i, j) in mine and thing.type != "goal":
                named = mine[i, j].grid_object
                assert named is not None
                assert LETTERS[named.colour] + LETTERS[named.state or named.type] == text_of(thing)


def expert_moves(scene: Scene, pose: Pose, progress: Progress) -> list[int]:
    """The moves of the expert's plan from here."""
    found: list[int] = []
    for action in solve(scene, pose, progress, max_actions=300) or ():
        turn = build_turn(scene, pose)
        for move in expand_macro(turn.actions[action], turn.sight):
            after = apply_move(scene.board, pose, move)
            assert after is not None
            progress, verdict = update_progress(
                scene.board, scene.mission, progress, before=pose, move=move, after=after
            )
            pose = after
            found.append(move)
            if verdict is not None:
                return found
    return found


@pytest.mark.parametrize("name", [name for name in LEVELS if name != OTHER_RULE])
def test_levels_of_minigrid_played_on_both_sides(name: str) -> None:
    env = gymnasium.make(name.replace("GoToObjS6-v0", "GoToObjS6-v1"), disable_env_checker=True)
    strict = int(name.endswith("Debug-v0"))
    won = 0
    for seed in range(3):
        env.reset(seed=seed)
        inner, rng = env.unwrapped, Random(seed)
        scene = build_scene({**spec_of(inner), **({"strict": 1} if strict else {})})
        board, pose, progress = scene.board, scene.board.start, Progress()
        astray = 0 if strict else 12 * seed
        queue: list[int] = []
        for number in range(300):
            same_view(inner, board, pose)
            if number == astray:
                queue = expert_moves(scene, pose, progress)
            move = queue.pop(0) if queue else rng.choice((0, 1, 2, 2, 2, 3, 4, 5))
            front = inner.grid.get(*inner.front_pos)
            if front is not None and front.type == "box" and move == TOGGLE and not front.contains:
                move = PICKUP  # newer versions of MiniGrid do not open empty boxes
            _, reward, terminated, truncated, _ = env.step(move)
            after = apply_move(board, pose, move) or pose
            progress, verdict = update_progress(board, scene.mission, progress, before=pose, move=move, after=after)
            pose = after
            assert verdict == ((reward > 0) if terminated else None)
            assert (board.position(pose.cell), pose.direction) == (tuple(map(int, inner.agent_pos)), inner.agent_dir)
            assert ours(board, pose) == [
                [text_of(inner.grid.get(x, y)) for x in range(inner.grid.width)] for y in range(inner.grid.height)
            ]
            assert (letters(board, pose.held_code) if pose.held_code else "..") == text_of(inner.carrying)
            if verdict:
                assert reward == pytest.approx(1 - 0.9 * (number + 1) / scene.max_moves)
                won += 1
            if terminated or truncated:
                break
    assert won >= 2
