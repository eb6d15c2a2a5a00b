"""Runs with very many trajectories, made fast: a few hundred episodes are built, and their columns repeated."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from evolvent.files import append_line
from evolvent.store.columns import STEPS, TRAJECTORIES, step_table, trajectory_table
from evolvent.store.log import SCHEMA_VERSION, encode_line
from evolvent.store.schema import encode_trajectory
from evolvent.trajectory import Generation, Score, Step, Task, Trajectory, sample_rng

__all__ = ["SEED", "episodes", "logged_run", "sealed_run"]

SEED = 0

_WORDS = (
    "open",
    "close",
    "north",
    "south",
    "east",
    "west",
    "lamp",
    "egg",
    "drawer",
    "shelf",
    "heat",
    "cool",
    "mango",
    "basin",
    "ledger",
    "copper",
    "anvil",
    "quartz",
)
_RARE = "chrysalis"
_PART = 10_000


def episodes(count: int, *, tokens: int = 28, seed: int = SEED) -> list[Trajectory]:
    """Made-up episodes of a household, with so many tokens a step; one in a hundred holds the word "chrysalis"."""
    found = []
    for number in range(count):
        rng = sample_rng("viewer", seed, number)
        odd = number % 100 == 7
        steps = tuple(_step(rng, tokens, rare=odd and place == 1) for place in range(int(rng.integers(2, 9))))
        won = bool(rng.random() < 0.4)
        kind = f"{_WORDS[number % 5]} {_WORDS[6 + number % 9]}"
        task = Task("household", "1", {"number": number, "rooms": 4}, kind, ("seen", "evo", "combo")[number % 3])
        score = Score(float(won), float(rng.random()) if not won else 1.0, won) if number % 50 else Score()
        found.append(
            Trajectory(
                f"evolve-{number % 4}-collect-abc/{task.id}/0",
                task,
                steps,
                "the end",
                "world" if number % 7 else "horizon",
                score,
            )
        )
    return found


def _step(rng: np.random.Generator, tokens: int, *, rare: bool) -> Step:
    seen, said = ([str(word) for word in rng.choice(_WORDS, size)] for size in (18, 4))
    said += [_RARE] if rare else []
    ids = rng.integers(0, 400, tokens).astype(np.int32)
    sampled = np.arange(tokens) >= tokens - 8
    logprobs = np.where(sampled, -rng.gamma(1.0, 0.4, tokens), 0.0).astype(np.float32)
    return Step(
        f"you see {' '.join(seen)}",
        " ".join(said),
        float(rng.random() < 0.1),
        None,
        (Generation(ids, sampled, logprobs),),
    )


def sealed_run(folder: Path, count: int, *, distinct: int = 500, tokens: int = 28) -> Path:
    """A finished run with `count` sealed trajectories, in parts of 10,000; `count` is a multiple of `distinct`."""
    _info(folder, "finished")
    made = sorted(episodes(distinct, tokens=tokens), key=lambda one: one.id)
    heads, steps = trajectory_table([("run", 0, one) for one in made]), step_table(made)
    store = folder / "trajectories"
    for number, begin in enumerate(range(0, count, _PART), 1):
        copies = min(_PART, count - begin) // distinct
        row = {
            "segment": number,
            "sha256": hashlib.sha256(str(number).encode()).hexdigest(),
            "part": f"part-{number:016d}.parquet",
        }
        tables = {"trajectories": _repeated(heads, copies, begin), "steps": _repeated(steps, copies, begin)}
        order = tables["trajectories"]
        tables["trajectories"] = order.set_column(
            TRAJECTORIES.get_field_index("seq"), "seq", pa.array(np.arange(order.num_rows))
        )
        for name, table in tables.items():
            _write(store / "parquet" / name / str(row["part"]), table)
        counts = {name: table.num_rows for name, table in tables.items()} | {"annotations": 0}
        append_line(store / "manifest.jsonl", {**row, "rows": counts}, durable=False)
    return folder


def _repeated(table: pa.Table, copies: int, begin: int) -> pa.Table:
    """The rows `copies` times, each copy under ids of its own that sort after those of the copy before."""
    schema = TRAJECTORIES if "seq" in table.schema.names else STEPS
    place = schema.get_field_index("traj")
    pieces = []
    for copy in range(copies):
        ids = pc.binary_join_element_wise(f"copy-{begin // _PART:03d}-{copy:04d}", table["traj"], "/")
        pieces.append(table.set_column(place, schema.field("traj"), ids))
    return pa.concat_tables(pieces)


def _write(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    versioned = table.replace_schema_metadata({b"evolvent_schema": str(SCHEMA_VERSION)})
    pq.write_table(versioned, path, compression="zstd", row_group_size=2048, write_page_checksum=True)


def logged_run(folder: Path, count: int, *, distinct: int = 500, state: str = "running") -> Path:
    """The same as a run that is still going on leaves it: lines of a log, nothing sealed."""
    _info(folder, state)
    path = folder / "trajectories" / "log" / "seg-000001.jsonl"
    path.parent.mkdir(parents=True)
    fields = [(one.id, encode_trajectory(one)) for one in episodes(distinct)]
    with path.open("wb") as file:
        for number in range(count):
            traj, row = fields[number % distinct]
            file.write(encode_line(row, run="run", traj=f"copy-{number // distinct:05d}/{traj}"))
    return folder


def _info(folder: Path, state: str) -> None:
    folder.mkdir(parents=True)
    info = {
        "verb": "evolve",
        "method": "agentevol",
        "name": folder.name,
        "seed": SEED,
        "state": state,
        "arms": ["evolve"],
        "created": "2026-03-01T10:00:00Z",
        "config": {"worlds": ["household"]},
    }
    (folder / "run.json").write_text(json.dumps(info))
