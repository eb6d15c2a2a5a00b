"""Places beyond the disk: object stores and distributed file systems, through pyarrow, with outages.

    objects = Objects(place_of("s3://bucket/runs/evolve-1?region=eu-west-1"))
    objects.put("hello", lambda: iter([b"bytes"]))

What is done there is tried again while a failure may pass, with pauses that grow, and a bounded number of times. What a
place says about a failure is told without secrets.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from threading import Event
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from pyarrow import fs

from evolvent.deadline import backoff
from evolvent.errors import (
    AccessDenied,
    EvolventError,
    HashMismatch,
    Incomplete,
    NoSpace,
    StoreUnavailable,
)
from evolvent.files import TEMPORARY
from evolvent.store.objects_place import Place, reason

__all__ = ["CHUNK", "Objects", "Patience"]

T = TypeVar("T")
CHUNK = 8 << 20  # bytes that are read and sent at once
_CODE = re.compile(r"AWS Error ([A-Z_]+)|google::cloud::Status\((\w+)")
_STATUS = re.compile(r"HTTP status (\d{3})")
_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|SIGNATURE|AUTHENTICATION_TOKEN|"
    r"REQUEST_EXPIRED|ExpiredToken|InvalidToken|PERMISSION_DENIED|UNAUTHENTICATED|HTTP status 40[13]\b"
)
_AGAIN = re.compile(r"NO_SUCH_UPLOAD|NoSuchUpload|InvalidPart|REQUEST_TIMEOUT|RequestTimeout")  # 4xx of an outage
_LASTING = {"NO_SUCH_BUCKET", "NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "VALIDATION", "NOT_FOUND", "INVALID_ARGUMENT"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_KINDS = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
)


def _lasting(error: BaseException) -> bool:
    """Whether trying again would fail again."""
    if isinstance(error, _KINDS) or getattr(error, "errno", None) in (*_FULL, errno.EROFS):
        return True
    text = str(error)
    if _AGAIN.search(text):
        return False
    found, status = _CODE.search(text), _STATUS.search(text)
    if _REFUSED.search(text) or (found and (found[1] or found[2]) in _LASTING):
        return True
    return status is not None and status[1][0] == "4" and status[1] not in ("408", "429")


@dataclass(frozen=True, slots=True)
class Patience:
    """How often what fails for a while is tried, and how long is waited in between.

    Args:
        tries: in a row, without any progress.
        base_s, cap_s: of the pauses, as in `evolvent.deadline.backoff`.
        rng: of the pauses, so that many that failed at once do not come again at once.
        sleep: takes seconds; None: a pause that ends at once when the work is given up.
    """

    tries: int = 8
    base_s: float = 0.5
    cap_s: float = 10.0
    rng: Random = field(default_factory=Random)
    sleep: Callable[[float], object] | None = None


class Objects:
    """Whole objects of a place: listed, written, read; by several threads if wanted.

    Raises (all methods):
        AccessDenied: these credentials may not. NoSpace: a place that is full.
        StoreUnavailable: no bucket, or an outage that outlasted the patience.
    """

    def __init__(self, place: Place, patience: Patience | None = None) -> None:
        self.place, self._patience = place, patience or Patience()
        self._stop = Event()

    def check(self) -> None:
        """Leave a thread whose work was given up."""
        if self._stop.is_set():
            raise _GivenUp(f"{self.place.address}: given up")

    def attempt(self, what: str, action: Callable[[], T]) -> T:
        """The result of an action that may be done more than once.

        Args:
            what: what was tried, for whoever reads that it failed.
        """
        patience = self._patience
        for number in range(1, patience.tries + 1):
            try:
                return action()
            except (OSError, pa.ArrowException) as error:
                if number == patience.tries or _lasting(error):
                    raise self._told(what, error, tries=number) from error
            (patience.sleep or self._stop.wait)(
                backoff(number - 1, patience.rng, base_s=patience.base_s, cap_s=patience.cap_s)
            )
            self.check()
        raise StoreUnavailable(
            f"{self.place.address}: {what} was not tried", value=patience.tries, expected="1 or more"
        )

    def _told(self, what: str, error: BaseException, *, tries: int) -> EvolventError:
        text, where = str(error), self.place.address
        if isinstance(error, FileNotFoundError):
            return Incomplete(f"{where}: cannot {what}: it is not there", hint="push it again")
        if isinstance(error, PermissionError) or _REFUSED.search(text):
            return AccessDenied(
                f"{where}: cannot {what}: access is refused ({reason(error)})",
                hint="check the credentials in the environment and their rights",
            )
        if "NO_SUCH_BUCKET" in text:
            return self._no_bucket()
        if getattr(error, "errno", None) in _FULL:
            return NoSpace(f"no space left at {where}: {reason(error)}", hint="free some, then again: it goes on")
        hint = None if _lasting(error) else "run the command again: it goes on"
        return StoreUnavailable(f"{where}: cannot {what}: {reason(error)}", value=f"{tries} tries", hint=hint)

    def _no_bucket(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"the bucket of {self.place.address} does not exist", hint="make it first: evolvent makes none"
        )

    def sizes(self, folder: str) -> dict[str, int]:
        """Bytes of every object of a folder by its name; none where there is no folder."""
        wanted = fs.FileSelector(self.place.child(folder), allow_not_found=True)
        found = self.attempt("list what is there", lambda: self.place.filesystem.get_file_info(wanted))
        return {info.base_name: info.size for info in found if info.type == fs.FileType.File}

    def put(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        """Write one object; a file system gets it under another name first.

        Args:
            pieces: its bytes, from the beginning at every try. pyarrow cannot give an upload up: where they end early
                by an error, a shorter object is left on an object store.
        """
        target = self.place.child(name) + ("" if self.place.atomic else TEMPORARY)

        def send() -> None:
            system = self.place.filesystem
            if not self.place.atomic:
                system.create_dir(target.rpartition("/")[0], recursive=True)
            try:
                stream = system.open_output_stream(target, compression=None)
            except FileNotFoundError as error:  # GCS says it so
                raise self._no_bucket() from error
            good = False
            try:
                for piece in pieces():
                    self.check()
                    stream.write(piece)
                good = True
            finally:
                # Of a failed upload the end fails too, and would tell of missing parts in place of the outage.
                with nullcontext() if good else suppress(OSError, pa.ArrowException):
                    stream.close()
            if not self.place.atomic:
                system.move(target, self.place.child(name))

        self.attempt(f"send {name}", send)

    def read(self, name: str, *, most: int) -> bytes | None:
        """A small object, at most so many bytes of it; None where there is none."""

        def load() -> bytes | None:
            try:
                with self.place.filesystem.open_input_file(self.place.child(name)) as file:
                    return bytes(file.read(most))
            except FileNotFoundError:
                return None

        return self.attempt(f"read {name}", load)

    def pieces(self, name: str, size: int) -> Iterator[bytes]:
        """All bytes of an object that is never changed; after an outage it is read on where it ended.

        Raises:
            Incomplete: it is not there. HashMismatch: it is not `size` bytes long.
        """
        reader, at = _Reader(self.place, name, size), 0
        try:
            while at < size:
                piece = self.attempt(f"read {name}", partial(reader.at, at))
                self.check()
                at += len(piece)
                yield piece
            reader.end()
        finally:
            reader.close()

    def each(self, items: Sequence[T], do: Callable[[T], None], *, workers: int) -> None:
        """Do something for every item, several at once; the first failure ends all of it."""
        with ThreadPoolExecutor(max(1, workers)) as pool:
            jobs = [pool.submit(self._guarded, do, item) for item in items]
            try:
                wait(jobs, return_when=FIRST_EXCEPTION)
            finally:
                if not all(job.done() for job in jobs):
                    self._stop.set()
                    pool.shutdown(wait=False, cancel_futures=True)
        failed = [error for job in jobs if not job.cancelled() and (error := job.exception()) is not None]
        for error in sorted(failed, key=lambda error: isinstance(error, _GivenUp)):
            raise error

    def _guarded(self, do: Callable[[T], None], item: T) -> None:
        self.check()
        good = False
        try:
            do(item)
            good = True
        finally:
            if not good:
                self._stop.set()


class _GivenUp(StoreUnavailable):
    """What ends the other threads when one has failed."""


class _Reader:
    """An object that is read on; opened anew after a failure."""

    def __init__(self, place: Place, name: str, size: int) -> None:
        self._system, self._path, self._size = place.filesystem, place.child(name), size
        self._told = f"{place.address}: the object {name} is damaged"
        self._file: Any = None

    def at(self, offset: int) -> bytes:
        good = False
        try:
            if self._file is None:
                self._file = self._open(offset)
            piece = bytes(self._file.read(min(CHUNK, self._size - offset)))
            if not piece:
                self._ended(offset)
            good = True
        finally:
            if not good:
                self.close()
        return piece

    def _open(self, offset: int) -> Any:
        # Several files of GCS that can be sought, read by several threads, wait for each other for ever (pyarrow 26).
        whole = offset == 0 or self._system.type_name == "gcs"
        file = (
            self._system.open_input_stream(self._path, compression=None)
            if whole
            else self._system.open_input_file(self._path)
        )
        if not whole:
            file.seek(offset)
        elif offset:
            self._skip(file, offset)
        return file

    def _skip(self, file: Any, offset: int) -> None:
        while offset:
            piece = file.read(min(CHUNK, offset))
            if not piece:
                self._ended(offset)
            offset -= len(piece)

    def _ended(self, offset: int) -> NoReturn:
        there = self._system.get_file_info(self._path).size
        if there is not None and there != self._size:
            raise self._damaged(f"{there} bytes")
        raise OSError(f"the answer ended after {offset} of {self._size} bytes")

    def _damaged(self, value: str) -> HashMismatch:
        return HashMismatch(self._told, value=value, expected=f"{self._size} bytes", hint="push it again with --check")

    def end(self) -> None:
        """Nothing may follow."""
        more = b""
        with suppress(OSError, pa.ArrowException):
            more = self._file.read(1) if self._file is not None else b""
        if more:
            raise self._damaged("more")

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError, pa.ArrowException):  # it has been read, or could not be
                file.close()
