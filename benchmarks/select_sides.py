"""One side of `benchmarks.select` in a process of its own, so that its memory is its own. Any Python runs it.

    python -m benchmarks.select_sides '{"side": "ours", "features": "FILE.npy", "k": 60, "repeats": 3}'

The last line is JSON: wall and CPU seconds of each repetition, from features in memory to chosen indices; the peak of
resident memory in MB, and what of it was there before the choice began; the indices. Reading and importing do not
count, building a kernel does.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Choose = Callable[[Any, int], list[int]]


def ours(features: Any, k: int) -> list[int]:
    """Greedy MAP in feature form."""
    from evolvent.curate.greedy import greedy_map

    return greedy_map(features, None, k).indices.tolist()


def kernel_form(features: Any, k: int) -> list[int]:
    """The published algorithm (Chen et al. 2018, algorithm 1; fast-map-dpp) on a whole kernel, as its code keeps it.

    Rows of the factor and residues are float64; it stops at an absolute residue of 1e-10.
    """
    kernel = features @ features.T
    left = np.diag(kernel).astype(np.float64)
    factor = np.zeros((k, len(features)))
    chosen: list[int] = []
    while len(chosen) < k:
        best = int(left.argmax())
        if left[best] < 1e-10:
            break
        done = len(chosen)
        row = (kernel[best] - factor[:done, best] @ factor[:done]) / np.sqrt(left[best])
        factor[done] = row
        left -= row * row
        left[best] = -np.inf
        chosen.append(best)
    return chosen


def submodlib(features: Any, k: int) -> list[int]:
    """submodlib's log-determinant with its lazy greedy."""
    from submodlib import LogDeterminantFunction

    found = LogDeterminantFunction(n=len(features), mode="dense", lambdaVal=0, sijs=features @ features.T)
    picked = found.maximize(budget=k, optimizer="LazyGreedy", show_progress=False)
    return [int(item) for item, _ in picked]


def dppy(features: Any, k: int) -> list[int]:
    """DPPy's exact sample of a k-DPP, its eigendecomposition included: another task, diverse items by chance."""
    from dppy.finite_dpps import FiniteDPP

    return [
        int(item) for item in FiniteDPP("likelihood", L=features @ features.T).sample_exact_k_dpp(k, random_state=0)
    ]


def ours_facility(features: Any, k: int) -> list[int]:
    """Facility location by our lazy greedy."""
    from evolvent.curate.selectors import facility_location

    return facility_location(features, None, k, rng=np.random.default_rng(0)).indices.tolist()


def _similar(features: Any) -> Any:
    return np.maximum(features @ features.T, 0)


def submodlib_facility(features: Any, k: int) -> list[int]:
    """submodlib's facility location with its lazy greedy."""
    from submodlib import FacilityLocationFunction

    found = FacilityLocationFunction(n=len(features), mode="dense", separate_rep=False, sijs=_similar(features))
    return [int(item) for item, _ in found.maximize(budget=k, optimizer="LazyGreedy", show_progress=False)]


def apricot_facility(features: Any, k: int) -> list[int]:
    """apricot's facility location with its lazy greedy."""
    from apricot import FacilityLocationSelection

    found = FacilityLocationSelection(k, metric="precomputed", optimizer="lazy").fit(_similar(features))
    return [int(item) for item in found.ranking]


SIDES: dict[str, Choose] = {
    side.__name__: side
    for side in (ours, kernel_form, submodlib, dppy, ours_facility, submodlib_facility, apricot_facility)
}


def _peak_mb() -> float:
    """The most resident memory so far. Linux's ru_maxrss may be that of the process which started this one."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def copy_gb_per_s(features: Any) -> float:
    """Bytes read and written by numpy's copy of the features, the best of seven."""
    target, best = np.empty_like(features), np.inf
    for _ in range(7):
        began = time.perf_counter()
        np.copyto(target, features)
        best = min(best, time.perf_counter() - began)
    return 2 * features.nbytes / best / 1e9


def bytes_read(features: Any, k: int) -> int:
    """Bytes of features that our choice reads after its first pass, counted block by block."""
    from evolvent.curate.greedy import GreedySelector

    class Counted(GreedySelector):
        rows = 0

        def _update_residues(self, block: int) -> float:
            place = self._blocks[block]
            self.rows += (place.stop - place.start) * int(self._fed[block] < len(self._directions))
            return super()._update_residues(block)

    counted = Counted(features)
    counted.extend(k)
    return counted.rows * features.shape[1] * features.itemsize


def main() -> None:
    order = json.loads(sys.argv[1])
    features, side = np.load(order["features"]), SIDES[order["side"]]
    side(features[: 2 * order["k"]], order["k"])  # imports, and what a peer compiles at its first call
    before, wall, cpu, indices = _peak_mb(), [], [], []
    for _ in range(order["repeats"]):
        began, spent = time.perf_counter(), time.process_time()
        indices = side(features, order["k"])
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - spent)
    told = {"wall_s": wall, "cpu_s": cpu, "peak_mb": _peak_mb(), "before_mb": before, "indices": indices}
    if order.get("bandwidth"):
        told |= {"copy_gb_per_s": copy_gb_per_s(features), "bytes_read": bytes_read(features, order["k"])}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
