"""Demonstrations with thoughts as others publish them: TRAD's household trajectories.

Source: SkyRiver-2000/TRAD-Official, `{"task": str, "traj": [{"obs", "act", "thought"}, ...]}`, one file an episode, the
last element of `traj` being the final observation alone. Some files carry an action there that was never played; it is
dropped, and so is a thought.
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
from evolvent.store.exchange import Imported
from evolvent.trajectory import Score, Step, Task, Trajectory, canonical_json
from evolvent.worlds.household.game import FAMILIES

__all__ = ["household_family", "read_trad"]

_LONGEST = 4 << 20  # bytes of one file
_LARGEST, _MOST = 256 << 20, 100_000  # bytes and files of an archive, unpacked
_FORMS = tuple(
    (family.name, re.compile(wording.format(obj=r"\w+", recep=r"\w+")))
    for family in FAMILIES.values()
    for wording in family.wordings
)


def household_family(instruction: str) -> str:
    """The family of a household task ("put", "look", "clean", "heat", "cool", "two") by its wording; "" for none."""
    text = instruction.strip().rstrip(".").strip().lower()
    return next((name for name, form in _FORMS if form.fullmatch(text)), "")


def read_trad(path: Path) -> Imported:
    """TRAD's household trajectories from a folder of JSON files, or from a zip of them.

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
    for name, data in sorted(_files(path), key=lambda file: Path(file[0]).stem):
        try:
            if isinstance(data, EvolventError):
                raise data
            good.append(_read(Path(name).stem, data))
        except EvolventError as error:
            bad.append(SampleInvalid(f"{path}: {name}: {error}"))
    return Imported(tuple(good), tuple(bad))


def _files(path: Path) -> Iterator[tuple[str, bytes | EvolventError]]:
    """Names and contents; of a file that is too long, one byte more than is allowed. An error: it cannot be read."""
    with disk_errors(path):
        if path.is_dir():
            for file in path.glob("*.json"):
                with file.open("rb") as opened:
                    yield file.name, opened.read(_LONGEST + 1)
            return
        try:
            with zipfile.ZipFile(path) as archive:
                _check_size(path, archive.infolist())
                for entry in archive.infolist():
                    if entry.filename.endswith(".json") and not entry.is_dir():
                        yield entry.filename, _unpacked(archive, entry)
        except zipfile.BadZipFile as error:
            raise SampleInvalid(f"{path} is neither a folder nor a zip", value=str(error)) from error


def _check_size(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive by what its index tells, before anything is unpacked; no entry gives more than that."""
    size = sum(entry.file_size for entry in entries)
    if size > _LARGEST or len(entries) > _MOST:
        raise LimitExceeded(
            f"{path} would unpack to too much",
            value=f"{size} bytes in {len(entries)} files",
            expected=f"at most {_LARGEST} bytes in {_MOST} files",
        )


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes | EvolventError:
    """The bytes of an entry. Nothing is written; still one that is made to leave a folder is refused."""
    try:
        safe_join(Path.cwd(), entry.filename)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise UnsafePath("an entry that is no plain file", value=entry.filename, expected="a file")
        with boundary(SampleInvalid, "it cannot be unpacked"), archive.open(entry) as opened:
            return opened.read(_LONGEST + 1)
    except EvolventError as error:
        return error


def _read(stem: str, data: bytes) -> Trajectory:
    if len(data) > _LONGEST:
        raise LimitExceeded("a file is too long", value=f"more than {_LONGEST} bytes")
    try:
        row = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptRecord(f"no JSON: {error}", offset=getattr(error, "pos", 0)) from error
    task, told = (row.get("task"), row.get("traj")) if isinstance(row, dict) else (None, None)
    if not isinstance(task, str) or not isinstance(told, list) or len(told) < 2:
        raise SampleInvalid("no trajectory", value=str(row)[:80], expected='"task" and two or more of "traj"')
    steps = tuple(_step(at, one) for at, one in enumerate(told[:-1]))
    final = told[-1]
    if not isinstance(final, dict) or not isinstance(final.get("obs"), str):
        raise SampleInvalid("no final observation", value=str(final)[:80], expected='text in "obs"')
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


def _step(at: int, told: Any) -> Step:
    if not isinstance(told, dict) or not all(isinstance(told.get(key), str) for key in ("obs", "act")):
        raise SampleInvalid(
            f"element {at} of the trajectory is wrong", value=str(told)[:80], expected='texts in "obs" and "act"'
        )
    thought = told.get("thought")
    if thought is not None and not isinstance(thought, str):
        raise SampleInvalid(f"the thought of element {at} is wrong", value=str(thought)[:80], expected="text")
    return Step(told["obs"], told["act"], thought=thought)
