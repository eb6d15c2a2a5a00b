"""What is asked of a box, what it may use, and what comes back. Pure: nothing is run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, Protocol

from evolvent.errors import ConfigError, Problem
from evolvent.sandbox.values import Value

__all__ = ["CodeRunner", "Limits", "Outcome", "Request", "Status"]

Status = Literal["value", "raised", "timeout", "killed", "malformed", "limit"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one job may use. A job is a source and all requests to it.

    Args:
        cpu_s: CPU seconds of each process.
        wall_s: seconds from the moment the source is handed in to the last answer.
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
        values = [(part.name, getattr(self, part.name)) for part in fields(self)]
        wrong = [
            Problem(f"limits.{name}", f"got {value}", "expected more than 0")
            for name, value in values
            if not 0 < value < float("inf")
        ]
        if wrong:
            raise ConfigError(wrong)


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a function that the source defines.

    Args:
        entry: its name; dots lead into objects.
        args, kwargs: built-in values (`evolvent.sandbox.values`).
    """

    entry: str
    args: tuple[Value, ...] = ()
    kwargs: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back for one request. It is what the code says, never a verdict.

    Args:
        status: "value": it returned; "raised": it raised, or the source did; "timeout": the wall limit; "killed": the
            process ended without an answer; "malformed": it answered in no readable form, or more than once; "limit":
            it used more than it may.
        value: what it returned; an `Other` for all but exact built-in classes; None unless status is "value".
        error: the exception or the reason, one line.
        stdout: what was printed meanwhile, by the process and all it started.
        unsafe: whether it ran without isolation.
    """

    status: Status
    value: Value | None = None
    error: str = ""
    stdout: str = ""
    unsafe: bool = False

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.status == "value"


class CodeRunner(Protocol):
    """Whoever runs code."""

    def observe(self, source: str, requests: Sequence[Request], limits: Limits) -> tuple[Outcome, ...]:
        """One outcome for each request, in order; all requests go to one fresh box, one after another."""
        ...
