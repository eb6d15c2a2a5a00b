"""What a server costs: steps per second, latency, and CPU of server and client for every way to take a step.

    python -m benchmarks.serve [--json] [--quick] [--save]

`evolvent serve crafting,gridworld` runs as a process of its own, the clients in this one, over the loopback. 1, 16, 64
and 256 sessions at once replay the plans of experts, each session one step at a time, through every door: in process;
`ws`, one WebSocket for all sessions; `ws_batch` and `batch`, a message or request for a step of every session; `post`,
a request a step on connections that stay open, and `post_new`, on a new one each, as the released clients of AgentGym
ask; `agentgym`, a request a step in their dialect; `remote`, `RemoteWorld` with a thread a session; and `noop`, a
Starlette route that answers a constant of the size of AgentGym's answers, without guard, session or world, under the
same server and settings. Sides are interleaved in rounds, all figures are medians of rounds, ratios are of medians.
Sessions are begun outside of what is measured, and what a reset costs is told by itself. CPU is user and system time of
all threads of all processes of that side. Every answer is compared with the same step in process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from benchmarks.reporting import RESULTS, about, command_line, finish, load
from benchmarks.serve_sides import AgentGym, InProcess, Native, Noop, Remote, Scripts, Side, deal, episodes
from evolvent.serve.launch import launch_server
from evolvent.worlds.base import World
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.grid.world import GridWorld

SEED = 0
GOALS = {"x_post_per_step": 20.0, "agentgym_over_noop_cpu": 1.5, "p99_over_p50_256": 10.0, "errors": 0}
STEPS = {1: 256, 16: 64, 64: 24, 256: 16}  # of each session in one round
PARTS = 4  # of a round: the sides take turns with them, so that what else the machine does meets all alike
QUICK = {16: 32, 256: 8}
COMMAND = (sys.executable, "-c", "import sys; from evolvent.cli.main import main; sys.exit(main())", "serve")
PEER = (sys.executable, "-m", "benchmarks.serve_noop")
RESULT = RESULTS / "serve.json"
WORKERS = 2
DOORS = ("ws", "ws_batch", "batch", "post")


@dataclass
class Tally:
    """One side's rounds."""

    side: Side
    cpu: Callable[[], float]  # of its server
    steps_per_s: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    client_us: list[float] = field(default_factory=list)
    reset_us: list[float] = field(default_factory=list)
    errors: int = 0

    def row(self) -> dict[str, Any]:
        """Medians."""
        names = ("steps_per_s", "p50_ms", "p99_ms", "server_us", "client_us", "reset_us")
        made: dict[str, Any] = {name: round(statistics.median(getattr(self, name)), 3) for name in names}
        ratios = [p99 / p50 for p50, p99 in zip(self.p50_ms, self.p99_ms, strict=True)]
        made["server_us_least"] = round(min(self.server_us), 3)
        return {**made, "p99_over_p50": round(statistics.median(ratios), 2), "errors": self.errors}


def cpu_clock(pid: int) -> Callable[[], float]:
    """CPU-seconds of a process and the children that it has now, as exactly as the system knows them."""
    pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    if sys.platform == "linux":  # the clock of another process, in nanoseconds: clock_getcpuclockid(3)
        return lambda: sum(time.clock_gettime((~each << 3) | 2) for each in pids)
    return lambda: sum(sum(psutil.Process(each).cpu_times()[:2]) for each in pids)


async def one_round(tallies: Sequence[Tally], scripts: Scripts, steps: int, *, counted: bool) -> None:
    """All sides once: episodes are begun, then the sides take turns with the parts of the work."""
    for tally in tallies:
        before = tally.cpu()
        resets = await tally.side.ready(scripts, steps)
        if counted:
            tally.reset_us.append(1e6 * (tally.cpu() - before) / resets if resets else 0.0)
    latencies: list[list[float]] = [[] for _ in tallies]
    for begin in range(0, steps, steps // PARTS):
        part = slice(begin, begin + steps // PARTS)
        for tally, seen in zip(tallies, latencies, strict=True):
            seen += await measure(tally, part, lines=len(scripts), counted=counted)
    for tally, seen in zip(tallies, latencies, strict=True):
        if counted:
            p50, p99 = np.percentile(seen, [50, 99])
            tally.p50_ms.append(1000 * p50)
            tally.p99_ms.append(1000 * p99)


async def measure(tally: Tally, part: slice, *, lines: int, counted: bool) -> list[float]:
    """One part of one side; its latencies."""
    await asyncio.sleep(0.01)
    server, client, wall = tally.cpu(), time.process_time(), time.perf_counter()
    played = await tally.side.play(part)
    wall, client, after = time.perf_counter() - wall, time.process_time() - client, tally.cpu()
    tally.errors += tally.side.wrong(part, played)
    if counted:
        total = lines * (part.stop - part.start)
        tally.steps_per_s.append(total / wall)
        tally.server_us.append(1e6 * (after - server) / total)
        tally.client_us.append(1e6 * client / total)
    return played.latencies


@dataclass(frozen=True)
class Servers:
    """Addresses and clocks of the servers that are measured."""

    ours: str
    pooled: str
    noop: str
    cpu: Mapping[str, Callable[[], float]]


def sides(world: World, servers: Servers, lines: int) -> dict[str, Tally]:
    """Every way to play a world with so many sessions at once."""
    ours, pooled = servers.cpu["ours"], servers.cpu["pooled"]
    made = {
        "in_process": Tally(InProcess(world), lambda: 0.0),
        **{door: Tally(Native(servers.ours, world, door=door), ours) for door in DOORS},
        "agentgym": Tally(AgentGym(servers.ours, world), ours),
        "noop": Tally(Noop(servers.noop, world), servers.cpu["noop"]),
        "remote": Tally(Remote(servers.ours, world), ours),
    }
    if lines >= 64:
        made |= {
            f"{door}_workers": Tally(Native(servers.pooled, world, door=door), pooled)
            for door in ("ws", "batch", "post")
        }
    return {**made, "post_new": Tally(Native(servers.ours, world, door="post_new"), ours)}


async def measured(
    world: World, servers: Servers, *, steps_of: Mapping[int, int], rounds: int
) -> dict[int, dict[str, Any]]:
    """All rows of one world, by the number of sessions."""
    found, rows = episodes(world, seed=SEED), {}
    for lines, steps in steps_of.items():
        scripts = deal(found, lines, steps)
        tallies = sides(world, servers, lines)
        for number in range(rounds + 1):  # the first one warms up
            gc.collect()
            await one_round(list(tallies.values()), scripts, steps, counted=number > 0)
        for tally in tallies.values():
            await tally.side.close()
        rows[lines] = {name: tally.row() for name, tally in tallies.items()}
        print(table(world.name, lines, rows[lines]), flush=True)
    return rows


def table(world: str, lines: int, rows: Mapping[str, Mapping[str, Any]]) -> str:
    head = f"\n{world}, {lines} sessions"
    said = [f"{head:26}steps/s   p50 ms   p99 ms  server us/step  client us/step  server us/reset  errors"]
    for name, row in rows.items():
        said.append(
            f"  {name:15}{row['steps_per_s']:14,.0f} {row['p50_ms']:8.3f} {row['p99_ms']:8.3f} {row['server_us']:15.1f}"
            f" {row['client_us']:15.1f} {row['reset_us']:16.1f} {row['errors']:7}"
        )
    return "\n".join(said)


async def answer_sizes(worlds: Mapping[str, World], url: str) -> dict[str, int]:
    """The mean size of an answer of each AgentGym mount, in bytes."""
    sizes = {}
    for name, world in worlds.items():
        side = AgentGym(url, world)
        await side.ready(deal(episodes(world, seed=SEED), 16, 16), 16)
        played = await side.play(slice(0, 16))
        told = [len(json.dumps(one, separators=(",", ":"))) for line in played.answers for one in line]
        sizes[name] = round(statistics.mean(told))
        await side.close()
    return sizes


@contextmanager
def servers(worlds: Mapping[str, World]) -> Iterator[Servers]:
    """Our server alone and with workers, and the peer; stopped at the end."""
    served = ("crafting,gridworld", "--port", "0", "--capacity", "16384", "--idle_s", "3600")
    with ExitStack() as stack:
        ours = stack.enter_context(launch_server([*COMMAND, *served]))
        pooled = stack.enter_context(launch_server([*COMMAND, *served, "--workers", str(WORKERS)]))
        sizes = asyncio.run(answer_sizes(worlds, ours.url))
        noop = stack.enter_context(launch_server([*PEER, *(f"{name}={size}" for name, size in sizes.items())]))
        cpu = {
            name: cpu_clock(server.process.pid) for name, server in (("ours", ours), ("pooled", pooled), ("noop", noop))
        }
        yield Servers(ours.url, pooled.url, noop.url, cpu)


def figures(rows: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """The numbers that decide, and each of them for every world and number of sessions.

    For the batch that of 256 sessions of both worlds together; else the worst of all.
    """
    sizes = list(next(iter(rows.values())))
    many = [size for size in sizes if size >= 64]
    cells = [(world, size) for world, of in rows.items() for size in of]

    def over(side: str, other: str, chosen: Sequence[int], of: str = "server_us") -> dict[str, float]:
        cpu = {cell: rows[cell[0]][cell[1]] for cell in cells if cell[1] in chosen}
        return {f"{world}_{size}": round(row[side][of] / row[other][of], 3) for (world, size), row in cpu.items()}

    def together(side: str) -> float:
        ours, batch = (sum(float(of[256][name]["server_us"]) for of in rows.values()) for name in (side, "batch"))
        return round(ours / batch, 2)

    post, new = over("post", "batch", many), over("post_new", "batch", many)
    agentgym = over("agentgym", "noop", sizes)
    tail = {world: of[256]["ws"]["p99_over_p50"] for world, of in rows.items()}
    return {
        "x_post_per_step": together("post"),
        "x_new_connection_per_step": together("post_new"),
        "agentgym_over_noop_cpu": max(agentgym.values()),
        "p99_over_p50_256": max(tail.values()),
        "errors": sum(row["errors"] for of in rows.values() for named in of.values() for row in named.values()),
        "each": {
            "x_post_per_step": post,
            "x_new_connection_per_step": new,
            "agentgym_over_noop_cpu": agentgym,
            "p99_over_p50_256": tail,
        },
        "each_of_the_least": {  # of the parts that were disturbed least
            "x_post_per_step": over("post", "batch", many, "server_us_least"),
            "x_new_connection_per_step": over("post_new", "batch", many, "server_us_least"),
            "agentgym_over_noop_cpu": over("agentgym", "noop", sizes, "server_us_least"),
        },
    }


def report(*, quick: bool) -> dict[str, Any]:
    """Everything that is measured."""
    worlds: dict[str, World] = {"crafting": Crafting(), "gridworld": GridWorld()}
    steps_of, rounds = (QUICK, 1) if quick else (STEPS, 7)
    before, rows = load()[0], {}
    with servers(worlds) as running:
        for name, world in worlds.items():
            rows[name] = asyncio.run(measured(world, running, steps_of=steps_of, rounds=rounds))
    return {
        "benchmark": "serve",
        **figures(rows),
        "goals": GOALS,
        "rows": rows,
        "steps_of_a_session": steps_of,
        "rounds": rounds,
        "workers": WORKERS,
        "quick": quick,
        "seed": SEED,
        **about("uvicorn", "h11", "websockets", "starlette", cores=True),
        "load_before_and_after": [before, load()[0]],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("serve", __doc__, quick="16 and 256 sessions, one round: under two minutes", save=RESULT)
    options = parser.parse_args(arguments)
    result = report(quick=options.quick)
    print()
    for name, goal in GOALS.items():
        print(f"{name:26} {result[name]:8} (goal {goal})")
    finish(result, options)


if __name__ == "__main__":
    main()
