"""Limits, requests and outcomes of a sandbox. Nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, Protocol

from evolvent.errors import ConfigError, Problem
from evolvent.sandbox.values import Value

__all__ = ["CallRequest", "CodeRunner", "Outcome", "SandboxLimits", "Status"]

Status = Literal["value", "raised", "timeout", "killed", "malformed", "limit"]


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Resources that one job may use. A job is a source and all requests to it.

    Args:
        cpu_s: CPU seconds of each process.
        wall_s: seconds from the moment the source is sent in to the last answer.
        memory_mb: address space of each process, MiB.
        total_mb: memory of all processes together, MiB.
        processes: processes and threads at one time.
        files: open descriptors of each process.
        file_mb: size of each file, MiB.
        tmp_mb: size of the working folder, which is in memory, MiB.
        output_kb: printed text of the whole job, KiB.

    Raises:
        ConfigError: numbers that are not positive, all of them at once.
    """

    cpu_s: int = 5
    wall_s: float = 5.0
    memory_mb: int = 512
    total_mb: int = 1024
    processes: int = 64
    files: int = 64
    file_mb: int = 8
    tmp_mb: int = 16
    output_kb: int = 64

    def __post_init__(self) -> None:
        values = [(limit.name, getattr(self, limit.name)) for limit in fields(self)]
        problems = [
            Problem(f"limits.{name}", f"got {value}, expected more than 0")
            for name, value in values
            if not 0 < value < float("inf")
        ]
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True)
class CallRequest:
    """One call of a function that the source defines.

    Args:
        entry: name of the function; dots lead into objects.
        args: positional arguments, built-in values (`evolvent.sandbox.values`).
        kwargs: keyword arguments, built-in values.
    """

    entry: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one request. It reports what the code returned, and is never a grade.

    Args:
        status: "value": the call returned; "raised": it raised, or the source did; "timeout": the wall-clock limit;
            "killed": the process ended without an answer; "malformed": the answer was unreadable, or came more than
            once; "limit": the job exceeded a resource limit.
        value: the returned value; an `OpaqueValue` for all but exact built-in classes; None unless status is "value".
        error: the exception or the reason: one line of at most 1,000 printable characters, others are escaped.
        stdout: text printed meanwhile, by the process and its children, as it was printed: control characters too.
        unsafe: whether it ran without isolation.
    """

    status: Status
    value: Value | None = None
    error: str = ""
    stdout: str = ""
    unsafe: bool = False

    @property
    def ok(self) -> bool:
        """Returns whether there is a value."""
        return self.status == "value"


class CodeRunner(Protocol):
    """An object that runs code."""

    def observe(self, source: str, requests: Sequence[CallRequest], limits: SandboxLimits) -> tuple[Outcome, ...]:
        """Returns one outcome for each request, in order; all requests go to one fresh sandbox, one after another."""
        ...
