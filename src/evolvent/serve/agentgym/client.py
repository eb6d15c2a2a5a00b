"""AgentGym's servers as worlds: the original servers, and the AgentGym mounts of our own.

    world = AgentGymWorld("http://127.0.0.1:36001", "textcraft", {"train": range(374), "test": range(374, 474)})

Such a server knows no panels, so the caller names the task numbers. An episode's reward is, as in AgentGym, the last
value of the server (`score` in BabyAI and ScienceWorld, else `reward`); a step's reward here is the change of that
value, so that the sum of the rewards is the episode's. An unscored step is None, never 0.

One AgentGym server over HTTP: kept-alive connections, deadlines, limits, and every failure as a typed error.

Creating, resetting, observing and closing may be repeated until a deadline; a step is sent once. Redirections are not
followed, no proxy of the environment is used, and an answer is read no further than its limit.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

import httpx2

from evolvent.deadline import Deadline, backoff
from evolvent.errors import (
    AtCapacity,
    ConfigError,
    EnvLost,
    EvolventError,
    LimitExceeded,
    Problem,
    SampleInvalid,
    SessionGone,
    StepTimeout,
    WorldError,
    unknown_name_problem,
)
from evolvent.serve.agentgym.dialects import EnvDialect, get_dialect
from evolvent.serve.wire import decode_error, decode_json, encode_json, finite_or_none
from evolvent.trajectory import Json, Score, Task, Value, sample_seed
from evolvent.worlds.base import SPLITS, Grammar, Info, Reply, check_task, split_of

__all__ = [
    "REFUSAL_MESSAGE",
    "AgentGymClient",
    "AgentGymEnv",
    "AgentGymWorld",
    "LinkLimits",
    "add_word_list",
    "build_panels",
    "score_rewards",
]


_MAX_SHOWN_CHARS = 300  # characters of a body that an error shows
_GONE_PHRASES = ("not valid", "finished", "deleted", "not found")
_SECRET_MASK = "***"


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Deadlines and size limits of a client.

    Args:
        step_s: seconds for one step.
        reset_s: seconds for a creation, a reset or a closing, with all its tries.
        max_bytes: largest answer that is read.
        connections: number of connections at once; more requests wait.
        retry_s: seconds that an unreachable server is tried again; a full one is until `reset_s`.
        idle_s: seconds that an unused connection is kept. Servers usually close theirs after 5 s, and a request that
            meets the closing is lost.
        trust_env: whether proxies of the environment are used.
    """

    step_s: float = 300.0
    reset_s: float = 300.0
    max_bytes: int = 2**20
    connections: int = 256
    retry_s: float = 15.0
    idle_s: float = 4.0
    trust_env: bool = False

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"got {getattr(self, name)}, expected more than 0")
            for name in ("step_s", "reset_s", "max_bytes", "connections", "retry_s", "idle_s")
            if not getattr(self, name) > 0
        ]
        if problems:
            raise ConfigError(problems)


class AgentGymClient:
    """The connections to one server; threads share them.

    Args:
        url: address that paths are appended to.
        token: sent as a bearer token; it appears in no error.

    Raises:
        ConfigError: not an http address.
    """

    def __init__(self, url: str, *, token: str | None = None, limits: LinkLimits | None = None) -> None:
        if not _is_http_url(url):
            hint = "for example http://127.0.0.1:8000/agentgym/textcraft"
            raise ConfigError([Problem("url", f"got {_hide_login(url)!r}, expected the address of a server", hint)])
        self.limits = limits or LinkLimits()
        self.url = _hide_login(url).rstrip("/")
        self._base, self._token = url.rstrip("/"), token
        self._lock = threading.Lock()
        self._client: httpx2.Client | None = None

    def close(self) -> None:
        """Close all connections; the next request opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def send_once(self, method: str, path: str, body: Mapping[str, object] | None, *, deadline: Deadline) -> Json:
        """Sends a request once. The body is sent as JSON, or as the query of a GET.

        Raises:
            StepTimeout: no answer before the deadline.
            EnvLost: the server cannot be reached, or the connection broke.
            LimitExceeded: an answer beyond the limit.
            SessionGone: the session does not exist, or has ended.
            AtCapacity: 503 or 429.
            WorldError: any other answer than 200, not JSON, or an `error` in it. A typed error of our own server is
                raised as that type.
        """
        request = _SentRequest(method, f"{self.url}{path}", encode_json(body) if body is not None else b"", self._token)
        query = f"?{urlencode(body)}" if method == "GET" and body else ""
        status, headers, data = self._exchange(request, f"{self._base}{path}{query}", deadline)
        if status != 200:
            raise request.status_error(status, headers, data)
        try:
            answer = decode_json(data)
        except SampleInvalid as error:
            raise request.make_error("the answer is not JSON", data, "JSON") from error
        if isinstance(answer, dict) and "error" in answer:
            text = str(answer["error"])
            error_class = SessionGone if any(word in text.lower() for word in _GONE_PHRASES) else WorldError
            raise request.make_error("the server reports an error", text, None, error_class=error_class)
        return answer

    def send_with_retries(
        self, method: str, path: str, body: Mapping[str, object] | None, *, deadline: Deadline, rng: Random
    ) -> Json:
        """Sends a request that is safe to repeat: again while the server is full, restarting or unreachable.

        Raises what `send_once` raises last; where the time ends within a try, what the try before it raised.
        """
        attempt, retry_deadline = 0, deadline.within(self.limits.retry_s)
        last_error: EvolventError | None = None
        while True:
            try:
                return self.send_once(method, path, body, deadline=deadline)
            except StepTimeout as error:
                if last_error is None:
                    raise
                raise last_error from error
            except (AtCapacity, EnvLost) as error:
                last_error = error
                pause = backoff(attempt, rng)
                if isinstance(error, AtCapacity):
                    pause = max(pause, min(error.retry_after_s, 5.0) * (0.5 + rng.random() / 2))
                if pause >= (deadline if isinstance(error, AtCapacity) else retry_deadline).left():
                    raise
            attempt += 1
            time.sleep(pause)

    def _exchange(
        self, request: _SentRequest, address: str, deadline: Deadline
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Sends a request and reads the answer. An answer that stalls is noticed after twice the deadline at the
        latest.
        """
        deadline.check(request.label)
        content = request.body if request.method != "GET" else None
        try:
            with self._get_client().stream(request.method, address, content=content, timeout=deadline.left()) as reply:
                data = bytearray()
                for chunk in reply.iter_raw():
                    data += chunk
                    if len(data) > self.limits.max_bytes:
                        raise LimitExceeded(
                            f"{request.label}: the answer is too large",
                            expected=f"at most {self.limits.max_bytes} bytes",
                        )
                    deadline.check(request.label)
                return reply.status_code, reply.headers, bytes(data)
        except httpx2.TimeoutException as error:
            time_limit = f"{deadline.total_s:g} s"
            raise StepTimeout(f"{request.label}: no answer before the deadline", value=time_limit) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EnvLost(
                f"{request.label}: {request.hide_token(str(error)) or type(error).__name__}",
                hint="check that the server is running",
            ) from error

    def _get_client(self) -> httpx2.Client:
        with self._lock:
            if self._client is None:
                headers = {"accept": "application/json", "accept-encoding": "identity"}
                headers |= {"content-type": "application/json"}
                headers |= {"authorization": f"Bearer {self._token}"} if self._token else {}
                max_connections = self.limits.connections
                self._client = httpx2.Client(
                    headers=headers,
                    trust_env=self.limits.trust_env,
                    follow_redirects=False,
                    limits=httpx2.Limits(
                        max_connections=max_connections,
                        max_keepalive_connections=max_connections,
                        keepalive_expiry=self.limits.idle_s,
                    ),
                )
                weakref.finalize(self, self._client.close)
            return self._client


@dataclass(frozen=True, slots=True)
class _SentRequest:
    """A request as errors describe it, without secrets."""

    method: str
    url: str
    body: bytes
    token: str | None

    @property
    def label(self) -> str:
        return f"{self.method} {self.url}"

    def hide_token(self, text: str) -> str:
        return text.replace(self.token, _SECRET_MASK) if self.token else text

    def make_error(
        self, problem: str, answer: object, expected: object, *, error_class: type[EvolventError] = WorldError
    ) -> EvolventError:
        """Returns an error that shows the address, the request and the start of the answer."""
        head = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
        shown_body = self.hide_token(self.body[:_MAX_SHOWN_CHARS].decode("utf-8", "replace"))
        hint = f"sent {shown_body}" if shown_body else None
        return error_class(
            f"{self.label}: {problem}", value=self.hide_token(head[:_MAX_SHOWN_CHARS]), expected=expected, hint=hint
        )

    def status_error(self, status: int, headers: Mapping[str, str], data: bytes) -> EvolventError:
        """Returns the error of an answer other than 200."""
        try:
            row = decode_json(data)
        except SampleInvalid:
            row = None
        if isinstance(row, dict) and isinstance(row.get("kind"), str):
            error = decode_error(row)
            if isinstance(error, AtCapacity):
                return error
            error_class = next(
                error_class for error_class in type(error).__mro__ if error_class.__module__ == EvolventError.__module__
            )
            return self.make_error(
                f"{error_class.__name__}, {error.what}", f"status {status}", error.expected, error_class=error_class
            )
        if status in (429, 503):
            return AtCapacity(f"{self.label}: the server is full ({status})", retry_after_s=_retry_after(headers))
        if status in (502, 504):
            return self.make_error(f"answered {status}", data, 200, error_class=EnvLost)
        if 300 <= status < 400:
            return self.make_error("a redirection, which is not followed", headers.get("location", ""), 200)
        problem = "no such address; is this a server of AgentGym's?" if status == 404 else f"answered {status}"
        return self.make_error(problem, data, 200)


def _retry_after(headers: Mapping[str, str]) -> float:
    header = headers.get("retry-after", "")
    return float(header) if header.isascii() and header.isdigit() and len(header) < 6 else 0.1


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - reading it checks it
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and not parts.fragment


def _hide_login(url: str) -> str:
    """Returns the URL without a user's name and password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return _SECRET_MASK
    if "@" not in parts.netloc:
        return url
    return urlunsplit(parts._replace(netloc=f"{_SECRET_MASK}@{parts.netloc.rpartition('@')[2]}"))


_log = logging.getLogger(__name__)
_CLOSE_LOST_TIMEOUT_S = 2.0  # seconds for closing a session that was lost
_AVAILABLE = "Available actions: "
_NUM_BABYAI_LEVELS = 40  # of BabyAI
REFUSAL_MESSAGE = "One action at a time: write 'Thought:', what you think, then a single 'Action:'."


class AgentGymEnv:
    """One session of a server. It is created by the first reset and closed by `close`."""

    def __init__(self, link: AgentGymClient, dialect: EnvDialect, task: Task) -> None:
        self._link, self._dialect, self._task = link, dialect, task
        self._session: int | None = None
        self._words: tuple[str, ...] = ()
        self._value: float = 0.0
        self._running = False
        self._lost = False
        self._rng = Random(sample_seed("agentgym", link.url, task.id))

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Starts or restarts the episode. It depends on the task; the seed is not sent.

        Raises:
            StepTimeout, EnvLost, AtCapacity: no answer in time, no server, no free session, after all tries.
            WorldError: an invalid answer; it shows the request and the answer.
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
        """Plays a step: sent once, never again.

        Raises:
            SessionGone: before reset, after the end, or reported by the server.
            StepTimeout, EnvLost: no answer, so the step may have been taken or not; the episode is lost.
            WorldError: an invalid answer.
        """
        if self._lost:
            raise EnvLost("the episode is lost", value=str(action), expected="reset() first")
        if not self._running:
            raise SessionGone(
                "step was called after the end of the episode", value=str(action), expected="reset() first"
            )
        text = self._dialect.grammar.to_wire(str(action))
        if text is None:
            return REFUSAL_MESSAGE, 0.0, False, False, {"invalid": True}
        deadline = Deadline(self._link.limits.step_s)
        try:
            answer = self._link.send_once("POST", "/step", {**self._session_field(), "action": text}, deadline=deadline)
            return self._parse_step(answer)
        except SessionGone:
            self._running = False
            raise
        except EvolventError:
            self._lost, self._running = True, False
            raise

    def close(self) -> None:
        """Closes the session. Servers without that route keep it; a second call is harmless.

        Raises:
            StepTimeout, EnvLost: the server cannot be reached.
        """
        session, self._session, self._running = self._session, None, False
        if session is None:
            return
        deadline = Deadline(min(self._link.limits.reset_s, self._link.limits.retry_s))
        try:
            self._link.send_with_retries(
                "POST", "/close", {self._dialect.session_key: session}, deadline=deadline, rng=self._rng
            )
        except (EnvLost, StepTimeout):
            raise
        except EvolventError:
            return  # no such route, no such session, or an answer that is no JSON: there is nothing to give back

    def _abandon(self) -> None:
        """Closes a lost session with a single request, in case the server is there."""
        try:
            self._link.send_once("POST", "/close", self._session_field(), deadline=Deadline(_CLOSE_LOST_TIMEOUT_S))
        except EvolventError as error:
            _log.info("a lost session was not closed: %s", error)
        self._session, self._lost = None, False

    def _session_field(self) -> dict[str, Json]:
        return {self._dialect.session_key: self._session}

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, deadline: Deadline) -> Json:
        return self._link.send_with_retries(method, path, body, deadline=deadline, rng=self._rng)

    def _create(self, deadline: Deadline) -> None:
        dialect = self._dialect
        body: dict[str, Json] | None = {"id": 0} if dialect.shape == "text" else {}
        answer = self._ask("POST", "/create", body, deadline)
        number = answer.get(dialect.session_key) if isinstance(answer, dict) else answer
        if type(number) is not int or isinstance(answer, dict) != (dialect.shape in ("object", "web")):
            raise self._answer_error(
                "/create", answer, "{'id': 0}" if dialect.shape == "object" else "a session's number"
            )
        self._session = number

    def _begin(self, deadline: Deadline) -> tuple[Value, Info]:
        dialect = self._dialect
        body = {**dialect.extra, **self._session_field(), dialect.index: self._task.spec["index"]}
        answer = self._ask("POST", "/reset", body, deadline)
        if dialect.shape == "object":
            text, info = self._parse_first_observation(answer, deadline)
        else:
            if isinstance(answer, dict) and answer.get("observation") == "TimeoutError":
                raise StepTimeout(f"{self._link.url}: the page did not load", value=self._task.spec["index"])
            text, info = (
                self._require_text(self._ask("GET", "/observation", self._session_field(), deadline), "/observation"),
                {},
            )
        self._value, self._running = 0.0, True
        return text, info

    def _parse_first_observation(self, answer: Json, deadline: Deadline) -> tuple[str, dict[str, Any]]:
        """Returns the text that AgentGym's own client shows first: the observation, with text from the other fields."""
        row = answer if isinstance(answer, dict) else {}
        text, info = self._require_text(row.get("observation"), "/reset", row=answer), self._parse_info(row)
        if self._dialect.name == "sciworld":
            text = f"{self._require_text(row.get('task_description'), '/reset', row=answer)}\n{text}"
        if self._dialect.name == "alfworld":
            text = f"{text}\nAVAILABLE ACTIONS: {','.join(info.get('admissible', ()))}"
        if self._dialect.name == "wordle":
            listed = self._ask("GET", "/filtered_vocab", self._session_field(), deadline)
            if not isinstance(listed, list) or not all(isinstance(word, str) for word in listed):
                raise self._answer_error("/filtered_vocab", listed, "a list of words")
            self._words = tuple(" ".join(word.replace(" ", "")) for word in listed)
            text = add_word_list(text, [word.replace(" ", "") for word in listed])
            info["admissible"] = self._words
        return text, info

    def _parse_step(self, answer: Json) -> Reply:
        dialect = self._dialect
        row = answer if isinstance(answer, dict) else {}
        text = self._require_text(row.get(dialect.text), "/step", row=answer)
        value, is_over = row.get(dialect.value), row.get(dialect.done)
        if not isinstance(is_over, bool):
            raise self._answer_error("/step", answer, f"{dialect.done!r}: true or false")
        if dialect.value not in row or not isinstance(value, (int, float, type(None))):
            raise self._answer_error("/step", answer, f"{dialect.value!r}: a number")
        if value is not None and finite_or_none(value) is None:
            raise self._answer_error("/step", answer, f"{dialect.value!r}: a finite number")
        if dialect.shape == "web" and not is_over:
            value = 0.0  # WebArena's evaluator has not looked yet
        reward: Any = None if value is None else float(value) - self._value  # None: not scored
        self._value = self._value if value is None else float(value)
        info = self._parse_info(row)
        # BabyAI's server lets a late success go on: a reward means that the goal is reached.
        is_goal_reached = dialect.name == "babyai" and self._value > 0
        self._running = not (is_over or is_goal_reached)
        return text, reward, is_over or is_goal_reached, False, info

    def _parse_info(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the legal actions, if the answer lists them, and whether the server rejected the action."""
        info: dict[str, Any] = {"invalid": True} if row.get("invalid") is True else {}
        listed = row.get("available_actions")
        text = row.get("observation")
        if self._dialect.name == "babyai" and isinstance(text, str) and _AVAILABLE in text:
            listed = _parse_json(text.rpartition(_AVAILABLE)[2])
        if isinstance(listed, list) and all(isinstance(action, str) for action in listed):
            info["admissible"] = tuple(listed)
        elif self._words:
            info["admissible"] = self._words
        return info

    def _require_text(self, value: object, path: str, *, row: object = None) -> str:
        if not isinstance(value, str):
            raise self._answer_error(path, value if row is None else row, "a text to be seen")
        return value

    def _answer_error(self, path: str, value: object, expected: str) -> WorldError:
        message = f"{self._link.url}{path}: unexpected answer for a server of {self._dialect.title}"
        return WorldError(
            message,
            value=value,
            expected=expected,
            hint=f"check that the dialect of this server is {self._dialect.name!r}",
        )


def add_word_list(text: str, words: Sequence[str]) -> str:
    """Adds Wordle's words to its first text, as AgentGym's client does."""
    return f"{text}\nThe words are: {', '.join(words)}"


def _parse_json(text: str) -> object:
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
        skipped: rows of a file of tasks that were left out, each with its reason.

    Raises:
        ConfigError: an unknown dialect or split, no address, numbers that are none; all of them at once.
    """

    version = "1"
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread = True

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
        skipped: Sequence[Problem] = (),
    ) -> None:
        problems = _find_problems(dialect, indices, horizon)
        try:
            self._link = AgentGymClient(url, token=token, limits=limits)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        self.dialect = get_dialect(dialect)
        self.problems = tuple(skipped)
        self.name = name or f"agentgym_{dialect}"
        self.horizon = horizon or self.dialect.horizon
        self.instructions = self.dialect.instructions
        self.grammar: Grammar = self.dialect.grammar
        self.reward_range = (-self.dialect.full, self.dialect.full)
        self._panels = build_panels(self.name, self.dialect, indices)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the tasks of a split; raises ConfigError for a split or tier that does not exist."""
        problems = [] if split in SPLITS else [unknown_name_problem("split", split, SPLITS)]
        problems += [] if tier in self.tiers else [unknown_name_problem("tier", tier, self.tiers)]
        if problems:
            raise ConfigError(problems)
        return self._panels[split]

    def make(self, task: Task) -> AgentGymEnv:
        """Creates an Env for one task; nothing is sent before its reset.

        Raises:
            ConfigError: a task of another world, or without a number.
        """
        check_task(self, task)
        if type(task.spec.get("index")) is not int:
            raise ConfigError("the task has no number", value=dict(task.spec), expected='{"index": 0}')
        return AgentGymEnv(self._link, self.dialect, task)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: raw = the last value of the server; unit = its share of full marks, 0 to 1; success =
        full marks.

        BabyAI's and the weather world's success is any reward: a goal reached late earns less than 1.
        """
        return score_rewards(rewards, self.dialect)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns None: such servers have no expert."""
        return None

    def vocabulary(self) -> Sequence[str] | None:
        """Returns None: the vocabulary is open."""
        return None

    def close(self) -> None:
        """Closes the connections; Envs made before open new ones."""
        self._link.close()

    def __enter__(self) -> AgentGymWorld:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def build_panels(
    world: str, dialect: EnvDialect, indices: Sequence[int] | Mapping[str, Sequence[int]]
) -> Mapping[str, tuple[Task, ...]]:
    """Builds the tasks of a world by split from AgentGym's numbers.

    Args:
        world: the name of the world.
        dialect: the environment.
        indices: numbers by split, or all together: then a hash deals them to train, dev and test.
    """
    indices_by_split: dict[str, list[int]] = {split: [] for split in SPLITS}
    if isinstance(indices, Mapping):
        indices_by_split |= {split: list(numbers) for split, numbers in indices.items()}
    else:
        for index in indices:
            indices_by_split[split_of({"index": index}, salt=world)].append(index)
    return {
        split: tuple(_make_task(world, dialect, index, split=split) for index in indices_by_split[split])
        for split in SPLITS
    }


def _make_task(world: str, dialect: EnvDialect, index: int, *, split: str) -> Task:
    kind = f"level {index % _NUM_BABYAI_LEVELS + 1}" if dialect.name == "babyai" else dialect.name
    return Task(world, AgentGymWorld.version, {"index": index}, kind, AgentGymWorld.tiers[0], split)


def score_rewards(rewards: Sequence[float | None], dialect: EnvDialect) -> Score:
    """Scores an episode by its rewards; see `AgentGymWorld.score`."""
    scored = [reward for reward in rewards if reward is not None]
    if len(scored) != len(rewards):
        return Score(None, None, None)
    raw = float(math.fsum(scored))
    success_threshold = 1e-9 if dialect.any_is_success else dialect.full - 1e-9
    return Score(raw, min(1.0, max(0.0, raw / dialect.full)), raw >= success_threshold)


def _find_problems(dialect: str, indices: object, horizon: int | None) -> list[Problem]:
    problems = []
    try:
        get_dialect(dialect)
    except ConfigError as error:
        problems += error.problems
    groups = indices if isinstance(indices, Mapping) else {"train": indices}
    for split, numbers in groups.items():
        if split not in SPLITS:
            problems.append(unknown_name_problem("split", str(split), SPLITS, location="indices"))
        if isinstance(numbers, str) or not isinstance(numbers, Sequence):
            problems.append(Problem("indices", f"got {numbers!r}, expected task numbers", "for example range(100)"))
        else:
            wrong = [number for number in numbers if type(number) is not int or number < 0]
            if wrong:
                problems.append(Problem("indices", f"{split}: got {wrong[0]!r}, expected whole numbers from 0"))
    flat = [number for numbers in groups.values() if isinstance(numbers, Sequence) for number in numbers]
    if len(set(map(str, flat))) < len(flat):
        problems.append(Problem("indices", "a task number occurs twice", "assign each task to one split"))
    if horizon is not None and horizon < 1:
        problems.append(Problem("horizon", f"got {horizon} steps, expected at least 1"))
    return problems
