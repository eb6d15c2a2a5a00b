"""An iteration of `train rl` over ranks on many GPUs: seconds of its phases, and what breaks first.

    python -m benchmarks.scale_sim.ranks [--json]

Every rank plays its share of the episodes, and all ranks then do the following one after another:

    play      the slowest rank's share, on whole weights in its own GPU (`round._played`)
    episodes  every rank receives and reads the lines of all episodes; the first one stores them, and the others wait
    score     log-probabilities of the policy and of the reference, shared by tokens
    learn     forwards and backwards, shared by tokens
    shards    weights are gathered twice in each micro-batch, and gradients are reduced once (FSDP2)
    whole     after the update every rank's whole weights are summed from the shards

Costs of episodes are the measured ones of `benchmarks/results/scale_sim.json`; rates of GPUs are those of `fleet`.
Nothing overlaps. Credit and the making of sequences, which every rank does for all episodes, are not counted.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.reporting import RESULTS
from benchmarks.scale_sim.fleet import MODELS, Fleet
from benchmarks.scale_sim.model import ring_s
from benchmarks.scale_sim.plan import GPUS, library_of, per_episode, workload_of
from benchmarks.scale_sim.round import _played
from benchmarks.scale_sim.tables import grid, short

__all__ = ["RanksFleet", "list_cases", "make_fleet", "make_table", "measure_iteration"]

RESULT = RESULTS / "scale_sim.json"
EPISODES = (1_000, 10_000)
FORWARD_TOKENS = 16_384  # of a micro-batch on a rank
SCORED_POLICIES = 2  # the policy and the reference
STATE_BYTES = 16  # a parameter's weight, gradient and AdamW's states, divided by the shards
GPU_PHASES = ("play", "score", "learn")  # what a GPU is there for


@dataclass(frozen=True)
class RanksFleet(Fleet):
    """GPUs that are one rank each.

    Args:
        shard: Ranks that share a copy of what is trained; the copies are replicas (HSDP). None: all of them.
        read_s_per_episode: Seconds in which a rank reads the line of an episode.
        store_s_per_episode: Seconds in which the first rank stores an episode.
    """

    shard: int | None = None
    read_s_per_episode: float = 0.0
    store_s_per_episode: float = 0.0

    @property
    def num_shards(self) -> int:
        """Returns the number of ranks that share a copy of what is trained."""
        return self.gpus if self.shard is None else self.shard

    @property
    def engines(self) -> int:
        """Returns the number of ranks that play."""
        return min(self.gpus, self.environments)

    @property
    def held_bytes(self) -> float:
        """Returns the bytes of a rank before it plays: whole weights, and its part of what is trained."""
        return self.model.weights_bytes + STATE_BYTES * self.model.parameters / self.num_shards

    @property
    def rows(self) -> int:
        """Returns the rows that fit beside the weights in nine tenths of a GPU's memory; 0: not even one."""
        room = 0.9 * self.gpu.memory_bytes - self.held_bytes
        return max(0, int(room / (self.model.kv_bytes * self.workload.context)))

    @property
    def learns(self) -> bool:
        """Returns whether the weights fit."""
        return self.held_bytes <= 0.9 * self.gpu.memory_bytes


def make_fleet(
    measured: Mapping[str, Any], model: str, gpus: int, episodes: int, *, shard: int | None = None
) -> RanksFleet:
    """Makes a fleet from the measured costs of `benchmarks.scale_sim`."""
    workload = workload_of(measured)
    steps = workload.stretch * sum(workload.lengths) / len(workload.lengths)
    tokens = steps * (workload.read + workload.written)
    seconds = {
        name: measured["calibrated_at"] * per_episode(measured, name, steps, tokens)
        for name in ("receive_s", "store_s")
    }
    return RanksFleet(
        gpus,
        episodes,
        replace(MODELS[model], engine=1),
        workload,
        library_of(measured, workload),
        shard=shard,
        read_s_per_episode=seconds["receive_s"],
        store_s_per_episode=seconds["store_s"],
    )


def gather_s(fleet: RanksFleet) -> float:
    """Returns the seconds in which the shards of all layers are gathered once: half a ring all-reduce, layer by layer.

    Inside a node over its links, otherwise over the network.
    """
    gpu, count = fleet.gpu, fleet.num_shards
    is_inside = count <= gpu.per_node
    bandwidth, latency_s = (gpu.link, gpu.link_latency_s) if is_inside else (gpu.network, gpu.network_latency_s)
    layer_bytes = fleet.model.weights_bytes / fleet.model.layers
    return fleet.model.layers * ring_s(layer_bytes, count, bandwidth, latency_s) / 2


def measure_iteration(fleet: RanksFleet, *, seed: int = 0) -> dict[str, Any]:
    """Returns the seconds of an iteration by phase, its environment steps a second, and the longest other phase.

    Returns:
        `breaks`: "memory" where the weights do not fit, else the longest phase that is not work of the GPUs.
    """
    if not fleet.rows or not fleet.learns:
        return {"breaks": "memory", "steps_s": 0.0, "phases": {}, "share": 0.0}
    gpu, model, library = fleet.gpu, fleet.model, fleet.library
    played = _played(fleet, seed)
    tokens = float(played["steps"]) * (fleet.workload.read + fleet.workload.written)
    flops = fleet.gpus * gpu.flops * gpu.train_share
    updates = max(1, math.ceil(tokens / fleet.workload.update_tokens))
    tokens_of_update = min(tokens, fleet.workload.update_tokens)
    micro_batches = updates * math.ceil(tokens_of_update / fleet.gpus / FORWARD_TOKENS)
    scored_batches = SCORED_POLICIES * math.ceil(tokens / fleet.gpus / FORWARD_TOKENS)
    replicas = fleet.gpus // fleet.num_shards
    shard_bytes = model.weights_bytes / fleet.num_shards
    between_s = ring_s(shard_bytes, replicas, gpu.network, gpu.network_latency_s)
    phases = {
        "play": float(played["engines_end"]),
        "episodes": fleet.environments
        * (library.episode_bytes / gpu.network + fleet.read_s_per_episode + fleet.store_s_per_episode),
        "score": SCORED_POLICIES * 2 * model.parameters * tokens / flops,
        "learn": 6 * model.parameters * tokens / flops,
        "shards": (3 * micro_batches + scored_batches) * gather_s(fleet) + updates * between_s,
        "whole": ring_s(model.weights_bytes, fleet.gpus, gpu.network, gpu.network_latency_s),
    }
    total_s = sum(phases.values())
    others = {name: seconds for name, seconds in phases.items() if name not in GPU_PHASES}
    longest = max(others, key=lambda name: others[name])
    return {
        "breaks": longest,
        "steps_s": float(played["steps"]) / total_s,
        "phases": phases,
        "share": others[longest] / total_s,
        "gpu_share": sum(phases[name] for name in GPU_PHASES) / total_s,
    }


LAYOUTS: Mapping[str, int | None] = {"one copy": None, "a copy a node": 8}
"""How what is trained is shared: one copy over all ranks, or one in each node (HSDP)."""


def list_cases(measured: Mapping[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """Returns `measure_iteration` by model, GPUs, and layout with episodes of an iteration."""
    return {
        model: {
            gpus: {
                f"{name}, {episodes:,} episodes": measure_iteration(
                    make_fleet(measured, model, gpus, episodes, shard=shard)
                )
                for name, shard in LAYOUTS.items()
                for episodes in EPISODES
            }
            for gpus in GPUS
        }
        for model in MODELS
    }


def make_table(cases: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[str]:
    """Returns the table of `docs/scaling.md`: steps a second; the longest phase beside the GPUs, and its share."""
    rows = []
    for model, by_gpus in cases.items():
        for gpus, by_name in by_gpus.items():
            cells = [
                "does not fit"
                if case["breaks"] == "memory"
                else f"{short(case['steps_s'])} ({case['breaks']} {case['share']:.0%})"
                for case in by_name.values()
            ]
            rows.append([model, f"{gpus:,}", *cells])
    return grid(("model", "GPUs", *next(iter(next(iter(cases.values())).values()))), rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_sim.ranks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="all phases as JSON")
    options = parser.parse_args(arguments)
    cases = list_cases(json.loads(RESULT.read_text(encoding="utf-8"))["measured"])
    print(json.dumps(cases) if options.json else "\n".join(make_table(cases)))


if __name__ == "__main__":
    main()
