"""How the linear expert of Hopper was found: augmented random search (ARS V2-t, arXiv 1803.07055).

    python -m benchmarks.sequence_hopper [--seed 2] [--cpu_s 240] [--to FILE]

The numbers stand in `worlds/control.py`; nothing else needs this file. Seed 2 came to a mean return of 3,080 after
640,000 steps, in about two minutes of one core. Physics differ between versions of mujoco, and with them what is found.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.worlds.control import CONTROLS, make_control

HOPPER = CONTROLS["hopper"]
DIRECTIONS, BEST, STEP, NOISE, HORIZON = 8, 4, 0.02, 0.02, 1000

Array = NDArray[np.float64]


class Search:
    """A linear policy over standardized observations, and what was seen so far to standardise with."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.env: Any = make_control(HOPPER).unwrapped
        self.weight = np.zeros((HOPPER.dim, HOPPER.observation))
        self.count, self.mean, self.square = 0, np.zeros(HOPPER.observation), np.zeros(HOPPER.observation)
        self.steps = 0

    @property
    def deviation(self) -> Array:
        """Of all observations so far; 1 before there are any."""
        return np.sqrt(self.square / self.count) + 1e-6 if self.count > 1 else np.ones(HOPPER.observation)

    def earned(self, weight: Array, *, seed: int, learn: bool) -> float:
        """The return of an episode; while learning without the pay for being alive (the paper's), and remembered."""
        mean, deviation = self.mean.copy(), self.deviation
        seen, total = self.env.reset(seed=seed)[0], 0.0
        for _ in range(HORIZON):
            if learn:
                self.count += 1
                away = seen - self.mean
                self.mean = self.mean + away / self.count
                self.square = self.square + away * (seen - self.mean)
            seen, reward, over, _, _ = self.env.step(np.clip(weight @ ((seen - mean) / deviation), -1, 1))
            total += float(reward) - learn
            self.steps += 1
            if over:
                break
        return total

    def improve(self) -> None:
        """One update along the best directions."""
        ways = self.rng.standard_normal((DIRECTIONS, *self.weight.shape))
        draw = self.rng.integers
        paid = np.array(
            [
                [self.earned(self.weight + sign * NOISE * way, seed=int(draw(1 << 30)), learn=True) for sign in (1, -1)]
                for way in ways
            ]
        )
        top = np.argsort(-paid.max(1))[:BEST]
        slope = np.einsum("i,iao->ao", paid[top, 0] - paid[top, 1], ways[top])
        self.weight = self.weight + STEP / (BEST * (paid[top].std() + 1e-6)) * slope

    def folded(self) -> dict[str, Any]:
        """The policy on raw observations: weight and bias."""
        weight = self.weight / self.deviation
        return {"weight": weight.tolist(), "bias": (-weight @ self.mean).tolist()}


def main() -> None:
    """Search, and write the best that was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--cpu_s", type=float, default=240.0)
    parser.add_argument("--to", type=Path, default=Path("hopper.json"))
    given = parser.parse_args()
    search, best, number = Search(given.seed), -np.inf, 0
    while time.process_time() < given.cpu_s:
        search.improve()
        number += 1
        if number % 10:
            continue
        mean = float(np.mean([search.earned(search.weight, seed=1000 + i, learn=False) for i in range(3)]))
        if mean > best:
            best = mean
            row = {"seed": given.seed, "return": mean, "steps": search.steps, **search.folded()}
            given.to.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
        print(f"{number:5} updates  {search.steps:9,} steps  {mean:8.0f}, best {best:.0f}", flush=True)


if __name__ == "__main__":
    main()
