"""Team environments in worker processes: other packages' code may crash or hang, and costs one row one episode.

Each process keeps some of the rows and answers for one row after the other, so that a process that dies or stays silent
names the row it was at. That row's episode is lost; the process is killed and started again, and the other rows that it
kept are reported as interrupted, to be played again (`worlds.teams.rows`). Messages are those of `evolvent.workers`: a
header in JSON and the arrays' bytes. Nothing is pickled.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.deadline import Deadline
from evolvent.errors import ConfigError, EnvLost, ErrorRecord, EvolventError, Problem, StepTimeout, boundary
from evolvent.trajectory import Task
from evolvent.workers import Caller, Piped, packed
from evolvent.worlds.teams.parallel import Moment, Row
from evolvent.worlds.teams.rows import Interrupted, LocalRows

__all__ = ["ProcessRows", "serve"]

_BOOT = "import sys; from evolvent.rollout.team_workers import serve; serve(sys.argv[1:])"
_MOST = 2**28  # bytes of an answer
Answer = Moment | ErrorRecord | Interrupted


class ProcessRows:
    """A host of rows (`RowHost`) in worker processes.

    Args:
        make: at the top level of a module, from a task to an environment (`worlds.teams.extras.make_row`).
        size: how many rows.
        workers: how many processes; row r is kept by process r % workers.
        step_s: seconds in which a row has to answer a step. begin_s: in which it has to begin an episode, its
            environment be made and the process be started.

    Raises:
        ConfigError: a function that no other process finds, numbers that make no sense; all at once.
    """

    def __init__(
        self,
        make: Callable[[Task], Row],
        size: int,
        *,
        workers: int = 2,
        step_s: float = 10.0,
        begin_s: float = 60.0,
    ) -> None:
        numbers = (("size", size), ("workers", workers), ("step_s", step_s), ("begin_s", begin_s))
        wrong = [
            Problem(f"rows.{name}", f"got {value}", "expected more than 0")
            for name, value in numbers
            if not 0 < value < float("inf")
        ]
        module, name = getattr(make, "__module__", ""), getattr(make, "__qualname__", "")
        if module == "__main__" or getattr(sys.modules.get(module), name, None) is not make:
            wrong.append(Problem("rows.make", f"got {module}:{name}", "expected one at the top of a module"))
        if wrong:
            raise ConfigError(wrong)
        self._words = [module, name, repr(step_s), repr(begin_s)]
        self._step_s, self._begin_s = step_s, begin_s
        self._crew: list[_Process | None] = [None] * min(workers, size)
        self._begun: set[int] = set()  # rows whose environment lives
        self.restarts = 0  # how many processes were killed or found dead

    def begin(self, starts: Mapping[int, tuple[Task, int]]) -> Mapping[int, Answer]:
        """See `RowHost`."""
        asked = {
            row: {"row": row, "seed": seed, "world": task.world, "version": task.version, "spec": dict(task.spec)}
            for row, (task, seed) in starts.items()
        }
        return self._ask("begin", asked, {}, self._begin_s)

    def step(self, actions: Mapping[int, NDArray[Any]]) -> Mapping[int, Answer]:
        """See `RowHost`."""
        lost: dict[int, Answer] = {
            row: Interrupted("its process was lost") for row in actions if row not in self._begun
        }
        asked = {
            row: {"row": row, "shape": list(own.shape), "kind": own.dtype.str}
            for row, own in actions.items()
            if row not in lost
        }
        return {**self._ask("step", asked, actions, self._step_s), **lost}

    def close(self) -> None:
        """End the processes."""
        for at, process in enumerate(self._crew):
            if process is not None:
                process.kill()
                self._crew[at] = None
        self._begun = set()

    def _ask(
        self, what: str, asked: Mapping[int, Any], arrays: Mapping[int, NDArray[Any]], wall_s: float
    ) -> dict[int, Answer]:
        """All processes work at the same time; their answers are read one after the other."""
        found: dict[int, Answer] = {}
        busy: dict[int, list[int]] = {}
        for row in asked:
            busy.setdefault(row % len(self._crew), []).append(row)
        for at, rows in busy.items():
            body = b"".join(np.ascontiguousarray(arrays[row]).tobytes() for row in rows if row in arrays)
            try:
                message = packed({"what": what, "rows": [asked[row] for row in rows]}, body)
                self._process(at).send(message, Deadline(wall_s))
            except EvolventError as error:
                found.update(self._lose(at, rows, [], error))  # it died between two messages: no row is to blame
        for at, rows in busy.items():
            for place, row in enumerate(rows):
                process = self._crew[at]
                if row in found or process is None:
                    break
                try:
                    found[row] = process.answer(Deadline(wall_s), row)
                    self._begun.add(row)
                except EvolventError as error:
                    found.update(self._lose(at, rows[:place] + rows[place + 1 :], [row], error))
                    break
        return found

    def _lose(self, at: int, others: Sequence[int], guilty: Sequence[int], error: EvolventError) -> dict[int, Answer]:
        """A process is gone: who was being played is lost, everybody else it kept is to be played again."""
        process = self._crew[at]
        if process is not None:
            process.kill()
        self._crew[at] = None
        self.restarts += 1
        self._begun -= {row for row in self._begun if row % len(self._crew) == at}
        answers: dict[int, Answer] = {row: Interrupted(str(error)) for row in others}
        return {**answers, **{row: ErrorRecord.of(error, retryable=True) for row in guilty}}

    def _process(self, at: int) -> _Process:
        process = self._crew[at]
        if process is None:
            process = self._crew[at] = _Process(self._words)
            process.ready(Deadline(self._begin_s))
        return process


class _Process(Piped):
    """One process of `ProcessRows`."""

    def __init__(self, words: Sequence[str]) -> None:
        super().__init__(_BOOT, words, name="a team environment", lost=EnvLost, late=StepTimeout, most=_MOST)

    def ready(self, deadline: Deadline) -> None:
        """Wait until the function is imported."""
        answer, _ = self.read(deadline)
        if not answer.get("ready"):
            raise EnvLost("a process of team environments does not start", value=answer.get("failed"))

    def answer(self, deadline: Deadline, row: int) -> Moment | ErrorRecord:
        """Of one row. StepTimeout: none in time. EnvLost: the process ended."""
        header, body = self.read(deadline)
        if header.get("row") != row:
            raise EnvLost(
                "a process of team environments answers for another row", value=header.get("row"), expected=row
            )
        if "error" in header:
            return ErrorRecord(header["error"]["kind"], header["error"]["message"])
        return _moment(header, body)


_SAID = ("reward", "terminated", "truncated", "success")
_ARRAYS = ("observation", "alive", "available", "state")


def _answer(row: int, moment: Moment | ErrorRecord | Interrupted) -> tuple[dict[str, Any], bytes]:
    if not isinstance(moment, Moment):
        why = moment if isinstance(moment, ErrorRecord) else ErrorRecord("EnvLost", moment.why)
        return {"row": row, "error": {"kind": why.kind, "message": why.message[:2000]}}, b""
    arrays = {name: getattr(moment, name) for name in _ARRAYS if getattr(moment, name) is not None}
    header = {
        "row": row,
        "arrays": {name: [list(array.shape), array.dtype.str] for name, array in arrays.items()},
        **{name: getattr(moment, name) for name in _SAID},
    }
    return header, b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())


def _moment(header: Mapping[str, Any], body: bytes) -> Moment:
    arrays: dict[str, Any] = {}
    at = 0
    with boundary(EnvLost, "a process of team environments answered no arrays"):
        for name, (shape, kind) in header["arrays"].items():
            array, at = _array(body, at, shape, kind)
            arrays[name] = array
        return Moment(**arrays, **{name: header[name] for name in _SAID})


def _array(body: bytes, at: int, shape: Sequence[int], kind: str) -> tuple[NDArray[Any], int]:
    count = int(np.prod(shape, dtype=np.int64))
    array = np.frombuffer(body, dtype=np.dtype(kind), count=count, offset=at).reshape(shape).copy()
    return array, at + array.nbytes


def serve(words: Sequence[str]) -> None:
    """The program of a process: import the function, then play rows until standard input ends.

    An alarm ends a row of too many seconds in this process as well, for the case that the caller is gone.

    Args:
        words: module, function, seconds of a step, seconds of a beginning.
    """
    module, name, step_s, begin_s = words
    caller = Caller()
    try:
        with boundary(EnvLost, "the function cannot be imported", name=f"{module}:{name}"):
            rows = LocalRows(getattr(import_module(module), name))
    except EvolventError as error:
        caller.write({"failed": str(error)[:2000]})
        return
    caller.write({"ready": True})
    while (message := caller.read()) is not None:
        asked, body, at = json.loads(message[0]), message[1], 0
        for one in asked["rows"]:
            begins = asked["what"] == "begin"
            signal.setitimer(signal.ITIMER_REAL, float(begin_s if begins else step_s) + 1.0)
            if begins:
                task = Task(one["world"], one["version"], one["spec"])
                moment = rows.begin({one["row"]: (task, one["seed"])})[one["row"]]
            else:
                actions, at = _array(body, at, one["shape"], one["kind"])
                moment = rows.step({one["row"]: actions})[one["row"]]
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            caller.write(*_answer(one["row"], moment))
