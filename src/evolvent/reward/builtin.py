"""Rewards by name for a user's prompts: exact, number, maths, code, json_schema, regex and judge.

Each is 1 for a right reply and 0 for a wrong one, and leaves an episode unscored (never 0) where it cannot decide: a
gold answer that cannot be read, tests that cannot run, a judge that does not answer. `name:ARGUMENT` gives the argument
to all rows; without one it is a column.

    exact                  column answer: the reply, or its text after #### or in its last box, is the answer
    number                 column answer: the reply's number is the answer's, compared exactly
    maths                  column answer: equal as mathematics
    code                   columns as in HumanEval, MBPP or APPS, or `tests`: asserts; runs in a sandbox
    json_schema[:FILE]     column schema: the reply is JSON that fits the schema
    regex[:PATTERN]        column pattern: the pattern matches somewhere in the reply
    judge:MODEL@URL        column criterion (or answer): a model behind an OpenAI-compatible endpoint decides
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from pydantic import SecretStr

from evolvent.engine.endpoint import Endpoint
from evolvent.errors import ConfigError, Problem, SampleInvalid, ScoringError, unknown_name_problem
from evolvent.grade.base import Grade
from evolvent.grade.code import grade_code, parse_mbpp
from evolvent.grade.exchanges import Exchanges, grade_exchanges
from evolvent.grade.maths import MathsGrader
from evolvent.grade.numbers import extract_number, grade_number, text_after_mark
from evolvent.reward.judging import EndpointJudge
from evolvent.sandbox.limits import SandboxLimits
from evolvent.sandbox.pool import SandboxPool
from evolvent.schemas import compile_pattern, find_argument_faults
from evolvent.trajectory import Json
from evolvent.worlds.code.answers import extract_program, extract_source
from evolvent.worlds.code.rows import read_code_row
from evolvent.worlds.prompts.rewards import Reward, RewardFunction

__all__ = ["REWARD_NAMES", "CodeReward", "JudgeReward", "MathsReward", "exact", "find_reward", "number", "parse_weight"]

_KEY_VARIABLE = "OPENAI_API_KEY"  # the environment variable that holds an endpoint's key
_BOX = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)\n?```", re.DOTALL)
_CODE_LIMITS = SandboxLimits(cpu_s=10, wall_s=10.0)
_CORRECT = "The answer is correct and does what the task asks."


def exact(completion: str, answer: Json) -> float:
    """Returns 1 if the reply is the answer, up to spaces; its text after #### or in its last box counts too.

    An integer of type float may have its point or not: pandas makes 4.0 of 4 in a column with missing cells.

    >>> exact("The sum is 4. #### 4", 4), exact(" red ", "red"), exact("dark red", "red")
    (1.0, 1.0, 0.0)
    """
    golds = {" ".join(_read_answer(answer).split())}
    if isinstance(answer, float) and answer.is_integer():
        golds.add(f"{answer:.0f}")
    boxes = _BOX.findall(completion)
    readings = [completion, text_after_mark(completion), boxes[-1] if boxes else None]
    return float(any(text is not None and " ".join(text.split()) in golds for text in readings))


def number(completion: str, answer: Json) -> float:
    """Returns 1 if the number of the reply is that of the answer, compared exactly (`grade.numbers`).

    >>> number("4 + 4 = 8, so 1/2 of it is 4.0", "#### 4")
    1.0
    """
    text = _read_answer(answer)
    gold = extract_number(text)
    if gold is None:
        raise ScoringError("the column answer holds no number", value=text[:80])
    return _require_verdict(grade_number(completion, gold))


class MathsReward:
    """Returns 1 if the answer of the reply equals the gold answer as mathematics (`grade.maths`)."""

    def __init__(self) -> None:
        self._grader = MathsGrader()

    def __call__(self, completion: str, answer: Json) -> float:
        """Returns the reward of a reply; ScoringError where the two cannot be compared."""
        gold = _read_answer(answer)
        boxes = _BOX.findall(gold)
        return _require_verdict(self._grader(completion, boxes[-1] if boxes else text_after_mark(gold) or gold))


class CodeReward:
    """Returns 1 if the program in the reply passes the tests of its row, which run in a sandbox (`grade.code`).

    Rows have the columns of HumanEval, MBPP or APPS; or `tests`, Python asserts that call one function.

    Args:
        limits: of one reply, or of one exchange of APPS.
    """

    needs_isolation = True

    def __init__(self, limits: SandboxLimits = _CODE_LIMITS) -> None:
        self._limits, self._pool, self._lock = limits, cast("SandboxPool | None", None), threading.Lock()

    def __call__(self, completion: str, row: Mapping[str, Json]) -> float:
        """Returns the reward of a reply.

        Raises:
            ScoringError: the row has no tests that can be run. IsolationUnavailable: this host cannot isolate.
        """
        with self._lock:
            self._pool = self._pool or SandboxPool()
            opener = self._pool.opener(self._limits)
        tests = row.get("tests")
        try:
            if tests is not None:
                asserts = "\n".join(map(_as_text, tests)) if isinstance(tests, list) else _as_text(tests)
                entry = row.get("entry_point")
                code_tests = parse_mbpp(asserts, entry=entry if isinstance(entry, str) else "")
                program = extract_program(completion, code_tests.entry)
                return _require_verdict(grade_code(program, code_tests, opener))
            code_row = read_code_row(_without_nulls(row), "data", 0)
        except (SyntaxError, ValueError, SampleInvalid) as error:
            raise ScoringError("the tests of the row cannot be read", value=str(error)[:200]) from error
        if isinstance(code_row.tests, Exchanges):
            return _require_verdict(grade_exchanges(extract_source(completion), code_row.tests, opener))
        program = extract_program(completion, code_row.tests.entry, prompt=code_row.prompt)
        return _require_verdict(grade_code(program, code_row.tests, opener))


def _check_json(completion: str, schema: Json) -> float:
    """Returns 1 if the reply is JSON, fenced or not, that fits the schema."""
    parsed_schema = _parse_json(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed_schema, Mapping):
        raise ScoringError("the column schema is not a JSON schema", value=str(schema)[:80])
    fenced = _FENCE.findall(completion)
    value = _parse_json(fenced[-1] if fenced else completion)
    if value is _INVALID:
        return 0.0
    definitions = {name: parsed_schema[name] for name in ("$defs", "definitions") if name in parsed_schema}
    inner = {name: part for name, part in parsed_schema.items() if name not in definitions}
    wrapped = {"type": "object", "properties": {"value": inner}, "required": ["value"], **definitions}
    try:
        return float(not find_argument_faults({"value": value}, wrapped))
    except SampleInvalid as error:
        raise ScoringError("the column schema is not a JSON schema", value=str(error)[:200]) from error


def _match_pattern(completion: str, pattern: Json) -> float:
    """Returns 1 if the pattern matches somewhere in the reply, in time linear in the reply."""
    try:
        return float(compile_pattern(pattern)(completion.encode("utf-8", "replace").decode()))
    except SampleInvalid as error:
        raise ScoringError("the column pattern is not a regular expression", value=str(error)[:200]) from error


class JudgeReward:
    """Returns 1 if a model behind an OpenAI-compatible endpoint decides that the reply passes (`reward.judging`).

    Its criterion is the column `criterion`; without one, that the reply agrees with the column `answer`; without that
    too, that the reply is correct.

    Args:
        url: of the endpoint, such as `http://127.0.0.1:8000/v1`; the key is in the variable OPENAI_API_KEY.
        model: what the endpoint calls it.
        criterion: for all rows; None: as above.
        timeout_s: longest time of one verdict, retries included.
    """

    def __init__(self, url: str, model: str, *, criterion: str | None = None, timeout_s: float = 50.0) -> None:
        key = os.environ.get(_KEY_VARIABLE)
        self.url, self.model, self.criterion = url, model, criterion
        self._endpoint = Endpoint(url, model, key=SecretStr(key) if key else None, timeout_s=timeout_s)

    def __call__(self, completion: str, prompt: str, row: Mapping[str, Json]) -> float:
        """Returns the verdict; raises JudgeUnavailable or VerdictUnreadable where there is none."""
        criterion = self.criterion or _as_text(row.get("criterion") or "")
        if not criterion and row.get("answer") is not None:
            criterion = f"It gives the same final answer as this reference: {_as_text(row['answer'])}"
        return float(EndpointJudge(self._endpoint, criterion or _CORRECT).passes(prompt, completion))

    def __repr__(self) -> str:
        return f"JudgeReward({self.url!r}, {self.model!r}, criterion={self.criterion!r})"


_INVALID = object()


def _parse_json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _INVALID


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _read_answer(answer: Json) -> str:
    """Returns the column answer as text; ScoringError where the row has none: no reply to it is right or wrong."""
    if answer is None:
        raise ScoringError("the row has no answer", hint="leave the row out, or fill the column answer")
    return _as_text(answer)


def _without_nulls(row: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in row.items() if value is not None}


def _require_verdict(grade: Grade) -> float:
    if grade.correct is None:
        raise ScoringError("the reply could not be graded", value=grade.why)
    return float(grade.correct)


# ---------------------------------------------------------------------- by name


def _make_schema_reward(argument: str) -> Reward:
    if not argument:
        return Reward(_check_json, name="json_schema")
    try:
        schema = json.loads(Path(argument).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError([Problem("json_schema", f"{argument} cannot be read as JSON ({error})")]) from error
    return Reward(lambda completion: _check_json(completion, schema), name="json_schema")


def _make_regex_reward(argument: str) -> Reward:
    if not argument:
        return Reward(_match_pattern, name="regex")
    try:
        compile_pattern(argument)
    except SampleInvalid as error:
        raise ConfigError([Problem("regex", str(error))]) from error
    return Reward(lambda completion: _match_pattern(completion, argument), name="regex")


def _make_judge(argument: str) -> Reward:
    model, at_sign, url = argument.rpartition("@")
    if not at_sign or not model or not url:
        message = f"got {argument!r}, expected judge:MODEL@URL"
        raise ConfigError([Problem("judge", message, "for example judge:qwen@http://127.0.0.1:8000/v1")])
    return Reward(JudgeReward(url, model), name="judge")


def _plain(make: Callable[[], RewardFunction], name: str) -> Callable[[str], Reward]:
    def build(argument: str) -> Reward:
        if argument:
            raise ConfigError([Problem(name, f"got {argument!r}, but {name} takes no argument", f"write {name}")])
        return Reward(make(), name=name)

    return build


_BUILDERS: Mapping[str, Callable[[str], Reward]] = {
    "exact": _plain(lambda: exact, "exact"),
    "number": _plain(lambda: number, "number"),
    "maths": _plain(MathsReward, "maths"),
    "code": _plain(CodeReward, "code"),
    "json_schema": _make_schema_reward,
    "regex": _make_regex_reward,
    "judge": _make_judge,
}
REWARD_NAMES: tuple[str, ...] = tuple(_BUILDERS)
"""The names of the built-in rewards."""


def parse_weight(text: str) -> tuple[float, str]:
    """Splits `0.5*exact` into weight and name; a name alone has weight 1.

    >>> parse_weight("0.5*exact"), parse_weight("exact")
    ((0.5, 'exact'), (1.0, 'exact'))
    """
    head, star, name = text.partition("*")
    try:
        return (float(head), name) if star and name else (1.0, text)
    except ValueError:
        return 1.0, text


def find_reward(text: str) -> Reward:
    """Returns the built-in reward of a name, with its argument and weight: `number`, `regex:^yes`, `0.5*exact`.

    Raises:
        ConfigError: an unknown name, or a wrong argument.

    >>> find_reward("0.5*number").weight
    0.5
    """
    weight, name = parse_weight(text)
    base, _, argument = name.partition(":")
    if base not in _BUILDERS:
        raise ConfigError([unknown_name_problem("reward", base, REWARD_NAMES, location="reward")])
    reward = _BUILDERS[base](argument)
    return Reward(reward.function, weight=weight, name=reward.name)
