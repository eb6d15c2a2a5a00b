"""What a policy server gives and costs: tokens a second and time to the first text, for 1, 8 and 32 clients at once.

    python -m benchmarks.policy_server [--json] [--quick] [--save] [--threads N] [--peers PYTHON]

All sides load one checkpoint (a Llama of 17 million random weights, made with a seed) and write greedily. `ours` is
`evolvent serve --policy` as a process; `loop` is our engine in a process without a server, with as many texts at once
as there are clients; `transformers` and `transformers_batching` are `transformers serve` of the Python that --peers
names (`pip install "transformers[serving]" torch` in an environment of its own). Clients are one more process; each has
one request open at a time and reads it as a stream of a chat. Prompts have one length, replies too: no token that ends
a reply is ever the likeliest, and what every side counts is compared with what was asked for. No two prompts begin
alike, so nothing can be found in a cache of prefixes.

Sides take turns in every round, the others are stopped meanwhile (SIGSTOP), and all figures are medians of rounds.
Each side's process computes with --threads threads of torch (OMP_NUM_THREADS, so that it is the same for all), which
leaves the clients a core of two. CPU is user and system time of the side's process. `x_transformers_serve_32` is ours
over `transformers serve` as it starts by itself, `x_transformers_serve_batching_32` ours over it with
--continuous-batching, its quicker way; None where it does not answer. `over_bare_loop` and `ttft_ms` are with 32
clients too; the others stand beside them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.policy_server_sides import make_checkpoint, texts
from benchmarks.reporting import RESULTS, about, command_line, finish, load
from benchmarks.serve import cpu_clock
from evolvent.errors import EvolventError
from evolvent.serve.launch import launch_server

SEED = 0
CLIENTS, QUICK = {1: 4, 8: 2, 32: 1}, {1: 1, 8: 1, 32: 1}  # requests of each client in a round
WARMING = 8  # clients before anything is counted
PROMPT, WRITTEN = 60, 64  # words of a prompt (its template adds five tokens), tokens of a reply
SLOTS = 64  # texts that our engine works on at once, in the server and in the bare loop
GOALS = {"x_transformers_serve_32": 3.0, "over_bare_loop": 0.8}
RESULT = RESULTS / "policy_server.json"
OURS = (sys.executable, "-c", "import sys; from evolvent.cli.main import main; sys.exit(main())", "serve")
PEER = ("-c", "from transformers.cli.transformers import main; main()", "serve")
SIDES = (sys.executable, "-m", "benchmarks.policy_server_sides")
PEERS: Mapping[str, Sequence[str]] = {
    "transformers": (),
    "transformers_batching": (
        "--continuous-batching",
        "--cb-num-blocks",
        "512",
        "--cb-max-batch-tokens",
        "512",
        "--no-cb-use-cuda-graph",
    ),
}


class Worker:
    """A process that answers lines of JSON: the clients, or the bare loop."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [*SIDES, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
        )
        self._line()

    def _line(self) -> str:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise RuntimeError(f"the process ended: {self.process.args!r}")
        return line

    def ask(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a job; `failed` where there is none."""
        if self.process.stdin is not None:
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line())
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Side:
    """One side: how it does a job, its processes, and what was measured."""

    name: str
    do: Callable[[Mapping[str, Any]], dict[str, Any]]
    process: subprocess.Popen[str]
    rows: dict[int, list[dict[str, float]]] = field(default_factory=dict)
    said: dict[int, list[str]] = field(default_factory=dict)
    why: str = ""

    def __post_init__(self) -> None:
        self.cpu = cpu_clock(self.process.pid)

    def run(self, number: int, clients: int, each: int) -> None:
        """One part of a round; round 0 warms up and is not counted."""
        self.process.send_signal(signal.SIGCONT)
        before = self.cpu()
        job = {"texts": texts(f"{SEED} {number} {clients}", clients, each, PROMPT), "body": {"max_tokens": WRITTEN}}
        found = self.do(job)
        spent = self.cpu() - before
        self.process.send_signal(signal.SIGSTOP)
        self.why = self.why or found.get("failed", "") or _wrong(found["replies"])
        if self.why or not number:
            return
        replies = found["replies"]
        written = sum(reply["written"] for reply in replies)
        row = {"tokens_per_s": written / found["wall_s"], "cpu_ms_a_token": 1000 * spent / written}
        waits = [reply["first_s"] for reply in replies if reply["first_s"] is not None]
        if waits:
            row |= {"ttft_ms": 1000 * statistics.median(waits), "ttft_worst_ms": 1000 * max(waits)}
        self.rows.setdefault(clients, []).append(row)
        self.said.setdefault(clients, []).extend(reply["text"] for reply in replies)

    def row(self, clients: int) -> dict[str, float]:
        """Medians of the rounds."""
        rounds = self.rows[clients]
        return {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}


def _wrong(replies: Sequence[Mapping[str, Any]]) -> str:
    """Why these replies are not the work that was asked for; "" where they are."""
    seen = {(reply["prompt"], reply["written"]) for reply in replies}
    return "" if seen == {(PROMPT + 5, WRITTEN)} else f"tokens read and written: {sorted(seen, key=str)[:5]}"


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _served(clients: Worker, url: str, model: str, more: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """How the clients do a job at a server."""
    about = {"model": model, "temperature": 0, **more}
    return lambda job: clients.ask({**job, "url": url, "body": {**job["body"], **about}})


@contextmanager
def sides(folder: Path, peers: str | None, threads: int) -> Iterator[tuple[dict[str, Side], dict[str, str]]]:
    """All sides that can be started, and why the others cannot."""
    env = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with ExitStack() as stack:
        clients = Worker(["clients"], {"OMP_NUM_THREADS": "1"})
        stack.callback(clients.close)
        ours = stack.enter_context(
            launch_server([*OURS, "--policy", str(folder), "--port", "0", "--slots", str(SLOTS)], env=env, ready_s=300)
        )
        stack.callback(ours.process.send_signal, signal.SIGCONT)  # a stopped process does not hear that it should end
        usage = {"stream_options": {"include_usage": True}}  # transformers tells usage by itself and refuses the field
        made = {"ours": Side("ours", _served(clients, ours.url, folder.name, usage), ours.process)}
        loop = Worker(["loop", str(folder), str(SLOTS)], env)
        stack.callback(loop.close)
        made["loop"], why = Side("loop", loop.ask, loop.process), {}
        for name, options in PEERS.items() if peers else ():
            port = _free_port()
            words = [peers, *PEER, str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
            url = f"http://127.0.0.1:{port}"
            try:
                peer = stack.enter_context(launch_server([*map(str, words), *options], url=url, ready_s=180, env=env))
            except EvolventError as error:
                why[name] = str(error)[:500]
                continue
            stack.callback(peer.process.send_signal, signal.SIGCONT)
            made[name] = Side(name, _served(clients, url, str(folder), {}), peer.process)
        for side in made.values():
            side.process.send_signal(signal.SIGSTOP)
        yield made, why


def measured(made: Mapping[str, Side], each: Mapping[int, int], rounds: int) -> None:
    """Every side in every round, in turns that begin with another side each time."""
    names = list(made)
    for side in made.values():
        side.run(0, WARMING, 1)
    for clients, requests in each.items():
        for number in range(1, rounds + 1):
            shift = number % len(names)
            for name in (*names[shift:], *names[:shift]):
                if not made[name].why:
                    made[name].run(number, clients, requests)
        print(table(made, clients), flush=True)


def table(made: Mapping[str, Side], clients: int) -> str:
    """What was measured with so many clients."""
    said = [f"\n{clients} clients              tokens/s   ms to first text   worst   CPU ms/token   same text as ours"]
    for name, side in made.items():
        if side.why:
            said.append(f"  {name:22} {side.why[:90]}")
            continue
        row = side.row(clients)
        first, worst = (f"{row[key]:.0f}" if key in row else "" for key in ("ttft_ms", "ttft_worst_ms"))
        told = f"{row['tokens_per_s']:8.1f} {first:>18} {worst:>7} {row['cpu_ms_a_token']:14.2f}"
        said.append(f"  {name:22}{told} {same(made, name, clients):16.0%}")
    return "\n".join(said)


def same(made: Mapping[str, Side], name: str, clients: int) -> float:
    """The share of replies with our words. One product rounded otherwise can turn a choice, and all that follows."""
    pairs = list(zip(made["ours"].said[clients], made[name].said[clients], strict=True))
    return sum(one == other for one, other in pairs) / len(pairs)


def figures(made: Mapping[str, Side], each: Mapping[int, int]) -> dict[str, Any]:
    """The numbers that decide, and those behind them."""
    most = max(each)
    good = {name: side for name, side in made.items() if not side.why}
    speed = {name: side.row(most)["tokens_per_s"] for name, side in good.items()}
    over = {name: round(speed["ours"] / speed[name], 2) if name in speed else None for name in PEERS}
    rows = {
        name: {clients: {**side.row(clients), "same_text": round(same(made, name, clients), 4)} for clients in each}
        for name, side in good.items()
    }
    loops = {clients: rows["ours"][clients]["tokens_per_s"] / rows["loop"][clients]["tokens_per_s"] for clients in each}
    return {
        f"x_transformers_serve_{most}": over["transformers"],
        f"x_transformers_serve_batching_{most}": over["transformers_batching"],
        "over_bare_loop": round(loops[most], 3),
        "ttft_ms": rows["ours"][most]["ttft_ms"],
        "over_bare_loop_of": {clients: round(ratio, 3) for clients, ratio in loops.items()},
        "ttft_ms_of": {clients: rows["ours"][clients]["ttft_ms"] for clients in each},
        "rows": rows,
    }


def report(*, quick: bool, peers: str | None, threads: int) -> dict[str, Any]:
    """Everything that is measured."""
    each, rounds, before = QUICK if quick else CLIENTS, 1 if quick else 5, load()[0]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "checkpoint"
        weights = make_checkpoint(folder, seed=SEED)
        with sides(folder, peers, threads) as (made, why):
            measured(made, each, rounds)
    why |= {name: side.why for name, side in made.items() if side.why}
    if {"ours", "loop"} & why.keys():
        raise RuntimeError(f"a side of ours did not do its work: {why}")
    return {
        "benchmark": "policy_server",
        **figures(made, each),
        "goals": GOALS,
        "not_measured": why,
        "weights": weights,
        "requests_of_a_client": each,
        "prompt_tokens": PROMPT + 5,
        "written_tokens": WRITTEN,
        "rounds": rounds,
        "threads": threads,
        "quick": quick,
        "seed": SEED,
        "peer": _peer_versions(peers),
        **about("evolvent", "torch", "transformers", "uvicorn", "starlette", cores=True),
        "load_before_and_after": [before, load()[0]],
    }


def _peer_versions(peers: str | None) -> dict[str, str] | None:
    if peers is None:
        return None
    code = (
        "import json; from importlib.metadata import version as v;"
        "print(json.dumps({n: v(n) for n in ('transformers', 'torch', 'fastapi', 'uvicorn')}))"
    )
    found: dict[str, str] = json.loads(subprocess.run([peers, "-c", code], check=True, capture_output=True).stdout)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("policy_server", __doc__, quick="one round of few requests: some two minutes", save=RESULT)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch of every side")
    parser.add_argument("--peers", help="a Python with transformers[serving]")
    options = parser.parse_args(arguments)
    result = report(quick=options.quick, peers=options.peers, threads=options.threads)
    print()
    for name in ("x_transformers_serve_32", "x_transformers_serve_batching_32", "over_bare_loop", "ttft_ms"):
        print(f"{name:34} {result[name]!s:>8}{f' (goal {GOALS[name]})' if name in GOALS else ''}")
    finish(result, options)


if __name__ == "__main__":
    main()
