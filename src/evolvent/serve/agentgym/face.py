"""The AgentGym dialect of a server: one address for each mount, below `/agentgym`.

    POST /agentgym/textcraft/create   ->  {"id": 1804289383, "observation": ..., "done": false, "reward": 0}
    POST /agentgym/sqlgym/create      ->  1804289383

The released clients append their paths to such an address and work unchanged. The application is plain ASGI: a path is
found in a dictionary, a body is read once and an answer is written once, because a step of a world costs less than the
machinery of a web framework. `GET /agentgym` lists the mounts.

One mount: one world in one dialect. It converts the requests of AgentGym's clients to calls of the host and back.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from starlette.routing import BaseRoute

from evolvent.errors import (
    ConfigError,
    EnvLost,
    InvalidAction,
    Problem,
    SampleInvalid,
    SessionGone,
    StepTimeout,
    WorldError,
    find_nearest,
    unknown_name_problem,
)
from evolvent.serve.agentgym.dialects import EnvDialect, default_mounts, get_dialect
from evolvent.serve.agentgym.replies import Play, refused_body, reset_body, step_body
from evolvent.serve.agentgym.text import TextTranslator, get_translator, list_admissible, parse_goal, parse_recipes
from evolvent.serve.app import PrefixRoute, send_not_allowed
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.host import SessionHost
from evolvent.serve.wire import EpisodeEnded, NotFound, decode_json, encode_json, to_json
from evolvent.trajectory import Json, JsonObject, Task
from evolvent.web import Receive, Scope, Send, send_response
from evolvent.worlds.base import World
from evolvent.worlds.grid.world import GridWorld
from evolvent.worlds.maze import Maze
from evolvent.worlds.shop.pages import SEARCH_BUTTON
from evolvent.worlds.sql.world import SqlWorld

__all__ = ["PREFIX", "AgentGymDialect", "AgentGymMount", "Handler", "Lookup", "list_lookups", "task_by_number"]


Lookup = Callable[[Play], Json]


def _get_clickables(play: Play) -> Json:
    """Returns what can be clicked in lower case, as WebShop does; it counts the button beside the search bar."""
    actions = list_admissible(play.info)
    clickables: list[Json] = [action[6:-1].lower() for action in actions if re.fullmatch(r"click\[.+\]", action)]
    has_search_bar = any(action.startswith("search[") for action in actions)
    if has_search_bar:
        clickables.append(SEARCH_BUTTON.lower())
    return {"has_search_bar": has_search_bar, "clickables": clickables}


def _get_instruction(play: Play) -> str:
    """Returns WebShop's instruction: from the world's info, else the part of the first page after `Instruction:`."""
    instruction = play.info.get("instruction_text")
    if isinstance(instruction, str):
        return instruction
    parts = [part.strip() for part in play.first.split("[SEP]")]
    if "Instruction:" in parts[:-1]:
        return parts[parts.index("Instruction:") + 1]
    return parts[0]


def _get_page(play: Play) -> Json:
    parts = {key: str(play.info.get(key, "")) for key in ("url", "html")}
    return {**parts, "instruction_text": _get_instruction(play)}


def _get_nodes(play: Play) -> Json:
    """Returns the texts of the nodes in view by their ids, as WebArena's metadata have them; {} without nodes."""
    nodes: dict[str, Json] = {
        match[1]: {"text": f"[{match[1]}] {match[2]}"} for match in re.finditer(r"(?m)^\t*\[(\d+)\] (.+)$", play.text)
    }
    return {"obs_nodes_info": nodes} if nodes else {}


def _info_lookup(key: str) -> Lookup:
    """Returns a lookup of one field of the world's info, in an object of one key; empty text if the field is
    missing.
    """
    return lambda play: {key: to_json(play.info.get(key, ""))}


def _get_hints(play: Play) -> Json:
    objects = to_json(play.info.get("objects", []))
    return {"possible_actions": to_json(list_admissible(play.info)), "possible_objects": objects}


def _get_state(play: Play) -> Json:
    done = play.over is not None
    return {"observation": play.text, "reward": play.reward, "score": play.total, "deleted": False, "done": done}


def _description_lookup(dialect: EnvDialect) -> Lookup:
    def get_description(play: Play) -> Json:
        body = reset_body(dialect, play)
        return {"task_description": body["task_description"] if isinstance(body, dict) else ""}

    return get_description


def _dialect_lookups(dialect: EnvDialect) -> Mapping[str, Lookup]:
    actions: Lookup = lambda play: to_json(list_admissible(play.info))  # noqa: E731
    tables: Mapping[str, Mapping[str, Lookup]] = {
        "textcraft": {"commands": lambda play: parse_recipes(play.first), "goal": lambda play: parse_goal(play.first)},
        "babyai": {"observation": _get_state},
        "sciworld": {
            "action_hint": _get_hints,
            "goals": _info_lookup("goals"),
            "task_description": _description_lookup(dialect),
            "object_tree": _info_lookup("object_tree"),
            "state": _get_state,
        },
        "alfworld": {"available_actions": actions},
        "maze": {"available_actions": actions},
        "wordle": {"filtered_vocab": lambda play: [word.replace(" ", "") for word in list_admissible(play.info)]},
        "webshop": {"available_actions": _get_clickables, "instruction_text": _get_instruction, "state": _get_page},
        "webarena": {"observation_metadata": _get_nodes},
    }
    return tables.get(dialect.name, {})


def list_lookups(dialect: EnvDialect, translator: TextTranslator) -> Mapping[str, Lookup]:
    """Returns path -> lookup, which answers a GET of that path for a session."""
    common: dict[str, Lookup] = {"observation": lambda play: translator.observation(play.text)}
    if dialect.shape == "object":
        common["detail"] = _get_state
    return {**common, **_dialect_lookups(dialect)}


def task_by_number(world: World) -> Callable[[int], Task] | None:
    """Returns a function from AgentGym's number to the task (it raises ConfigError); None if the world has no such
    numbers.
    """
    if isinstance(world, GridWorld) and world.name == "babyai":
        return world.task_at_index
    if isinstance(world, SqlWorld) and world.name == "bird":
        return world.task_at_index
    return world.task_from if isinstance(world, Maze) and world.published else None


T = TypeVar("T")
Handler = Callable[[JsonObject], Awaitable[Json]]
_WORLD_TYPES = ("Text", "Embody", "Hybrid")
_MAX_EXTRA_SESSIONS = 64  # sessions remembered beyond those that can be open


class AgentGymMount:
    """The sessions of one mount.

    It keeps the state that the dialect needs of each: the texts sent, the rewards so far, the last answer. At most
    twice as many are kept as the host can hold, and the least recently used are dropped. A host closes idle sessions in
    the same order, so that every open session is known here.
    """

    def __init__(self, host: SessionHost, task_index: TaskIndex, *, world: str, dialect: EnvDialect) -> None:
        self.dialect = dialect
        self._host, self._catalogue, self._name, self._world = host, task_index, world, host.worlds[world]
        self._voice = get_translator(dialect.name, self._world)
        self._lookups = list_lookups(dialect, self._voice)
        self._plays: OrderedDict[int, Play] = OrderedDict()
        self._vocabulary: Mapping[str, Any] = {}
        self._numbered = task_by_number(self._world)

    def routes(self) -> dict[str, dict[str, Handler]]:
        """Returns the handlers: path below the mount -> method -> handler."""
        handlers: dict[str, dict[str, Handler]] = {
            "/create": {"POST": self.create},
            "/reset": {"POST": self.reset},
            "/step": {"POST": self.step},
            "/close": {"POST": self.close},
            "/": {"GET": self.get_root},
            "": {"GET": self.get_root},
        }
        for name, lookup in self._lookups.items():
            handlers[f"/{name}"] = {"GET": self._lookup_handler(lookup)}
        if self.dialect.shape != "object":
            handlers["/list_envs"] = {"GET": self.list_sessions}
        if self.dialect.name == "sciworld":
            handlers["/step_visual"] = {"POST": self.step}
        if self.dialect.name == "babyai":
            handlers["/render"] = {"POST": self.render}
        if self.dialect.name == "wordle":
            handlers["/filtered_vocab"] = {"GET": self.list_words}
        return handlers

    async def get_root(self, body: Mapping[str, object]) -> Json:
        """Returns the original server's answer at its root."""
        return f"This is environment {self.dialect.title}." if self.dialect.shape == "object" else "ok"

    async def create(self, body: Mapping[str, object]) -> Json:
        """Creates a session. TextCraft starts an episode at once; the folder in its request is never read.

        Raises:
            SampleInvalid: recipes or a goal of the caller: tasks are those of the world.
        """
        given = [name for name in ("commands", "goal") if self.dialect.name == "textcraft" and body.get(name)]
        if given:
            raise SampleInvalid(
                f"{' and '.join(given)} cannot be chosen here",
                value=str(body[given[0]])[:80],
                expected="null",
                hint="choose a task by its number: POST /reset with data_idx; GET /goal and GET /commands tell them",
            )
        session = await self._host.create(self._name, short=True)
        play = Play(int(session), session, high=self._world.reward_range[1])
        self._plays[play.number] = play
        while len(self._plays) > 2 * self._host.status().capacity + _MAX_EXTRA_SESSIONS:
            self._plays.popitem(last=False)
        if self.dialect.name != "textcraft":
            return self.dialect.creation_body(play.number)
        try:
            await self._begin_episode(play, 0)
        except (ConfigError, WorldError):
            await self._close_play(play)
            raise
        return reset_body(self.dialect, play)

    async def reset(self, body: Mapping[str, object]) -> Json:
        """Starts or restarts an episode. Without a number: the same task again, at first task 0."""
        play = self._get_play(body)
        kind = body.get("world_type", _WORLD_TYPES[0])
        if self.dialect.name == "alfworld" and kind not in _WORLD_TYPES:
            raise SampleInvalid("unknown world type", value=kind, expected=", ".join(_WORLD_TYPES))
        index = body.get(self.dialect.index)
        await self._begin_episode(play, play.index if index is None else _get_number(body, self.dialect.index))
        return reset_body(self.dialect, play)

    async def step(self, body: JsonObject) -> Json:
        """Plays a step. After the end of an episode, returns the last answer again, with `ended: true`."""
        play, action = self._get_play(body), body.get("action")
        if not isinstance(action, str):
            raise SampleInvalid("the action is not text", value=action, expected='"action": "the text"')
        if play.over is not None:
            return {**play.over, "ended": True}
        if play.task is None:
            raise EpisodeEnded("step was called before reset", value=action, expected="POST /reset first")
        try:
            action_text = self._voice.parse_action(action)
        except InvalidAction as error:
            return refused_body(self.dialect, play, f"{error.what}; expected {error.expected}")
        try:
            result = await self._forget_if_lost(play, self._host.step(play.session, action_text))
        except InvalidAction as error:  # no text at all: refused before anything happened
            return refused_body(self.dialect, play, str(error))
        except EpisodeEnded:
            if play.over is None:
                raise
            return {**play.over, "ended": True}
        try:
            play.add_reward(result)
        except WorldError:
            await self._close_play(play)
            raise
        play.text = self._voice.translate(
            result.observation, result.info, action=action_text, truncated=result.truncated and not result.terminated
        )
        answer_body = step_body(
            self.dialect, play, terminated=result.terminated, truncated=result.truncated, info=result.info
        )
        if result.terminated or result.truncated or self.dialect.horizon == 1:
            play.over = answer_body
        return answer_body

    async def close(self, body: JsonObject) -> Json:
        """Closes a session; returns false if there is none."""
        play = self._plays.pop(_get_number(body, self.dialect.session_key), None)
        closed = play is not None and await self._host.close(play.session)
        return {"closed": "closed" if closed else "not open"} if self.dialect.shape == "web" else closed

    async def list_sessions(self, body: Mapping[str, object]) -> Json:
        """Returns the known sessions of this mount, oldest first."""
        return list(self._plays)

    async def list_words(self, body: Mapping[str, object]) -> Json:
        """Returns Wordle's words. Its client asks before the first reset, so an episode is started to read the legal
        guesses.
        """
        play = self._get_play(body)
        if not self._vocabulary:
            if play.task is None:
                reset_result = await self._forget_if_lost(play, self._host.reset(play.session, await self._get_task(0)))
                self._vocabulary = reset_result.info
            else:
                self._vocabulary = play.info
        return self._lookups["filtered_vocab"](Play(play.number, play.session, info=self._vocabulary))

    async def render(self, body: JsonObject) -> Json:
        """Raises NotFound: no world here draws BabyAI's picture."""
        self._get_play(body)
        raise NotFound("this server does not render images", hint="read the observation")

    def _lookup_handler(self, lookup: Lookup) -> Handler:
        async def answer(body: Mapping[str, Any]) -> Json:
            play = self._get_play(body)
            await self._forget_if_lost(play, self._host.look(play.session))
            return lookup(play)

        return answer

    async def _begin_episode(self, play: Play, index: int) -> None:
        task = await self._get_task(index)
        reset_result = await self._forget_if_lost(play, self._host.reset(play.session, task))
        play.begin(
            task,
            index,
            text=self._voice.format_first(reset_result.observation, reset_result.info),
            info=reset_result.info,
        )

    async def _get_task(self, index: int) -> Task:
        """Returns the task of a number; Wordle's number is a seed, so it wraps around.

        Raises:
            NotFound: no task has this number.
        """
        try:
            if self._numbered is not None:
                return await asyncio.to_thread(self._numbered, index)
            if self.dialect.index == "seed":
                index %= max(1, await self._catalogue.count_tasks(self._name))
            return await self._catalogue.get_by_index(self._name, index)
        except ConfigError as error:
            raise NotFound(error.what, value=error.value, expected=error.expected, hint=error.hint) from error

    def _get_play(self, body: Mapping[str, Any]) -> Play:
        number = _get_number(body, self.dialect.session_key)
        play = self._plays.get(number)
        if play is None:
            raise SessionGone(f"unknown session {number}", hint="it was closed or expired; create a new session")
        self._plays.move_to_end(number)
        return play

    async def _forget_if_lost(self, play: Play, answer: Awaitable[T]) -> T:
        """Returns the host's answer; a session that the host has lost is forgotten here."""
        try:
            return await answer
        except EpisodeEnded:
            raise
        except (EnvLost, StepTimeout, SessionGone):
            self._plays.pop(play.number, None)
            raise

    async def _close_play(self, play: Play) -> None:
        self._plays.pop(play.number, None)
        await self._host.close(play.session)


def _get_number(body: Mapping[str, Any], key: str) -> int:
    """Returns a whole number of a body or a query; a text of digits counts."""
    value = body.get(key)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        return int(value)
    if type(value) is not int:
        raise SampleInvalid(f"{key!r} is not a whole number", value=value, expected=f'"{key}": 0')
    return value


PREFIX = "/agentgym"
_MAX_QUERY_FIELDS = 32  # of a query


class AgentGymDialect:
    """The mounts of a server.

    Args:
        mounts: mount -> (world, dialect); None: every world that has a dialect by default, under its own name, and the
            first world of each dialect under the dialect's name too (`textcraft`, `babyai`, `maze`, ...).
    """

    name = "agentgym"

    def __init__(self, mounts: Mapping[str, tuple[str, str]] | None = None) -> None:
        self._mounts = mounts

    def mounts(self, host: SessionHost) -> Mapping[str, tuple[str, str]]:
        """Returns mount -> (world, dialect) at this host."""
        return default_mounts(host.worlds) if self._mounts is None else self._mounts

    def routes(self, host: SessionHost, task_index: TaskIndex) -> Sequence[BaseRoute]:
        """Returns the one route below which all mounts are.

        Raises:
            ConfigError: an unknown world or dialect, or a name that cannot be part of a path; all of them at once.
        """
        problems: list[Problem] = []
        handlers_by_path: dict[str, Mapping[str, Handler]] = {}
        for mount, (world, dialect) in self.mounts(host).items():
            if world not in host.worlds:
                problems.append(unknown_name_problem("world", world, host.worlds, location=f"mount {mount}"))
            try:
                row = get_dialect(dialect)
            except ConfigError as error:
                problems += error.problems
                continue
            if not mount or not mount.replace("-", "_").isidentifier():
                problems.append(unknown_name_problem("mount", mount, [dialect], location="mounts"))
            if world in host.worlds:
                mounted = AgentGymMount(host, task_index, world=world, dialect=row)
                handlers_by_path |= {f"/{mount}{path}": handlers for path, handlers in mounted.routes().items()}
        if problems:
            raise ConfigError(problems)
        handlers_by_path[""] = handlers_by_path["/"] = {"GET": self._mounts_handler(host)}
        return (PrefixRoute(PREFIX, _Application(handlers_by_path)),)

    def _mounts_handler(self, host: SessionHost) -> Handler:
        mounts: dict[str, Json] = {
            mount: {"world": world, "dialect": dialect} for mount, (world, dialect) in self.mounts(host).items()
        }

        async def listing(body: Mapping[str, Any]) -> Json:
            return {"mounts": mounts}

        return listing


class _Application:
    """Finds the handler of a path, reads the request, writes the answer. Typed errors are passed on to the server."""

    def __init__(self, routes: Mapping[str, Mapping[str, Handler]]) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"][len(PREFIX) :]
        methods = self._routes.get(path)
        if methods is None or scope["type"] != "http":
            raise self._path_error(path)
        handler = methods.get(scope["method"])
        if handler is None:
            return await send_not_allowed(scope, send, tuple(methods))
        body: object
        if scope["method"] == "POST":
            data = await _read_body(receive)
            body = decode_json(data) if data else {}
            if not isinstance(body, Mapping):
                raise SampleInvalid("the body is not a JSON object", value=body, expected='{"id": 0, ...}')
        else:
            body = _parse_query(scope["query_string"])
        return await send_response(send, 200, encode_json(await handler(body)))

    def _path_error(self, path: str) -> NotFound:
        similar = find_nearest(path, self._routes)
        hint = f"did you mean {similar}?" if similar else f"GET {PREFIX} lists the mounts"
        return NotFound(f"unknown path below {PREFIX}", value=path, hint=hint)


def _parse_query(text: bytes) -> Mapping[str, str]:
    try:
        return dict(parse_qsl(text.decode("latin-1"), max_num_fields=_MAX_QUERY_FIELDS))
    except ValueError as error:
        raise SampleInvalid(f"cannot read the query: {error}", value=text[:200]) from error


async def _read_body(receive: Receive) -> bytes:
    """Reads the body of a request, whose size the server's guard has checked."""
    message = await receive()
    data: bytes = message.get("body", b"")
    while message.get("more_body", False):
        message = await receive()
        data += message.get("body", b"")
    return data
