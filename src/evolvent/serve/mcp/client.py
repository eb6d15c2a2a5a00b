"""An MCP server as a world: `McpWorld("http://127.0.0.1:8000/mcp", tasks=[{"prompt": ..., "answer": ...}])`.

A server has tools, and nothing else that a world needs: the prompt, the end of the episode and the reward come from
the caller. An action is a call, written `NAME {"argument": value}`; the observation is the text of its result. Every
Env has its own session (and, for a command, its own process).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from evolvent.errors import (
    ConfigError,
    EvolventError,
    InvalidAction,
    MissingExtra,
    Problem,
    SessionGone,
    WorldError,
    boundary,
)
from evolvent.messages import Call, Tool
from evolvent.serve.given import ClientTimeouts, SpecWorld, TaskPanels, TaskSpecs, WorldRules
from evolvent.serve.loop import CLOSE_TIMEOUT_S, Loop
from evolvent.serve.remote.http import parse_server_url
from evolvent.serve.toolcalls import CallGrammar, find_tool, format_call, parse_call
from evolvent.serve.wire import finite_or_none
from evolvent.trajectory import Json, Task, Value
from evolvent.worlds.base import Env, Info, Plain, Reply, check_task

if TYPE_CHECKING:
    from evolvent.serve.mcp.link import CallAnswer, McpSession

__all__ = ["AnswerReward", "CallResult", "CallReward", "McpWorld", "ReportedReward", "RewardFunction"]


@dataclass(frozen=True, slots=True)
class CallResult:
    """A call and its result.

    Args:
        text: text of the result; empty for a tool that the server does not have.
        structured: structured content of the result.
        failed: whether the tool reports a failure.
    """

    call: Call
    text: str = ""
    structured: Json = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class CallReward:
    """The reward of a call, and whether it ended the episode. reward None: not scored."""

    reward: float | None = 0.0
    terminated: bool = False
    truncated: bool = False


class RewardFunction(Protocol):
    """Computes the reward of every call.

    Attributes:
        finish: a tool that ends the episode and need not be one of the server; None: the server ends it.
    """

    @property
    def finish(self) -> Tool | None: ...

    def __call__(self, spec: Mapping[str, object], result: CallResult) -> CallReward:
        """Returns the reward of a call in the episode of this task."""
        ...


class AnswerReward:
    """A reward function for episodes that end by `finish(answer)`.

    Args:
        finish: name of the tool. If the server has it, it is called there, too.
        check: from the task's spec and the answer to a reward; None: 1 if the answer is `spec["answer"]` up to case and
            spaces, else 0; not scored if the spec holds no answer.
    """

    def __init__(
        self, finish: str = "finish", *, check: Callable[[Mapping[str, object], str], float | None] | None = None
    ) -> None:
        answer = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
        self.finish: Tool | None = Tool(finish, "Give the answer; this ends the task.", answer)
        self._name, self._check = finish, check or _match_answer

    def __call__(self, spec: Mapping[str, object], result: CallResult) -> CallReward:
        if result.call.name != self._name or result.failed:
            return CallReward()
        answer = result.call.arguments.get("answer", "")
        return CallReward(
            self._check(spec, answer if isinstance(answer, str) else format_call(result.call)), terminated=True
        )


def _match_answer(spec: Mapping[str, Any], answer: str) -> float | None:
    if "answer" not in spec:
        return None
    expected = str(spec["answer"])
    return float(" ".join(answer.split()).casefold() == " ".join(expected.split()).casefold())


class ReportedReward:
    """A reward function that reads `{reward, terminated, truncated}` in the structured results, as our server writes
    them.
    """

    finish: Tool | None = None

    def __call__(self, spec: Mapping[str, object], result: CallResult) -> CallReward:
        fields = result.structured if isinstance(result.structured, Mapping) else {}
        reward = fields.get("reward", 0.0 if result.failed else None)
        number = None if isinstance(reward, bool) else finite_or_none(reward)
        return CallReward(number, fields.get("terminated") is True, fields.get("truncated") is True)


class McpWorld(SpecWorld):
    """The tools of an MCP server as actions.

    Args:
        server: a URL of streamable HTTP, or a command as a list of words (never through a shell).
        tasks: one spec a task: `prompt` is the first observation; the rest is for the reward function. A list is dealt
            to splits by hash; a mapping by split is used as it is.
        reward_function: computes the reward of calls and the end of the episode.
        begin: a tool that starts an episode (`evolvent_reset` of our servers): called at every reset with
            `spec["begin"]` as its arguments; its result follows the prompt. Agents cannot call it.
        name: name of the world; None: the server's name for itself.
        rules: properties that a server does not report; its instructions are followed by the list of tools.
        timeouts: timeouts, and the largest answer.
        token: sent as a bearer token over HTTP.

    Raises:
        MissingExtra: the SDK is not installed.
        ConfigError: no server, invalid tasks, or no tool `begin`.
        EnvLost: the server cannot be started or reached, or does not speak MCP.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        tasks: TaskSpecs,
        reward_function: RewardFunction | None = None,
        begin: str | None = None,
        name: str | None = None,
        rules: WorldRules | None = None,
        timeouts: ClientTimeouts | None = None,
        token: str | None = None,
    ) -> None:
        try:
            from evolvent.serve.mcp.link import McpSession
        except ImportError as error:
            raise MissingExtra("mcp", "an MCP server as a world") from error
        if isinstance(server, str):
            parse_server_url(server)
        elif not server or not all(isinstance(word, str) and word for word in server):
            raise ConfigError(
                [Problem("server", f"got {server!r}, expected a command", 'for example ["python", "server.py"]')]
            )
        self._link, self.server = McpSession, server
        self.judge: RewardFunction = reward_function or AnswerReward()
        self.begin, self.patience, rules = begin, timeouts or ClientTimeouts(), rules or WorldRules()
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.loop = Loop("evolvent-mcp")
        description = self._describe_server()
        self.name, self.version = name or description.name, description.version
        self.tools = self._list_offered(description.tools)
        self.hosted = frozenset(tool.name for tool in description.tools)
        self.instructions = _build_instructions(
            description.instructions if rules.instructions is None else rules.instructions, self.tools
        )
        self.grammar = CallGrammar() if isinstance(rules.grammar, Plain) else rules.grammar
        self.horizon, self.reward_range, self._success = rules.horizon, rules.reward_range, rules.success
        self._panels = TaskPanels(self.name, self.version, tasks)

    def __repr__(self) -> str:
        return f"McpWorld({self.server!r}, name={self.name!r})"

    def make(self, task: Task) -> Env:
        """Creates an Env; its session starts with its first reset."""
        check_task(self, task)
        return _McpEnv(self, task)

    def toolbox(self, task: Task) -> McpWorld:
        """Returns the tools of a task: the same for all (`tools`)."""
        return self

    def render(self, call: Call) -> str:
        """Formats the action that makes a call."""
        return format_call(call)

    def close(self) -> None:
        """Ends all sessions and their processes; the world cannot be used any more."""
        self.loop.close()

    def create_session(self) -> McpSession:
        """Creates a session, to be opened; end it with `end_session`."""
        session = self._link(self.server, self.patience, headers=self._headers)
        self.loop.keep(session)
        return session

    def end_session(self, session: McpSession, *, wait: bool = True) -> None:
        """Ends a session. wait: until it has ended (a child that does not exit is killed after some seconds)."""
        if not self.loop.is_running:
            return
        ending = self.loop.start(session.close(), label="close")
        ending.add_done_callback(lambda _: self.loop.forget(session))
        if wait:
            ending.result(2 * CLOSE_TIMEOUT_S)

    def _describe_server(self) -> Any:
        """Returns the server's description of itself, in a session of its own."""
        session = self.create_session()
        try:
            return self.loop.run(session.open(), self.patience.reset_s, label=repr(self.server))
        finally:
            self.end_session(session)

    def _list_offered(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """Returns the tools that agents may call: the server's without `begin`, and the reward function's."""
        names = [tool.name for tool in tools]
        if self.begin is not None and self.begin not in names:
            problem = f"the server has no tool {self.begin!r}"
            raise ConfigError([Problem("begin", problem, f"the server has: {', '.join(sorted(names)) or 'none'}")])
        finish = self.judge.finish
        extra_tools = (finish,) if finish is not None and finish.name not in names else ()
        return (*(tool for tool in tools if tool.name != self.begin), *extra_tools)


def _build_instructions(instructions: str, tools: Sequence[Tool]) -> str:
    """Builds the instructions of an agent: the server's text, the form of a call, and the list of tools."""
    lines = [f"{tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}" for tool in tools]
    format_hint = 'Write one call at a time: NAME {"argument": value}. Tools:'
    return "\n".join([*([instructions] if instructions else []), format_hint, *lines])


class _McpEnv:
    """One episode in its own session."""

    def __init__(self, world: McpWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._session: McpSession | None = None
        self._playing = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Starts the episode: in a new session, or by the tool `begin` in the current one."""
        world, spec = self._world, self._task.spec
        self._playing = False
        if world.begin is None or self._session is None:
            self._end_session()
            self._session = world.create_session()
            world.loop.run(self._session.open(), world.patience.reset_s, label=repr(world.server))
        parts = [str(spec["prompt"])] if "prompt" in spec else []
        info: Info = {}
        if world.begin is not None:
            arguments = spec.get("begin", {})
            call = Call(world.begin, arguments if isinstance(arguments, Mapping) else {})
            answer = self._call_server(call, world.patience.reset_s)
            if answer.failed:
                raise WorldError(f"{world.begin} failed", value=answer.text, hint="check the task's spec")
            parts.append(answer.text)
            info = {"structured": answer.structured}
        self._playing = True
        return "\n".join(parts), info

    def step(self, action: Value) -> Reply:
        """Plays a step by a call. It is never sent twice."""
        if not self._playing:
            raise SessionGone(
                "step was called after the end of the episode", value=str(action), expected="reset() first"
            )
        self._playing = False
        try:
            call = parse_call(str(action))
            find_tool(self._world.tools, call.name)
            result = self._make_call(call)
        except InvalidAction as error:
            self._playing = True
            return f"invalid call: {error}", 0.0, False, False, {"invalid": True}
        with boundary(WorldError, "the judge failed"):
            reward = self._world.judge(self._task.spec, result)
        self._playing = not (reward.terminated or reward.truncated)
        text, info = self._format_result(result)
        return text, reward.reward, reward.terminated, reward.truncated, info  # type: ignore[return-value]

    def close(self) -> None:
        """Ends the session."""
        self._playing = False
        self._end_session(wait=True)

    def _make_call(self, call: Call) -> CallResult:
        if call.name not in self._world.hosted:
            return CallResult(call)
        answer = self._call_server(call, self._world.patience.step_s)
        return CallResult(call, answer.text, answer.structured, answer.failed)

    def _call_server(self, call: Call, timeout_s: float) -> CallAnswer:
        """Returns the answer to a call. If the session is lost, it is ended."""
        session, world = self._session, self._world
        if session is None:
            raise SessionGone("call without a session", value=call.name, expected="reset() first")
        try:
            coroutine = session.call(call.name, call.arguments, timeout_s)
            return world.loop.run(coroutine, timeout_s + 1.0, label=f"{call.name} of {world.name}")
        except InvalidAction:
            raise
        except EvolventError:
            self._end_session()
            raise

    def _format_result(self, result: CallResult) -> tuple[str, Info]:
        """Returns the text of a result, cut to the limit, and its info."""
        limit = self._world.patience.message_bytes
        info: dict[str, Any] = {} if result.structured is None else {"structured": result.structured}
        if result.failed:
            info["invalid"] = True
        if len(result.text) > limit:
            info["obs_truncated"] = True
        return result.text[:limit], info

    def _end_session(self, *, wait: bool = False) -> None:
        """Ends the session; waits for a child to exit only if asked to."""
        session, self._session = self._session, None
        if session is not None:
            self._world.end_session(session, wait=wait)
