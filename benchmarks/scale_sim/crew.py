"""Real circles on this machine: worker processes that are the library's own players, and a driver that learns.

What Ray would carry goes through pipes: each worker holds a `scale.ray_player.Player` and answers as its actor does,
slices are dealt by `scale.ray_work.Todo`, episodes come back as lines of the store, are read, stored and learned from.
So everything that a circle on a cluster does is done, but for Ray.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.scale_sim.model import Shape
from benchmarks.serve import cpu_clock
from evolvent.agents.language import LanguageAgent
from evolvent.errors import EngineError
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import flatten
from evolvent.models.policy import Policy
from evolvent.rollout.episode import Limits
from evolvent.scale.ray_player import Player
from evolvent.scale.ray_versions import read_versions
from evolvent.scale.ray_wire import (
    agent_to_row,
    build_message,
    parse_message,
    read_policy_files,
    start_to_row,
    trajectory_from_line,
)
from evolvent.scale.ray_work import WorkItem, WorkQueue
from evolvent.store.store import Store
from evolvent.trajectory import Start, Trajectory, trajectory_name
from evolvent.worlds.base import World
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.lookup import Lookup

__all__ = ["Hand", "Real", "Work", "crew", "learned_from", "load", "play_circle", "shape_of", "worlds"]

LEARNING = TrainConfig(epochs=1, lr=1e-6, final_lr_ratio=1.0)  # so small that episodes stay as long as they are
_MORE, _MORE_S = 512, 0.25  # as `scale.ray_players` asks


def worlds() -> dict[str, World]:
    """The worlds of the players."""
    return {world.name: world for world in (Crafting(), Lookup())}


@dataclass(frozen=True)
class Work:
    """One circle's work: who plays what, on so many rows a worker, writing at most so many tokens an action."""

    starts: Sequence[Start]
    rows: int
    max_tokens: int = 32


@dataclass(frozen=True)
class Real:
    """What a circle took: seconds, CPU-seconds of all its processes, tokens fed in learning, threads of others.

    Attributes:
        collected_s: seconds from its beginning until the last episode was stored.
    """

    wall_s: float
    collected_s: float
    cpu_s: float
    fed: int
    rivals: float
    shape: Shape
    policy: Policy


@dataclass(frozen=True)
class Hand:
    """A worker process, seen from the driver."""

    pipe: Connection
    pid: int


def _serve(pipe: Connection) -> None:
    """A worker: a player behind a pipe. It hands over on its own what Ray's driver would ask for ahead."""
    torch.set_num_threads(1)
    player = Player(pipe.recv_bytes())
    pipe.send_bytes(player.hello())
    while told := pipe.recv_bytes():
        contents = [np.frombuffer(pipe.recv_bytes(), np.uint8) for _ in parse_message(told)[0]["contents"]]
        head, _ = parse_message(player.play(told, *contents))
        while "error" not in head and not head.get("end"):
            answer = player.more(_MORE, _MORE_S)
            head, _ = parse_message(answer)
            pipe.send_bytes(answer)
        if "error" in head and "rows" not in head:
            pipe.send_bytes(build_message({**head, "rows": []}))


@contextmanager
def crew(count: int) -> Iterator[list[Hand]]:
    """So many workers that have made their worlds; ended at the end of the block.

    Raises:
        EngineError: one that does not begin.
    """
    context = multiprocessing.get_context("spawn")
    made = {name: world.version for name, world in worlds().items()}
    setup = build_message(
        {
            "worlds": [f"{__name__}:worlds", []],
            "versions": read_versions(),
            "made": made,
            "threads": 1,
        }
    )
    hands, processes = [], []
    try:
        for _ in range(count):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()
            here.send_bytes(setup)
            processes.append(process)
            hands.append(Hand(here, int(process.pid or 0)))
        for hand in hands:
            _checked(hand.pipe.recv_bytes())
        yield hands
        for hand in hands:
            hand.pipe.send_bytes(b"")
    finally:
        for process, hand in zip(processes, hands, strict=False):
            hand.pipe.close()
            process.join(5)
            process.kill()


def play_circle(hands: Sequence[Hand], policy: Policy, work: Work, *, seed: int) -> Real:
    """Hand the weights over, deal, play, store and learn; all of it is timed."""
    cpu = cpu_clock(os.getpid())
    with load([os.getpid(), *(hand.pid for hand in hands)]) as rivals, tempfile.TemporaryDirectory() as scratch:
        began, spent = time.perf_counter(), cpu()
        played = _collected(hands, policy, work, seed=seed, folder=Path(scratch) / "store")
        collected_s = time.perf_counter() - began
        learned, fed = learned_from(policy, played)
        wall_s, spent = time.perf_counter() - began, cpu() - spent
    return Real(wall_s, collected_s, spent, fed, sum(rivals) / max(1, len(rivals)), shape_of(played), learned)


def _collected(hands: Sequence[Hand], policy: Policy, work: Work, *, seed: int, folder: Path) -> list[Trajectory]:
    """Collection over the workers, as `scale.ray_players.Players.work` does it."""
    files, contents = read_policy_files(policy)
    named = {trajectory_name(start): start for start in work.starts}
    todo = WorkQueue([WorkItem(name, start_to_row(start)) for name, start in named.items()], slots=work.rows)
    head = {
        "do": "play",
        "agent": agent_to_row(LanguageAgent(policy, max_tokens=work.max_tokens)),
        "seed": seed,
        "name": "",
        "limits": asdict(Limits()),
        "slots": work.rows,
        "parents": 0,
        "policies": {"policy": {"names": files.names, "limit": files.limit}},
    }
    idle, fresh, played = list(hands), set(hands), list[Trajectory]()
    by_pipe = {hand.pipe: hand for hand in hands}
    with Store.open(folder, writing=True) as store:
        while len(todo):
            while idle and todo.has_waiting:
                _deal(idle.pop(0), todo.next_slice(len(hands)), head, contents, fresh)
            for pipe in wait(list(by_pipe)):
                answer, lines = _checked(pipe.recv_bytes())  # type: ignore[union-attr]
                for (key, _), line in zip(answer["rows"], lines, strict=True):
                    item = todo.finish(key)
                    if item is None:
                        raise EngineError("an episode was played twice", value=key)
                    played.append(trajectory_from_line(line, named[key]))
                    store.append(played[-1])
                if answer["end"]:
                    idle.append(by_pipe[pipe])  # type: ignore[index]
    return played


def _deal(
    hand: Hand,
    items: Sequence[WorkItem],
    head: dict[str, Any],
    contents: dict[str, NDArray[np.uint8]],
    fresh: set[Hand],
) -> None:
    """Send a slice; with it the weights, where they are new to the worker."""
    sent = list(contents) if hand in fresh else []
    fresh.discard(hand)
    hand.pipe.send_bytes(build_message({**head, "rows": [item.row for item in items], "contents": sent}))
    for digest in sent:
        hand.pipe.send_bytes(contents[digest].tobytes())


def _checked(told: bytes) -> tuple[dict[str, Any], list[bytes]]:
    head, lines = parse_message(told)
    if "error" in head:
        raise EngineError("a worker failed", value=head["error"])
    return head, lines


def learned_from(policy: Policy, played: Sequence[Trajectory]) -> tuple[Policy, int]:
    """Learn once from what was played: the new policy, and how many tokens the training was fed."""
    parts = flatten(played, policy.dialect, instructions=lambda task: "", context=policy.context).sequences
    learner = Learner(policy.clone(), weighted_nll, LEARNING, seed=0)
    report = learner.fit(parts)
    learner.policy.model.eval()
    return learner.policy, report.fed


def shape_of(played: Sequence[Trajectory]) -> Shape:
    """Steps, written and read tokens of each episode; in the order of their ids."""
    rows = []
    for one in sorted(played, key=lambda one: one.id):
        written = sum(int(each.sampled.sum()) for each in one.generations)
        rows.append((len(one.steps), written, sum(len(each.ids) for each in one.generations) - written))
    steps, written_, read = np.array(rows, dtype=np.int64).T
    return Shape(steps, written_, read)


@contextmanager
def load(own: Sequence[int]) -> Iterator[list[int]]:
    """While open, look twenty times a second how many threads of others want a core; empty where no one can tell."""
    seen: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            found = _running(own)
            if found is not None:
                seen.append(found)

    watch = threading.Thread(target=look, daemon=True)
    watch.start()
    try:
        yield seen
    finally:
        ended.set()
        watch.join()


def _running(own: Sequence[int]) -> int | None:
    """Runnable threads of the system that are not of these processes (proc(5))."""
    try:
        told = Path("/proc/stat").read_text(encoding="ascii")
        states = [
            path.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[0]
            for pid in own
            for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ]
    except (OSError, IndexError):
        return None
    running = next(int(line.split()[1]) for line in told.splitlines() if line.startswith("procs_running"))
    return max(0, running - states.count("R"))
