"""The world of a user's prompts: each row of a table is a task, and reward functions score the reply.

With tools, an episode has several turns: a reply that calls tools is answered with their results, and the first reply
without a call ends the episode. Splits follow from the text of the prompts: nothing depends on a file's name or on the
order of its rows, and rows with the same prompt are in the same split.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from evolvent.data.tables import Rows, TableRow, read_table
from evolvent.errors import ConfigError, EvolventError, Problem, SampleInvalid, unknown_name_problem
from evolvent.identity import code_fingerprint
from evolvent.messages import Call, Message, Tool
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import SPLITS, Grammar, Info, Plain, Reply, StateEnv, check_task, score_episode
from evolvent.worlds.panel import check_names
from evolvent.worlds.prompts.rewards import Completion, Rewards, make_rewards
from evolvent.worlds.prompts.tools import FunctionTool, ToolFunction, read_calls

__all__ = ["PROMPT_COLUMNS", "PromptEnv", "PromptWorld"]

PROMPT_COLUMNS = ("prompt", "messages", "question", "problem")
"""The columns that hold prompts, in the order in which they are looked for."""
_log = logging.getLogger(__name__)
_HELD_OUT = ("dev", "test")
_MIN_SPLIT = 2  # rows of a split that can be evaluated
_TOOLS_HEAD = "You may call these functions:"
_TOOLS_FORM = (
    'To call one, reply with a JSON list alone: [{"name": "a function", "arguments": {"a parameter": "its value"}}]. '
    "You then read its result. Reply without a call when you know the answer."
)
_WORDS = re.compile(r"\w+|[^\w\s]")


class PromptWorld:
    """A world of prompts, rewards and tools.

    Args:
        dataset: a list of dicts, a `datasets.Dataset` or `DatasetDict`, a data frame, or a path to JSON lines, JSON,
            CSV or Parquet, with one of the columns `prompt`, `messages`, `question` and `problem`.
        rewards: one or several functions `def reward(completion, **row) -> float`, sync or async; a pair
            `(function, weight)` weighs one. The reward of an episode is their weighted sum.
        tools: typed functions that the model may call.
        weights: a weight for each reward; None: those of the pairs, or 1.
        instructions: a system message for rows without one.
        max_turns: most replies of an episode with tools.
        success_at: reward from which an episode counts as a success; None: every reward with a positive weight pays 1.
        prompt_column: the column of the prompts; None: the first of `PROMPT_COLUMNS` that the rows have.
        name: its name.
    Attributes:
        splits: number of tasks by split.
        notes: sentences that tell how the table was read.
    Raises:
        ConfigError: a table without usable prompts, a column that a reward needs and no row has, or a tool without
            types; all problems of the table at once.

    >>> world = PromptWorld([{"prompt": f"say {n}", "answer": n} for n in range(20)], lambda text, answer: 1.0)
    >>> world.splits
    {'train': 16, 'dev': 2, 'test': 2}
    """

    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread = True
    reply_hint = ""  # what an endpoint's model is told about the form of a reply: nothing
    timeout_hint = "a reward or tool took longer; in Python, raise reward_timeout_s"

    def __init__(
        self,
        dataset: Rows,
        rewards: Rewards,
        *,
        tools: Sequence[ToolFunction] | ToolFunction = (),
        weights: Sequence[float] | None = None,
        instructions: str = "",
        max_turns: int = 8,
        success_at: float | None = None,
        prompt_column: str | None = None,
        name: str = "prompts",
    ) -> None:
        self.name, self.instructions = name, instructions
        self.rewards = make_rewards(rewards, weights)
        functions = [tools] if callable(tools) else list(tools)
        self.tools = tuple(FunctionTool(function) for function in functions)
        _check_tool_names(self.tools)
        if max_turns < 1:
            raise ConfigError([Problem("max_turns", f"got {max_turns}, expected 1 or more")])
        self.horizon = max_turns if self.tools else 1
        full_marks = sum(max(reward.weight, 0.0) for reward in self.rewards) or 1.0
        self.reward_range = (0.0, full_marks)
        self._success_at = full_marks if success_at is None else success_at
        self._column = prompt_column
        rows = _read_prompts(dataset, prompt_column)
        columns = {column for row in rows for column in row.values}
        problems = [problem for reward in self.rewards if (problem := reward.find_problem(columns)) is not None]
        if problems:
            raise ConfigError(problems)
        self._panels, notes = self._deal_panels(rows)
        ambiguities = [note for reward in self.rewards if (note := reward.find_ambiguity(columns)) is not None]
        self.notes = (*ambiguities, *notes)
        self.splits = {split: len(self._panels[split]) for split in SPLITS}
        for note in self.notes:
            _log.warning("%s: %s", name, note)

    @property
    def needs_isolation(self) -> bool:
        """Returns whether a reward runs replies in sandboxes of this host."""
        return any(getattr(reward.function, "needs_isolation", False) for reward in self.rewards)

    def describe(self) -> str:
        """Returns a line with the splits, the rewards and their weights, and the tools."""
        counts = ", ".join(f"{count} {split}" for split, count in self.splits.items())
        rewards = ", ".join(f"{reward.name} x {reward.weight:g}" for reward in self.rewards)
        tools = f"; tools {', '.join(tool.name for tool in self.tools)}" if self.tools else ""
        return f"{self.name}: {counts} rows; rewards {rewards}{tools}"

    @cached_property
    def fingerprint(self) -> str:
        """Returns a digest of rewards, tools and rows: stages that depend on them are done again when one changes."""
        functions = [[reward.function, reward.weight, reward.name] for reward in self.rewards]
        tools = [tool.function for tool in self.tools]
        settings = [self.instructions, self.horizon, self._success_at, self._column]
        tasks = sorted(f"{split} {task.id}" for split in SPLITS for task in self._panels[split])
        return code_fingerprint(functions, tools, settings, tasks)

    def _deal_panels(self, rows: Sequence[TableRow]) -> tuple[Mapping[str, tuple[Task, ...]], tuple[str, ...]]:
        """Returns the tasks by split, and notes about the split."""
        by_id: dict[str, tuple[TableRow, Task]] = {}
        for row in rows:
            task = self._build_task(row, "train")
            if task.id not in by_id or (row.split in _HELD_OUT and by_id[task.id][0].split not in _HELD_OUT):
                by_id[task.id] = (row, task)  # a row of train and of test is held out
        notes = (
            [] if len(by_id) == len(rows) else [f"{len(rows) - len(by_id)} rows repeat another row and are left out"]
        )
        if len(by_id) < _MIN_SPLIT:
            raise ConfigError(
                "the dataset has one row", value=rows[0].where, expected="2 rows or more, to measure the policy"
            )
        stated = {row.split for row, _ in by_id.values()} - {None}
        prompts = {task.id: self._prompt_key(task) for _, task in by_id.values()}
        held_out = {prompts[task.id]: row.split for row, task in by_id.values() if row.split in _HELD_OUT}
        split_of_id = {
            task.id: (row.split if row.split in _HELD_OUT else None)
            or (None if row.split else held_out.get(prompts[task.id]))
            or _split_of(prompts[task.id], kept=("train", *(split for split in stated if split)))
            for row, task in by_id.values()
        }
        _fill_splits(split_of_id, prompts, stated={split for split in stated if split})
        panels: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for row, task in by_id.values():
            split = split_of_id[task.id]
            panels[split].append(task if split == "train" else self._build_task(row, split))
        trained = {prompts[task.id] for task in panels["train"]}
        if shared := len(trained & held_out.keys()):
            notes.append(f"{shared} prompts of dev or test are also in train, where they are learned")
        for split in _HELD_OUT:
            if len(panels[split]) < _MIN_SPLIT:
                notes.append(
                    f"{split} has {len(panels[split])} rows, too few to measure: it has those of train instead"
                )
                panels[split] = [replace(task, split=split) for task in panels["train"]]
        if not panels["train"]:
            raise ConfigError("the dataset has no rows to train on", value="split test or dev alone")
        return {split: tuple(tasks) for split, tasks in panels.items()}, tuple(notes)

    def _build_task(self, row: TableRow, split: str) -> Task:
        kind = row.values.get("kind")
        return Task(
            self.name, self.version, {"row": row.values}, kind if isinstance(kind, str) else "prompt", "seen", split
        )

    def _prompt_key(self, task: Task) -> str:
        return json.dumps([message.as_openai() for message in self.messages(task)], sort_keys=True)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split."""
        check_names(split, tier, self.tiers)
        return self._panels[split]

    def messages(self, task: Task) -> tuple[Message, ...]:
        """Returns the prompt of a task as messages, with the world's instructions where it has no system message."""
        row = task.spec.get("row")
        if not isinstance(row, Mapping):
            raise ConfigError("the task has no row", value=dict(task.spec), expected="a task of a world of prompts")
        messages = _parse_prompt(row, self._column)
        if self.instructions and all(message.role not in ("system", "developer") for message in messages):
            return (Message("system", self.instructions), *messages)
        return messages

    def is_chat(self, task: Task) -> bool:
        """Returns whether the prompt of a task is a list of messages, not a text."""
        row: Mapping[str, Json] = task.spec["row"]
        return isinstance(row.get(_find_column(row, self._column)), list)

    def make(self, task: Task) -> PromptEnv:
        """Creates an Env for one task."""
        check_task(self, task)
        return PromptEnv(self, task)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = the sum, unit = its share of full marks, success = `success_at` was reached."""
        return score_episode(rewards, self.reward_range, success=self._success_at)

    def score_completion(self, completion: Completion, task: Task) -> tuple[float | None, dict[str, object]]:
        """Returns the weighted sum of all rewards, and notes for the step: the rewards by name, or the problem.

        A reward that fails makes the episode unscored: the sum is None, never 0.
        """
        row = task.spec["row"]
        values: dict[str, float] = {}
        try:
            for reward in self.rewards:
                values[reward.name] = reward.score(completion, row)
        except EvolventError as error:
            return None, {"problem": str(error)}
        total = sum(reward.weight * values[reward.name] for reward in self.rewards)
        return total, {"rewards": values} if len(values) > 1 else {}

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns None: a table of prompts has no expert."""
        return None

    def vocabulary(self) -> Sequence[str]:
        """Returns the words of all rows and tools: those that the embedded default policies can read and write."""
        tools = [tool.tool for tool in self.tools]
        texts = ['[ ] ( ) { } , = : " error'] if tools else []
        for split in SPLITS:
            for task in self._panels[split]:
                texts += [json.dumps(task.spec["row"], ensure_ascii=False), _format_prompt(self.messages(task), tools)]
        return list(dict.fromkeys(word for text in texts for word in _WORDS.findall(text)))


@dataclass(frozen=True, slots=True)
class _Conversation:
    """The messages so far, and the number of replies."""

    messages: tuple[Message, ...]
    turns: int = 0


class PromptEnv(StateEnv[_Conversation]):
    """One conversation about a prompt.

    Its info holds `messages` (and `tools`) in OpenAI's form where the observation is not a user's text alone, so that
    an agent with a chat template writes them by it. The observation is the same as text.

    Args:
        world: the world.
        task: the task.
    """

    def __init__(self, world: PromptWorld, task: Task) -> None:
        super().__init__(task, _Conversation(world.messages(task)))
        self._world = world
        self._tools = [tool.tool for tool in world.tools]

    def _observe_start(self) -> tuple[Value, Info]:
        messages = self._start.messages
        if not self._tools and [message.role for message in messages] == ["user"]:
            return messages[0].text, {}
        info = {
            "messages": [message.as_openai() for message in messages],
            **({"tools": [tool.as_openai() for tool in self._tools]} if self._tools else {}),
        }
        return _format_prompt(messages, self._tools), info

    def _transition(self, state: _Conversation, action: Value) -> tuple[_Conversation, Reply]:
        """Runs the calls of a reply, or scores it where it has none or is the last."""
        text, turns = str(action), state.turns + 1
        said, calls = read_calls(text, self._tools)
        if calls and turns < self._world.horizon:
            return self._run_calls(state, said, calls)
        messages = (*state.messages, Message("assistant", text))
        completion = Completion(
            text,
            self._start.messages[-1].text,
            [message.as_openai() for message in messages],
            self._world.is_chat(self._task),
        )
        reward, notes = self._world.score_completion(completion, self._task)
        return _Conversation(messages, turns), ("", reward, True, False, notes)  # type: ignore[return-value]

    def _run_calls(self, state: _Conversation, said: str, calls: Sequence[Call]) -> tuple[_Conversation, Reply]:
        by_name = {tool.name: tool for tool in self._world.tools}
        named = [replace(call, id=f"call{state.turns}{number}") for number, call in enumerate(calls)]
        results, problems = list[Message](), list[str]()
        for call in named:
            tool = by_name.get(call.name)
            if tool is None:
                problem = unknown_name_problem("tool", call.name, by_name)
                text = f"error: {problem.describe()}"
            else:
                result = tool.run(call.arguments)
                text = result.text
                problems += [result.problem] if result.problem else []
            results.append(Message("tool", text, tool_call_id=call.id))
        messages = (*state.messages, Message("assistant", said.strip() or None, tuple(named)), *results)
        observation = "\n".join(message.text for message in results)
        info: dict[str, object] = {"messages": [message.as_openai() for message in results]}
        if problems:
            info["tool_problem"] = problems[0]
        return _Conversation(messages, state.turns + 1), (observation, 0.0, False, False, info)


def _check_tool_names(tools: Sequence[FunctionTool]) -> None:
    repeated = [name for name, count in Counter(tool.name for tool in tools).items() if count > 1]
    if repeated:
        raise ConfigError("two tools have the same name", value=repeated[0], hint="rename one of the functions")


def _format_prompt(messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    """Formats a prompt as text for models without a chat template: tools first, then turns after their roles."""
    is_single = len(messages) == 1
    turns = [message.text if is_single else f"{message.role}: {message.text}" for message in messages]
    return "\n\n".join([*([_format_tools(tools)] if tools else []), *turns])


def _format_tools(tools: Sequence[Tool]) -> str:
    rows = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]
    listed = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f"{_TOOLS_HEAD}\n{listed}\n{_TOOLS_FORM}"


# ---------------------------------------------------------------------- reading the table


def _read_prompts(dataset: Rows, column: str | None) -> list[TableRow]:
    """Reads the rows that have a prompt; the others are counted and told."""
    table = read_table(dataset)
    if not table:
        raise ConfigError("the dataset is empty", value="0 rows", expected="rows with a prompt")
    columns = sorted({name for row in table for name in row.values})
    wanted = PROMPT_COLUMNS if column is None else (column,)
    if columns and not set(wanted) & set(columns):
        raise ConfigError(
            "the dataset has no prompts",
            value=f"columns {', '.join(columns)}",
            expected=f"a column {' or '.join(wanted)}",
            hint="rename the column of the prompts, or name it with prompt_column",
        )
    usable, problems = list[TableRow](), list[Problem]()
    for row in table:
        problem = row.problem
        if not problem:
            try:
                _parse_prompt(row.values, column)
            except SampleInvalid as error:
                problem = str(error)
        if problem:
            problems.append(Problem(row.where, problem))
        else:
            usable.append(row)
    if problems and usable:
        _log.warning("%d of %d rows are left out; the first: %s", len(problems), len(table), problems[0])
    if not usable:
        raise ConfigError(
            [*problems[:5], *([Problem("and", f"{len(problems) - 5} more rows")] if problems[5:] else [])]
        )
    return usable


def _parse_prompt(row: Mapping[str, Json], column: str | None) -> tuple[Message, ...]:
    """Returns the messages of a row's prompt: a text is one message of the user, a last reply is left out.

    Raises:
        SampleInvalid: the prompt is missing, empty, or neither text nor messages.
    """
    name = _find_column(row, column)
    value = row.get(name)
    if isinstance(value, str) and name == "messages":
        try:
            value = json.loads(value)
        except ValueError as error:
            raise SampleInvalid("column 'messages' is not a list of messages", value=str(row[name])[:80]) from error
    if isinstance(value, str):
        if not value.strip():
            raise SampleInvalid(f"column {name!r} is empty", value=value)
        return (Message("user", value),)
    if not isinstance(value, list) or not value:
        expected = "text, or a list of messages"
        raise SampleInvalid(f"column {name!r} is not a prompt", value=_shorten(value), expected=expected)
    messages = [Message.of_openai(_without_nulls(message)) for message in value]
    while messages and messages[-1].role == "assistant":
        messages.pop()
    if not messages:
        raise SampleInvalid(f"column {name!r} has no message before a reply", value=_shorten(value))
    return tuple(messages)


def _find_column(row: Mapping[str, Json], column: str | None) -> str:
    if column is not None:
        return column
    filled = [name for name in PROMPT_COLUMNS if row.get(name) is not None]
    return next(iter(filled), next((name for name in PROMPT_COLUMNS if name in row), PROMPT_COLUMNS[0]))


def _without_nulls(message: object) -> object:
    """Returns a message without the keys that a table fills with null."""
    if not isinstance(message, Mapping):
        return message
    return {key: value for key, value in message.items() if value is not None or key == "content"}


def _shorten(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:60]}"


# ---------------------------------------------------------------------- splits


def _split_of(prompt: str, *, kept: Collection[str]) -> str:
    """Returns the split of a prompt by its hash: about 80 % train, 10 % dev, 10 % test.

    Args:
        kept: train, and the splits that the table states: they get no rows that it does not put there.
    """
    percentile = sample_seed("prompts", "split", prompt) % 100
    split = "train" if percentile < 80 else "dev" if percentile < 90 else "test"
    return "train" if split in kept else split


def _fill_splits(split_of_id: dict[str, str], prompts: Mapping[str, str], *, stated: Collection[str]) -> None:
    """Moves prompts of small tables, those with the smallest hash first, until dev and test have two.

    A table of fewer than six prompts stays in train.
    """
    ids_by_prompt: dict[str, list[str]] = {}
    for task_id, prompt in prompts.items():
        ids_by_prompt.setdefault(prompt, []).append(task_id)
    missing = [split for split in ("test", "dev") if split not in stated]
    if len(ids_by_prompt) < _MIN_SPLIT * len(SPLITS):
        split_of_id.update({task_id: "train" for task_id, split in split_of_id.items() if split in missing})
        return
    for split in missing:
        while sum(value == split for value in split_of_id.values()) < _MIN_SPLIT:
            candidates = [prompt for prompt, ids in ids_by_prompt.items() if split_of_id[ids[0]] == "train"]
            if len(candidates) <= _MIN_SPLIT:
                break
            chosen = min(candidates, key=lambda prompt: sample_seed("prompts", split, prompt))
            split_of_id.update(dict.fromkeys(ids_by_prompt[chosen], split))
