"""An MCP server as a world: `McpWorld("http://127.0.0.1:8000/mcp", tasks=[{"prompt": ..., "answer": ...}])`.

A server has tools, and nothing else that a world needs: what is asked, when it is over and what it was worth come from
the caller. An action is a call, written `NAME {"argument": value}`; the observation is the text that it gave. Every Env
has a session (and, for a command, a process) of its own.
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
from evolvent.serve.given import Given, GivenWorld, Panels, Patience, Rules
from evolvent.serve.loop import CLOSING_S, Loop
from evolvent.serve.remote.http import address
from evolvent.serve.toolcalls import CallGrammar, call_of, named, written
from evolvent.serve.wire import finite
from evolvent.trajectory import Task, Value
from evolvent.worlds.base import Env, Info, Reply, check_task
from evolvent.worlds.grammar import Plain

if TYPE_CHECKING:
    from evolvent.serve.mcp.link import Answer, Link

__all__ = ["Answered", "Called", "Judge", "McpWorld", "Reported", "Verdict"]


@dataclass(frozen=True, slots=True)
class Called:
    """A call and what came of it.

    Args:
        text, structured: of the result; empty for a tool that the server does not have.
        failed: the tool says that it did not work.
    """

    call: Call
    text: str = ""
    structured: Any = None
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a call was worth, and whether it ended the episode. reward None: not scored."""

    reward: float | None = 0.0
    terminated: bool = False
    truncated: bool = False


class Judge(Protocol):
    """Says of every call what it was worth.

    Attributes:
        finish: a tool that ends the episode and need not be one of the server; None: the server ends it.
    """

    @property
    def finish(self) -> Tool | None: ...

    def __call__(self, spec: Mapping[str, Any], called: Called) -> Verdict:
        """The verdict on a call in the episode of this task."""
        ...


class Answered:
    """The episode ends by `finish(answer)`, and is worth what `check` says.

    Args:
        finish: the name of the tool. If the server has it, it is called there, too.
        check: from the task's spec and the answer to a reward; None: 1 if the answer is `spec["answer"]` but for case
            and spaces, else 0; not scored where the spec holds no answer.
    """

    def __init__(
        self, finish: str = "finish", *, check: Callable[[Mapping[str, Any], str], float | None] | None = None
    ) -> None:
        answer = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
        self.finish: Tool | None = Tool(finish, "Give the answer; this ends the task.", answer)
        self._name, self._check = finish, check or _same

    def __call__(self, spec: Mapping[str, Any], called: Called) -> Verdict:
        if called.call.name != self._name or called.failed:
            return Verdict()
        answer = called.call.arguments.get("answer", "")
        return Verdict(self._check(spec, answer if isinstance(answer, str) else written(called.call)), terminated=True)


def _same(spec: Mapping[str, Any], answer: str) -> float | None:
    if "answer" not in spec:
        return None
    wanted = str(spec["answer"])
    return float(" ".join(answer.split()).casefold() == " ".join(wanted.split()).casefold())


class Reported:
    """The server says it in the structured content of its results: `{reward, terminated, truncated}`, as ours does."""

    finish: Tool | None = None

    def __call__(self, spec: Mapping[str, Any], called: Called) -> Verdict:
        told = called.structured if isinstance(called.structured, Mapping) else {}
        reward = told.get("reward", 0.0 if called.failed else None)
        number = None if isinstance(reward, bool) else finite(reward)
        return Verdict(number, told.get("terminated") is True, told.get("truncated") is True)


class McpWorld(GivenWorld):
    """The tools of an MCP server as actions.

    Args:
        server: a URL of streamable HTTP, or a command as a list of words (never through a shell).
        tasks: one spec a task: `prompt` is the first observation; the rest is for the judge. Given as a list they are
            dealt to splits by hash; given by split, as they are.
        judge: what calls are worth and when it is over.
        begin: a tool that begins an episode (`evolvent_reset` of our servers): called at every reset with
            `spec["begin"]` as its arguments; what it gives is observed after the prompt. Agents cannot call it.
        name: of the world; None: what the server calls itself.
        rules: what a server does not tell; its instructions are followed by the list of tools.
        patience: how long to wait, and for how large an answer.
        token: sent as a bearer token over HTTP.

    Raises:
        MissingExtra: the SDK is not installed.
        ConfigError: no server, tasks that are none, or no tool `begin`.
        EnvLost: the server cannot be started or reached, or speaks no MCP.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        tasks: Given,
        judge: Judge | None = None,
        begin: str | None = None,
        name: str | None = None,
        rules: Rules | None = None,
        patience: Patience | None = None,
        token: str | None = None,
    ) -> None:
        try:
            from evolvent.serve.mcp.link import Link
        except ImportError as error:
            raise MissingExtra("mcp", "an MCP server as a world") from error
        if isinstance(server, str):
            address(server)
        elif not server or not all(isinstance(word, str) and word for word in server):
            raise ConfigError([Problem("server", f"no command: {server!r}", 'for example ["python", "server.py"]')])
        self._link, self.server = Link, server
        self.judge: Judge = judge or Answered()
        self.begin, self.patience, rules = begin, patience or Patience(), rules or Rules()
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self.loop = Loop("evolvent-mcp")
        said = self._described()
        self.name, self.version = name or said.name, said.version
        self.tools = self._offered(said.tools)
        self.hosted = frozenset(tool.name for tool in said.tools)
        self.instructions = _told(said.instructions if rules.instructions is None else rules.instructions, self.tools)
        self.grammar = CallGrammar() if isinstance(rules.grammar, Plain) else rules.grammar
        self.horizon, self.reward_range, self._success = rules.horizon, rules.reward_range, rules.success
        self._panels = Panels(self.name, self.version, tasks)

    def __repr__(self) -> str:
        return f"McpWorld({self.server!r}, name={self.name!r})"

    def make(self, task: Task) -> Env:
        """An Env; its session begins with its first reset."""
        check_task(self, task)
        return _Env(self, task)

    def toolbox(self, task: Task) -> McpWorld:
        """The tools of a task: the same for all (`tools`)."""
        return self

    def render(self, call: Call) -> str:
        """The action that makes a call."""
        return written(call)

    def close(self) -> None:
        """End all sessions and their processes; the world cannot be used any more."""
        self.loop.close()

    def link(self) -> Link:
        """A session of its own, to be opened; `leave` it."""
        link = self._link(self.server, self.patience, headers=self._headers)
        self.loop.keep(link)
        return link

    def leave(self, link: Link, *, wait: bool = True) -> None:
        """End a session. wait: until it has ended (a child that will not go is killed after some seconds)."""
        if not self.loop.running:
            return
        ending = self.loop.start(link.close(), what="close")
        ending.add_done_callback(lambda _: self.loop.forget(link))
        if wait:
            ending.result(2 * CLOSING_S)

    def _described(self) -> Any:
        """What the server says of itself, in a session that ends with that."""
        link = self.link()
        try:
            return self.loop.run(link.open(), self.patience.reset_s, what=repr(self.server))
        finally:
            self.leave(link)

    def _offered(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """What agents may call: the server's tools without `begin`, and the judge's."""
        known = [tool.name for tool in tools]
        if self.begin is not None and self.begin not in known:
            what = f"the server has no tool {self.begin!r}"
            raise ConfigError([Problem("begin", what, f"it has: {', '.join(sorted(known)) or 'none'}")])
        finish = self.judge.finish
        own = (finish,) if finish is not None and finish.name not in known else ()
        return (*(tool for tool in tools if tool.name != self.begin), *own)


def _told(said: str, tools: Sequence[Tool]) -> str:
    """The instructions of an agent: what the server says, how a call is written, and what there is to call."""
    lines = [f"{tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}" for tool in tools]
    how = 'Write one call at a time: NAME {"argument": value}. Tools:'
    return "\n".join([*([said] if said else []), how, *lines])


class _Env:
    """One episode in a session of its own."""

    def __init__(self, world: McpWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._session: Link | None = None
        self._playing = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Begin the episode: in a new session, or by the tool `begin` in the one that there is."""
        world, spec = self._world, self._task.spec
        self._playing = False
        if world.begin is None or self._session is None:
            self._leave()
            self._session = world.link()
            world.loop.run(self._session.open(), world.patience.reset_s, what=repr(world.server))
        parts = [str(spec["prompt"])] if "prompt" in spec else []
        info: Info = {}
        if world.begin is not None:
            given = spec.get("begin", {})
            call = Call(world.begin, given if isinstance(given, Mapping) else {})
            answer = self._asked(call, world.patience.reset_s)
            if answer.failed:
                raise WorldError(f"{world.begin} failed", value=answer.text, hint="check the task's spec")
            parts.append(answer.text)
            info = {"structured": answer.structured}
        self._playing = True
        return "\n".join(parts), info

    def step(self, action: Value) -> Reply:
        """Make a call. It is never sent twice."""
        if not self._playing:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        self._playing = False
        try:
            call = call_of(str(action))
            named(self._world.tools, call.name)
            called = self._called(call)
        except InvalidAction as wrong:
            self._playing = True
            return f"invalid call: {wrong}", 0.0, False, False, {"invalid": True}
        with boundary(WorldError, "the judge failed"):
            verdict = self._world.judge(self._task.spec, called)
        self._playing = not (verdict.terminated or verdict.truncated)
        text, info = self._shown(called)
        return text, verdict.reward, verdict.terminated, verdict.truncated, info  # type: ignore[return-value]

    def close(self) -> None:
        """End the session."""
        self._playing = False
        self._leave(wait=True)

    def _called(self, call: Call) -> Called:
        if call.name not in self._world.hosted:
            return Called(call)
        answer = self._asked(call, self._world.patience.step_s)
        return Called(call, answer.text, answer.structured, answer.failed)

    def _asked(self, call: Call, timeout_s: float) -> Answer:
        """What a call gave. A session in which one was lost is left."""
        session, world = self._session, self._world
        if session is None:
            raise SessionGone("no session", value=call.name, expected="reset() first")
        try:
            work = session.call(call.name, call.arguments, timeout_s)
            return world.loop.run(work, timeout_s + 1.0, what=f"{call.name} of {world.name}")
        except InvalidAction:
            raise
        except EvolventError:
            self._leave()
            raise

    def _shown(self, called: Called) -> tuple[str, Info]:
        """The text of a result, cut to what is allowed, and the rest of it."""
        limit = self._world.patience.message_bytes
        info: dict[str, Any] = {} if called.structured is None else {"structured": called.structured}
        if called.failed:
            info["invalid"] = True
        if len(called.text) > limit:
            info["obs_truncated"] = True
        return called.text[:limit], info

    def _leave(self, *, wait: bool = False) -> None:
        """End the session; unless told to, do not wait for a child to die."""
        session, self._session = self._session, None
        if session is not None:
            self._world.leave(session, wait=wait)
