"""A day in miniature: everything that serves, records, learns and shows, side by side, while it is killed and starved.

    python -m benchmarks.soak_all [--minutes 30] [--quick] [--json] [--save]

The three lanes of `benchmarks.soak_mixed` (worlds, a policy, an endpoint: servers and writers killed, disks full), and:

- `clock`: collections whose wall clock jumps an hour back and forth while they write, killed and resumed like the
  others;
- `ranks`: trainings on two ranks of which either is killed, resumed until they are done: their weights are compared
  with those of a training that nothing disturbed;
- `record`: agents play on one recording endpoint, which is never killed. They post rewards, or leave in the middle of a
  stream. When it has stopped, its run is read: every session that was rewarded is there once, with its reward;
- `viewer`: its pages of these runs are read while they grow;
- `slow`: connections to the recording endpoint that send a byte now and then, half a request, or nothing.

`lost`, `doubled`, `wrong`: as in `soak_mixed`, over all lanes. `left_open`: sessions and connections that the recording
endpoint still has when its clients have gone and its deadlines have passed. `rss_growth`: its resident memory in the
last third of the time over that of the second sixth. `health_p99_ms`: its answers to `GET /health`, asked five times a
second.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import load_file

from benchmarks.reporting import RESULTS, about, command_line, finish, load, show
from benchmarks.soak_mixed import COMMAND, SEED, START_S, Counts, Lane, Server, lanes_of, names_of, raw_ids
from evolvent.store.store import Store
from evolvent.worlds.lookup import Lookup

GOALS = {
    "lost": 0,
    "doubled": 0,
    "wrong": 0,
    "left_open": 0,
    "rss_growth": 1.1,
    "health_p99_ms": 1000,
}
RESULT = RESULTS / "soak_all.json"
IDLE_S = 20.0  # of a recorded session
DEADLINE_S = 90.0  # until which connections and sessions of clients that have gone are closed
NUM_AGENTS, NUM_SLOW = 3, 40
LEAVES = 0.2  # share of the sessions whose agent leaves in the middle of a stream
RANK_LIFE_S = (4.0, 25.0)
MAX_WEIGHT_DIFFERENCE = 2e-6
JUMPING_CLOCK = """
import sys, time
wall_time, begun = time.time, time.monotonic()
def jump():
    return 3600.0 * (int((time.monotonic() - begun) / 0.7) % 2)
time.time = lambda: wall_time() - jump()
time.time_ns = lambda: int(time.time() * 1e9)
from evolvent.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
MAKE_POLICY = """
import sys
from pathlib import Path
import evolvent as ev
ev.policy_for([ev.Lookup()], size="xs").save(Path(sys.argv[1]))
"""
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def free_port() -> int:
    """Returns a port of the loopback that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def send_json(url: str, body: object, headers: dict[str, str] | None = None, timeout: float = 60.0) -> Any:
    """Posts JSON and returns the open response."""
    content = json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"content-type": "application/json", **(headers or {})})
    return OPENER.open(request, timeout=timeout)


# ---------------------------------------------------------------------- the recording endpoint


@dataclass
class Recorder:
    """One recording endpoint that lives as long as the soak, and what is seen of it.

    Args:
        policy: folder of the policy. run: folder of the run that it records into.
    """

    policy: Path
    run: Path
    port: int = field(default_factory=free_port)
    health_ms: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    process: psutil.Popen | None = None

    @property
    def url(self) -> str:
        """Returns its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it and waits until it answers."""
        words = ["serve", "--policy", str(self.policy), "--record", str(self.run), "--port", str(self.port)]
        self.process = psutil.Popen([*COMMAND, *words, "--idle_s", str(IDLE_S)], **QUIET)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                OPENER.open(f"{self.url}/health", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise RuntimeError("the recording endpoint did not start")

    def watch(self, over: threading.Event, counts: Counts) -> None:
        """Asks for its health and reads its memory until the soak is over."""
        assert self.process is not None
        while not over.wait(0.2):
            begun = time.perf_counter()
            try:
                OPENER.open(f"{self.url}/health", timeout=30).close()
                self.health_ms.append(1000 * (time.perf_counter() - begun))
                self.rss.append(float(self.process.memory_info().rss))
            except (urllib.error.URLError, OSError) as error:
                counts.add(wrong=1)
                counts.tell(f"health: {error}")

    def count_left_open(self) -> int:
        """Returns its open sessions and connections when both should have ended, after waiting for that."""
        assert self.process is not None
        deadline, left = time.monotonic() + DEADLINE_S, 1
        while left and time.monotonic() < deadline:
            time.sleep(1.0)
            with OPENER.open(f"{self.url}/sessions", timeout=30) as response:
                sessions = int(json.load(response)["open"])
            states = [connection.status for connection in self.process.net_connections("tcp")]
            left = sessions + sum(state not in ("LISTEN", "TIME_WAIT") for state in states)
        return left

    def stop(self) -> None:
        """Ends it as a user does."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)


def play_agent(recorder: Recorder, name: str, over: threading.Event, counts: Counts, rng: Random) -> None:
    """Plays one session after another: two turns and a reward, or a stream that is left in its middle."""
    number = 0
    while not over.is_set():
        number += 1
        session = f"{name}-{number}"
        recorder.started.add(session)
        headers = {"x-evolvent-session": session, "x-evolvent-task": f"task {number % 5}"}
        body = {"model": recorder.policy.name, "messages": [{"role": "user", "content": "boss"}], "max_tokens": 12}
        try:
            if rng.random() < LEAVES:
                with send_json(f"{recorder.url}/v1/chat/completions", {**body, "stream": True}, headers) as stream:
                    stream.readline()
                counts.add(sessions_left=1)
                continue
            for _ in range(2):
                with send_json(f"{recorder.url}/v1/chat/completions", body, headers) as response:
                    message = json.load(response)["choices"][0]["message"]
                reply = {"role": "assistant", "content": message.get("content") or ""}
                body = {**body, "messages": [*body["messages"], reply, {"role": "user", "content": "boss"}]}
            reward = rng.randrange(10) / 10
            send_json(f"{recorder.url}/sessions/{session}/reward", {"reward": reward}).close()
            recorder.rewards[session] = reward
            counts.add(sessions_rewarded=1)
        except (urllib.error.URLError, OSError, KeyError, ValueError) as error:
            counts.add(wrong=1)
            counts.tell(f"{session}: {error}")


def judge_recorded(recorder: Recorder, counts: Counts) -> None:
    """Counts what is lost, doubled or wrong in the run of the recording endpoint."""
    found = {one.id.partition("/")[2]: one for one in Store.open(recorder.run / "trajectories").trajectories()}
    records = raw_ids(recorder.run)
    lost = recorder.rewards.keys() - found.keys()
    wrong = [name for name, reward in recorder.rewards.items() if name in found and found[name].score.raw != reward]
    doubled = sum(count - 1 for count in records.values())
    counts.add(lost=len(lost), wrong=len(wrong), doubled=doubled, trajectories_record=len(found))
    if lost or wrong or doubled:
        counts.tell(f"record: {sorted(lost)[:3]} lost, {wrong[:3]} wrong, {doubled} doubled")


def hold_slowly(recorder: Recorder, over: threading.Event, counts: Counts, rng: Random) -> None:
    """Keeps connections open that send a byte now and then, half a request, or nothing; opens closed ones again."""
    request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 500\r\n\r\n{"
    held: list[tuple[socket.socket, int]] = []
    while not over.wait(0.5):
        kept = []
        for connection, sent in held:
            try:
                num_bytes = sent
                if rng.random() < 0.3 and 0 <= sent < len(request):
                    connection.send(request[sent : sent + 1])
                    num_bytes += 1
                connection.setblocking(False)
                if connection.recv(1024) in (b"",):
                    raise ConnectionError
            except BlockingIOError:
                kept.append((connection, num_bytes))
            except OSError:
                connection.close()
                counts.add(slow_closed=1)
            else:
                connection.close()
                counts.add(slow_answered=1)
        held = kept
        while len(held) < NUM_SLOW:
            try:
                connection = socket.create_connection(("127.0.0.1", recorder.port), timeout=5)
            except OSError:
                counts.add(slow_refused=1)
                break
            held.append((connection, rng.choice((-1, 0, len(request)))))
            if held[-1][1] > 0:
                connection.send(request)
            counts.add(slow_opened=1)
    for connection, _ in held:
        connection.close()


# ---------------------------------------------------------------------- ranks, and the viewer


def train_command(data: Path, policy: Path, run: Path, port: int) -> list[str]:
    """Returns the command of a training on two ranks; a run that has begun is resumed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    torchrun += ["-m", "evolvent.cli.main", "train", "sft"]
    if (run / "config.toml").exists():
        return [*torchrun, "--resume", str(run)]
    words = ["--policy", str(policy), "--to", str(run), "--parallel.shard", "2", "--parallel.timeout", "20"]
    return [*torchrun, str(data), *words, "--train.max_steps", "120", "--keep.every", "10"]


def train_once(command: Sequence[str], *, life_s: float | None, rng: Random) -> int:
    """Runs a training to its end, or kills one of its ranks after a while; returns the exit code."""
    process = psutil.Popen(command, start_new_session=True, **QUIET, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        return int(process.wait(life_s if life_s is not None else 600))
    except psutil.TimeoutExpired:
        ranks = [child for child in process.children() if child.is_running()]
        if ranks and life_s is not None:
            rng.choice(ranks).kill()
        try:
            return int(process.wait(120))
        except psutil.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return int(process.wait())


def train_ranks(folder: Path, policy: Path, counts: Counts, until: float, *, rng: Random) -> None:
    """Trains on two ranks again and again, killed and resumed; compares weights with an undisturbed training."""
    data, port, number = folder / "shown", free_port(), 0
    shown = ["collect", "--worlds", "lookup", "--agent", "expert", "--limit", "24", "--to", str(data)]
    subprocess.run([*COMMAND, *shown], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    code = train_once(train_command(data, policy, folder / "whole", port), life_s=None, rng=rng)
    if code != 0:
        counts.add(wrong=1)
        counts.tell(f"ranks: the undisturbed training ended with {code}")
        return
    expected = load_file(folder / "whole" / "model" / "model.safetensors")
    while time.monotonic() < until:
        number += 1
        run, tries, code = folder / f"ranks-{number}", 0, 1
        while code != 0 and tries < 20:
            calm = tries >= 4 or time.monotonic() > until
            life_s = None if calm else rng.uniform(*RANK_LIFE_S)
            code = train_once(train_command(data, policy, run, port), life_s=life_s, rng=rng)
            tries += 1
        counts.add(trainings=1, trainings_killed=tries - 1)
        if code != 0:
            counts.add(lost=1)
            counts.tell(f"{run.name}: came to no end in {tries} tries")
            continue
        weights = load_file(run / "model" / "model.safetensors")
        difference = max(float(np.abs(weights[name] - expected[name]).max()) for name in expected)
        if difference > MAX_WEIGHT_DIFFERENCE:
            counts.add(wrong=1)
            counts.tell(f"{run.name}: its weights differ by {difference:.1e}")


def read_pages(folder: Path, over: threading.Event, counts: Counts, rng: Random) -> None:
    """Reads the viewer's pages of the runs while they grow; the viewer is killed now and then."""
    while not over.is_set():
        process = subprocess.Popen(
            [*COMMAND, "view", str(folder), "--serve", "--port", str(free_port())],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        address = next((found[0] for line in process.stdout if (found := re.search(r"http://\S+", line))), "")
        browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())
        life_end = time.monotonic() + rng.uniform(30, 120)
        try:
            pages = [address]
            while address and not over.wait(0.5) and time.monotonic() < life_end:
                page = rng.choice(pages)
                with browser.open(page, timeout=120) as response:
                    text = response.read().decode()
                counts.add(pages_read=1)
                root = address.partition("/")[0] + "//" + address.split("/")[2]
                pages = [address, *(root + path for path in sorted(set(re.findall(r'href="(/run/[^"#?]+)"', text))))]
        except (urllib.error.URLError, OSError) as error:
            if not over.is_set():
                counts.add(wrong=1)
                counts.tell(f"viewer: {page}: {error}")
        finally:
            process.kill()
            process.wait()
            counts.add(viewers_killed=1)


# ---------------------------------------------------------------------- all of it


def start_thread(function: Callable[..., None], *args: object, **named: object) -> threading.Thread:
    """Starts a function on a thread."""
    thread = threading.Thread(target=function, args=args, kwargs=named, daemon=True)
    thread.start()
    return thread


def report(minutes: float) -> dict[str, Any]:
    """Runs it all and returns the figures."""
    counts, over, rng = Counts(), threading.Event(), Random(SEED)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        policy = folder / "policy"
        subprocess.run([sys.executable, "-c", MAKE_POLICY, str(policy)], check=True)
        recorder = Recorder(policy, folder / "recorded")
        recorder.start()
        until = time.monotonic() + 60 * minutes
        servers = [
            Server(["crafting", "--faces", "native"], counts, over, rng=Random(SEED + 1)),
            Server(["--policy", str(policy)], counts, over, rng=Random(SEED + 2)),
        ]
        clock_words = ["--worlds", "lookup", "--limit", "8", "--max_tokens", "8", "--agent", "random"]
        clock = Lane("clock", clock_words, names_of(Lookup(), 8, 1), command=[sys.executable, "-c", JUMPING_CLOCK])
        for server in servers:
            server.start()
        lanes = [
            start_thread(lane.run, folder, counts, until, rng=Random(rng.random()))
            for lane in [*lanes_of(policy, *servers), clock]
        ]
        lanes.append(start_thread(train_ranks, folder, policy, counts, until, rng=Random(rng.random())))
        clients_over = threading.Event()
        clients = [
            start_thread(play_agent, recorder, f"agent{number}", clients_over, counts, Random(rng.random()))
            for number in range(NUM_AGENTS)
        ]
        clients += [
            start_thread(hold_slowly, recorder, clients_over, counts, Random(rng.random())),
            start_thread(read_pages, folder, clients_over, counts, Random(rng.random())),
            start_thread(recorder.watch, clients_over, counts),
        ]
        time.sleep(max(0.0, until - time.monotonic()))
        clients_over.set()
        for thread in clients:
            thread.join()
        left_open = recorder.count_left_open()
        recorder.stop()
        judge_recorded(recorder, counts)
        for server in servers:
            server.calm.set()  # what has begun comes to its end
        for thread in lanes:
            thread.join()
        over.set()
        for server in servers:
            server.join()
    samples = len(recorder.rss)
    early, late = recorder.rss[samples // 6 : samples // 3], recorder.rss[2 * samples // 3 :]
    return {
        "benchmark": "soak_all",
        "lost": 0,
        "doubled": 0,
        "wrong": 0,
        **dict(sorted(counts.numbers.items())),
        "left_open": left_open,
        "rss_growth": round(statistics.median(late) / statistics.median(early), 3) if early and late else None,
        "health_p99_ms": round(float(np.percentile(recorder.health_ms, 99)), 1) if recorder.health_ms else None,
        "health_asked": len(recorder.health_ms),
        "goals": GOALS,
        "told": counts.told[:20],
        "minutes": minutes,
        "seed": SEED,
        "load": load()[2],
        **about("evolvent", "torch", "uvicorn", "starlette", cores=True),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the soak and prints its figures, as a table or as one JSON object."""
    parser = command_line("soak_all", __doc__, quick="one and a half minutes", save=RESULT)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args(arguments)
    figures = report(1.5 if options.quick else options.minutes)
    show(figures)
    finish(figures, options)


if __name__ == "__main__":
    main()
