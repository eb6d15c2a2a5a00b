"""Logs of commands and servers: plain lines or JSON objects, with run and episode, without secrets.

A JSON line has `time` (UTC, ISO 8601, milliseconds), `level`, `logger`, `message`, `process`, and where they
are known `run` and `episode`; for an exception also `error`, its traceback. Run and episode are context
variables. The driver keeps them apart for the episodes that it plays at once and passes them to the threads
that call their worlds.

Secrets never belong in a message. If one appears, for instance in the text of a foreign error, it is hidden
here: bearer tokens, logins in addresses, and the values of environment variables with a secret name.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

from evolvent.config import is_secret_name, redact

__all__ = [
    "FORMAT_VARIABLE",
    "JsonLines",
    "PlainLines",
    "configure",
    "find_secrets",
    "hide_secrets",
    "log_run",
    "set_episode",
]

FORMAT_VARIABLE = "EVOLVENT_LOG"  # environment variable: "json" for JSON lines; child processes inherit it
_RUN: ContextVar[str] = ContextVar("run", default="")
_EPISODE: ContextVar[str] = ContextVar("episode", default="")
# A token behind its scheme: with a digit or a sign in it ("bearer documents" is prose), or named as a header.
_BEARER_TOKEN = re.compile(
    r"(?i)(\bbearer\s+(?=[^\s,;]*[\d_+/=-])|\bauthorization\W{1,4}(?:basic|bearer)\s+)[^\s,;'\"]{8,}"
)
_API_KEY = re.compile(r"\b(?:(?:sk|hf|ghp|gho|xox[abp])[-_][A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16})")
_MIN_SECRET_LENGTH = 8  # characters; shorter values of secret names ("yes", "1") would be found in any text
_REDACTED = "<redacted>"


@contextmanager
def log_run(run: str) -> Iterator[None]:
    """Marks the log records of the block as belonging to this run."""
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)


def set_episode(name: str) -> None:
    """Marks further log records of this context as belonging to this episode; a driver gives each episode a context."""
    _EPISODE.set(name)


def find_secrets(environment: Mapping[str, str]) -> frozenset[str]:
    """Returns the values of an environment that have a secret name (`OPENAI_API_KEY`) and are long enough to be one."""
    return frozenset(
        value for name, value in environment.items() if is_secret_name(name) and len(value) >= _MIN_SECRET_LENGTH
    )


def hide_secrets(text: str, secrets: frozenset[str] = frozenset()) -> str:
    """Returns the text without these secrets, tokens after "Bearer" or "Basic", well-known forms of keys, and
    logins.
    """
    for secret in sorted(secrets, key=len, reverse=True):  # one may begin another
        text = text.replace(secret, _REDACTED)
    text = _API_KEY.sub(_REDACTED, _BEARER_TOKEN.sub(rf"\1{_REDACTED}", text))
    return str(redact(text))


class PlainLines(logging.Formatter):
    """Formats the message alone, with secrets hidden."""

    def __init__(self, template: str = "%(message)s", *, secrets: frozenset[str] = frozenset()) -> None:
        super().__init__(template)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        """Formats one record as text; a traceback follows on its own lines."""
        return hide_secrets(super().format(record), self._secrets)


class JsonLines(logging.Formatter):
    """Formats one JSON object per record, always on one line."""

    def __init__(self, *, secrets: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        """Formats one record as a line; the module lists its keys."""
        row: dict[str, str | int] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": hide_secrets(record.getMessage(), self._secrets),
            "process": record.process or os.getpid(),
        }
        row |= {name: value for name, value in (("run", _RUN.get()), ("episode", _EPISODE.get())) if value}
        if record.exc_info:
            row["error"] = hide_secrets(self.formatException(record.exc_info), self._secrets)
        return json.dumps(row)


class _LineHandler(logging.Handler):
    """Writes to a stream, or to the current standard error."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record at once."""
        stream = self._stream or sys.stderr
        try:
            stream.write(self.format(record) + "\n")
            stream.flush()
        except (OSError, ValueError, TypeError, KeyError):  # a stream that is closed, a message that does not format
            self.handleError(record)


def configure(
    environment: Mapping[str, str], *, stream: TextIO | None = None, template: str = "%(message)s"
) -> logging.Handler:
    """Sends all logs to one stream, in the form that the environment names; the handler of an earlier call is
    replaced.

    Args:
        environment: `EVOLVENT_LOG=json` selects JSON lines of level "info" and above; otherwise plain lines of
            warnings. Its values with secret names are hidden.
        stream: the output; None: standard error.
        template: format of plain lines, as in `logging`.
    """
    secrets, as_json = find_secrets(environment), environment.get(FORMAT_VARIABLE) == "json"
    handler = _LineHandler(stream)
    handler.set_name("evolvent")
    handler.setFormatter(JsonLines(secrets=secrets) if as_json else PlainLines(template, secrets=secrets))
    root = logging.getLogger()
    for earlier in [attached for attached in root.handlers if attached.get_name() == "evolvent"]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(logging.INFO if as_json else logging.WARNING)
    return handler
