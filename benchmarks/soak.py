"""A server under load for minutes, while its clients and its workers are killed.

    python -m benchmarks.soak [--minutes 10] [--quick] [--json] [--save]

`evolvent serve crafting,gridworld --workers 2` with a short lease, and client processes with 256 sessions among them,
over WebSocket, HTTP and AgentGym's dialect. The sessions play experts' plans with mistakes among them; every answer is
compared with the same episode played in process. Every few seconds a client process is killed and replaced, twice a
worker of the server. Some episodes are left open on purpose, and some steps are sent twice. In the end all clients are
killed at once, and when the lease has passed there must be no session left.

`rss_growth` is the resident memory of all processes of the server, the median of the last part of the load over that
of the seconds after the warm-up; `front_growth` is that of the process in front alone, which is never restarted.
Errors are explained where a session was lost with a killed worker, or the server said that it is full.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import psutil

from benchmarks.reporting import RESULTS, about, command_line, finish, load, show
from benchmarks.serve import COMMAND
from evolvent.serve.launch import launch_server
from evolvent.serve.wire import to_json
from evolvent.trajectory import Task, sample_seed
from evolvent.worlds.base import SPLITS, World
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.grid.world import GridWorld

GOALS = {"sessions_left": 0, "wrong_observations": 0, "rss_growth": 1.1, "errors_unexplained": 0}
RESULT = RESULTS / "soak.json"
DOORS = ("ws", "post", "ws", "agentgym", "ws", "post", "ws", "agentgym")  # of the client processes
SESSIONS = 256
IDLE_S = 15.0
KILL_S = 10.0  # between two killed clients
WORKER_KILLS = (0.35, 0.7)  # parts of the time at which a worker is killed
AFTER_KILL_S = 10.0  # so long a lost session is explained by a killed worker
SAMPLE_S = 1.0
EPISODES = 400  # of each world
MISTAKES = ("look", "get 99 nothing", "turn left", "sing a song")
SEED = 0


@dataclass
class Seen:
    """What the clients reported and what was sampled of the server."""

    counts: Counter[str] = field(default_factory=Counter)
    events: list[dict[str, Any]] = field(default_factory=list)
    rss: list[tuple[float, float, float]] = field(default_factory=list)  # time, all processes, the one in front
    most_sessions: int = 0
    killed_workers: list[float] = field(default_factory=list)
    killed_clients: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class ClientProcess:
    """A client process and the thread that reads its reports."""

    def __init__(self, seen: Seen, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, args=(seen,), daemon=True)
        self._thread.start()

    def _read(self, seen: Seen) -> None:
        for line in self.process.stdout or ():
            try:
                told = json.loads(line)
            except ValueError:  # killed in the middle of a line
                continue
            with seen.lock:
                seen.events += told.pop("events")
                seen.counts.update(told)

    def kill(self) -> None:
        """SIGKILL: nothing is closed, nobody is told."""
        self.process.kill()
        self.process.wait()
        self._thread.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()


def written(worlds: Sequence[World], path: Path) -> int:
    """Write the episodes of all worlds as the clients read them; how many."""
    rows = []
    for world in worlds:
        tasks = [task for split in SPLITS for tier in world.tiers for task in world.tasks(split, tier)]
        rng = Random(sample_seed("soak", world.name, SEED))
        chosen = sorted(rng.sample(range(len(tasks)), min(EPISODES, len(tasks))))
        rows += [played(world, tasks[index], index=index, rng=rng) for index in chosen]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return len(rows)


def played(world: World, task: Task, *, index: int, rng: Random) -> dict[str, Any]:
    """An episode in process: the expert's plan, with looks, impossible and meaningless actions among it."""
    plan = list(world.expert(task) or ())
    for _ in range(3):
        plan.insert(int(rng.random() * len(plan)), MISTAKES[int(rng.random() * len(MISTAKES))])
    env = world.make(task)
    first, info = env.reset()
    row: dict[str, Any] = {
        "world": world.name,
        "task": task.id,
        "index": index,
        "actions": [],
        "replies": [],
        "first": {"observation": first, "info": to_json(info)},
    }
    for action in plan:
        observation, reward, terminated, truncated, info = env.step(action)
        row["actions"].append(action)
        row["replies"].append(
            {
                "observation": observation,
                "reward": to_json(reward),
                "terminated": terminated,
                "truncated": truncated,
                "info": to_json(info),
            }
        )
        if terminated or truncated:
            break
    env.close()
    return row


def health(url: str) -> dict[str, Any]:
    """What the server tells of itself."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url}/health", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def sample(seen: Seen, server: psutil.Process, url: str) -> None:
    """Note the memory of the server's processes and its open sessions."""
    total, front = 0, 0
    for process in (server, *server.children(recursive=True)):
        try:
            resident = process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
        total += resident
        front += resident if process.pid == server.pid else 0
    seen.rss.append((time.monotonic(), total / 2**20, front / 2**20))
    seen.most_sessions = max(seen.most_sessions, sum(health(url)["sessions"].values()))


class Soak:
    """The load and its accidents.

    Args:
        url: of the server.
        episodes: the file of the episodes.
        server: the process in front.
    """

    def __init__(self, url: str, episodes: Path, server: psutil.Process) -> None:
        self.seen = Seen()
        self._url, self._episodes, self._server = url, episodes, server
        self._rng = Random(SEED)
        self._started = 0
        self._clients: list[ClientProcess] = []

    def run(self, seconds: float) -> None:
        """Load the server for so long; all clients are killed at the end, whatever happens."""
        began = time.monotonic()
        next_kill, workers = began + KILL_S, [began + part * seconds for part in WORKER_KILLS]
        try:
            for door in DOORS:
                self._clients.append(self._start(door))
            while (now := time.monotonic()) < began + seconds:
                sample(self.seen, self._server, self._url)
                if now >= next_kill:
                    next_kill += KILL_S
                    self._replace(int(self._rng.random() * len(DOORS)))
                if workers and now >= workers[0]:
                    workers.pop(0)
                    self._kill_worker()
                time.sleep(SAMPLE_S)
        finally:
            for client in self._clients:
                client.kill()

    def left(self, seconds: float) -> int:
        """Sessions that are open after the lease; waits no longer than so long."""
        until = time.monotonic() + seconds
        while True:
            count = sum(map(int, health(self._url)["sessions"].values()))
            if not count or time.monotonic() > until:
                return count
            time.sleep(0.5)

    def _start(self, door: str) -> ClientProcess:
        self._started += 1
        share = SESSIONS // len(DOORS)
        return ClientProcess(
            self.seen,
            [
                sys.executable,
                "-m",
                "benchmarks.soak_client",
                self._url,
                str(self._episodes),
                "--door",
                door,
                "--sessions",
                str(share),
                "--seed",
                f"{SEED}/{self._started}",
            ],
        )

    def _replace(self, place: int) -> None:
        self._clients[place].kill()
        self.seen.killed_clients += 1
        self._clients[place] = self._start(DOORS[place])

    def _kill_worker(self) -> None:
        workers = [one for one in self._server.children() if "evolvent.serve.pool.worker" in " ".join(one.cmdline())]
        worker = workers[int(self._rng.random() * len(workers))]
        worker.kill()
        self.seen.killed_workers.append(time.monotonic())
        print(f"killed worker {worker.pid} of {len(workers)}", flush=True)


def judged(seen: Seen) -> tuple[Counter[str], list[dict[str, Any]]]:
    """The explained errors by kind, and those that are not."""
    explained: Counter[str] = Counter()
    rest = []
    for event in seen.events:
        near = any(0 <= event["at"] - at <= AFTER_KILL_S for at in seen.killed_workers)
        if event["kind"] == "AtCapacity" or (event["kind"] == "EnvLost" and near):
            explained[event["kind"]] += 1
        elif event["kind"] != "wrong":
            rest.append(event)
    return explained, rest


def growth(seen: Seen, *, warm_s: float, window_s: float) -> dict[str, float]:
    """Memory at the end over memory after the warm-up: of all processes and of the one in front."""
    first, last = seen.rss[0][0], seen.rss[-1][0]
    early = [row for row in seen.rss if first + warm_s <= row[0] <= first + warm_s + window_s]
    late = [row for row in seen.rss if row[0] >= last - window_s]
    found: dict[str, float] = {}
    for name, column in (("rss", 1), ("front", 2)):
        before, after = (statistics.median(row[column] for row in rows) for rows in (early, late))
        found |= {f"{name}_growth": round(after / before, 3), f"{name}_mb": round(after, 1)}
    return found


def report(minutes: float) -> dict[str, Any]:
    """Run it all; the figures."""
    seconds = 60 * minutes
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        count = written([Crafting(), GridWorld()], folder / "episodes.json")
        server = stack.enter_context(
            launch_server(
                [
                    *COMMAND,
                    "crafting,gridworld",
                    "--port",
                    "0",
                    "--workers",
                    "2",
                    "--idle_s",
                    str(IDLE_S),
                ]
            )
        )
        process = psutil.Process(server.process.pid)
        before = (process.num_fds(), process.num_threads())
        soak = Soak(server.url, folder / "episodes.json", process)
        soak.run(seconds)
        left = soak.left(IDLE_S + 15)
        after, told = (process.num_fds(), process.num_threads()), health(server.url)
    seen = soak.seen
    explained, rest = judged(seen)
    return {
        "benchmark": "soak",
        "sessions_left": left,
        "wrong_observations": seen.counts["wrong"],
        **growth(seen, warm_s=min(60.0, seconds / 4), window_s=min(30.0, seconds / 8)),
        "errors_unexplained": len(rest),
        "goals": GOALS,
        "errors_explained": dict(explained),
        "unexplained": rest[:20],
        "observations": seen.counts["observations"],
        "episodes": seen.counts["episodes"],
        "scripts": count,
        "sessions_created": told["created"],
        "steps": told["steps"],
        "most_sessions_at_once": seen.most_sessions,
        "clients_killed": seen.killed_clients,
        "workers_killed": len(seen.killed_workers),
        "workers_restarted": told["restarts"],
        "descriptors": [before[0], after[0]],
        "threads": [before[1], after[1]],
        "minutes": minutes,
        "sessions": SESSIONS,
        "lease_s": IDLE_S,
        "seed": SEED,
        "load": load()[2],
        **about("uvicorn", "websockets", "starlette", cores=True),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("soak", __doc__, quick="one minute", save=RESULT)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args(arguments)
    result = report(1.0 if options.quick else options.minutes)
    show(result)
    finish(result, options)


if __name__ == "__main__":
    main()
