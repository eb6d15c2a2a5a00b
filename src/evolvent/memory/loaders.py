"""Loaders of published demonstrations with thoughts: TRAD's household trajectories.

Source: SkyRiver-2000/TRAD-Official, `{"task": str, "traj": [{"obs", "act", "thought"}, ...]}`, one file an
episode, the last element of `traj` being the final observation alone. Some files carry an action there that was
never executed; it is dropped, and so is a thought.
"""

from __future__ import annotations

import json
import re
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evolvent.errors import CorruptRecord, EvolventError, LimitExceeded, SampleInvalid, UnsafePath, boundary
from evolvent.files import disk_errors, safe_join
from evolvent.store.exchange import ImportResult
from evolvent.trajectory import Score, Step, Task, Trajectory, canonical_json
from evolvent.worlds.household.game import FAMILIES

__all__ = ["household_family", "read_trad"]

_MAX_FILE_BYTES = 4 << 20  # bytes of one file
_MAX_ARCHIVE_BYTES, _MAX_ARCHIVE_FILES = 256 << 20, 100_000  # bytes and files of an archive, unpacked
_FORMS = tuple(
    (family.name, re.compile(wording.format(obj=r"\w+", recep=r"\w+")))
    for family in FAMILIES.values()
    for wording in family.wordings
)


def household_family(instruction: str) -> str:
    """Returns the family of a household task ("put", "look", "clean", "heat", "cool", "two") by its wording; "" for
    none.
    """
    text = instruction.strip().rstrip(".").strip().lower()
    return next((name for name, form in _FORMS if form.fullmatch(text)), "")


def read_trad(path: Path) -> ImportResult:
    """Reads TRAD's household trajectories from a folder of JSON files, or from a zip of them.

    The order of files does not matter: an episode's id is its file's stem (`trad/0_12`), and its type is read from the
    instruction, never from the file's name. Texts stay as they are, in the older dialect ("put X in/on Y");
    `worlds.household` understands both. `meta` holds the instruction and whether a stale action was dropped.

    Returns:
        The good episodes in the order of their ids, and for each other file an error that names it and the byte.
    Raises:
        StoreUnavailable: the path cannot be read. SampleInvalid: a file that is no zip. LimitExceeded: a zip that
            would unpack to more than 256 MiB or 100,000 files; nothing of it is unpacked.
    """
    good: list[Trajectory] = []
    bad: list[SampleInvalid] = []
    for name, data in sorted(_iterate_files(path), key=lambda file: Path(file[0]).stem):
        try:
            if isinstance(data, EvolventError):
                raise data
            good.append(_parse_trajectory(Path(name).stem, data))
        except EvolventError as error:
            bad.append(SampleInvalid(f"{path}: {name}: {error}"))
    return ImportResult(tuple(good), tuple(bad))


def _iterate_files(path: Path) -> Iterator[tuple[str, bytes | EvolventError]]:
    """Yields names and contents, of an oversized file one byte more than the limit, or an error for an unreadable
    file.
    """
    with disk_errors(path):
        if path.is_dir():
            for file in path.glob("*.json"):
                with file.open("rb") as opened:
                    yield file.name, opened.read(_MAX_FILE_BYTES + 1)
            return
        try:
            with zipfile.ZipFile(path) as archive:
                _check_size(path, archive.infolist())
                for entry in archive.infolist():
                    if entry.filename.endswith(".json") and not entry.is_dir():
                        yield entry.filename, _unpack(archive, entry)
        except zipfile.BadZipFile as error:
            raise SampleInvalid(f"{path} is neither a folder nor a zip file", value=str(error)) from error


def _check_size(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Raises an error for an archive that is too large by its index, before anything is unpacked."""
    size = sum(entry.file_size for entry in entries)
    if size > _MAX_ARCHIVE_BYTES or len(entries) > _MAX_ARCHIVE_FILES:
        raise LimitExceeded(
            f"{path} is too large when unpacked",
            value=f"{size} bytes in {len(entries)} files",
            expected=f"at most {_MAX_ARCHIVE_BYTES} bytes in {_MAX_ARCHIVE_FILES} files",
        )


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes | EvolventError:
    """Returns the bytes of an entry. Nothing is written; an entry that points outside a folder is refused all the
    same.
    """
    try:
        safe_join(Path.cwd(), entry.filename)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise UnsafePath("an archive entry is not a regular file", value=entry.filename, expected="a file")
        with boundary(SampleInvalid, "it cannot be unpacked"), archive.open(entry) as opened:
            return opened.read(_MAX_FILE_BYTES + 1)
    except EvolventError as error:
        return error


def _parse_trajectory(stem: str, data: bytes) -> Trajectory:
    if len(data) > _MAX_FILE_BYTES:
        raise LimitExceeded("a file is too large", value=f"more than {_MAX_FILE_BYTES} bytes")
    try:
        row = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"not valid JSON: {error}", offset=getattr(error, "pos", 0)) from error
    task, step_rows = (row.get("task"), row.get("traj")) if isinstance(row, dict) else (None, None)
    if not isinstance(task, str) or not isinstance(step_rows, list) or len(step_rows) < 2:
        raise SampleInvalid(
            "the row is not a trajectory", value=str(row)[:80], expected='"task" and at least two elements in "traj"'
        )
    steps = tuple(_parse_step(index, step_row) for index, step_row in enumerate(step_rows[:-1]))
    final = step_rows[-1]
    if not isinstance(final, dict) or not isinstance(final.get("obs"), str):
        raise SampleInvalid("the last element has no observation", value=str(final)[:80], expected='text in "obs"')
    meta = {"instruction": task.strip(), "dialect": "0.3", "source": "TRAD"}
    if final.get("act") or final.get("thought"):
        meta["stale"] = canonical_json({key: final.get(key) for key in ("act", "thought") if final.get(key)})
    return Trajectory(
        f"trad/{stem}",
        Task("alfworld", "0.3", {"task": task.strip(), "first": steps[0].observation}, kind=household_family(task)),
        steps,
        final["obs"],
        "world",
        Score(None, None, None),
        meta=meta,
    )


def _parse_step(index: int, step_row: Any) -> Step:
    if not isinstance(step_row, dict) or not all(isinstance(step_row.get(key), str) for key in ("obs", "act")):
        raise SampleInvalid(
            f"element {index} of the trajectory is invalid",
            value=str(step_row)[:80],
            expected='texts in "obs" and "act"',
        )
    thought = step_row.get("thought")
    if thought is not None and not isinstance(thought, str):
        raise SampleInvalid(f"the thought of element {index} is not text", value=str(thought)[:80], expected="text")
    return Step(step_row["obs"], step_row["act"], thought=thought)
