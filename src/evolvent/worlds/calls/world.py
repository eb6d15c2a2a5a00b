"""Function-calling data sets as a world: a task is one request, and the reply holds the calls.

The rows are those of `layouts`: API-Bank, ToolAlpaca and Seal-Tools in Hammer's form, and Seal-Tools and NexusRaven in
their own. The reward is 1 where the reply has exactly the expected calls; `grade.call_metrics.score_calls` gives F1 of
names and arguments over all replies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from evolvent.errors import ConfigError, Problem, SessionGone, unknown_name_problem
from evolvent.grade.call_metrics import score_calls
from evolvent.grade.calls import Form, encode_calls
from evolvent.messages import Call, CallSample
from evolvent.trajectory import Score, Task, Trajectory, Value
from evolvent.worlds.base import Env, Grammar, Info, check_task, score_if_won
from evolvent.worlds.base import Reply as StepResult
from evolvent.worlds.bfcl.episode import parse_answer, render_request
from evolvent.worlds.bfcl.world import FORM_EXAMPLES, Reply
from evolvent.worlds.calls.layouts import Samples, read_hammer, read_nexus_raven, read_seal_tools
from evolvent.worlds.panel import check_names

__all__ = ["CallSet", "read_call_samples"]

_INSTRUCTIONS = (
    "Functions and a request follow. Call the functions that the request needs. If none fits, or something is missing, "
    "say so and call none. Write calls as {form} and nothing else."
)
_NO_CALL = "No function fits."
_TIER = "all"


def read_call_samples(path: Path, tools: Path | None = None) -> Samples:
    """Reads a file of function-calling samples; the layout follows from the fields of its first row.

    Args:
        path: an array or JSON lines, see `layouts`.
        tools: the file of functions that Seal-Tools (default: `tool.jsonl` beside the file) and NexusRaven have.

    Raises:
        ConfigError: a file that cannot be read, a missing file of functions, or no usable row.
    """
    if not path.is_file():
        raise ConfigError([Problem("data", f"file not found: {path}", "check the path")])
    fields = _first_fields(path)
    if "calling" in fields:
        tools = tools or path.with_name("tool.jsonl")
        _check_tools_file(tools)
        samples, problems = read_seal_tools(path, tools)
    elif "python_function_name" in fields:
        if tools is None:
            raise ConfigError([Problem("tools", "missing for NexusRaven's queries", "set --tools to its API list")])
        _check_tools_file(tools)
        samples, problems = read_nexus_raven(path, tools)
    else:
        samples, problems = read_hammer(path)
    if not samples:
        reasons = [str(problem) for problem in problems[:1]] or ["the file has no rows"]
        raise ConfigError(
            f"no usable rows in {path.name}: {reasons[0]}", value=str(path), expected="{query, tools, answers}"
        )
    return samples, problems


def _check_tools_file(tools: Path) -> None:
    if not tools.is_file():
        raise ConfigError([Problem("tools", f"file not found: {tools}", "set --tools to the file of functions")])


def _first_fields(path: Path) -> Mapping[str, object]:
    """Returns the first row of a file; empty where it is not an object."""
    try:
        text = path.read_text(encoding="utf-8-sig").lstrip()
        first_row = (
            next(islice(json.loads(text), 1), {}) if text.startswith("[") else json.loads(text.partition("\n")[0])
        )
    except OSError as error:
        raise ConfigError(f"{path.name} cannot be read ({error})", value=str(path)) from error
    except (ValueError, RecursionError):
        return {}
    return first_row if isinstance(first_row, dict) else {}


class CallSet:
    """The samples of a data set, all in the test split: one reply each.

    Args:
        samples: the samples; their ids must differ.
        form: how calls are written: "json", "python" or "xml".

    Raises:
        ConfigError: an unknown form, or two samples of one id.
    """

    name = "calls"
    version = "1"
    tiers: tuple[str, ...] = (_TIER,)
    horizon = 1
    run_in_thread = False
    reward_range = (0.0, 1.0)

    def __init__(self, samples: Sequence[CallSample], *, form: Form = "json") -> None:
        if form not in FORM_EXAMPLES:
            raise ConfigError([unknown_name_problem("form", form, FORM_EXAMPLES)])
        self._samples = {sample.id: sample for sample in samples}
        if len(self._samples) != len(samples):
            raise ConfigError("two samples have the same id", value=len(samples) - len(self._samples))
        self.form: Form = form
        self.grammar: Grammar = Reply()
        self.instructions = _INSTRUCTIONS.format(form=FORM_EXAMPLES[form])

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks in the order of the samples; only the split "test" has any."""
        check_names(split, tier, self.tiers)
        return tuple(self._build_task(sample) for sample in self._samples.values()) if split == "test" else ()

    def _build_task(self, sample: CallSample) -> Task:
        digest = hashlib.sha256(repr(sample).encode()).hexdigest()[:16]
        kind = "call" if sample.calls else "no call"
        return Task(self.name, self.version, {"id": sample.id, "digest": digest}, kind, _TIER, "test")

    def sample(self, task: Task) -> CallSample:
        """Returns the sample of a task; raises ConfigError where the set does not have it."""
        check_task(self, task)
        sample = self._samples.get(str(task.spec.get("id")))
        if sample is None or self._build_task(sample).id != task.id:
            raise ConfigError("sample not found in the set", value=dict(task.spec), hint="pass the file of the run")
        return sample

    def make(self, task: Task) -> Env:
        """Creates an Env for one task."""
        return _CallSetEnv(self.sample(task), self.form)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success means exactly the expected calls."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the reply with the expected calls."""
        calls = self.sample(task).calls
        return [encode_calls(calls, form=self.form) if calls else _NO_CALL]

    def vocabulary(self) -> Sequence[str] | None:
        """Returns None: the vocabulary is open."""
        return None

    def predicted_calls(self, trajectory: Trajectory) -> tuple[Call, ...] | None:
        """Returns the calls of an episode's reply; None where they cannot be read, or where there is no reply."""
        if not trajectory.steps:
            return None
        return parse_answer(str(trajectory.steps[0].action), self.form, self.sample(trajectory.task).tools)


class _CallSetEnv:
    """One reply to one sample."""

    def __init__(self, sample: CallSample, form: Form) -> None:
        self._sample, self._form, self._is_running = sample, form, False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._is_running = True
        sample = self._sample
        return render_request(sample.tools, sample.messages), {
            "tools": [tool.as_openai() for tool in sample.tools],
            "messages": [message.as_openai() for message in sample.messages],
        }

    def step(self, action: Value) -> StepResult:
        """Scores the reply: the reward is 1 for exactly the expected calls, in any order, and 0 otherwise."""
        if not self._is_running:
            raise SessionGone(
                "step was called after the end of the episode", value=str(action), expected="reset() first"
            )
        self._is_running = False
        calls = parse_answer(str(action), self._form, self._sample.tools)
        counts = score_calls([calls], [self._sample.calls])
        is_right = calls is not None and counts.names.f1 == 1.0 and counts.arguments.f1 == 1.0
        info = {"names_f1": counts.names.f1, "arguments_f1": counts.arguments.f1}
        return "", float(is_right), True, False, info | ({} if calls is not None else {"invalid": True})

    def close(self) -> None:
        self._is_running = False
