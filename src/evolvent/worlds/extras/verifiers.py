"""Tasksets of verifiers (0.4) as worlds, by the name of their package: its prompts, its tools and its rewards.

A taskset is played as verifiers' chat loop plays it: a reply that calls tools is answered with their results, and the
first reply without a call is scored by the `@reward` functions of its task. Tools run in this process; each episode has
its own. What only verifiers' runner can do is refused by name: containers, rewards that look into a container, judges,
and environments that speak for the user.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, quote

from evolvent.errors import ConfigError, EnvLost, Problem, boundary, unknown_name_problem
from evolvent.identity import code_fingerprint
from evolvent.messages import Call, Message
from evolvent.trajectory import Json, JsonObject, Score, Task
from evolvent.worlds.base import Info, Reply, check_task
from evolvent.worlds.extras.wrapped import Extra, WrappedWorld
from evolvent.worlds.prompts.rewards import Reward, await_result
from evolvent.worlds.prompts.tools import FunctionTool, ToolFunction, read_calls
from evolvent.worlds.prompts.world import PromptWorld

__all__ = ["VERIFIERS", "VerifiersWorld", "open_verifiers_world"]

VERIFIERS = Extra("verifiers", "verifiers", "a taskset of verifiers")
_log = logging.getLogger(__name__)
_MAX_TASKS = 10_000  # tasks of a taskset that are read; some never end


class VerifiersWorld(WrappedWorld):
    """A taskset of verifiers.

    An episode succeeds where every reward with a positive weight pays 1. Its split follows from the text of the prompt,
    as in `PromptWorld`.

    Args:
        taskset: the name of an installed package that exports a taskset, or of one that verifiers has.
        settings: fields of the taskset's config, JSON values.
        max_turns: most replies of an episode with tools.
        max_tasks: number of tasks that are read.
    Raises:
        ConfigError: an unknown taskset, settings that it refuses, or one that needs verifiers' own runner.
        MissingExtra: verifiers is not installed.
    """

    instructions = ""

    def __init__(
        self,
        taskset: str,
        settings: JsonObject | None = None,
        *,
        max_turns: int = 8,
        max_tasks: int = _MAX_TASKS,
    ) -> None:
        self.taskset, self.settings = taskset, dict(settings or {})
        _check_name(taskset, self.settings)
        query = "&".join(f"{key}={_format_setting(value)}" for key, value in sorted(self.settings.items()))
        self.name = f"verifiers:{taskset}{'?' if query else ''}{query}"
        super().__init__(VERIFIERS)
        self.api = VERIFIERS.load_module("verifiers.v1")
        with boundary(ConfigError, f"the taskset {taskset!r} of verifiers cannot be opened"):
            config_type = self.api.taskset_config_type(taskset)
            self._loaded = self.api.load_taskset(config_type.model_validate({**self.settings, "id": taskset}))
            self._tasks = list(self._loaded.take(max_tasks))
        if not self._tasks:
            raise ConfigError(f"the taskset {taskset!r} has no tasks", value=0, expected="1 or more")
        self._check_tasks()
        first = self._tasks[0]
        self._rewards = _list_rewards(first)
        rewards = [Reward(_never, weight=_weigh(hook), name=hook.__name__) for hook in first.hooks("reward")]
        tools = [tool.function for tool in self._make_tools(first, None)]
        rows = [self._make_row(number, task) for number, task in enumerate(self._tasks)]
        self._prompts = _Prompts(rows, rewards, tools=tools, max_turns=max_turns, name=self.name, version=self.version)
        self.horizon, self.reward_range = self._prompts.horizon, self._prompts.reward_range
        self.splits, self.notes = self._prompts.splits, self._prompts.notes

    def _check_tasks(self) -> None:
        """Refuses what only verifiers' runner can do."""
        hint = "evaluate it with verifiers itself"
        problems = []
        environment = self.api.environment_class(self.taskset)
        if environment is not self.api.SingleAgentEnv:
            problems.append(f"is played by another environment: got {environment.__name__}")
        for task in self._tasks:
            if type(task).NEEDS_CONTAINER or task.data.image is not None:
                problems.append("needs a container")
            if task.data.prompt is None:
                problems.append("lets a user begin: got a task without a prompt")
            if task.config.judges:
                problems.append("is scored by a judge")
            if _list_rewards(task) != _list_rewards(self._tasks[0]):
                problems.append(f"has tasks of different rewards: got {_list_rewards(task)}")
            problems += [
                f"has a reward that needs a container: got {hook.__name__!r}"
                for hook in task.hooks("reward")
                if _needs_runtime(hook)
            ]
        if problems:
            raise ConfigError([Problem(self.name, problem, hint) for problem in dict.fromkeys(problems)])
        if not self._tasks[0].hooks("reward"):
            raise ConfigError([Problem(self.name, "pays no reward: got 0 functions", hint)])
        tool_names = {
            tuple(tool.tool.name for tool in self._make_tools(task, None))
            for task in {type(task): task for task in self._tasks}.values()
        }
        if len(tool_names) > 1:
            raise ConfigError([Problem(self.name, f"has tasks of different tools: got {sorted(tool_names)}", hint)])

    def _make_row(self, number: int, task: Any) -> dict[str, Json]:
        return {"messages": [dict(row) for row in _read_prompt(task)], "number": number, "digest": _digest(task)}

    def _find_source(self, task: Task) -> Any:
        """Returns the taskset's own task; raises ConfigError for the spec of another taskset, or of this one before
        its tasks changed.
        """
        row = task.spec.get("row")
        number, digest = (row.get("number"), row.get("digest")) if isinstance(row, Mapping) else (None, None)
        if not isinstance(number, int) or not 0 <= number < len(self._tasks):
            expected = f"a number below {len(self._tasks)}"
            raise ConfigError("the task is not one of this taskset", value=number, expected=expected)
        source = self._tasks[number]
        if _digest(source) != digest:
            raise ConfigError(
                f"task {number} of {self.name} has changed",
                value=digest,
                expected=_digest(source),
                hint="load its tasks anew; a taskset that shuffles needs a fixed seed",
            )
        return source

    def _make_tools(self, source: Any, state: Any) -> list[FunctionTool]:
        """Returns new tools of a task.

        Args:
            source: the taskset's own task.
            state: the state that tools and rewards share; None: the tools are described and not called.
        """
        tools = list[FunctionTool]()
        with boundary(ConfigError, f"the tools of {self.name} cannot be made"):
            toolsets = [*self._loaded.toolsets(self._loaded.config), *source.toolsets(source.config)]
            for toolset in toolsets:
                settings = getattr(toolset, "config", None)
                if getattr(settings, "url", None) or getattr(settings, "colocated", False):
                    raise ConfigError("a toolset runs on another server", value=type(toolset).__name__)
                if state is not None:
                    await_result(_set_up(toolset, source, state))
                collector = _Collector(toolset.server_name)
                toolset.register(collector)
                tools += map(FunctionTool, collector.functions)
        return tools

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split."""
        return self._prompts.tasks(split, tier)

    def open_prompt(self, task: Task) -> tuple[str, Info]:
        """Returns the first observation and its info, with the messages and the tools."""
        observation, info = self._prompts.make(task).reset()
        return str(observation), info

    def _open_session(self, task: Task) -> _TasksetSession:
        check_task(self, task)
        return _TasksetSession(self, task)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = the weighted sum of the rewards, unit = its share of full marks."""
        score = self._prompts.score(rewards, info)
        paid = info.get("rewards")
        if score.success is None or not isinstance(paid, Mapping):
            return score
        return replace(score, success=all(paid[name] >= 1 for name, weight in self._rewards if weight > 0))

    def describe(self) -> str:
        """Returns a line with the splits, the rewards and their weights, and the tools."""
        return self._prompts.describe()

    @cached_property
    def fingerprint(self) -> str:
        """Returns a digest of the taskset's code, of the release of its package, and of its tasks with their answers:
        stages that depend on them are done again when they change.
        """
        release = ""
        with suppress(PackageNotFoundError):
            release = installed_version(self.taskset)
        return code_fingerprint([type(self._loaded), type(self._tasks[0])], release, self._prompts.fingerprint)

    def vocabulary(self) -> Sequence[str]:
        """Returns the words of all prompts and tools."""
        return self._prompts.vocabulary()


class _Prompts(PromptWorld):
    """The prompts of a taskset, dealt to splits; the taskset's own hooks score the replies."""

    def __init__(self, rows: Sequence[Mapping[str, Json]], rewards: Sequence[Reward], *, version: str, **settings: Any):
        self.version = version
        super().__init__(list(rows), list(rewards), **settings)


class _TasksetSession:
    """One episode: a trace of verifiers that grows turn by turn."""

    def __init__(self, world: VerifiersWorld, task: Task) -> None:
        self._world, self._task, self._source = world, task, world._find_source(task)
        self._api: ModuleType = world.api
        self._trace: Any = None
        self._tools: list[FunctionTool] = []
        self._num_turns = 0

    def begin(self) -> tuple[str, Info]:
        api, source, modules = self._api, self._source, VERIFIERS.load_module("verifiers.v1.state")
        described = api.TraceTask(type=type(source).__name__, data=source.data, key=source.key, hash=source.hash)
        agent = api.AgentInfo(config=api.AgentConfig())
        self._trace = api.Trace(task=described, state=modules.state_cls(type(source))(), agent=agent)
        self._num_turns = 0
        self._call(source.setup)
        self._tools = self._world._make_tools(source, self._trace.state)
        for row in _read_prompt(source):
            message_type = {"system": api.SystemMessage, "assistant": api.AssistantMessage}
            self._add(message_type.get(str(row["role"]), api.UserMessage)(content=row["content"]))
        return self._world.open_prompt(self._task)

    def act(self, action: str) -> Reply:
        api, self._num_turns = self._api, self._num_turns + 1
        said, calls = read_calls(action, [tool.tool for tool in self._tools])
        if not calls or self._num_turns >= self._world.horizon:
            self._add(api.AssistantMessage(content=said.strip() if calls else action), sampled=True)
            return self._finish("agent_completed" if not calls else "max_turns")
        named = [replace(call, id=f"call{self._num_turns - 1}{number}") for number, call in enumerate(calls)]
        rows = [api.ToolCall(id=call.id, name=call.name, arguments=json.dumps(dict(call.arguments))) for call in named]
        self._add(api.AssistantMessage(content=said.strip() or None, tool_calls=rows), sampled=True)
        results, problems = list[Message](), list[str]()
        for call in named:
            text, problem = self._run(call)
            results.append(Message("tool", text, tool_call_id=call.id))
            problems += [problem] if problem else []
            self._add(api.ToolMessage(tool_call_id=call.id, content=text, name=call.name))
        for hook in self._source.hooks("stop"):
            if "trace" in inspect.signature(hook).parameters and self._call(hook):
                return self._finish(hook.__name__)
        observation = "\n".join(message.text for message in results)
        info: dict[str, object] = {"messages": [message.as_openai() for message in results]}
        if problems:
            info["tool_problem"] = problems[0]
        return observation, 0.0, False, False, info

    def _run(self, call: Call) -> tuple[str, str]:
        """Returns the text of a call's result, and its problem ("": it ran)."""
        by_name = {tool.name: tool for tool in self._tools}
        if call.name not in by_name:
            problem = unknown_name_problem("tool", call.name, by_name)
            return f"error: {problem.describe()}", ""
        result = by_name[call.name].run(call.arguments)
        return result.text, result.problem

    def _finish(self, reason: str) -> Reply:
        trace, source = self._trace, self._source
        trace.stop(reason)
        trace.is_completed, trace.ok = True, True
        self._call(source.finalize)
        await_result(source.score(trace))
        values = {name: None if reward is None else float(reward.score) for name, reward in trace.rewards.items()}
        if None in values.values():
            raise EnvLost(f"{self._world.name} left a reward open", value=values)
        names = {name for name, _ in self._world._rewards}
        if set(values) != names or not all(0 <= value <= 1 for value in values.values() if value is not None):
            raise EnvLost(
                f"{self._world.name} paid otherwise", value=values, expected=f"0 to 1 for each of {sorted(names)}"
            )
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return "", float(trace.reward), True, False, {"rewards": values, **({"metrics": metrics} if metrics else {})}

    def _call(self, hook: Callable[..., Any]) -> Any:
        """Calls a hook of the task with the arguments that it names; there is no runtime."""
        available = {"trace": self._trace, "task": self._source.data, "runtime": None}
        names = inspect.signature(hook).parameters
        value = hook(**{name: available[name] for name in names if name in available})
        return await_result(value) if inspect.isawaitable(value) else value

    def _add(self, message: Any, *, sampled: bool = False) -> None:
        nodes = self._trace.nodes
        nodes.append(self._api.MessageNode(parent=len(nodes) - 1 if nodes else None, message=message, sampled=sampled))

    def close(self) -> None:
        self._trace, self._tools = None, []


class _Collector:
    """Stands where a toolset expects its MCP server, and keeps the functions that it registers."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.functions: list[ToolFunction] = []

    def add_tool(self, fn: Callable[..., Any], name: str | None = None, description: str | None = None) -> None:
        """Keeps a function under the name that the model reads: that of its server and its own."""

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        own_name = name or fn.__name__
        call.__name__ = f"{self._prefix}_{own_name}" if self._prefix else own_name
        call.__doc__ = description
        self.functions.append(call)


async def _set_up(toolset: Any, source: Any, state: Any) -> None:
    """Prepares a toolset for one episode: its state is the episode's own, not one behind a server."""

    async def pull() -> Any:
        return state

    async def push(before: bytes) -> None:
        return None  # the tools have changed the state itself

    toolset._pull_state, toolset._push_state = pull, push
    await toolset.setup()
    await toolset.setup_task(source.data)


def _read_prompt(source: Any) -> list[dict[str, Json]]:
    """Returns the messages of a task's prompt in OpenAI's form."""
    data = source.data
    rows: list[dict[str, Json]] = []
    if data.system_prompt:
        rows.append({"role": "system", "content": data.system_prompt})
    if isinstance(data.prompt, str):
        return [*rows, {"role": "user", "content": data.prompt}]
    for message in data.prompt or ():
        content = message.content
        if not isinstance(content, str):
            parts = [part.text if part.type == "text" else None for part in content or ()]
            if None in parts:
                raise ConfigError("the prompt of a task holds more than text", value=data.name or data.idx)
            content = "".join(map(str, parts))
        rows.append({"role": message.role, "content": content})
    return rows


def _check_name(taskset: str, settings: JsonObject) -> None:
    """Refuses what verifiers would fetch from a hub or read from a file of code: only installed packages are run."""
    if re.fullmatch(r"[A-Za-z0-9_.-]+", taskset) is None:
        message = f"got {taskset!r}, expected the name of an installed package"
        raise ConfigError([Problem("verifiers", message, "install the taskset first")])
    if re.search(r"\.py\b", json.dumps(settings)):
        message = "settings that name files of code are refused"
        raise ConfigError([Problem(f"verifiers:{taskset}", message, "put the code into the taskset's package")])


def _digest(source: Any) -> str:
    """Returns sixteen hexadecimal digits of everything that a task holds: its prompt and its answers."""
    content = json.dumps(source.data.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _list_rewards(source: Any) -> list[tuple[str, float]]:
    return [(hook.__name__, _weigh(hook)) for hook in source.hooks("reward")]


def _weigh(hook: Callable[..., Any]) -> float:
    return float(getattr(hook, "_vf_weight", 1.0))


def _needs_runtime(hook: Callable[..., Any]) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is parameter.empty


def _never(completion: str) -> float:
    raise EnvLost("a reward of verifiers was called without its trace", value=completion[:80])


def open_verifiers_world(option: str) -> VerifiersWorld:
    """Opens the world of `NAME?key=value&...`: `max_turns`, `max_tasks`, and fields of the taskset's config as JSON.

    Raises:
        ConfigError: no name, or a value that does not fit; see also `VerifiersWorld`.
    """
    name, _, query = option.partition("?")
    if not name:
        raise ConfigError([Problem("verifiers", "needs the name of a taskset", "for example verifiers:gsm8k_v1")])
    settings = {key: _parse_setting(text) for key, text in parse_qsl(query, keep_blank_values=True)}
    limits = {key: settings.pop(key) for key in ("max_turns", "max_tasks") if key in settings}
    problems = [
        Problem(f"verifiers:{name}", f"got {key} {value!r}, expected a whole number of 1 or more")
        for key, value in limits.items()
        if type(value) is not int or value < 1
    ]
    if problems:
        raise ConfigError(problems)
    return VerifiersWorld(name, settings, **limits)  # type: ignore[arg-type]


def _format_setting(value: Json) -> str:
    """Returns the text from which `_parse_setting` reads the value, as it stands in a world's name."""
    text = value if isinstance(value, str) and _parse_setting(value) == value else json.dumps(value)
    return quote(text, safe='/:,"[]{} ')


def _parse_setting(text: str) -> Json:
    """Returns a JSON value; any other text unchanged."""
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value
