"""Sessions of agents that talk to a served policy, recorded token-exact into the store of a run.

A session is one episode of an agent: the requests that it makes become the steps of a trajectory, with the token ids
that the policy read and sampled. A client names its session in a header (`x-evolvent-session`, or `x-session-id`) or in
the `metadata` of a request (`evolvent_session`). Without a name, a request belongs to the session whose latest reply
its messages extend. A request that extends an earlier reply, or a reply that another request is extending now, is a
fork: a session of its own, recorded as a branch of the first.

A posted reward or a reward function scores a session. Sessions with neither are kept without a score.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from evolvent.engine.asks import Sampling
from evolvent.engine.replies import FINGERPRINT, RECORDED_WORLD, SESSION_HEADER
from evolvent.errors import AtCapacity, ConfigError, EvolventError, LimitExceeded, Problem, SessionGone
from evolvent.messages import Message
from evolvent.serve.openai.conversations import prefix_digests
from evolvent.serve.wire import EpisodeEnded
from evolvent.trajectory import Branch, Generation, JsonObject, Score, Step, Task
from evolvent.worlds.prompts.rewards import Completion, Reward

if TYPE_CHECKING:
    from evolvent.serve.openai.reply import Choice
    from evolvent.store.store import Store

__all__ = ["RecordedTurn", "RewardRequest", "SessionName", "SessionRecorder", "read_session_name"]

_log = logging.getLogger(__name__)
_SESSION_HEADERS = ("x-evolvent-session", SESSION_HEADER)
_TASK_HEADER = "x-evolvent-task"
_MAX_NAME_CHARS = 200  # characters of the name of a session or task
_MAX_STEPS = 4096  # requests of one session
_MAX_REMEMBERED = 1 << 16  # replies that can be extended or named, and closed sessions whose result is remembered
_MAX_WARNINGS = 8  # sessions without a score that are told one by one; the others are counted
_MAX_TOTAL = 1e9  # absolute value of a reward
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class SessionName:
    """Names the session and the task of a request, where the request does."""

    session: str | None = None
    task: str | None = None


def read_session_name(headers: Mapping[str, str], body: object) -> SessionName:
    """Reads the names of session and task: from the headers, or else from the `metadata` of the body.

    Raises:
        ConfigError: a name that is empty or not printable. LimitExceeded: one that is too long.
    """
    metadata = body.get("metadata") if isinstance(body, Mapping) else None
    fields = metadata if isinstance(metadata, Mapping) else {}
    session = next((headers[name] for name in _SESSION_HEADERS if name in headers), fields.get("evolvent_session"))
    task = headers.get(_TASK_HEADER, fields.get("evolvent_task"))
    for label, name in (("session", session), ("task", task)):
        if name is None:
            continue
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise ConfigError([Problem(label, f"got {name!r:.80}, expected a name", "pass printable text")])
        if len(name) > _MAX_NAME_CHARS:
            raise LimitExceeded(f"the name of the {label} is too long", value=len(name), expected=_MAX_NAME_CHARS)
    return SessionName(session, task)


class RewardRequest(BaseModel):
    """The body of `POST /sessions/ID/reward`."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    reward: float | None = Field(
        default=None, ge=-_MAX_TOTAL, le=_MAX_TOTAL, description="added to the session; none: the reward function's"
    )
    success: bool | None = Field(default=None, description="whether it succeeded; none: rewards sum to 1 or more")
    done: bool = Field(default=True, description="whether the session ends now")


@dataclass(slots=True)
class _PendingStep:
    """The newest step of a session, which the next request or the end of the session completes.

    Attributes:
        step: the step, whose reward is not known yet.
        replies: for each choice of the request, its action and its message.
        rewards: rewards that were posted for it.
    """

    step: Step
    replies: Sequence[tuple[str, Message]]
    rewards: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Session:
    """A session that is open.

    Attributes:
        read_prefixes: for each generation, its length with all that it extends, and a digest of these tokens.
        last_reply: number of the newest step whose reply arrived; -1: none did.
        conversation: the messages of the newest finished request, its reply included.
        in_flight: number of requests that are being answered.
        total: sum of the rewards so far; None: none was posted.
    """

    id: str
    task: Task
    branch: Branch | None
    is_named: bool
    touched: float
    num_steps: int = 0
    pending: _PendingStep | None = None
    read_prefixes: list[tuple[int, bytes]] = field(default_factory=list)
    last_reply: int = -1
    conversation: list[Message] = field(default_factory=list)
    in_flight: int = 0
    total: float | None = None

    @property
    def trajectory_id(self) -> str:
        return f"{RECORDED_WORLD}/{self.id}"

    @property
    def has_steps(self) -> bool:
        return self.num_steps > 0 or self.pending is not None


@dataclass(frozen=True, slots=True)
class _RepliedTurn:
    """A reply that later messages may extend: its session, its step, and its number among the step's choices."""

    session: str
    step: int
    choice: int


class RecordedTurn:
    """One request of a session, from its arrival to its last token.

    Args:
        recorder: the recorder of its session.
        session: its session.
        messages: the conversation that it sent.
        num_known: number of messages that earlier steps hold.
        cache_keys: names under which the conversation's earlier tokens are found, and its later tokens are stored.
        decode: returns the text of sampled tokens.
    """

    def __init__(
        self,
        recorder: SessionRecorder,
        session: _Session,
        messages: Sequence[Message],
        *,
        num_known: int,
        cache_keys: tuple[str, str],
        decode: Callable[[NDArray[np.int32]], str],
    ) -> None:
        self._recorder, self.session, self.decode = recorder, session, decode
        self.messages, self.num_known, self.cache_keys = list(messages), num_known, cache_keys
        self.info: dict[str, Any] = {}
        self.reply_id, self._num_choices = "", 1
        self._choices: dict[int, Choice] = {}
        self._partial: dict[int, Choice] = {}
        self._is_finished = False

    @property
    def session_id(self) -> str:
        return self.session.id

    def note_sampling(self, sampling: Sampling, *, num_choices: int, is_constrained: bool) -> None:
        """Marks the step with the distribution that it was sampled from, where that is not the model's own."""
        self._num_choices = num_choices
        default = Sampling()
        settings = {name: value for name, value in asdict(sampling).items() if value != getattr(default, name)}
        self.info |= {"sampling": settings} if settings else {}
        self.info |= {"constrained": True} if is_constrained else {}

    def add_choice(self, choice: Choice) -> None:
        """Adds a finished reply; the last one finishes the turn, before the client can have read it."""
        self._choices[choice.index] = choice
        if len(self._choices) == self._num_choices:
            self.finish()

    def track_choice(self, choice: Choice) -> None:
        """Notes a reply whose beginning the client has received."""
        self._partial[choice.index] = choice

    def finish(self) -> None:
        """Records what was sampled; calling it twice is harmless.

        Replies that did not reach their end, because the client left or the weights changed, are kept and not learned.
        """
        if self._is_finished:
            return
        self._is_finished = True
        unfinished = [choice for index, choice in sorted(self._partial.items()) if index not in self._choices]
        choices = [choice for _, choice in sorted(self._choices.items())]
        self._recorder.finish_turn(self, choices, [choice for choice in unfinished if len(choice.sample.ids)])


class SessionRecorder:
    """Records sessions into a store. Used in an `async with` on the event loop of the server.

    Args:
        store: the open store of a run.
        reward: scores the conversation of a session at its end, unless a reward was posted; None: nothing does.
        idle_s: seconds without a request after which a session ends.
        capacity: most sessions that are open at once.
    """

    def __init__(
        self, store: Store, *, reward: Reward | None = None, idle_s: float = 600.0, capacity: int = 1024
    ) -> None:
        self._store, self._reward, self._idle_s, self._capacity = store, reward, idle_s, capacity
        self._open: dict[str, _Session] = {}
        self._closing: set[str] = set()
        self._replies: OrderedDict[bytes, _RepliedTurn] = OrderedDict()
        self._reply_sessions: OrderedDict[str, str] = OrderedDict()
        self._results: OrderedDict[str, tuple[RewardRequest, JsonObject]] = OrderedDict()
        self._reaper: asyncio.Task[None] | None = None
        self.num_scored = self.num_unscored = 0

    async def __aenter__(self) -> SessionRecorder:
        self._reaper = asyncio.create_task(self._reap_forever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reaper is not None:
            self._reaper.cancel()
            with suppress(asyncio.CancelledError):
                await self._reaper
        await self.close_all("the server stopped")

    # ------------------------------------------------------------------ requests

    def begin_turn(
        self, messages: Sequence[Message], name: SessionName, *, decode: Callable[[NDArray[np.int32]], str]
    ) -> RecordedTurn:
        """Finds or opens the session of a request; `decode` returns the text of sampled tokens.

        Raises:
            EpisodeEnded: the named session is closed. AtCapacity: too many sessions are open. LimitExceeded: the
                session has too many steps.
        """
        keys = prefix_digests(messages, name.session)
        position, replied = self._find_reply(messages, keys)
        num_known = 0 if replied is None else position + 1
        if name.session is not None:
            session = self._open_named(name.session, messages, name.task)
            cache_keys = (session.id, session.id)
        else:
            parent = None if replied is None else self._open.get(replied.session)
            if parent is not None and replied is not None and self._continues(parent, replied):
                session, cache_keys = parent, (parent.id, parent.id)
            else:
                branch = None
                if replied is not None:
                    branch = Branch(f"{RECORDED_WORLD}/{replied.session}", replied.step + 1)
                task = None if parent is None else parent.task
                session = self._open_session(f"s-{secrets.token_hex(8)}", messages, name.task, branch=branch, task=task)
                cache_keys = (session.id if replied is None else replied.session, session.id)
        if session.num_steps >= _MAX_STEPS:
            raise LimitExceeded(
                f"session {session.id!r} has too many steps", value=session.num_steps, expected=_MAX_STEPS
            )
        session.in_flight += 1
        session.touched = time.monotonic()
        if replied is not None and replied.session == session.id:
            self._choose_reply(session, replied)
        return RecordedTurn(self, session, messages, num_known=num_known, cache_keys=cache_keys, decode=decode)

    def _find_reply(self, messages: Sequence[Message], keys: Sequence[bytes]) -> tuple[int, _RepliedTurn | None]:
        """Returns the last message that is a recorded reply to those before it, and its place."""
        for position in reversed(range(len(keys))):
            if messages[position].role == "assistant" and keys[position] in self._replies:
                self._replies.move_to_end(keys[position])
                return position, self._replies[keys[position]]
        return -1, None

    @staticmethod
    def _continues(session: _Session, replied: _RepliedTurn) -> bool:
        return not session.is_named and session.in_flight == 0 and session.last_reply == replied.step

    def _open_named(self, name: str, messages: Sequence[Message], task_name: str | None) -> _Session:
        if name in self._open:
            return self._open[name]
        if name in self._closing or self._store.has_finished(f"{RECORDED_WORLD}/{name}"):
            raise EpisodeEnded(f"session {name!r} is closed", hint="use a new name for every episode")
        return self._open_session(name, messages, task_name, is_named=True)

    def _open_session(
        self,
        session_id: str,
        messages: Sequence[Message],
        task_name: str | None,
        *,
        branch: Branch | None = None,
        task: Task | None = None,
        is_named: bool = False,
    ) -> _Session:
        if len(self._open) >= self._capacity:
            raise AtCapacity("too many sessions are open", retry_after_s=1.0, value=len(self._open))
        if task is None:
            prompt = next((message.text for message in messages if message.role == "user"), "")
            task = Task(RECORDED_WORLD, "1", {"prompt": prompt} if task_name is None else {"name": task_name})
        session = _Session(session_id, task, branch, is_named, time.monotonic())
        self._open[session_id] = session
        return session

    def _choose_reply(self, session: _Session, replied: _RepliedTurn) -> None:
        """Marks the choice that the agent goes on with as the one that acted, where a request had several."""
        pending = session.pending
        if pending is None or replied.step != session.num_steps:
            return
        generations = tuple(
            replace(generation, acted=number == replied.choice)
            for number, generation in enumerate(pending.step.generations)
        )
        action, reply = pending.replies[replied.choice]
        info = {**pending.step.info, "reply": reply.as_openai()}
        pending.step = replace(pending.step, generations=generations, action=action, info=info)

    def finish_turn(self, turn: RecordedTurn, choices: Sequence[Choice], unfinished: Sequence[Choice]) -> None:
        """Records the replies of a request.

        Args:
            choices: those that reached their end.
            unfinished: the others; they are recorded where there are no finished ones.
        """
        session = turn.session
        session.in_flight -= 1
        session.touched = time.monotonic()
        if self._open.get(session.id) is not session:
            _log.warning("a reply of session %r is not recorded: the server was stopping", session.id)
            return
        recorded_choices = choices or unfinished
        if recorded_choices:
            self._add_step(turn, recorded_choices, is_finished=bool(choices))
        elif not session.has_steps and session.in_flight == 0:
            self._open.pop(session.id, None)

    def _add_step(self, turn: RecordedTurn, choices: Sequence[Choice], *, is_finished: bool) -> None:
        session = turn.session
        self._write_pending(session, last_reward=0.0)
        generations = [
            self._make_generation(session, choice, acted=is_finished and number == 0)
            for number, choice in enumerate(choices)
        ]
        replies = [Message("assistant", choice.text, choice.calls) for choice in choices]
        new_messages = turn.messages[turn.num_known :]
        info: dict[str, Any] = {
            "messages": [message.as_openai() for message in new_messages],
            "reply": replies[0].as_openai(),
            **turn.info,
        }
        actions = [turn.decode(choice.sample.ids) for choice in choices]
        if not is_finished:
            info |= {"unfinished": True, "loss": False}
        step = Step(_format_observation(new_messages), actions[0], None, None, tuple(generations), info=info)
        session.pending = _PendingStep(step, list(zip(actions, replies, strict=True)))
        if turn.reply_id:
            _remember(self._reply_sessions, turn.reply_id, session.id)
        if not is_finished:
            return
        session.last_reply = session.num_steps
        session.conversation = [*turn.messages, replies[0]]
        key_name = session.id if session.is_named else None
        for number, reply in enumerate(replies):
            key = prefix_digests([*turn.messages, reply], key_name)[-1]
            _remember(self._replies, key, _RepliedTurn(session.id, session.num_steps, number))

    def _make_generation(self, session: _Session, choice: Choice, *, acted: bool) -> Generation:
        """Makes the generation of a reply. It extends the longest earlier one with which its prompt begins."""
        prompt, sample = np.asarray(choice.prompt, np.int32), choice.sample
        extends, num_known = _find_extended(session.read_prefixes, prompt)
        read_ids = prompt[num_known:]
        ids = np.concatenate([read_ids, sample.ids])
        sampled = np.arange(len(ids)) >= len(read_ids)
        logprobs = np.concatenate([np.zeros(len(read_ids), np.float32), sample.logprobs])
        all_ids = np.concatenate([prompt, sample.ids]).astype("<i4")
        session.read_prefixes.append((len(all_ids), hashlib.sha256(all_ids.tobytes()).digest()))
        match = FINGERPRINT.fullmatch(sample.fingerprint)
        version = int(match[1]) if match else 0
        stop = "length" if choice.finish_reason in (None, "length") else "stop"
        return Generation(ids, sampled, logprobs, extends, (), acted, version, stop)

    def _write_pending(self, session: _Session, *, last_reward: float | None) -> None:
        """Writes the newest step, which can no longer change.

        Args:
            last_reward: its reward where none was posted for it.
        """
        pending = session.pending
        if pending is None:
            return
        if session.num_steps == 0:
            self._store.begin(
                session.trajectory_id,
                session.task,
                branch=session.branch,
                group=session.task.id,
                meta={"recorded_by": "serve"},
            )
        reward = sum(pending.rewards) if pending.rewards else last_reward
        self._store.step(session.trajectory_id, replace(pending.step, reward=reward))
        session.pending = None
        session.num_steps += 1

    # ------------------------------------------------------------------ rewards and ends

    async def reward_session(self, name: str, request: RewardRequest) -> JsonObject:
        """Adds a reward to a session, and closes it unless `done` is false.

        Args:
            name: its name, or the id of one of its replies.
        Returns:
            `{"session", "task", "steps", "reward", "success", "open"}`.
        Raises:
            SessionGone: unknown. EpisodeEnded: closed already by another reward, or a request of it is being answered.
            ConfigError: no reward, where no reward function gives one either.
        """
        session_id = self._find_session_id(name)
        if session_id in self._results:
            closed_by, result = self._results[session_id]
            if closed_by == request:
                return result
        session = self._open.get(session_id)
        if session is None:
            if session_id in self._closing or self._store.has_finished(f"{RECORDED_WORLD}/{session_id}"):
                raise EpisodeEnded(f"session {session_id!r} is closed", hint="post one reward with done a session")
            raise SessionGone(
                f"unknown session {session_id!r:.80}",
                hint=f"pass the name of a session or the id of a reply; a session ends after {self._idle_s:g} s "
                "without a request",
            )
        if session.in_flight or session.pending is None:
            raise EpisodeEnded(
                f"a request of session {session_id!r} is being answered", hint="post the reward after it"
            )
        if request.reward is None and not (request.done and (self._reward or session.total is not None)):
            raise ConfigError([Problem("reward", "is missing", 'for example {"reward": 1.0}')])
        if request.reward is not None:
            session.total = (session.total or 0.0) + request.reward
            session.pending.rewards.append(request.reward)
        session.touched = time.monotonic()
        if not request.done:
            return self.describe(session_id)
        result = await self._close(session, success=request.success, reason="")
        _remember(self._results, session_id, (request, result))
        return result

    def _find_session_id(self, name: str) -> str:
        """Returns the session of a name, of a reply's id, or of a response's id, which has the same end."""
        reply_id = f"chatcmpl-{name.removeprefix('resp_')}" if name.startswith("resp_") else name
        return self._reply_sessions.get(reply_id, name)

    def describe(self, name: str) -> JsonObject:
        """Returns the state of an open session. Raises SessionGone where there is none of that name."""
        session = self._open.get(self._find_session_id(name))
        if session is None:
            raise SessionGone(f"session {name!r:.80} is not open", hint="look it up in the store of the run")
        return _describe(session, session.total, None, is_open=True)

    def count_sessions(self) -> dict[str, int]:
        """Returns the numbers of open, scored and unscored sessions of this server."""
        return {"open": len(self._open), "scored": self.num_scored, "unscored": self.num_unscored}

    async def close_all(self, reason: str) -> None:
        """Ends all open sessions."""
        for session in list(self._open.values()):
            await self._close(session, success=None, reason=reason)

    async def _close(self, session: _Session, *, success: bool | None, reason: str) -> JsonObject:
        """Scores a session and writes its end."""
        self._open.pop(session.id, None)
        if not session.has_steps:
            return _describe(session, None, None, is_open=False)
        self._closing.add(session.id)
        try:
            problem = "" if session.total is not None else reason or "no reward was posted"
            if session.total is None and self._reward is not None:
                session.total, problem = await self._score(session, self._reward)
        finally:
            self._closing.discard(session.id)
        return self._write_end(session, success=success, problem=problem)

    async def _score(self, session: _Session, reward: Reward) -> tuple[float | None, str]:
        """Returns the reward function's value of a conversation, or None and the reason why there is none."""
        messages = session.conversation
        prompt = next((message.text for message in messages if message.role == "user"), "")
        text = messages[-1].text if messages else ""
        rows = [message.as_openai() for message in messages]
        row = {"session": session.id, "task": session.task.spec.get("name", prompt), "prompt": prompt}
        try:
            value = await asyncio.to_thread(reward.score, Completion(text, prompt, rows, True), row)
        except EvolventError as error:
            return None, str(error)
        if session.pending is not None:
            session.pending.rewards.append(reward.weight * value)
        return reward.weight * value, ""

    def _write_end(self, session: _Session, *, success: bool | None, problem: str) -> JsonObject:
        total = session.total
        if problem and session.pending is not None:
            session.pending.step = replace(session.pending.step, info={**session.pending.step.info, "problem": problem})
        self._write_pending(session, last_reward=None if total is None else 0.0)
        if total is not None and success is None:
            success = total >= 1.0
        score = Score() if total is None else Score(total, min(1.0, max(0.0, total)), success)
        self._store.end(session.trajectory_id, ended_by="agent" if total is None else "world", score=score)
        if total is None:
            self.num_unscored += 1
            if self.num_unscored <= _MAX_WARNINGS:
                _log.warning("session %r is kept without a score: %s", session.id, problem)
        else:
            self.num_scored += 1
        return _describe(session, total, success, is_open=False)

    async def _reap_forever(self) -> None:
        """Ends sessions that were idle for too long."""
        while True:
            await asyncio.sleep(min(5.0, self._idle_s / 4))
            limit = time.monotonic() - self._idle_s
            for session in list(self._open.values()):
                if session.in_flight == 0 and session.touched < limit:
                    await self._close(session, success=None, reason=f"no request for {self._idle_s:g} s")


def _describe(session: _Session, total: float | None, success: bool | None, *, is_open: bool) -> dict[str, Any]:
    return {
        "session": session.id,
        "task": session.task.id,
        "steps": session.num_steps + (session.pending is not None),
        "reward": total,
        "success": success,
        "open": is_open,
    }


def _find_extended(read_prefixes: Sequence[tuple[int, bytes]], prompt: NDArray[np.int32]) -> tuple[int | None, int]:
    """Returns the generation with the most tokens with which a prompt begins, and their number; (None, 0): none."""
    extends, num_known, hashed = None, 0, 0
    raw, digest = prompt.astype("<i4").tobytes(), hashlib.sha256()
    for number, (length, known_digest) in sorted(enumerate(read_prefixes), key=lambda item: item[1][0]):
        if length > len(prompt):
            break
        digest.update(raw[4 * hashed : 4 * length])
        hashed = length
        if digest.digest() == known_digest:
            extends, num_known = number, length
    return extends, num_known


def _format_observation(messages: Sequence[Message]) -> str:
    """Formats the messages that are new in a request; several stand after their roles."""
    if len(messages) == 1:
        return messages[0].text
    return "\n\n".join(f"{message.role}: {message.text}" for message in messages)


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    """Stores a value, and drops the oldest ones beyond the limit."""
    table[key] = value
    table.move_to_end(key)
    while len(table) > _MAX_REMEMBERED:
        table.popitem(last=False)
