"""Which file system and folder an address means: object stores, Hadoop, and this machine, through pyarrow."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from pyarrow import fs

from evolvent.errors import ConfigError, Problem, StoreUnavailable, unknown
from evolvent.logs import hidden, secrets_in

__all__ = ["Place", "place_of", "reason"]

_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "s3": ("region", "endpoint_override", "scheme", "anonymous"),
    "gs": ("endpoint_override", "scheme", "anonymous"),
    "hdfs": ("user",),
    "file": (),
}
_SILENT_S, _CONNECT_S, _GCS_S = 20.0, 5.0, 30.0  # a silent server, one that is not there, GCS's own repetitions
_HOST = re.compile(r"([\w.-]+(:\d{1,5})?)?")  # none: the default of Hadoop's own settings


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of a file system that pyarrow opens.

    Args:
        filesystem: a `pyarrow.fs.FileSystem`.
        path: of the folder in it.
        address: as it is shown: without options.
    """

    filesystem: Any
    path: str
    address: str

    def child(self, name: str) -> str:
        """The path of a name below it."""
        return f"{self.path}/{name}"

    @property
    def atomic(self) -> bool:
        """Whether an object appears when all of it is there, and folders need not be made."""
        return self.filesystem.type_name in ("s3", "gcs")


def place_of(address: str) -> Place:
    """The place that an address names; nothing of it is asked yet, but that a bucket of AWS is asked for its region.

    `s3://BUCKET/PATH` (options `region`, `endpoint_override`, `scheme`, `anonymous`), `gs://BUCKET/PATH`
    (`endpoint_override`, `scheme`, `anonymous`), `hdfs://HOST:PORT/PATH` (`user`), `file:///PATH`. Options follow a
    question mark; paths are taken as they are written. Credentials, region and endpoint come from where AWS's and
    Google's own tools look for them: the environment, their files, the machine. An address holds none.
    Raises:
        ConfigError: an address that names no place; all its mistakes at once, without its secrets.
        StoreUnavailable: hdfs:// without Hadoop's library.
    """
    try:
        parts = urlsplit(address, allow_fragments=False)
    except ValueError as error:
        raise ConfigError([Problem("address", f"not one that can be read: {error}")]) from error
    scheme, bucket, path = parts.scheme, parts.netloc.rpartition("@")[2], parts.path.strip("/")
    if scheme not in _OPTIONS:
        hint = f"expected {', '.join(f'{name}://' for name in _OPTIONS)}"
        raise ConfigError([Problem("address", f"no kind of place that is known: {scheme or '(none)'}", hint)])
    shown, options = f"{scheme}://{bucket}/{path}", dict(parse_qsl(parts.query, keep_blank_values=True))
    problems = _problems(scheme, bucket, path, shown=shown) + _odd_options(scheme, options, shown)
    if "@" in parts.netloc:
        problems.append(Problem(shown, "a login in the address", "credentials come from the environment"))
    if problems:
        raise ConfigError(problems)
    try:
        if scheme == "hdfs":
            return Place(_hadoop(bucket, options), f"/{path}", shown)
        if scheme == "file":
            return Place(fs.LocalFileSystem(), f"/{path}", shown)
        return Place(_s3(bucket, options) if scheme == "s3" else _gcs(options), f"{bucket}/{path}", shown)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError([Problem(shown, f"pyarrow cannot open it: {reason(error)}")]) from error


def _problems(scheme: str, bucket: str, path: str, *, shown: str) -> list[Problem]:
    found = []
    if scheme in ("s3", "gs") and not bucket:
        found.append(Problem(shown, "no bucket", f"expected {scheme}://BUCKET/PATH"))
    if scheme == "file" and bucket not in ("", "localhost"):
        found.append(Problem(shown, "a host", "expected file:///PATH"))
    if scheme == "hdfs" and not _HOST.fullmatch(bucket):
        found.append(Problem(shown, "no host of it", "expected hdfs://HOST:PORT/PATH"))
    if any(part in ("", ".", "..") for part in path.split("/")):
        found.append(Problem(shown, "no plain path", "name a folder, without empty parts, '.' and '..'"))
    return found


def _odd_options(scheme: str, options: Mapping[str, str], shown: str) -> list[Problem]:
    known = _OPTIONS[scheme]
    found = [unknown("option", name, known, where=shown) for name in options if name not in known]
    for name, allowed in (("scheme", ("http", "https")), ("anonymous", ("true", "false"))):
        if name in known and options.get(name, allowed[0]) not in allowed:
            found.append(Problem(shown, f"an odd value of {name}", f"expected {' or '.join(allowed)}"))
    if "@" in options.get("endpoint_override", ""):
        found.append(Problem(shown, "a login in the endpoint", "credentials come from the environment"))
    return found


def _endpoint(options: Mapping[str, str]) -> dict[str, str]:
    """`endpoint_override` and `scheme`; the endpoint may be an address itself."""
    given = {name: options[name] for name in ("endpoint_override", "scheme") if name in options}
    scheme, mark, host = given.get("endpoint_override", "").partition("://")
    return {**given, "scheme": scheme, "endpoint_override": host.rstrip("/")} if mark else given


def _s3(bucket: str, options: Mapping[str, str]) -> Any:
    endpoint = next(filter(None, map(os.environ.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))), None)
    if endpoint is not None:  # pyarrow's own constructor does not look for it
        options = {"endpoint_override": endpoint, **options}
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region is None and "endpoint_override" not in options:
        with suppress(OSError):  # a bucket that cannot be asked now is asked again, with what it is needed for
            region = fs.resolve_s3_region(bucket)
    # What is written waits for the server: in the background a slow one would be waited for in memory.
    return fs.S3FileSystem(
        region=region,
        anonymous=options.get("anonymous") == "true",
        background_writes=False,
        allow_delayed_open=True,
        request_timeout=_SILENT_S,
        connect_timeout=_CONNECT_S,
        **_endpoint(options),
    )


def _gcs(options: Mapping[str, str]) -> Any:
    anonymous, patience = options.get("anonymous") == "true", timedelta(seconds=_GCS_S)
    return fs.GcsFileSystem(anonymous=anonymous, retry_time_limit=patience, **_endpoint(options))


def _hadoop(address: str, options: Mapping[str, str]) -> Any:
    host, _, port = address.partition(":")
    try:
        return fs.HadoopFileSystem(host or "default", int(port or 0), user=options.get("user"))
    except OSError as error:
        raise StoreUnavailable(
            f"hdfs:// needs Hadoop's own library: {reason(error)}",
            hint="install Hadoop and Java, set HADOOP_HOME, JAVA_HOME and CLASSPATH",
        ) from error


def reason(error: BaseException) -> str:
    """What an error of pyarrow says first, without secrets."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return hidden(lines[0][:400], secrets_in(os.environ)).rstrip(".")
