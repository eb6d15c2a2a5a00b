"""Mixed load for minutes, while servers and writers are killed and disks are full: is any trajectory lost or doubled?

    python -m benchmarks.soak_mixed [--minutes 30] [--quick] [--json] [--save]

Three lanes run beside one another, each one `evolvent collect` after another, all real processes:
`worlds` plays at random on `evolvent serve`, `policy` plays a policy itself, `endpoint` asks `evolvent serve --policy`.
Both servers are killed by SIGKILL again and again and started anew on their ports. The collections are killed too, or
run into a limit on the size of a file, which is what a full disk is to a writer; then they are resumed until they are
done. What was on disk when a writer died is noted; in the end every start has its trajectory exactly once, and what was
noted is still there, unchanged. Every scored episode of `worlds` is compared with the same one played in this process.

`lost`: starts without a trajectory, and noted trajectories that are gone or changed. `doubled`: more than one record
of an id. Episodes that ended because their server died have no score; they are `unscored`, which is no loss.
"""

from __future__ import annotations

import hashlib
import json
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish, load, show
from evolvent.agents.plain import Random as RandomAgent
from evolvent.errors import EvolventError
from evolvent.rollout.episode import collect
from evolvent.store.log import encode_line, read_lines
from evolvent.store.schema import encode_trajectory
from evolvent.store.store import Store
from evolvent.trajectory import Start, Trajectory, trajectory_name
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.lookup import Lookup

GOALS = {"lost": 0, "doubled": 0, "wrong": 0}
RESULT = RESULTS / "soak_mixed.json"
COMMAND = [sys.executable, "-m", "evolvent.cli.main"]
SERVER_LIFE_S = (8.0, 20.0)  # how long a server lives before it is killed
WRITER_LIFE_S = (0.5, 9.0)  # how long a collection lives after it began, half of the times
FILE_LIMIT = (60_000, 400_000)  # bytes of a file, where a collection meets a full disk
START_S = 600.0  # how long a server may take to start
TRIES = 200  # of one collection; more would mean that it comes to no end
SEED = 0


@dataclass
class Counts:
    """What happened; threads add to it."""

    numbers: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, **more: int) -> None:
        """Count."""
        with self.lock:
            self.numbers.update(more)

    def tell(self, what: str) -> None:
        """Keep a sentence about something that must not be."""
        with self.lock:
            self.told.append(what[:400])


class Server(threading.Thread):
    """A server on a port of its own that is killed and started anew until `over` is set."""

    def __init__(self, words: Sequence[str], counts: Counts, over: threading.Event, *, rng: Random) -> None:
        super().__init__(daemon=True)
        self.up, self.calm = threading.Event(), threading.Event()  # it answers; it is killed no more
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._words = [*COMMAND, "serve", *words, "--port", str(self.port)]
        self._counts, self._over, self._rng = counts, over, rng

    def run(self) -> None:
        """Live and die."""
        while not self._over.is_set():
            process = subprocess.Popen(self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                if self._answers(process):
                    self._counts.add(servers_started=1)
                    self.up.set()
                    self.calm.wait(self._rng.uniform(*SERVER_LIFE_S))
                    if self.calm.is_set():
                        self._over.wait()
            finally:
                self.up.clear()
                process.send_signal(signal.SIGKILL)
                process.wait()
                self._counts.add(servers_killed=1)
            self._over.wait(self._rng.uniform(0.2, 1.5))

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until it answers, and serves what is counted under `/metrics`."""
        opener, until = urllib.request.build_opener(urllib.request.ProxyHandler({})), time.monotonic() + START_S
        while time.monotonic() < until and process.poll() is None and not self._over.is_set():
            try:
                with opener.open(f"{self.url}/metrics", timeout=5) as answer:
                    return bool(answer.read())
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        return False


@dataclass
class Lane:
    """Collections one after another, each killed, starved of disk and resumed until it is done.

    Args:
        words: of `evolvent collect`, without seed and folder.
        expected: the ids of a finished collection.
        check: how many of its trajectories are not what they should be.
        server: whose answering is waited for before each try; it may die a moment later.
        command: what runs the verb; another one than evolvent's own may change the process first.
    """

    name: str
    words: Sequence[str]
    expected: set[str]
    check: Callable[[int, dict[str, Trajectory]], int] = lambda seed, found: 0
    server: Server | None = None
    command: Sequence[str] = tuple(COMMAND)

    def run(self, folder: Path, counts: Counts, until: float, *, rng: Random) -> None:
        """Collect until the time is over; a collection that has begun is ended."""
        number = 0
        while time.monotonic() < until:
            number += 1
            run = folder / f"{self.name}-{number}"
            self._collected(run, SEED + number, counts, until=until, rng=rng)
            self._judged(run, SEED + number, counts)

    def _collected(self, run: Path, seed: int, counts: Counts, *, until: float, rng: Random) -> None:
        noted: dict[str, str] = {}
        for attempt in range(TRIES):
            begun = (run / "config.toml").exists()
            words = ["--resume", str(run)] if begun else [*self.words, "--seed", str(seed), "--to", str(run)]
            calm = attempt >= TRIES // 2 or time.monotonic() > until
            how = "left alone" if calm else rng.choice(("killed", "full", "left alone"))
            if self.server is not None:
                self.server.up.wait(START_S)
            code = self._tried([*self.command, "collect", *words], how, rng=rng)
            counts.add(**{f"writers_{how.replace(' ', '_')}": 1})
            now = digests(run)
            gone = [name for name, digest in noted.items() if now.get(name) != digest]
            if gone:
                counts.add(lost=len(gone))
                counts.tell(f"{run.name}: {len(gone)} trajectories are gone or changed after {how}: {gone[:3]}")
            noted = now
            if finished(run) and code in (0, 1):
                return
        counts.tell(f"{run.name}: came to no end in {TRIES} tries")

    @staticmethod
    def _tried(command: Sequence[str], how: str, *, rng: Random) -> int:
        """Run a command; kill it after a while, or let it have small files only."""
        limit = rng.randrange(*FILE_LIMIT)

        def starve() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, preexec_fn=starve if how == "full" else None, **quiet)  # type: ignore[call-overload]
        try:
            return int(process.wait(rng.uniform(*WRITER_LIFE_S) if how == "killed" else 600))
        except subprocess.TimeoutExpired:
            process.kill()
            return int(process.wait())

    def _judged(self, run: Path, seed: int, counts: Counts) -> None:
        """Count a finished collection, and what is wrong with it."""
        found = {one.id: one for one in Store.open(run / "trajectories").trajectories()}
        records = raw_ids(run)
        doubled = sum(count - 1 for count in records.values())
        lost = len(self.expected - set(found))
        wrong = self.check(seed, found)
        unscored = sum(one.success is None for one in found.values())
        counts.add(collections=1, trajectories=len(found), doubled=doubled, lost=lost, wrong=wrong, unscored=unscored)
        counts.add(**{f"trajectories_{self.name}": len(found)})
        if doubled or lost or wrong:
            counts.tell(f"{run.name}: {lost} lost, {doubled} doubled, {wrong} wrong of {len(found)}")


def finished(run: Path) -> bool:
    """Whether a collection says that it is done."""
    try:
        return bool(json.loads((run / "run.json").read_text(encoding="utf-8"))["state"] == "finished")
    except (OSError, ValueError, KeyError):
        return False


def digests(run: Path) -> dict[str, str]:
    """What of every trajectory is on disk now; a store that was never made holds nothing."""
    try:
        every = list(Store.open(run / "trajectories").trajectories())
    except EvolventError:
        return {}
    return {
        one.id: hashlib.sha256(encode_line(encode_trajectory(one), run="", traj=one.id)).hexdigest() for one in every
    }


def raw_ids(run: Path) -> Counter[str]:
    """How many whole records the log holds of each id: reading through the store would show one."""
    ids: Counter[str] = Counter()
    for file in sorted((run / "trajectories" / "log").iterdir()):
        ids.update(line.traj for line in read_lines(file, torn=True) if line.kind == "trajectory")
    return ids


def starts_of(world: Any, limit: int, samples: int) -> list[Start]:
    """What `evolvent collect` plays of a world."""
    return [Start(task, sample) for task in world.tasks("train", "seen")[:limit] for sample in range(samples)]


def names_of(world: Any, limit: int, samples: int) -> set[str]:
    """The ids that these starts become."""
    return {trajectory_name(start, "collect") for start in starts_of(world, limit, samples)}


def differing(seed: int, found: dict[str, Trajectory], *, world: Any, limit: int, samples: int) -> int:
    """Scored episodes that are not what the same play is in this process."""
    scored = [
        start
        for start in starts_of(world, limit, samples)
        if (one := found.get(trajectory_name(start, "collect"))) is not None and one.success is not None
    ]
    played = collect(
        {world.name: world},
        scored,
        RandomAgent(),
        engine=None,
        seed=seed,
        name=lambda start: trajectory_name(start, "collect"),
    )
    return sum(found[one.id].actions != one.actions or found[one.id].score != one.score for one in played)


def lanes_of(policy: Path, worlds: Server, writer: Server) -> list[Lane]:
    """The three lanes; `worlds` and `writer` are the servers of worlds and of the policy."""
    crafting, lookup = Crafting(), Lookup()
    size = {"limit": 60, "samples": 4}
    small = ["--worlds", "lookup", "--limit", "8", "--max_tokens", "8"]
    remote = ["--worlds", f"{worlds.url}/v1/worlds/crafting", "--agent", "random"]
    remote += [word for name, value in size.items() for word in (f"--{name}", str(value))]
    asked = [*small, "--agent", "endpoint", "--endpoint", f"{writer.url}/v1", "--model", policy.name]
    return [
        Lane("worlds", remote, names_of(crafting, **size), partial(differing, world=crafting, **size), worlds),
        Lane("policy", [*small, "--agent", "policy", "--policy", str(policy)], names_of(lookup, 8, 1)),
        Lane("endpoint", asked, names_of(lookup, 8, 1), server=writer),
    ]


def report(minutes: float) -> dict[str, Any]:
    """Run it all; the figures."""
    counts, over, rng = Counts(), threading.Event(), Random(SEED)
    with tempfile.TemporaryDirectory() as place:
        policy = Path(place) / "policy"
        subprocess.run([sys.executable, "-c", _POLICY, str(policy)], check=True)
        until = time.monotonic() + 60 * minutes
        servers = [
            Server(["crafting", "--faces", "native"], counts, over, rng=Random(SEED + 1)),
            Server(["--policy", str(policy)], counts, over, rng=Random(SEED + 2)),
        ]
        lanes = [
            threading.Thread(target=lane.run, args=(Path(place), counts, until), kwargs={"rng": Random(rng.random())})
            for lane in lanes_of(policy, *servers)
        ]
        for thread in (*servers, *lanes):
            thread.start()
        time.sleep(max(0.0, until - time.monotonic()))
        for server in servers:
            server.calm.set()  # what has begun comes to its end
        for thread in lanes:
            thread.join()
        over.set()
        for thread in servers:
            thread.join()
    return {
        "benchmark": "soak_mixed",
        "lost": 0,
        "doubled": 0,
        "wrong": 0,
        **dict(sorted(counts.numbers.items())),
        "goals": GOALS,
        "told": counts.told[:20],
        "minutes": minutes,
        "seed": SEED,
        "load": load()[2],
        **about("evolvent", "torch", "uvicorn", "starlette", cores=True),
    }


_POLICY = """
import sys
from pathlib import Path
import evolvent as ev
from evolvent.worlds.lookup import Lookup
ev.policy_for([Lookup()], size="xs").save(Path(sys.argv[1]))
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("soak_mixed", __doc__, quick="one minute", save=RESULT)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args(arguments)
    result = report(1.0 if options.quick else options.minutes)
    show(result)
    finish(result, options)


if __name__ == "__main__":
    main()
