"""Logs of commands and servers: a plain line each, or a JSON object each; with run and episode, without secrets.

A JSON line has `time` (UTC, ISO 8601, milliseconds), `level`, `logger`, `message`, `process`, and where they are known
`run` and `episode`; of an exception also `error`, its trace. Run and episode are context variables, which the driver
keeps apart for the episodes that it plays at once and hands on to the threads that call their worlds.

Secrets never belong into a message. Should one come into it, in the text of somebody else's error say, it is hidden
here: what bears a token, logins in addresses, and the values of environment variables with a secret name.
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

from evolvent.config import redact, secret_name

__all__ = ["FORMAT", "JsonLines", "PlainLines", "about", "configure", "hidden", "in_episode", "secrets_in"]

FORMAT = "EVOLVENT_LOG"  # environment variable: "json" for JSON lines; child processes inherit it
_RUN: ContextVar[str] = ContextVar("run", default="")
_EPISODE: ContextVar[str] = ContextVar("episode", default="")
# A token behind its scheme: with a digit or a sign in it ("bearer documents" is prose), or named as a header.
_BEARS = re.compile(r"(?i)(\bbearer\s+(?=[^\s,;]*[\d_+/=-])|\bauthorization\W{1,4}(?:basic|bearer)\s+)[^\s,;'\"]{8,}")
_KEYS = re.compile(r"\b(?:(?:sk|hf|ghp|gho|xox[abp])[-_][A-Za-z0-9_-]{16,}|AKIA[0-9A-Z]{16})")
_SHORTEST = 8  # characters; shorter values of secret names ("yes", "1") would be found in any text
_REDACTED = "<redacted>"


@contextmanager
def about(run: str) -> Iterator[None]:
    """What is logged inside belongs to this run."""
    token = _RUN.set(run)
    try:
        yield
    finally:
        _RUN.reset(token)


def in_episode(name: str) -> None:
    """What is logged from now on in this context belongs to this episode; a driver gives each a context of its own."""
    _EPISODE.set(name)


def secrets_in(environment: Mapping[str, str]) -> frozenset[str]:
    """The values of an environment that have a secret name (`OPENAI_API_KEY`) and could not be anything else."""
    return frozenset(value for name, value in environment.items() if secret_name(name) and len(value) >= _SHORTEST)


def hidden(text: str, secrets: frozenset[str] = frozenset()) -> str:
    """The text without these secrets, tokens behind "Bearer" or "Basic", well-known forms of keys, and logins."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may begin another
        text = text.replace(secret, _REDACTED)
    text = _KEYS.sub(_REDACTED, _BEARS.sub(rf"\1{_REDACTED}", text))
    return str(redact(text))


class PlainLines(logging.Formatter):
    """The message alone, as a command has always told its warnings, secrets hidden."""

    def __init__(self, template: str = "%(message)s", *, secrets: frozenset[str] = frozenset()) -> None:
        super().__init__(template)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        """One record as text; a trace follows on lines of its own."""
        return hidden(super().format(record), self._secrets)


class JsonLines(logging.Formatter):
    """One JSON object a record, on one line whatever the message holds."""

    def __init__(self, *, secrets: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        """One record as a line; see the module for its keys."""
        row: dict[str, str | int] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": hidden(record.getMessage(), self._secrets),
            "process": record.process or os.getpid(),
        }
        row |= {name: value for name, value in (("run", _RUN.get()), ("episode", _EPISODE.get())) if value}
        if record.exc_info:
            row["error"] = hidden(self.formatException(record.exc_info), self._secrets)
        return json.dumps(row)


class _Lines(logging.Handler):
    """Writes to a stream, or to what standard error is at that moment."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record at once."""
        stream = self._stream or sys.stderr
        try:
            stream.write(self.format(record) + "\n")
            stream.flush()
        except (OSError, ValueError, TypeError, KeyError):  # a stream that is closed, a message that does not format
            self.handleError(record)


def configure(
    environment: Mapping[str, str], *, stream: TextIO | None = None, template: str = "%(message)s"
) -> logging.Handler:
    """Send all logs to one place, in the form that the environment names; an earlier call's handler is replaced.

    Args:
        environment: `EVOLVENT_LOG=json` for JSON lines of level "info" and above; else plain lines of warnings.
            Its values with secret names are hidden.
        stream: where to; None: standard error.
        template: of plain lines, in the form of `logging`.
    """
    secrets, as_json = secrets_in(environment), environment.get(FORMAT) == "json"
    handler = _Lines(stream)
    handler.set_name("evolvent")
    handler.setFormatter(JsonLines(secrets=secrets) if as_json else PlainLines(template, secrets=secrets))
    root = logging.getLogger()
    for earlier in [one for one in root.handlers if one.get_name() == "evolvent"]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(logging.INFO if as_json else logging.WARNING)
    return handler
