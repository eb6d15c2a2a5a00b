"""Metrics of a running server in Prometheus' text format, version 0.0.4: `GET /metrics`.

The format is a few rules over lines of text, and there are few metrics; so there is no dependency. Labels have few
values by construction: dialects, methods, statuses, calls and kinds of errors. Text that a client chose never becomes
a label.
"""

from __future__ import annotations

import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from evolvent.errors import EvolventError
from evolvent.serve.host import HostStatus, ResetResult, SessionHost, SessionSnapshot, StepRequest, StepResult
from evolvent.trajectory import Task
from evolvent.web import App, Message, Receive, Scope, Send
from evolvent.worlds.base import World

__all__ = [
    "BUCKETS_S",
    "EXPOSITION_CONTENT_TYPE",
    "Family",
    "Histogram",
    "LabeledCounter",
    "MeasuredApp",
    "MeasuredHost",
    "Sample",
    "format_exposition",
    "make_gauge",
    "status_families",
]

# Upper ends in seconds: a step of a quick world takes tens of microseconds, a reply of a policy seconds.
BUCKETS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    60.0,
)
EXPOSITION_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: the suffix of the family's name (`_bucket`, `_sum`, `_count` or nothing), its labels, its value."""

    value: float
    labels: tuple[tuple[str, str], ...] = ()
    ending: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """All lines of one name, with their type and meaning."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: tuple[Sample, ...]


def format_exposition(families: Iterable[Family]) -> bytes:
    """Formats the families as text: `# HELP`, `# TYPE`, then a line a sample; UTF-8, ends with a line feed."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}", f"# TYPE {family.name} {family.kind}"]
        lines += [
            f"{family.name}{sample.ending}{_format_labels(sample.labels)} {_format_number(sample.value)}"
            for sample in family.samples
        ]
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _format_labels(labels: tuple[tuple[str, str], ...]) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels) + "}" if labels else ""


def _format_number(value: float) -> str:
    return "+Inf" if value == float("inf") else str(int(value)) if float(value).is_integer() else repr(float(value))


def make_gauge(name: str, help: str, value: float) -> Family:
    """Returns a family of one value that goes up and down."""
    return Family(name, "gauge", help, (Sample(value),))


class LabeledCounter:
    """A counter with labels; it only goes up.

    Args:
        name: name of the family; ends in `_total`.
        labels: names of the labels.
    """

    def __init__(self, name: str, help: str, *labels: str) -> None:
        self._name, self._help, self._labels = name, help, labels
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, *values: str, amount: int = 1) -> None:
        """Adds `amount` for these values of the labels."""
        self._counts[values] = self._counts.get(values, 0) + amount

    def family(self) -> Family:
        """Returns the counts so far, in the order of the labels' values."""
        rows = sorted(self._counts.items())
        samples = (Sample(count, tuple(zip(self._labels, values, strict=True))) for values, count in rows)
        return Family(self._name, "counter", self._help, tuple(samples))


class Histogram:
    """A histogram of seconds by upper bounds (`BUCKETS_S` and infinity), with their sum; one label."""

    def __init__(self, name: str, help: str, label: str) -> None:
        self._name, self._help, self._label = name, help, label
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    def observe(self, seconds: float, value: str) -> None:
        """Records one duration for this value of the label."""
        counts = self._counts.get(value)
        if counts is None:
            counts = self._counts[value] = [0] * (len(BUCKETS_S) + 1)
            self._sums[value] = 0.0
        counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sums[value] += seconds

    def family(self) -> Family:
        """Returns the durations so far; every bucket includes the smaller ones."""
        samples: list[Sample] = []
        for value, counts in sorted(self._counts.items()):
            labels = ((self._label, value),)
            for end, count in zip((*BUCKETS_S, float("inf")), accumulate(counts), strict=True):
                samples.append(Sample(count, (*labels, ("le", _format_number(end))), "_bucket"))
            samples += [Sample(self._sums[value], labels, "_sum"), Sample(sum(counts), labels, "_count")]
        return Family(self._name, "histogram", self._help, tuple(samples))


class MeasuredApp:
    """An ASGI app around another that counts its requests, including refused ones.

    Args:
        heads: first parts of the existing paths; requests for others count as "other".
        clock: returns seconds that never jump.
    """

    def __init__(self, app: App, heads: Iterable[str], *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._app, self._heads, self._clock = app, frozenset(heads), clock
        self._requests = LabeledCounter(
            "evolvent_http_requests_total", "Requests answered.", "face", "method", "status"
        )
        self._seconds = Histogram("evolvent_http_request_seconds", "From a request's head to its answer's end.", "face")
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        web_socket, status, began = scope["type"] == "websocket", 0, self._clock()

        async def send_noted(message: Message) -> None:
            nonlocal status
            kind = message["type"]
            if kind in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif kind == "websocket.accept":
                status = 101
            elif kind == "websocket.close" and not status:
                status = 403
            await send(message)

        self._open += web_socket
        try:
            return await self._app(scope, receive, send_noted)
        finally:
            self._open -= web_socket
            if not status and isinstance(sys.exception(), Exception):
                status = 500  # what the server answers for an app that raises
            self._record_request(scope, status, seconds=None if web_socket else self._clock() - began)

    def _record_request(self, scope: Scope, status: int, *, seconds: float | None) -> None:
        """Counts a request; status 0: the client left before there was an answer."""
        head = scope["path"].removeprefix("/").partition("/")[0]  # "OPTIONS *" has no slash
        dialect = head if head in self._heads else "other"
        method = "WEBSOCKET" if seconds is None else scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.add(dialect, method, str(status))
        if seconds is not None:
            self._seconds.observe(seconds, dialect)

    def families(self) -> list[Family]:
        """Returns requests, their durations, and the open WebSockets."""
        sockets = make_gauge("evolvent_websockets_open", "WebSockets that are open.", self._open)
        return [self._requests.family(), self._seconds.family(), sockets]


class MeasuredHost:
    """A `SessionHost` that forwards every call and measures its duration and its errors, whatever the dialect."""

    def __init__(self, host: SessionHost, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._host, self._clock = host, clock
        self._seconds = Histogram("evolvent_call_seconds", "Calls of sessions, by what was called.", "call")
        self._errors = LabeledCounter(
            "evolvent_errors_total", "Calls of sessions that failed, by kind.", "call", "kind"
        )

    @property
    def worlds(self) -> Mapping[str, World]:
        """Returns the served worlds by name."""
        return self._host.worlds

    async def create(self, world: str, *, short: bool = False) -> str:
        """Creates a session; see `SessionHost.create`."""
        with _Timed(self, "create"):
            return await self._host.create(world, short=short)

    async def reset(self, session: str, task: Task, *, seed: int | None = None) -> ResetResult:
        """Starts an episode; see `SessionHost.reset`."""
        with _Timed(self, "reset"):
            return await self._host.reset(session, task, seed=seed)

    async def step(self, session: str, action: str, *, step: int | None = None) -> StepResult:
        """Plays a step; see `SessionHost.step`."""
        with _Timed(self, "step"):
            return await self._host.step(session, action, step=step)

    async def steps(self, items: Sequence[StepRequest]) -> list[StepResult | EvolventError]:
        """Plays many steps; see `SessionHost.steps`. A batch is one duration, each of its errors counts."""
        with _Timed(self, "steps"):
            answers = await self._host.steps(items)
        for answer in answers:
            if isinstance(answer, EvolventError):
                self._errors.add("steps", type(answer).__name__)
        return answers

    async def look(self, session: str) -> SessionSnapshot:
        """Returns the state of the session; see `SessionHost.look`."""
        return await self._host.look(session)

    async def close(self, session: str) -> bool:
        """Closes a session; see `SessionHost.close`."""
        with _Timed(self, "close"):
            return await self._host.close(session)

    def status(self) -> HostStatus:
        """Returns live counts."""
        return self._host.status()

    def record_call(self, call: str, seconds: float, error: BaseException | None) -> None:
        """Counts a call that has ended."""
        self._seconds.observe(seconds, call)
        if isinstance(error, EvolventError):
            self._errors.add(call, type(error).__name__)

    def families(self) -> list[Family]:
        """Returns the measured families, and those of the host's status."""
        return [*status_families(self._host.status()), self._seconds.family(), self._errors.family()]


class _Timed:
    """A context that times a block and records its error; a class, because it is entered at every step."""

    __slots__ = ("_began", "_call", "_host")

    def __init__(self, host: MeasuredHost, call: str) -> None:
        self._host, self._call = host, call

    def __enter__(self) -> None:
        self._began = self._host._clock()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._host.record_call(self._call, self._host._clock() - self._began, error)


def status_families(status: HostStatus) -> list[Family]:
    """Returns the sessions, steps and restarts of a host."""
    open_ = tuple(Sample(count, (("world", world),)) for world, count in sorted(status.sessions.items()))
    return [
        Family("evolvent_sessions_open", "gauge", "Sessions that are open, by world.", open_),
        make_gauge("evolvent_sessions_capacity", "How many sessions there may be.", status.capacity),
        Family("evolvent_sessions_created_total", "counter", "Sessions created.", (Sample(status.created),)),
        Family("evolvent_steps_total", "counter", "Steps taken; a repeated one counts once.", (Sample(status.steps),)),
        Family("evolvent_worker_restarts_total", "counter", "Workers started again.", (Sample(status.restarts),)),
    ]
