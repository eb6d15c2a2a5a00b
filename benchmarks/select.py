"""Greedy MAP selection beside its definition and beside other programmes: same indices, time, memory, growth.

    python -m benchmarks.select [--json] [--quick] [--peers PYTHON] [--threads 1] [--save]

`identical_to_naive`: of 200 random problems (n up to 60; float32 and float64, with and without quality), those on which
our indices are those of greedy on log-determinants computed anew for every item.

The rest runs every side in a process of its own (`benchmarks.select_sides`), from features in memory to indices; what
builds a kernel builds it within its time. Features are normal, rows of length .5 to 1.5. `million`: 1,000,000 x 64
float32, k = 60. `seconds_1m` is the least wall time of the repetitions, `peak_mb_1m` the most resident memory of that
process, interpreter and features included. `bandwidth_share` is what the published feature form moves,
n (k d + k^2 / 2) 4 bytes, in that time, over what numpy's copy moves on the same machine; ours keeps no factor and
reads less (`read_gb`), so it may pass 1.

`x_peers`: a peer's time over ours, each the least CPU time of its repetitions on the same features, and whether the
indices are the same: the kernel form of fast-map-dpp at n 10,000, d 512, k 512; submodlib and DPPy at n 2,000, d 128, k
100, DPPy drawing an exact sample, which is another task; facility location of submodlib and apricot at the same place.
`growth`: the same over n at k 60 and over k at n 5,000, d 512; a side that would need a kernel of more than 2 GB or has
taken more than `LIMIT_S` seconds at a smaller size is not asked.

Peers that PYTHON does not have are left out with the reason. They need: numpy, dppy 0.3.3, submodlib-py 0.0.3,
apricot-select 0.6.1, scikit-learn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.reporting import RESULTS, about, command_line, finish, load, show
from evolvent.curate.greedy import greedy_map

ROOT = Path(__file__).resolve().parents[1]
RESULT = RESULTS / "select.json"
LIMIT_S, KERNEL_GB = 10.0, 2.0
MODULES = {"submodlib": "submodlib", "dppy": "dppy", "submodlib_facility": "submodlib", "apricot_facility": "apricot"}
KERNELS = ("kernel_form", *MODULES)
GOALS = {
    "identical_to_naive": 200,
    "seconds_1m": 5.0,
    "peak_mb_1m": 1000.0,
    "bandwidth_share": 0.5,
    "ours_over_kernel_form": 0.19,
}


# ------------------------------------------------------------------ the definition


def naive(rows: NDArray[np.float64], k: int) -> list[int]:
    """Greedy on log det of the chosen rows' kernel, each determinant computed anew."""
    chosen: list[int] = []
    for _ in range(k):
        values = np.full(len(rows), -np.inf)
        for item in set(range(len(rows))) - set(chosen):
            some = rows[[*chosen, item]]
            sign, value = np.linalg.slogdet(some @ some.T)
            values[item] = value if sign > 0 else -np.inf
        chosen.append(int(values.argmax()))
    return chosen


def identical(problems: int) -> int:
    """On how many random problems the two choose the same items in the same order."""
    same = 0
    for case in range(problems):
        rng = np.random.default_rng(case)
        n, d = int(rng.integers(2, 61)), int(rng.integers(1, 20))
        features = rng.standard_normal((n, d)).astype((np.float32, np.float64)[case % 2])
        quality = rng.random(n) + 0.1 if case % 3 else np.ones(n)
        k = min(n, d, int(rng.integers(1, 13)))
        same += naive(features * quality[:, None], k) == greedy_map(features, quality, k).indices.tolist()
    return same


# ------------------------------------------------------------------ sides in processes


class Sides:
    """Runs sides on features that lie in a folder."""

    def __init__(self, folder: Path, *, peers: str | None, threads: int) -> None:
        self.folder, self.peers, self.threads = folder, peers, threads

    def features(self, n: int, d: int, *, dtype: str = "float64") -> Path:
        """A file of features, made once."""
        path = self.folder / f"{n}-{d}-{dtype}.npy"
        if not path.exists():
            rng = np.random.default_rng([n, d])
            made = rng.standard_normal((n, d), dtype=np.dtype(dtype).type)
            made *= ((0.5 + rng.random(n)) / np.linalg.norm(made, axis=1)).astype(dtype)[:, None]
            np.save(path, made)
        return path

    def missing(self, side: str) -> str | None:
        """Why a side cannot run here; None: it can."""
        if side not in MODULES:
            return None
        if self.peers is None:
            return "no --peers PYTHON was given"
        done = subprocess.run([self.peers, "-c", f"import {MODULES[side]}"], capture_output=True, text=True)
        return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]

    def run(self, side: str, features: Path, k: int, *, repeats: int, bandwidth: bool = False) -> dict[str, Any] | None:
        """What a side's process tells; None where it failed or took longer than two minutes."""
        order = {"side": side, "features": str(features), "k": k, "repeats": repeats, "bandwidth": bandwidth}
        python = self.peers if side in MODULES and self.peers else sys.executable
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment = os.environ | dict.fromkeys(names, str(self.threads))
        try:
            done = subprocess.run(
                [python, "-m", "benchmarks.select_sides", json.dumps(order)],
                capture_output=True,
                text=True,
                cwd=ROOT,
                env=environment,
                timeout=120,
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            print(f"{side} failed: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
            return None
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told


def million(sides: Sides, *, repeats: int) -> dict[str, Any]:
    """The large problem."""
    n, d, k = 1_000_000, 64, 60
    told = sides.run("ours", sides.features(n, d, dtype="float32"), k, repeats=repeats, bandwidth=True)
    if told is None:
        return {"seconds_1m": None, "peak_mb_1m": None, "bandwidth_share": None}
    seconds, moved = min(told["wall_s"]), n * (k * d + k * k / 2) * 4
    return {
        "seconds_1m": round(seconds, 2),
        "cpu_seconds_1m": round(min(told["cpu_s"]), 2),
        "all_seconds_1m": [round(each, 2) for each in told["wall_s"]],
        "peak_mb_1m": round(told["peak_mb"]),
        "features_mb_1m": round(n * d * 4 / 2**20),
        "copy_gb_per_s": round(told["copy_gb_per_s"], 2),
        "bandwidth_share": round(moved / 1e9 / seconds / told["copy_gb_per_s"], 2),
        "published_form_gb": round(moved / 1e9, 1),
        "read_gb": round(told["bytes_read"] / 1e9, 2),
    }


def beside(sides: Sides, *, quick: bool) -> dict[str, Any]:
    """`x_peers`, and the reasons of those that are not there."""
    small = (2_000, 128, 100)
    places = [
        ("kernel_form", "ours", (2_000, 256, 256) if quick else (10_000, 512, 512)),
        ("submodlib", "ours", small),
        ("dppy", "ours", small),
        ("submodlib_facility", "ours_facility", small),
        ("apricot_facility", "ours_facility", small),
    ]
    ratios: dict[str, Any] = {}
    details, absent, own = [], {}, {}
    for name, mine, (n, d, k) in places:
        reason = sides.missing(name)
        path, repeats = sides.features(n, d), 1 if quick else 3
        if (mine, n, k) not in own:
            own[mine, n, k] = sides.run(mine, path, k, repeats=repeats)
        us, them = own[mine, n, k], None if reason else sides.run(name, path, k, repeats=repeats)
        ratios[name] = None
        if us is None or them is None:
            absent[name] = reason or "it failed or took more than two minutes"
            continue
        ratio = min(them["cpu_s"]) / min(us["cpu_s"])
        ratios[name] = round(ratio, 2)
        details.append(
            {
                "peer": name,
                "n": n,
                "d": d,
                "k": k,
                "ours_cpu_s": round(min(us["cpu_s"]), 4),
                "peer_cpu_s": round(min(them["cpu_s"]), 4),
                "ours_over_peer": round(1 / ratio, 3),
                "ours_peak_mb": round(us["peak_mb"]),
                "peer_peak_mb": round(them["peak_mb"]),
                "same_indices": us["indices"] == them["indices"],
            }
        )
        print(details[-1], flush=True)
    return {"x_peers": ratios, "beside": details, "left_out": absent}


def growth(sides: Sides, *, quick: bool) -> list[dict[str, Any]]:
    """CPU seconds and memory over n and over k, each side up to its limit."""
    over_n = [(n, 64, 60) for n in ((1_000, 4_000) if quick else (1_000, 4_000, 64_000, 250_000))]
    over_k = [(5_000, 512, k) for k in ((32, 128) if quick else (32, 128, 512))]
    rows = []
    for cells in (over_n, over_k):
        for side in ("ours", "kernel_form", "submodlib", "dppy"):
            if not sides.missing(side) and not (side == "dppy" and cells is over_k):  # its time does not hang on k
                rows += list(_grown(sides, side, cells))
    return rows


def _grown(sides: Sides, side: str, cells: Sequence[tuple[int, int, int]]) -> Iterator[dict[str, Any]]:
    for n, d, k in cells:
        row: dict[str, Any] = {"side": side, "n": n, "d": d, "k": k}
        if side in KERNELS and n * n * 8 > KERNEL_GB * 1e9:
            yield row | {"cpu_s": None, "why": f"a kernel of {n * n * 8 / 1e9:.0f} GB"}
            return
        told = sides.run(side, sides.features(n, d), k, repeats=1)
        if told is None:
            yield row | {"cpu_s": None, "why": "it failed or took more than two minutes"}
            return
        row |= {"cpu_s": round(told["cpu_s"][0], 3), "peak_mb": round(told["peak_mb"])}
        print(row, flush=True)
        yield row
        if told["cpu_s"][0] > LIMIT_S:
            return


# ------------------------------------------------------------------ the report


def report(*, quick: bool, peers: str | None, threads: int) -> dict[str, Any]:
    """Everything measured."""
    result: dict[str, Any] = {"benchmark": "select", "problems": 200, "identical_to_naive": identical(200)}
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(Path(folder), peers=peers, threads=threads)
        result |= million(sides, repeats=2 if quick else 5)
        result |= beside(sides, quick=quick)
        result["growth"] = growth(sides, quick=quick)
    kernel = [row["ours_over_peer"] for row in result["beside"] if row["peer"] == "kernel_form"]
    return result | {
        "ours_over_kernel_form": kernel[0] if kernel else None,
        "goals": GOALS,
        "quick": quick,
        **about("evolvent", "numpy", threads=threads),
        "load_average": load(),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("select", __doc__, quick="fewer repetitions and smaller tables", save=RESULT)
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has the peers")
    parser.add_argument("--threads", type=int, default=1, help="threads of the matrix library in every process")
    options = parser.parse_args(arguments)
    result = report(quick=options.quick, peers=options.peers, threads=options.threads)
    show(result, without=("growth", "beside"))
    finish(result, options)


if __name__ == "__main__":
    main()
