"""A corpus of trajectories to share: files in AgentGym's form, a manifest with counts and hashes, a data set card.

    base/WORLD_train.json         a few demonstrations of a world                  (AgentTraj)
    large/WORLD_train.json        many, of every tier that may be trained on       (AgentTraj-L)
    expanded/WORLD_train.json     tasks told in other words                        (expanded instructions)
    eval/WORLD_test.json          the tasks of the test panels, without episodes   (AgentEval)
    manifest.json, README.md      what there is; the card lets `datasets` load the folder by these names

Nothing in the files depends on when or where they were written: equal inputs give equal hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evolvent.errors import SampleInvalid
from evolvent.files import disk_errors, plain_json, write_atomic
from evolvent.store.exchange import write_agenttraj
from evolvent.trajectory import Task, Trajectory
from evolvent.worlds.base import SPLITS, World
from evolvent.worlds.panel import digest, list_tasks

__all__ = ["PARTS", "FileRow", "item_ids", "write_eval", "write_manifest", "write_part"]

FORMAT = 1
PARTS: Mapping[str, str] = {
    "base": "demonstrations of the tier nearest to them",
    "large": "demonstrations of every tier that may be trained on",
    "expanded": "demonstrations of tasks told in other words",
    "eval": "the tasks of the test panels, without episodes",
}


@dataclass(frozen=True)
class FileRow:
    """Entry of a file in the manifest: path in the corpus, rows, environment steps, bytes and SHA-256."""

    path: str
    rows: int
    steps: int
    bytes: int
    sha256: str


def item_ids(world: World) -> dict[str, str]:
    """Maps task ids to the world's name, `_` and the index among all tasks of the world, as AgentGym names tasks."""
    return {task.id: f"{world.name}_{index}" for index, task in enumerate(list_tasks(world))}


def write_part(folder: Path, part: str, world: World, *, trajectories: Iterable[Trajectory]) -> FileRow:
    """Writes the demonstrations of a world, in the order of its tasks.

    Raises:
        SampleInvalid: an episode that did not succeed, or of a task that is not the world's: it is no demonstration.
    """
    names, steps = item_ids(world), 0
    rows: list[Trajectory] = []
    for trajectory in trajectories:
        name = names.get(trajectory.task.id)
        if name is None or not trajectory.success or trajectory.task.split != "train":
            raise SampleInvalid(
                f"{trajectory.id} is not a demonstration of world {world.name}",
                value=trajectory.ended_by,
                expected="a solved training task of this world",
            )
        steps += len(trajectory.steps)
        rows.append(replace(trajectory, meta={"item_id": name}))
    rows.sort(key=lambda one: int(one.meta["item_id"].rpartition("_")[2]))
    path = folder / part / f"{world.name}_train.json"
    write_agenttraj(rows, path, instructions=world.instructions)
    return _file_row(folder, path, rows=len(rows), steps=steps)


def write_eval(folder: Path, world: World, *, tasks: Sequence[Task]) -> FileRow:
    """Writes the tasks that a policy is evaluated on, without episodes: `conversations` is null."""
    names = item_ids(world)
    rows = [
        {"conversations": None, "item_id": names[task.id], "task": task.id, "tier": task.tier, "kind": task.kind}
        for task in tasks
    ]
    path = folder / "eval" / f"{world.name}_test.json"
    write_atomic(path, "[\n" + ",\n".join(map(plain_json, rows)) + "\n]\n")
    return _file_row(folder, path, rows=len(rows), steps=0)


def _file_row(folder: Path, path: Path, *, rows: int, steps: int) -> FileRow:
    with disk_errors(path):
        raw = path.read_bytes()
    relative_path = path.relative_to(folder).as_posix()
    return FileRow(relative_path, rows, steps, len(raw), hashlib.sha256(raw).hexdigest())


def write_manifest(
    folder: Path, files: Sequence[FileRow], *, worlds: Sequence[World], settings: Mapping[str, object]
) -> str:
    """Writes `manifest.json` and the card; returns the corpus digest: SHA-256 over all file hashes, 32 hex digits.

    Args:
        worlds: every world of the corpus, those told in other words too.
        settings: what was asked for (JSON values).
    """
    ordered = sorted(files, key=lambda row: row.path)
    corpus_digest = hashlib.sha256("\n".join(f"{row.sha256} {row.path}" for row in ordered).encode()).hexdigest()[:32]
    world_entries = {world.name: _world_entry(world) for world in sorted(worlds, key=lambda one: one.name)}
    file_entries = {
        row.path: {"rows": row.rows, "steps": row.steps, "bytes": row.bytes, "sha256": row.sha256} for row in ordered
    }
    manifest = {
        "format": FORMAT,
        "digest": corpus_digest,
        "settings": dict(settings),
        "worlds": world_entries,
        "files": file_entries,
    }
    write_atomic(folder / "manifest.json", plain_json(manifest) + "\n")
    write_atomic(folder / "README.md", _render_card(ordered, corpus_digest))
    return corpus_digest


def _world_entry(world: World) -> dict[str, Any]:
    panels = {f"{split}/{tier}": world.tasks(split, tier) for split in SPLITS for tier in world.tiers}
    counts = {name: {"tasks": len(tasks), "digest": digest(tasks)} for name, tasks in panels.items()}
    return {
        "version": world.version,
        "horizon": world.horizon,
        "instructions": world.instructions,
        "panels": counts,
    }


def _render_card(files: Sequence[FileRow], corpus_digest: str) -> str:
    """Renders the card that assigns files to parts, for people and for `datasets.load_dataset(FOLDER, PART)`."""
    parts = [part for part in PARTS if any(row.path.startswith(f"{part}/") for row in files)]
    head = ["---", "configs:"]
    for part in parts:
        split = "test" if part == "eval" else "train"
        head += [f"- config_name: {part}", "  data_files:", f"  - split: {split}", f"    path: {part}/*.json"]
    lines = [
        *head,
        "---",
        "",
        "# Trajectories of experts in the worlds of evolvent",
        "",
        f"Digest {corpus_digest}. Every world's tasks are split by a hash of their canonical form; test tasks are in "
        "no training file. `item_id` is the world and the place of the task among all its tasks.",
        "",
        "| part | what | worlds | rows | steps |",
        "|---|---|---|---|---|",
    ]
    for part in parts:
        part_files = [row for row in files if row.path.startswith(f"{part}/")]
        rows, steps = sum(row.rows for row in part_files), sum(row.steps for row in part_files)
        lines.append(f"| {part} | {PARTS[part]} | {len(part_files)} | {rows:,} | {steps:,} |")
    lines += [
        "",
        "    from datasets import load_dataset",
        '    rows = load_dataset("FOLDER", "base", split="train")',
        "",
    ]
    return "\n".join(lines)
