"""Safe file names, atomic writes, and disk errors with clear types.

All code that writes files uses this module or the trajectory log, so that a full disk is always `NoSpace`, an
unusable folder is always `StoreUnavailable`, and a killed process never leaves a partial file under a final
name.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from evolvent.errors import NoSpace, StoreError, StoreUnavailable, UnsafePath

__all__ = [
    "TEMPORARY_SUFFIX",
    "append_line",
    "atomic_writer",
    "disk_error",
    "disk_errors",
    "ensure_space",
    "plain_json",
    "safe_join",
    "sync_folder",
    "write_atomic",
]

TEMPORARY_SUFFIX = ".part~"  # how the name of an unfinished file ends
_NO_SPACE_CODES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_RESERVED_NAMES = {"con", "prn", "aux", "nul"} | {f"{port}{i}" for port in ("com", "lpt") for i in range(1, 10)}
_MAX_NAME_BYTES = 240  # bytes of one name; file systems end at 255, and temporary names add an ending


def safe_join(root: Path, name: str) -> Path:
    """Returns the path `root/name` for a name that came from data, a model or the network.

    It refuses names that leave the folder by any spelling (`..`, absolute, backslash, percent-encoded once or more,
    through a symbolic link), and names that some file system cannot hold (NUL, control characters, reserved, too
    long).

    Raises:
        UnsafePath: the name is refused; the message gives the reason.
    """
    reason = _find_unsafe_reason(name)
    if reason is None:
        base = root.resolve()
        path = base / name
        if path.resolve().is_relative_to(base):
            return path
        reason = "it leaves the folder through a symbolic link"
    raise UnsafePath("unsafe file name", value=repr(name), hint=f"refused because {reason}")


def _find_unsafe_reason(name: str) -> str | None:
    """Returns the reason why a name, or any way to percent-decode it, is not safe; None for a safe name."""
    decoded_name = name
    for _ in range(8):
        reason = _find_unsafe_reason_once(decoded_name)
        decoded = unquote(decoded_name)
        if reason or decoded == decoded_name:
            return reason
        decoded_name = decoded
    return "it is percent-encoded too often"


def _find_unsafe_reason_once(name: str) -> str | None:
    if not name:
        return "it is empty"
    if any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 or ord(c) == 127 for c in name):
        return "it holds a control character"
    if "\\" in name or ":" in name:
        return "it holds a backslash or a colon"
    if name.startswith(("/", "~")):
        return "it is absolute"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return "it holds an empty part, '.' or '..'"
        if len(part.encode()) > _MAX_NAME_BYTES:
            return f"a part is longer than {_MAX_NAME_BYTES} bytes"
        if part.split(".")[0].rstrip(" ").lower() in _RESERVED_NAMES or part[-1] in ". ":
            return "a part is reserved on some systems"
    return None


def disk_error(error: OSError, path: Path) -> StoreError:
    """Returns the library's error for a failed file operation: `NoSpace` where the disk or the quota is full."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _NO_SPACE_CODES:
        return NoSpace(f"no space left for {path}: {reason}", hint="free some space, then start again; the run resumes")
    if not error.errno:  # pyarrow's readers raise OSError for what a file holds
        reason = " ".join(reason.split()).rstrip(" .")
        return StoreUnavailable(f"cannot read {path}: its content is damaged ({reason})", hint="get the file again")
    return StoreUnavailable(f"cannot use {path}: {reason}", hint="check that it exists and is writable")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Raises operating system errors of the block as `NoSpace` or `StoreUnavailable`."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from error


def ensure_space(folder: Path, needed: int) -> None:
    """Checks that the file system of `folder` has `needed` bytes free, before anything is written.

    Raises:
        NoSpace: saying how many bytes are free and how many are needed.
        StoreUnavailable: where the folder cannot be asked.
    """
    with disk_errors(folder):
        state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    if free < needed:
        raise NoSpace(f"too little space for {folder}", value=f"{free} bytes free", expected=f"at least {needed}")


def sync_folder(folder: Path) -> None:
    """Makes a rename or a new file in `folder` survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_writer(path: Path, *, needed: int = 0) -> Iterator[BinaryIO]:
    """Yields a file for writing; it appears under `path`, complete and on disk, only if the block succeeds.

    Args:
        path: the final name; an old file there is replaced. Missing folders are made.
        needed: bytes that must be free before anything is written.
    Raises:
        NoSpace, StoreUnavailable: nothing is left behind then, and an old file is as it was.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
    done = False
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            ensure_space(path.parent, needed)
            with temporary.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            done = True
            sync_folder(path.parent)
    finally:
        if not done:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_atomic(path: Path, data: bytes | str) -> None:
    """Writes a whole file: afterwards `path` holds either the old content or all of `data` (text as UTF-8)."""
    raw = data.encode() if isinstance(data, str) else data
    with atomic_writer(path, needed=len(raw)) as file:
        file.write(raw)


def append_line(path: Path, row: Mapping[str, object], *, durable: bool = True) -> None:
    """Appends one JSON object as one line, with one write; NaN and infinities become text ("nan", "inf", "-inf").

    A partial last line, left by a killed writer, is removed first. After a failed write the file is unchanged.

    Args:
        durable: wait until the line is on disk.
    Raises:
        NoSpace, StoreUnavailable
    """
    line = plain_json(row).encode("utf-8", "backslashreplace") + b"\n"
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = _trim_partial_line(handle)
            _write_or_truncate(handle, line, size)
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)


def _write_or_truncate(handle: int, line: bytes, size: int) -> None:
    is_complete = False
    try:
        if os.write(handle, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        is_complete = True
    finally:
        if not is_complete:
            os.ftruncate(handle, size)


def _trim_partial_line(handle: int) -> int:
    """Removes a partial last line; returns the size of the file."""
    size = os.fstat(handle).st_size
    if size == 0 or os.pread(handle, 1, size - 1) == b"\n":
        return size
    end = size
    while end > 0:
        begin = max(0, end - (1 << 16))
        newline = os.pread(handle, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            end = begin + newline + 1
            break
        end = begin
    os.ftruncate(handle, end)
    return end


def plain_json(value: object) -> str:
    """Formats a value as compact JSON in which NaN and infinities are text, because JSON has no numbers for them."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_replace_nonfinite(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _replace_nonfinite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _replace_nonfinite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_nonfinite(entry) for entry in value]
    return value
