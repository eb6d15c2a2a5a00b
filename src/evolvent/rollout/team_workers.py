"""Team environments in worker processes: a crash or hang of foreign code costs one row one episode.

Each process holds some of the rows and answers for one row after the other, so that a process that dies or
stays silent identifies the row. The episode of that row is lost; the process is killed and restarted, and its
other rows are reported as interrupted, to be played again (`worlds.teams.rows`). Messages are those of
`evolvent.workers`: a header in JSON and the arrays' bytes. Nothing is pickled.
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
from evolvent.trajectory import Array, Task
from evolvent.workers import CallerPipe, PipedProcess, pack_message
from evolvent.worlds.teams.parallel import Row, RowState
from evolvent.worlds.teams.rows import Interrupted, LocalRows

__all__ = ["ProcessRows", "serve"]

_BOOT = "import sys; from evolvent.rollout.team_workers import serve; serve(sys.argv[1:])"
_MAX_ANSWER_BYTES = 2**28  # bytes of an answer
Answer = RowState | ErrorRecord | Interrupted


class ProcessRows:
    """A host of rows (`RowHost`) in worker processes.

    Args:
        make: Creates an environment of a task; at the top level of a module (`worlds.teams.extras.make_row`).
        size: Number of rows.
        workers: Number of processes; process r % workers holds row r.
        step_s: Maximum seconds of a row's answer to a step.
        begin_s: Maximum seconds to start an episode, including its environment and the process.
    Raises:
        ConfigError: a function that no other process can import, invalid numbers; lists all of them.
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
            Problem(f"rows.{name}", f"got {value}, expected more than 0")
            for name, value in numbers
            if not 0 < value < float("inf")
        ]
        module, name = getattr(make, "__module__", ""), getattr(make, "__qualname__", "")
        if module == "__main__" or getattr(sys.modules.get(module), name, None) is not make:
            wrong.append(Problem("rows.make", f"got {module}:{name}, expected a function at the top level of a module"))
        if wrong:
            raise ConfigError(wrong)
        self._words = [module, name, repr(step_s), repr(begin_s)]
        self._step_s, self._begin_s = step_s, begin_s
        self._crew: list[_Process | None] = [None] * min(workers, size)
        self._begun: set[int] = set()  # rows whose environment lives
        self.restarts = 0  # how many processes were killed or found dead

    def begin(self, starts: Mapping[int, tuple[Task, int]]) -> Mapping[int, Answer]:
        """Starts episodes; see `RowHost`."""
        requests = {
            row: {"row": row, "seed": seed, "world": task.world, "version": task.version, "spec": dict(task.spec)}
            for row, (task, seed) in starts.items()
        }
        return self._request("begin", requests, {}, self._begin_s)

    def step(self, actions: Mapping[int, Array]) -> Mapping[int, Answer]:
        """Steps rows; see `RowHost`."""
        lost_rows: dict[int, Answer] = {
            row: Interrupted("its process was lost") for row in actions if row not in self._begun
        }
        requests = {
            row: {"row": row, "shape": list(row_actions.shape), "kind": row_actions.dtype.str}
            for row, row_actions in actions.items()
            if row not in lost_rows
        }
        return {**self._request("step", requests, actions, self._step_s), **lost_rows}

    def close(self) -> None:
        """Ends the processes."""
        for process_index, process in enumerate(self._crew):
            if process is not None:
                process.kill()
                self._crew[process_index] = None
        self._begun = set()

    def _request(
        self, operation: str, requests: Mapping[int, Any], arrays: Mapping[int, NDArray[Any]], wall_s: float
    ) -> dict[int, Answer]:
        """Sends requests to all processes at once, and reads their answers one after the other."""
        answers: dict[int, Answer] = {}
        rows_by_process: dict[int, list[int]] = {}
        for row in requests:
            rows_by_process.setdefault(row % len(self._crew), []).append(row)
        for process_index, rows in rows_by_process.items():
            body = b"".join(np.ascontiguousarray(arrays[row]).tobytes() for row in rows if row in arrays)
            try:
                message = pack_message({"what": operation, "rows": [requests[row] for row in rows]}, body)
                self._get_process(process_index).send(message, Deadline(wall_s))
            except EvolventError as error:
                answers.update(
                    self._drop_process(process_index, rows, [], error)
                )  # it died between two messages: no row is to blame
        for process_index, rows in rows_by_process.items():
            for position, row in enumerate(rows):
                process = self._crew[process_index]
                if row in answers or process is None:
                    break
                try:
                    answers[row] = process.read_row(Deadline(wall_s), row)
                    self._begun.add(row)
                except EvolventError as error:
                    answers.update(
                        self._drop_process(process_index, rows[:position] + rows[position + 1 :], [row], error)
                    )
                    break
        return answers

    def _drop_process(
        self, process_index: int, interrupted: Sequence[int], lost: Sequence[int], error: EvolventError
    ) -> dict[int, Answer]:
        """Drops a process: the rows being played are lost, its other rows must be played again."""
        process = self._crew[process_index]
        if process is not None:
            process.kill()
        self._crew[process_index] = None
        self.restarts += 1
        self._begun -= {row for row in self._begun if row % len(self._crew) == process_index}
        answers: dict[int, Answer] = {row: Interrupted(str(error)) for row in interrupted}
        return {**answers, **{row: ErrorRecord.of(error, retryable=True) for row in lost}}

    def _get_process(self, process_index: int) -> _Process:
        process = self._crew[process_index]
        if process is None:
            process = self._crew[process_index] = _Process(self._words)
            process.wait_ready(Deadline(self._begin_s))
        return process


class _Process(PipedProcess):
    """One process of `ProcessRows`."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__(
            _BOOT,
            arguments,
            name="a team environment",
            lost_error=EnvLost,
            timeout_error=StepTimeout,
            max_answer_bytes=_MAX_ANSWER_BYTES,
        )

    def wait_ready(self, deadline: Deadline) -> None:
        """Waits until the function is imported."""
        answer, _ = self.read_answer(deadline)
        if not answer.get("ready"):
            raise EnvLost("a process of team environments did not start", value=answer.get("failed"))

    def read_row(self, deadline: Deadline, row: int) -> RowState | ErrorRecord:
        """Reads the answer for one row. Raises StepTimeout where it is late, and EnvLost where the process ended."""
        header, body = self.read_answer(deadline)
        if header.get("row") != row:
            raise EnvLost(
                "a process of team environments answered for another row", value=header.get("row"), expected=row
            )
        if "error" in header:
            return ErrorRecord(header["error"]["kind"], header["error"]["message"])
        return _unpack_moment(header, body)


_SCALARS = ("reward", "terminated", "truncated", "success")
_ARRAYS = ("observation", "alive", "available", "state")


def _pack_answer(row: int, moment: RowState | ErrorRecord | Interrupted) -> tuple[dict[str, Any], bytes]:
    if not isinstance(moment, RowState):
        error = moment if isinstance(moment, ErrorRecord) else ErrorRecord("EnvLost", moment.why)
        return {"row": row, "error": {"kind": error.kind, "message": error.message[:2000]}}, b""
    arrays = {name: getattr(moment, name) for name in _ARRAYS if getattr(moment, name) is not None}
    header = {
        "row": row,
        "arrays": {name: [list(array.shape), array.dtype.str] for name, array in arrays.items()},
        **{name: getattr(moment, name) for name in _SCALARS},
    }
    return header, b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())


def _unpack_moment(header: Mapping[str, Any], body: bytes) -> RowState:
    arrays: dict[str, Any] = {}
    offset = 0
    with boundary(EnvLost, "a process of team environments answered no arrays"):
        for name, (shape, kind) in header["arrays"].items():
            array, offset = _unpack_array(body, offset, shape, kind)
            arrays[name] = array
        return RowState(**arrays, **{name: header[name] for name in _SCALARS})


def _unpack_array(body: bytes, offset: int, shape: Sequence[int], kind: str) -> tuple[NDArray[Any], int]:
    count = int(np.prod(shape, dtype=np.int64))
    array = np.frombuffer(body, dtype=np.dtype(kind), count=count, offset=offset).reshape(shape).copy()
    return array, offset + array.nbytes


def serve(argv: Sequence[str]) -> None:
    """Runs the program of a process: imports the function, then plays rows until standard input ends.

    An alarm ends a row of too many seconds in this process as well, for the case that the caller is gone.

    Args:
        argv: module, function, seconds of a step, seconds of a beginning.
    """
    module, name, step_s, begin_s = argv
    caller = CallerPipe()
    try:
        with boundary(EnvLost, "the function cannot be imported", name=f"{module}:{name}"):
            rows = LocalRows(getattr(import_module(module), name))
    except EvolventError as error:
        caller.write({"failed": str(error)[:2000]})
        return
    caller.write({"ready": True})
    while (message := caller.read_message()) is not None:
        request, body, offset = json.loads(message[0]), message[1], 0
        for row_request in request["rows"]:
            begins = request["what"] == "begin"
            signal.setitimer(signal.ITIMER_REAL, float(begin_s if begins else step_s) + 1.0)
            if begins:
                task = Task(row_request["world"], row_request["version"], row_request["spec"])
                moment = rows.begin({row_request["row"]: (task, row_request["seed"])})[row_request["row"]]
            else:
                actions, offset = _unpack_array(body, offset, row_request["shape"], row_request["kind"])
                moment = rows.step({row_request["row"]: actions})[row_request["row"]]
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            caller.write(*_pack_answer(row_request["row"], moment))
