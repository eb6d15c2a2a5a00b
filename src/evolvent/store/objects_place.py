"""File systems and folders that a storage URL names: object stores, Hadoop, and this machine, through pyarrow."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from pyarrow import fs

from evolvent.errors import ConfigError, Problem, StoreUnavailable, unknown_name_problem
from evolvent.logs import find_secrets, hide_secrets

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

__all__ = ["StorageURL", "describe_error", "parse_storage_url"]

_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "s3": ("region", "endpoint_override", "scheme", "anonymous"),
    "gs": ("endpoint_override", "scheme", "anonymous"),
    "hdfs": ("user",),
    "file": (),
}
_REQUEST_TIMEOUT_S, _CONNECT_TIMEOUT_S, _GCS_RETRY_LIMIT_S = (
    20.0,
    5.0,
    30.0,
)  # a silent server, one that is not there, GCS's own repetitions
_HOST = re.compile(r"([\w.-]+(:\d{1,5})?)?")  # none: the default of Hadoop's own settings


@dataclass(frozen=True, slots=True)
class StorageURL:
    """A folder of a file system that pyarrow opens.

    Args:
        filesystem: a `pyarrow.fs.FileSystem`.
        path: path of the folder in it.
        address: the URL without options, for display.
    """

    filesystem: FileSystem
    path: str
    address: str

    def child_path(self, name: str) -> str:
        """Returns the path of a name below the folder."""
        return f"{self.path}/{name}"

    @property
    def is_atomic(self) -> bool:
        """Returns whether an object appears only when it is complete, and folders need not be created."""
        return self.filesystem.type_name in ("s3", "gcs")


def parse_storage_url(address: str) -> StorageURL:
    """Parses a storage URL; nothing is requested yet, except the region of an AWS bucket.

    `s3://BUCKET/PATH` (options `region`, `endpoint_override`, `scheme`, `anonymous`), `gs://BUCKET/PATH`
    (`endpoint_override`, `scheme`, `anonymous`), `hdfs://HOST:PORT/PATH` (`user`), `file:///PATH`. Options follow a
    question mark; paths are taken as they are written. Credentials, region and endpoint come from where AWS's and
    Google's own tools look for them: the environment, their files, the machine. An address holds none.

    Raises:
        ConfigError: an invalid URL; all its mistakes at once, without its secrets.
        StoreUnavailable: hdfs:// without Hadoop's library.
    """
    try:
        parts = urlsplit(address, allow_fragments=False)
    except ValueError as error:
        raise ConfigError([Problem("address", f"cannot read the address: {error}")]) from error
    scheme, bucket, path = parts.scheme, parts.netloc.rpartition("@")[2], parts.path.strip("/")
    if scheme not in _OPTIONS:
        hint = f"expected {', '.join(f'{name}://' for name in _OPTIONS)}"
        raise ConfigError([Problem("address", f"unknown scheme: {scheme or '(none)'}", hint)])
    display_url, options = f"{scheme}://{bucket}/{path}", dict(parse_qsl(parts.query, keep_blank_values=True))
    problems = _find_address_problems(scheme, bucket, path, display_url=display_url) + _find_option_problems(
        scheme, options, display_url
    )
    if "@" in parts.netloc:
        problems.append(Problem(display_url, "contains a login", "set the credentials in the environment"))
    if problems:
        raise ConfigError(problems)
    try:
        if scheme == "hdfs":
            return StorageURL(_open_hadoop(bucket, options), f"/{path}", display_url)
        if scheme == "file":
            return StorageURL(fs.LocalFileSystem(), f"/{path}", display_url)
        return StorageURL(
            _open_s3(bucket, options) if scheme == "s3" else _open_gcs(options), f"{bucket}/{path}", display_url
        )
    except (OSError, pa.ArrowException) as error:
        raise ConfigError([Problem(display_url, f"pyarrow cannot open it: {describe_error(error)}")]) from error


def _find_address_problems(scheme: str, bucket: str, path: str, *, display_url: str) -> list[Problem]:
    problems = []
    if scheme in ("s3", "gs") and not bucket:
        problems.append(Problem(display_url, f"has no bucket, expected {scheme}://BUCKET/PATH"))
    if scheme == "file" and bucket not in ("", "localhost"):
        problems.append(Problem(display_url, "has a host, expected file:///PATH"))
    if scheme == "hdfs" and not _HOST.fullmatch(bucket):
        problems.append(Problem(display_url, "has no host, expected hdfs://HOST:PORT/PATH"))
    if any(part in ("", ".", "..") for part in path.split("/")):
        problems.append(Problem(display_url, "has an invalid path", "use a folder without empty parts, '.' and '..'"))
    return problems


def _find_option_problems(scheme: str, options: Mapping[str, str], display_url: str) -> list[Problem]:
    known_options = _OPTIONS[scheme]
    problems = [
        unknown_name_problem("option", name, known_options, location=display_url)
        for name in options
        if name not in known_options
    ]
    for name, allowed in (("scheme", ("http", "https")), ("anonymous", ("true", "false"))):
        if name in known_options and options.get(name, allowed[0]) not in allowed:
            problems.append(Problem(display_url, f"invalid value of {name}", f"expected {' or '.join(allowed)}"))
    if "@" in options.get("endpoint_override", ""):
        problems.append(
            Problem(display_url, "contains a login in the endpoint", "set the credentials in the environment")
        )
    return problems


def _endpoint_options(options: Mapping[str, str]) -> dict[str, str]:
    """Returns `endpoint_override` and `scheme`; the endpoint may be a URL itself."""
    endpoint_options = {name: options[name] for name in ("endpoint_override", "scheme") if name in options}
    scheme, separator, host = endpoint_options.get("endpoint_override", "").partition("://")
    return (
        {**endpoint_options, "scheme": scheme, "endpoint_override": host.rstrip("/")} if separator else endpoint_options
    )


def _open_s3(bucket: str, options: Mapping[str, str]) -> Any:
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
        request_timeout=_REQUEST_TIMEOUT_S,
        connect_timeout=_CONNECT_TIMEOUT_S,
        **_endpoint_options(options),
    )


def _open_gcs(options: Mapping[str, str]) -> Any:
    anonymous, retry_limit = options.get("anonymous") == "true", timedelta(seconds=_GCS_RETRY_LIMIT_S)
    return fs.GcsFileSystem(anonymous=anonymous, retry_time_limit=retry_limit, **_endpoint_options(options))


def _open_hadoop(address: str, options: Mapping[str, str]) -> Any:
    host, _, port = address.partition(":")
    try:
        return fs.HadoopFileSystem(host or "default", int(port or 0), user=options.get("user"))
    except OSError as error:
        raise StoreUnavailable(
            f"hdfs:// needs the Hadoop library: {describe_error(error)}",
            hint="install Hadoop and Java, set HADOOP_HOME, JAVA_HOME and CLASSPATH",
        ) from error


def describe_error(error: BaseException) -> str:
    """Returns the first line of pyarrow's error message, without secrets."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return hide_secrets(lines[0][:400], find_secrets(os.environ)).rstrip(".")
