"""What recalling others' thoughts is worth, and what finding them costs.

    python -m benchmarks.trad [--json] [--quick] [--match --data DIR] [--index] [--agents] [--encoder FOLDER]
                              [--peers PYTHON] [--sizes 10000,100000,1000000] [--limit_s 400] [--save]

`--match` needs the trajectories that TRAD published (`benchmarks.trad.retrieval` says what is counted), `--index` times
queries beside faiss and hnswlib (`benchmarks.trad.index`), `--agents` plays with a small model
(`benchmarks.trad_agents`). Without any of the three, all that can be run.

One JSON object: `match` (key -> [mean, low, high]), `match_gain_ci` (thought above metadata, paired), `prompt_tokens`,
`qps` and `recall` (size -> side), `success` (world -> system, of the agents: `--agents` only reads the cells that
`benchmarks.trad_agents` has played). What was not run is what was kept in `benchmarks/results/trad.json`, and named in
`kept`; with `--quick` it is null.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.reporting import RESULTS, about, command_line, finish, load, show
from evolvent.memory.encoders import Encoder, HashedNgrams, SentenceEncoder

ROOT = Path(__file__).resolve().parents[2]
RESULT = RESULTS / "trad.json"
SIZED = ("qps", "recall", "ms_one", "build_s", "left_out", "over_product", "over_faiss_flat")
GOALS = {
    "match_gain_ci": "low end above 0",
    "prompt_tokens": "thought below metadata",
    "flat_over_faiss": 1.0,
    "flat_over_product": 1.3,
    "embedded_again": 0,
}


def encoder_of(folder: str) -> Encoder:
    """The model of a folder, or hashed n-grams."""
    return SentenceEncoder(folder) if folder else HashedNgrams()


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that was asked for."""
    every = not (options.match or options.index or options.agents)
    result: dict[str, Any] = {"benchmark": "trad"} | dict.fromkeys(
        ("match", "match_gain_ci", "success", "prompt_tokens", "qps", "recall")
    )
    if options.match or (every and options.data):
        from benchmarks.trad.retrieval import match

        if options.data is None:
            raise SystemExit("--match needs --data DIR")
        result |= match(options.data, encoder_of(options.encoder), quick=options.quick)
    if options.index or every:
        from benchmarks.trad.index import index_report

        result |= index_report(options.sizes, peers=options.peers, limit_s=options.limit_s, quick=options.quick)
    if options.agents or every:
        from benchmarks.trad_agents.__main__ import report as report_agents

        result |= report_agents(quick=options.quick)
    return result | {
        "goals": GOALS,
        "quick": options.quick,
        **about("evolvent", "torch", "numpy", cores=True),
        "load_average": load(),
    }


def earlier() -> dict[str, Any]:
    """The figures that were saved; empty where none were."""
    found: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    return found


def sizes(text: str) -> list[int]:
    """Whole numbers with commas between them."""
    return [int(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("trad", __doc__, quick="fewer episodes, queries and sizes", save=RESULT)
    parser.add_argument("--match", action="store_true", help="which steps are found by which key")
    parser.add_argument("--index", action="store_true", help="queries per second and recall")
    parser.add_argument("--agents", action="store_true", help="a small model with and without a memory")
    parser.add_argument("--data", type=Path, metavar="DIR", help="TRAD's household trajectories, folder or zip")
    parser.add_argument("--encoder", default="", metavar="FOLDER", help="a model of sentence-transformers, for --match")
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has faiss, hnswlib and usearch")
    parser.add_argument("--sizes", type=sizes, default=[10_000, 100_000, 1_000_000], help="records, for --index")
    parser.add_argument("--limit_s", type=float, default=400.0, help="CPU seconds that building a graph may take (400)")
    options = parser.parse_args(arguments)
    result = report(options)
    show(result)
    kept = earlier()
    whole = kept | {name: value for name, value in result.items() if value is not None or name not in kept}
    for name in SIZED:  # sizes that were measured before stay
        whole[name] = (kept.get(name) or {}) | (whole.get(name) or {})
    old = {} if options.quick else {name: each for name, each in kept.items() if result.get(name) is None}
    finish(result | old | {"kept": sorted(old)}, options, kept=whole)


if __name__ == "__main__":
    main()
