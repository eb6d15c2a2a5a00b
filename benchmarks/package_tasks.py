"""Does a world around a package pay what its game means? Every task is played well, badly and with nonsense.

TextArena's games are played by programs that know the hidden state (`benchmarks.package_games`). A dataset of
Reasoning Gym is answered with the answer of its entry and with that of another entry. ScienceWorld's tasks are played
by the gold path and by a wrong focus. The order is wrong where the best does not earn more than the worst, in the score
or in the rewards, where nonsense earns as much as the best, or where a success lacks full marks.

`benchmarks.reality` runs it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.package_games import BEST, WORST, Table, find_actions
from evolvent.errors import MissingExtra
from evolvent.trajectory import Json, Score, Task
from evolvent.worlds.base import World
from evolvent.worlds.extras.reasoning_gym import REASONING_GYM, ReasoningGym
from evolvent.worlds.extras.sciworld import AGENTGYM_TASKS, JvmLimits, SciWorld
from evolvent.worlds.extras.textarena import SOLO, TextArena

__all__ = [
    "NONSENSE",
    "Outcome",
    "PlayedTask",
    "list_datasets",
    "measure_packages",
    "play_dataset",
    "play_experiment",
    "play_game",
]

NONSENSE = ("banana", "", "I do not know.", "?!")
_FULL = 1.0 - 1e-9
_NO_SUCCESS = {"Blackjack-v0"}  # games that nobody can win every time: the cards are dealt
# Datasets that accept several answers, so that another entry's may be right: an answer that is wrong for every entry.
_WRONG_ANSWERS = {
    "boxnet": "[]",
    "graph_color": "{}",
    "jugs": "[]",
    "propositional_logic": "(Z ∧ Z)",
    "rubiks_cube": "U U U U",
}
_EASY_TASKS = ("find-animal", "find-living-thing", "find-non-living-thing", "find-plant")


@dataclass(frozen=True)
class Outcome:
    """The score of an episode, and the sum of its rewards."""

    score: Score
    paid: float


@dataclass(frozen=True)
class PlayedTask:
    """A task as three policies played it.

    Attributes:
        name: the task.
        best: the outcome of the best policy.
        worst: the outcome of the worst one.
        nonsense: the outcomes of nonsense.
        can_win: whether the best policy has to succeed.
    """

    name: str
    best: Outcome
    worst: Outcome
    nonsense: tuple[Outcome, ...]
    can_win: bool = True

    def list_faults(self) -> list[str]:
        """Lists what is wrong with the order."""
        faults = []
        if not (_unit(self.best) > _unit(self.worst) and self.best.paid > self.worst.paid):
            faults.append("the best policy does not earn more than the worst")
        if any(_unit(other) >= min(_FULL, _unit(self.best)) or other.paid >= self.best.paid for other in self.nonsense):
            faults.append("nonsense earns as much as the best policy")
        if any(outcome.score.success and _unit(outcome) < _FULL for outcome in (self.best, self.worst, *self.nonsense)):
            faults.append("a success without full marks")
        if self.worst.score.success or (self.can_win and not self.best.score.success):
            faults.append("the worst policy succeeds, or the best one fails")
        return faults


def _unit(outcome: Outcome) -> float:
    return -math.inf if outcome.score.unit is None else outcome.score.unit


def _play(world: World, env: Any, actions: Iterable[str]) -> Outcome:
    """Plays actions until the episode ends, at most to the world's horizon."""
    rewards: list[float | None] = []
    info: Mapping[str, object] = {}
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated or len(rewards) == world.horizon:
            break
    env.close()
    return Outcome(world.score(rewards, info), math.fsum(reward or 0.0 for reward in rewards))


def _repeat(text: str) -> Iterator[str]:
    while True:
        yield text


def play_game(world: TextArena, game: str, seed: int) -> PlayedTask:
    """Plays a game of TextArena."""
    task = Task(world.name, world.version, {"game": game, "seed": seed}, game)

    def play(player: Callable[[Table], Iterator[str]]) -> Outcome:
        table = Table(world, task)
        table.env.reset()
        return _play(world, table.env, player(table))

    nonsense = tuple(play(lambda table, text=text: _repeat(text)) for text in NONSENSE)  # type: ignore[misc]
    return PlayedTask(f"{game} {seed}", play(BEST[game]), play(WORST[game]), nonsense, can_win=game not in _NO_SUCCESS)


def list_datasets() -> tuple[str, ...]:
    """Lists the datasets of Reasoning Gym; composite has none of its own."""
    factory = REASONING_GYM.load_module("reasoning_gym.factory")
    return tuple(sorted(set(factory.DATASETS) - {"composite"}))


def play_dataset(world: ReasoningGym, dataset: str, seed: int) -> PlayedTask:
    """Answers a question of a dataset of Reasoning Gym."""

    def find_answer(seed: int) -> str:
        task = make_task(seed)
        plan = world.expert(task)
        return plan[0] if plan else _SOLVERS[dataset](_read_entry(world, task))

    def make_task(seed: int) -> Task:
        return Task(world.name, world.version, {"dataset": dataset, "seed": seed}, dataset)

    def play(answer: str) -> Outcome:
        env = world.make(make_task(seed))
        env.reset()
        return _play(world, env, [answer])

    right = find_answer(seed)
    others = (find_answer(other) for other in range(seed + 1, seed + 200))
    wrong = _WRONG_ANSWERS.get(dataset) or next(answer for answer in others if answer != right)
    return PlayedTask(f"{dataset} {seed}", play(right), play(wrong), tuple(map(play, NONSENSE)))


def _read_entry(world: ReasoningGym, task: Task) -> Mapping[str, Any]:
    env = world.make(task)
    env.reset()
    entry: Mapping[str, Any] = env._session.entry  # type: ignore[attr-defined]
    return entry


def _solve_boxnet(entry: Mapping[str, Any]) -> str:
    """Carries every box to a target of its color, cell by cell."""
    cells = {
        tuple(map(float, name.split("_"))): list(items) for name, items in entry["metadata"]["initial_state"].items()
    }
    moves: list[dict[str, str]] = []

    def walk(cell: tuple[float, ...]) -> Iterator[tuple[str, Any]]:
        for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            following = (cell[0] + down, cell[1] + right)
            if following in cells:
                yield f"{following[0]}, {following[1]}", following

    for start, items in cells.items():
        for box in [item for item in items if item.startswith("box_")]:
            target = box.replace("box_", "target_")
            cell = start
            for place in find_actions(start, lambda cell, target=target: target in cells[cell], walk):  # type: ignore[misc]
                moves.append({f"Agent[{cell[0]}, {cell[1]}]": f"move({box}, square[{place}])"})
                cell = tuple(map(float, place.split(", ")))
            moves.append({f"Agent[{cell[0]}, {cell[1]}]": f"move({box}, {target})"})
            cells[cell].remove(target)
    return json.dumps(moves)


def _solve_rush_hour(entry: Mapping[str, Any]) -> str:
    """Drives the car A to the right border of a board of 6 by 6 cells."""
    board, size = entry["metadata"]["board_config"], 6
    cars = {
        name: [index for index, cell in enumerate(board) if cell == name] for name in sorted(set(board) - set("ox"))
    }
    strides = {name: cells[1] - cells[0] for name, cells in cars.items()}
    names = list(cars)

    def drive(places: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
        taken = {index for index, cell in enumerate(board) if cell == "x"}
        for name, place in zip(names, places, strict=True):
            taken.update(place + strides[name] * offset for offset in range(len(cars[name])))
        for number, (name, place) in enumerate(zip(names, places, strict=True)):
            stride, length = strides[name], len(cars[name])
            front, back = place + stride * length, place - stride
            ahead = front % size != 0 if stride == 1 else front < size * size
            behind = place % size != 0 if stride == 1 else back >= 0
            for sign, is_free, following in (
                ("+1", ahead and front not in taken, place + stride),
                ("-1", behind and back not in taken, back),
            ):
                if is_free:  # the question names the cars anew, from A without gaps
                    yield f"{chr(ord('A') + number)}{sign}", (*places[:number], following, *places[number + 1 :])

    exit_place = cars["A"][0] // size * size + size - len(cars["A"])
    start = tuple(cars[name][0] for name in names)
    return " ".join(find_actions(start, lambda places: places[names.index("A")] == exit_place, drive))


_SOLVERS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "boxnet": _solve_boxnet,
    "rush_hour": _solve_rush_hour,
}
"""Programs for datasets whose entries hold no answer."""


def play_experiment(world: SciWorld, kind: str, variation: int = 0) -> PlayedTask:
    """Plays a task of ScienceWorld; the world's `simplify` is the task's."""
    spec: dict[str, Json] = {"task": kind, "variation": variation}
    if world.simplify:
        spec["simplify"] = world.simplify
    task = Task(world.name, world.version, spec, kind)
    plan = world.expert(task)
    if plan is None:
        raise ValueError(f"the gold path of {kind} is longer than the horizon of {world.horizon} steps")

    def play(actions: Iterable[str]) -> Outcome:
        env = world.make(task)
        env.reset()
        return _play(world, env, actions)

    nonsense = tuple(play([text] * 3) for text in NONSENSE)
    return PlayedTask(f"{kind} {variation} {world.simplify}".strip(), play(plan), play(["focus on agent"]), nonsense)


def _play_games(seeds: int) -> Iterator[PlayedTask]:
    world = TextArena()
    for game in SOLO:
        yield from (play_game(world, game, seed) for seed in range(seeds))


def _play_datasets(seeds: int) -> Iterator[PlayedTask]:
    names = list_datasets()
    world = ReasoningGym(names, trusted=True)  # the answers are written here
    for dataset in names:
        yield from (play_dataset(world, dataset, seed) for seed in range(seeds))


def _play_experiments(seeds: int) -> Iterator[PlayedTask]:
    for simplify, kinds in (("", AGENTGYM_TASKS), ("easy", _EASY_TASKS)):
        world = SciWorld("all", simplify=simplify, horizon=300, limits=JvmLimits(max_machines=1))
        try:
            for kind in kinds:
                yield from (play_experiment(world, kind, variation) for variation in range(seeds))
        finally:
            world.close()


_PACKAGES: Mapping[str, Callable[[int], Iterator[PlayedTask]]] = {
    "textarena": _play_games,
    "reasoning-gym": _play_datasets,
    "scienceworld": _play_experiments,
}


def measure_packages(*, quick: bool = False) -> dict[str, Any]:
    """Plays the tasks of all packages; figures are None, with the reason, where a package is missing."""
    counts: dict[str, int] = {}
    faults: list[str] = []
    missing: list[str] = []
    for name, play in _PACKAGES.items():
        try:
            played = list(play(1 if quick or name == "scienceworld" else 4))
        except MissingExtra as error:
            missing.append(str(error))
            continue
        counts[name] = len(played)
        faults += [f"{name}: {task.name}: {fault}" for task in played for fault in task.list_faults()]
    if missing:
        return {"package_tasks": None, "package_order_wrong": None, "package_missing": missing}
    return {
        "package_tasks": sum(counts.values()),
        "package_order_wrong": len({fault.rsplit(": ", 1)[0] for fault in faults}),
        "package_counts": counts,
        "package_faults": faults[:10],
    }
