"""AgentGym's servers as worlds: the real ones, and the AgentGym mounts of our own.

    world = AgentGymWorld("http://127.0.0.1:36001", "textcraft", {"train": range(374), "test": range(374, 474)})

Such a server knows no panels, so the caller says which numbers there are. An episode's reward is, as in AgentGym, the
last value that the server told (`score` in BabyAI and ScienceWorld, else `reward`); a step's reward here is by how much
that value changed, so that the sum of the rewards is the episode's. What the server did not score is None, never 0.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any

from evolvent.deadline import Deadline
from evolvent.errors import ConfigError, EnvLost, EvolventError, Problem, SessionGone, StepTimeout, WorldError, unknown
from evolvent.serve.agentgym.dialects import Dialect, dialect_named
from evolvent.serve.agentgym.link import Link, LinkLimits
from evolvent.serve.wire import finite
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import SPLITS, Info, Reply, check_task, split_of
from evolvent.worlds.grammar import Grammar

__all__ = ["AgentGymEnv", "AgentGymWorld", "LinkLimits"]

_log = logging.getLogger(__name__)
_FAREWELL_S = 2.0  # seconds for closing a session that was lost
_AVAILABLE = "Available actions: "
_LEVELS = 40  # of BabyAI
_REFUSED = "One action at a time: write 'Thought:', what you think, then a single 'Action:'."


class AgentGymEnv:
    """One session of a server. It is created by the first reset and given back by `close`."""

    def __init__(self, link: Link, dialect: Dialect, task: Task) -> None:
        self._link, self._dialect, self._task = link, dialect, task
        self._session: int | None = None
        self._words: tuple[str, ...] = ()
        self._value: float = 0.0
        self._running = False
        self._lost = False
        self._rng = Random(sample_seed("agentgym", link.url, task.id))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Begin the episode, or begin it anew. The task decides it; the seed is not sent.

        Raises:
            StepTimeout, EnvLost, AtCapacity: no answer in time, no server, no free session, after all tries.
            WorldError: an answer that is none; it shows what was sent and what came back.
        """
        deadline = Deadline(self._link.limits.reset_s)
        self._running = False
        if self._lost:
            self._abandon()
        if self._session is not None:
            try:
                return self._begin(deadline)
            except (SessionGone, EnvLost):
                self._session = None
        self._create(deadline)
        return self._begin(deadline)

    def step(self, action: Value) -> Reply:
        """Take a step: sent once, never again.

        Raises:
            SessionGone: before reset, after the end, or where the server says so.
            StepTimeout, EnvLost: no answer, so nobody knows whether the step was taken; the episode is lost.
            WorldError: an answer that is none.
        """
        if self._lost:
            raise EnvLost("the episode was lost", value=str(action), expected="reset() first")
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        text = self._dialect.grammar.carry(str(action))
        if text is None:
            return _REFUSED, 0.0, False, False, {"invalid": True}
        deadline = Deadline(self._link.limits.step_s)
        try:
            answer = self._link.once("POST", "/step", {**self._of_session(), "action": text}, deadline=deadline)
            return self._read(answer)
        except SessionGone:
            self._running = False
            raise
        except EvolventError:
            self._lost, self._running = True, False
            raise

    def close(self) -> None:
        """Give the session back. Servers without that route keep it; twice is harmless.

        Raises:
            StepTimeout, EnvLost: the server cannot be told.
        """
        session, self._session, self._running = self._session, None, False
        if session is None:
            return
        deadline = Deadline(min(self._link.limits.reset_s, self._link.limits.retry_s))
        try:
            self._link.retried("POST", "/close", {self._dialect.session: session}, deadline=deadline, rng=self._rng)
        except (EnvLost, StepTimeout):
            raise
        except EvolventError:
            return  # no such route, no such session, or an answer that is no JSON: there is nothing to give back

    def _abandon(self) -> None:
        """Leave a lost session. The server is told once, in case it is there."""
        try:
            self._link.once("POST", "/close", self._of_session(), deadline=Deadline(_FAREWELL_S))
        except EvolventError as error:
            _log.info("a lost session was not closed: %s", error)
        self._session, self._lost = None, False

    def _of_session(self) -> dict[str, Json]:
        return {self._dialect.session: self._session}

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, deadline: Deadline) -> Json:
        return self._link.retried(method, path, body, deadline=deadline, rng=self._rng)

    def _create(self, deadline: Deadline) -> None:
        dialect = self._dialect
        body: dict[str, Json] | None = {"id": 0} if dialect.shape == "text" else {}
        answer = self._ask("POST", "/create", body, deadline)
        number = answer.get(dialect.session) if isinstance(answer, dict) else answer
        if type(number) is not int or isinstance(answer, dict) != (dialect.shape in ("object", "web")):
            raise self._odd("/create", answer, "{'id': 0}" if dialect.shape == "object" else "a session's number")
        self._session = number

    def _begin(self, deadline: Deadline) -> tuple[Value, Info]:
        dialect = self._dialect
        body = {**dialect.extra, **self._of_session(), dialect.index: self._task.spec["index"]}
        answer = self._ask("POST", "/reset", body, deadline)
        if dialect.shape == "object":
            text, info = self._first(answer, deadline)
        else:
            if isinstance(answer, dict) and answer.get("observation") == "TimeoutError":
                raise StepTimeout(f"{self._link.url}: the page did not load", value=self._task.spec["index"])
            text, info = self._text(self._ask("GET", "/observation", self._of_session(), deadline), "/observation"), {}
        self._value, self._running = 0.0, True
        return text, info

    def _first(self, answer: Json, deadline: Deadline) -> tuple[str, dict[str, Any]]:
        """What AgentGym's own client shows first: the observation, with what only the other fields say."""
        row = answer if isinstance(answer, dict) else {}
        text, info = self._text(row.get("observation"), "/reset", row=answer), self._info(row)
        if self._dialect.name == "sciworld":
            text = f"{self._text(row.get('task_description'), '/reset', row=answer)}\n{text}"
        if self._dialect.name == "alfworld":
            text = f"{text}\nAVAILABLE ACTIONS: {','.join(info.get('admissible', ()))}"
        if self._dialect.name == "wordle":
            listed = self._ask("GET", "/filtered_vocab", self._of_session(), deadline)
            if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
                raise self._odd("/filtered_vocab", listed, "a list of words")
            self._words = tuple(" ".join(word.replace(" ", "")) for word in listed)
            text = f"{text}\nThe words are: {', '.join(word.replace(' ', '') for word in listed)}"
            info["admissible"] = self._words
        return text, info

    def _read(self, answer: Json) -> Reply:
        dialect = self._dialect
        row = answer if isinstance(answer, dict) else {}
        text = self._text(row.get(dialect.text), "/step", row=answer)
        value, over = row.get(dialect.value), row.get(dialect.done)
        if not isinstance(over, bool):
            raise self._odd("/step", answer, f"{dialect.done!r}: true or false")
        if dialect.value not in row or not isinstance(value, (int, float, type(None))):
            raise self._odd("/step", answer, f"{dialect.value!r}: a number")
        if value is not None and finite(value) is None:
            raise self._odd("/step", answer, f"{dialect.value!r}: a finite number")
        if dialect.shape == "web" and not over:
            value = 0.0  # WebArena's evaluator has not looked yet
        reward: Any = None if value is None else float(value) - self._value  # None: not scored
        self._value = self._value if value is None else float(value)
        info = self._info(row)
        # BabyAI's server lets a late success go on: a reward means that the goal is reached.
        reached = dialect.name == "babyai" and self._value > 0
        self._running = not (over or reached)
        return text, reward, over or reached, False, info

    def _info(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The legal actions, where the answer tells them, and whether the server knew the action."""
        info: dict[str, Any] = {"invalid": True} if row.get("invalid") is True else {}
        listed = row.get("available_actions")
        text = row.get("observation")
        if self._dialect.name == "babyai" and isinstance(text, str) and _AVAILABLE in text:
            listed = _list_in(text.rpartition(_AVAILABLE)[2])
        if isinstance(listed, list) and all(isinstance(action, str) for action in listed):
            info["admissible"] = tuple(listed)
        elif self._words:
            info["admissible"] = self._words
        return info

    def _text(self, value: object, path: str, *, row: object = None) -> str:
        if not isinstance(value, str):
            raise self._odd(path, value if row is None else row, "a text to be seen")
        return value

    def _odd(self, path: str, got: object, expected: str) -> WorldError:
        where = f"{self._link.url}{path}: an answer that {self._dialect.title}'s server does not give"
        return WorldError(
            where, value=got, expected=expected, hint=f"is {self._dialect.name!r} the dialect of this server?"
        )


def _list_in(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class AgentGymWorld:
    """A server of AgentGym's (or an AgentGym mount of ours) as a world.

    Args:
        url: its address, to which the paths of the protocol are appended.
        dialect: which world it serves: a name of `DIALECTS`.
        indices: the numbers of its tasks: by split, or all together (then a hash deals them to train, dev and test).
        name: of the world; its tasks' ids depend on it.
        horizon: how many steps an episode may take (None: AgentGym's).
        token: for servers that want one.
        limits: deadlines and sizes.

    Raises:
        ConfigError: an unknown dialect or split, no address, numbers that are none; all of them at once.
    """

    version = "1"
    tiers: tuple[str, ...] = ("seen",)
    blocking = True

    def __init__(
        self,
        url: str,
        dialect: str,
        indices: Sequence[int] | Mapping[str, Sequence[int]],
        *,
        name: str | None = None,
        horizon: int | None = None,
        token: str | None = None,
        limits: LinkLimits | None = None,
    ) -> None:
        problems = _mistakes(dialect, indices, horizon)
        try:
            self._link = Link(url, token=token, limits=limits)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        self.dialect = dialect_named(dialect)
        self.name = name or f"agentgym_{dialect}"
        self.horizon = horizon or self.dialect.horizon
        self.instructions = self.dialect.instructions
        self.grammar: Grammar = self.dialect.grammar
        self.reward_range = (-self.dialect.full, self.dialect.full)
        self._panels = self._deal(indices)

    def _deal(self, indices: Sequence[int] | Mapping[str, Sequence[int]]) -> Mapping[str, tuple[Task, ...]]:
        given: dict[str, list[int]] = {split: [] for split in SPLITS}
        if isinstance(indices, Mapping):
            given |= {split: list(numbers) for split, numbers in indices.items()}
        else:
            for index in indices:
                given[split_of({"index": index}, salt=self.name)].append(index)
        return {split: tuple(self._task(index, split) for index in given[split]) for split in SPLITS}

    def _task(self, index: int, split: str) -> Task:
        kind = f"level {index % _LEVELS + 1}" if self.dialect.name == "babyai" else self.dialect.name
        return Task(self.name, self.version, {"index": index}, kind, self.tiers[0], split)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The tasks of a split; raises ConfigError for a split or tier that does not exist."""
        problems = [] if split in SPLITS else [unknown("split", split, SPLITS)]
        problems += [] if tier in self.tiers else [unknown("tier", tier, self.tiers)]
        if problems:
            raise ConfigError(problems)
        return self._panels[split]

    def make(self, task: Task) -> AgentGymEnv:
        """An Env for one task; nothing is sent before its reset.

        Raises:
            ConfigError: a task of another world, or without a number.
        """
        check_task(self, task)
        if type(task.spec.get("index")) is not int:
            raise ConfigError("a task without a number", value=dict(task.spec), expected='{"index": 0}')
        return AgentGymEnv(self._link, self.dialect, task)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """raw = the last value that the server told; unit = its share of full marks, 0 to 1; success = full marks.

        BabyAI's and the weather world's success is any reward: a goal reached late earns less than 1.
        """
        known = [reward for reward in rewards if reward is not None]
        if len(known) != len(rewards):
            return Score(None, None, None)
        raw, full = float(math.fsum(known)), self.dialect.full
        needed = 1e-9 if self.dialect.any_is_success else full - 1e-9
        return Score(raw, min(1.0, max(0.0, raw / full)), raw >= needed)

    def expert(self, task: Task) -> Sequence[str] | None:
        """None: such servers have no expert."""
        return None

    def vocabulary(self) -> Sequence[str] | None:
        """None: open."""
        return None

    def close(self) -> None:
        """Close the connections; Envs made before open new ones."""
        self._link.close()

    def __enter__(self) -> AgentGymWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _mistakes(dialect: str, indices: object, horizon: int | None) -> list[Problem]:
    problems = []
    try:
        dialect_named(dialect)
    except ConfigError as error:
        problems += error.problems
    groups = indices if isinstance(indices, Mapping) else {"train": indices}
    for split, numbers in groups.items():
        if split not in SPLITS:
            problems.append(unknown("split", str(split), SPLITS, where="indices"))
        if isinstance(numbers, str) or not isinstance(numbers, Sequence):
            problems.append(Problem("indices", f"{numbers!r} are no numbers of tasks", "for example range(100)"))
        elif any(type(number) is not int or number < 0 for number in numbers):
            problems.append(Problem("indices", f"{split}: a number below 0, or none", "give whole numbers from 0"))
    flat = [number for numbers in groups.values() if isinstance(numbers, Sequence) for number in numbers]
    if len(set(map(str, flat))) < len(flat):
        problems.append(Problem("indices", "a number that is named twice", "a task belongs to one split"))
    if horizon is not None and horizon < 1:
        problems.append(Problem("horizon", f"a horizon of {horizon} steps", "give at least 1"))
    return problems
