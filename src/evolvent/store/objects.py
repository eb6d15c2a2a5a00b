"""Storage beyond the disk: object stores and distributed file systems, through pyarrow, with outages.

    objects = ObjectStore(parse_storage_url("s3://bucket/runs/evolve-1?region=eu-west-1"))
    objects.write_object("hello", lambda: iter([b"bytes"]))

Operations are repeated while a failure may pass, with growing pauses, and a bounded number of times. Error messages
hold no secrets.
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
from evolvent.files import TEMPORARY_SUFFIX
from evolvent.store.objects_place import StorageURL, describe_error

__all__ = ["CHUNK_BYTES", "ObjectStore", "RetryPolicy"]

T = TypeVar("T")
CHUNK_BYTES = 8 << 20  # bytes that are read and sent at once
_ERROR_CODE = re.compile(r"AWS Error ([A-Z_]+)|google::cloud::Status\((\w+)")
_HTTP_STATUS = re.compile(r"HTTP status (\d{3})")
_ACCESS_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|SIGNATURE|AUTHENTICATION_TOKEN|"
    r"REQUEST_EXPIRED|ExpiredToken|InvalidToken|PERMISSION_DENIED|UNAUTHENTICATED|HTTP status 40[13]\b"
)
_TRANSIENT = re.compile(r"NO_SUCH_UPLOAD|NoSuchUpload|InvalidPart|REQUEST_TIMEOUT|RequestTimeout")  # 4xx of an outage
_PERMANENT_CODES = {
    "NO_SUCH_BUCKET",
    "NO_SUCH_KEY",
    "RESOURCE_NOT_FOUND",
    "VALIDATION",
    "NOT_FOUND",
    "INVALID_ARGUMENT",
}
_NO_SPACE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PERMANENT_ERRORS = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
)


def _is_permanent(error: BaseException) -> bool:
    """Returns whether another try would fail again."""
    if isinstance(error, _PERMANENT_ERRORS) or getattr(error, "errno", None) in (*_NO_SPACE_ERRNOS, errno.EROFS):
        return True
    text = str(error)
    if _TRANSIENT.search(text):
        return False
    code, status = _ERROR_CODE.search(text), _HTTP_STATUS.search(text)
    if _ACCESS_REFUSED.search(text) or (code and (code[1] or code[2]) in _PERMANENT_CODES):
        return True
    return status is not None and status[1][0] == "4" and status[1] not in ("408", "429")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The number of tries of an operation that fails for a while, and the pauses in between.

    Args:
        tries: number of tries in a row without any progress.
        base_s: first pause, as in `evolvent.deadline.backoff`.
        cap_s: longest pause.
        rng: random numbers of the pauses, so that many clients that failed at once do not repeat at once.
        sleep: takes seconds; None: a pause that ends at once when the work is given up.
    """

    tries: int = 8
    base_s: float = 0.5
    cap_s: float = 10.0
    rng: Random = field(default_factory=Random)
    sleep: Callable[[float], object] | None = None


class ObjectStore:
    """Whole objects of a storage location: listed, written, read; several threads may use it.

    Raises (all methods):
        AccessDenied: these credentials may not. NoSpace: the storage is full.
        StoreUnavailable: no bucket, or an outage that outlasted the retry policy.
    """

    def __init__(self, url: StorageURL, retry_policy: RetryPolicy | None = None) -> None:
        self.place, self._patience = url, retry_policy or RetryPolicy()
        self._stop = Event()

    def raise_if_stopped(self) -> None:
        """Raises an error in a thread whose work was given up."""
        if self._stop.is_set():
            raise _StoppedError(f"{self.place.address}: stopped")

    def retry(self, operation: str, action: Callable[[], T]) -> T:
        """Returns the result of an action that may be repeated.

        Args:
            operation: name of the operation, for error messages.
        """
        retry_policy = self._patience
        for attempt in range(1, retry_policy.tries + 1):
            try:
                return action()
            except (OSError, pa.ArrowException) as error:
                if attempt == retry_policy.tries or _is_permanent(error):
                    raise self._translate_error(operation, error, tries=attempt) from error
            (retry_policy.sleep or self._stop.wait)(
                backoff(attempt - 1, retry_policy.rng, base_s=retry_policy.base_s, cap_s=retry_policy.cap_s)
            )
            self.raise_if_stopped()
        raise StoreUnavailable(
            f"{self.place.address}: {operation} was not tried", value=retry_policy.tries, expected="1 or more"
        )

    def _translate_error(self, operation: str, error: BaseException, *, tries: int) -> EvolventError:
        text, address = str(error), self.place.address
        if isinstance(error, FileNotFoundError):
            return Incomplete(f"{address}: cannot {operation}: the object does not exist", hint="push it again")
        if isinstance(error, PermissionError) or _ACCESS_REFUSED.search(text):
            return AccessDenied(
                f"{address}: cannot {operation}: access is refused ({describe_error(error)})",
                hint="check the credentials in the environment and their rights",
            )
        if "NO_SUCH_BUCKET" in text:
            return self._missing_bucket_error()
        if getattr(error, "errno", None) in _NO_SPACE_ERRNOS:
            return NoSpace(
                f"no space left at {address}: {describe_error(error)}",
                hint="free some space, then run the command again; it resumes",
            )
        hint = None if _is_permanent(error) else "run the command again; it resumes"
        return StoreUnavailable(
            f"{address}: cannot {operation}: {describe_error(error)}", value=f"{tries} attempts", hint=hint
        )

    def _missing_bucket_error(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"the bucket of {self.place.address} does not exist",
            hint="create the bucket first; evolvent does not create buckets",
        )

    def list_sizes(self, folder: str) -> dict[str, int]:
        """Returns the bytes of every object of a folder by its name; empty if there is no folder."""
        selector = fs.FileSelector(self.place.child_path(folder), allow_not_found=True)
        infos = self.retry("list what is there", lambda: self.place.filesystem.get_file_info(selector))
        return {info.base_name: info.size for info in infos if info.type == fs.FileType.File}

    def write_object(self, name: str, open_chunks: Callable[[], Iterable[bytes]]) -> None:
        """Writes one object; a file system gets it under another name first.

        Args:
            open_chunks: returns its bytes, from the beginning at every try. pyarrow cannot give an upload up: if the
                chunks end early by an error, a shorter object is left on an object store.
        """
        target = self.place.child_path(name) + ("" if self.place.is_atomic else TEMPORARY_SUFFIX)

        def send() -> None:
            filesystem = self.place.filesystem
            if not self.place.is_atomic:
                filesystem.create_dir(target.rpartition("/")[0], recursive=True)
            try:
                stream = filesystem.open_output_stream(target, compression=None)
            except FileNotFoundError as error:  # GCS says it so
                raise self._missing_bucket_error() from error
            is_complete = False
            try:
                for chunk in open_chunks():
                    self.raise_if_stopped()
                    stream.write(chunk)
                is_complete = True
            finally:
                # Of a failed upload the end fails too, and would tell of missing parts in place of the outage.
                with nullcontext() if is_complete else suppress(OSError, pa.ArrowException):
                    stream.close()
            if not self.place.is_atomic:
                filesystem.move(target, self.place.child_path(name))

        self.retry(f"send {name}", send)

    def read_object(self, name: str, *, max_bytes: int) -> bytes | None:
        """Reads a small object, at most `max_bytes` of it; returns None if there is none."""

        def load() -> bytes | None:
            try:
                with self.place.filesystem.open_input_file(self.place.child_path(name)) as file:
                    return bytes(file.read(max_bytes))
            except FileNotFoundError:
                return None

        return self.retry(f"read {name}", load)

    def read_chunks(self, name: str, size: int) -> Iterator[bytes]:
        """Yields all bytes of an object that is never changed; after an outage, reading resumes where it ended.

        Raises:
            Incomplete: it is not there. HashMismatch: it is not `size` bytes long.
        """
        reader, offset = _ResumingReader(self.place, name, size), 0
        try:
            while offset < size:
                chunk = self.retry(f"read {name}", partial(reader.read_at, offset))
                self.raise_if_stopped()
                offset += len(chunk)
                yield chunk
            reader.check_end()
        finally:
            reader.close()

    def run_parallel(self, items: Sequence[T], function: Callable[[T], None], *, workers: int) -> None:
        """Runs a function on every item, several at once; the first failure ends all of them."""
        with ThreadPoolExecutor(max(1, workers)) as pool:
            jobs = [pool.submit(self._run_guarded, function, item) for item in items]
            try:
                wait(jobs, return_when=FIRST_EXCEPTION)
            finally:
                if not all(job.done() for job in jobs):
                    self._stop.set()
                    pool.shutdown(wait=False, cancel_futures=True)
        failed = [error for job in jobs if not job.cancelled() and (error := job.exception()) is not None]
        for error in sorted(failed, key=lambda error: isinstance(error, _StoppedError)):
            raise error

    def _run_guarded(self, function: Callable[[T], None], item: T) -> None:
        self.raise_if_stopped()
        is_complete = False
        try:
            function(item)
            is_complete = True
        finally:
            if not is_complete:
                self._stop.set()


class _StoppedError(StoreUnavailable):
    """An error that ends the other threads after one has failed."""


class _ResumingReader:
    """A reader of one object, reopened after a failure."""

    def __init__(self, url: StorageURL, name: str, size: int) -> None:
        self._system, self._path, self._size = url.filesystem, url.child_path(name), size
        self._told = f"{url.address}: the object {name} is damaged"
        self._file: Any = None

    def read_at(self, offset: int) -> bytes:
        is_complete = False
        try:
            if self._file is None:
                self._file = self._open(offset)
            chunk = bytes(self._file.read(min(CHUNK_BYTES, self._size - offset)))
            if not chunk:
                self._raise_truncated(offset)
            is_complete = True
        finally:
            if not is_complete:
                self.close()
        return chunk

    def _open(self, offset: int) -> Any:
        # Several files of GCS that can be sought, read by several threads, wait for each other for ever (pyarrow 26).
        from_start = offset == 0 or self._system.type_name == "gcs"
        file = (
            self._system.open_input_stream(self._path, compression=None)
            if from_start
            else self._system.open_input_file(self._path)
        )
        if not from_start:
            file.seek(offset)
        elif offset:
            self._skip(file, offset)
        return file

    def _skip(self, file: Any, offset: int) -> None:
        while offset:
            chunk = file.read(min(CHUNK_BYTES, offset))
            if not chunk:
                self._raise_truncated(offset)
            offset -= len(chunk)

    def _raise_truncated(self, offset: int) -> NoReturn:
        stored_size = self._system.get_file_info(self._path).size
        if stored_size is not None and stored_size != self._size:
            raise self._damage_error(f"{stored_size} bytes")
        raise OSError(f"the answer ended after {offset} of {self._size} bytes")

    def _damage_error(self, value: str) -> HashMismatch:
        return HashMismatch(self._told, value=value, expected=f"{self._size} bytes", hint="push it again with --check")

    def check_end(self) -> None:
        """Checks that no bytes follow."""
        surplus = b""
        with suppress(OSError, pa.ArrowException):
            surplus = self._file.read(1) if self._file is not None else b""
        if surplus:
            raise self._damage_error("more")

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError, pa.ArrowException):  # it has been read, or could not be
                file.close()
