"""The native dialect as an OpenAPI 3.1 document: every route, every body, every error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evolvent import __version__
from evolvent.serve.native.operations import BATCH
from evolvent.serve.sessions import ACTION_CHARS
from evolvent.serve.wire import PROTOCOL

__all__ = ["document"]

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_REWARD: Schema = {"type": ["number", "null"]}
_FREE: Schema = {"type": "object"}
_SEED: Schema = {"type": ["integer", "null"], "minimum": 0, "maximum": 2**63 - 1}
_STEP: Schema = {
    "type": ["integer", "null"],
    "minimum": 0,
    "description": "number of this step, from 0; null: the next",
}
_ACTION: Schema = {"type": "string", "maxLength": ACTION_CHARS}
_ABOUT = {
    400: "another version of the protocol",
    403: "a foreign Host or Origin, or no token",
    404: "no such thing here",
    405: "no such method here",
    409: "a step that does not follow, or no episode",
    410: "the session's Env is lost",
    413: "a body that is too large or nested too deeply",
    422: "a body, query or action that cannot be used",
    500: "a world failed",
    503: "no free session; come back after Retry-After",
    504: "a world did not answer in time",
}
_ALWAYS = (400, 403, 405)


def document(worlds: Sequence[str]) -> dict[str, Any]:
    """The document of a server with these worlds."""
    about = "Worlds for agents: sessions with leases, steps that may safely be repeated, batches. `/v1/ws` carries the "
    about += "same bodies over one WebSocket: `{request_id, op, ...fields}` -> `{request_id, ok | error}`."
    return {
        "openapi": "3.1.0",
        "info": {"title": "evolvent", "version": __version__, "summary": f"protocol {PROTOCOL}", "description": about},
        "paths": {**_paths_of_worlds(list(worlds)), **_paths_of_sessions()},
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _paths_of_worlds(worlds: list[str]) -> Schema:
    world = _parameter("world", {"type": "string", "enum": worlds})
    task = _parameter("task", _TEXT, about="the id of a task")
    thoughts: Schema = {
        "type": "array",
        "items": {"type": ["string", "null"]},
        "description": "one an action, where the world explains what its expert does",
    }
    query = [
        _parameter("split", {"enum": ["train", "dev", "test"]}, place="query"),
        _parameter("tier", _TEXT, place="query"),
        _parameter("offset", {**_COUNT, "maximum": 10**9 - 1}, place="query", required=False),
        _parameter("limit", {**_COUNT, "maximum": 10**9 - 1}, place="query", required=False),
    ]
    return {
        "/": {"get": _told("rootOfServer", "What serves here", _object(name=_TEXT, evolvent=_TEXT))},
        "/health": {"get": _told("health", "Live counts", _ref("Health"))},
        "/openapi.json": {"get": _told("openapi", "This document", _FREE)},
        "/v1": {"get": _told("about", "The protocol and the worlds", _ref("About"))},
        "/v1/worlds": {"get": _told("worlds", "All worlds", _object(worlds=_list(_ref("World"))))},
        "/v1/worlds/{world}": {
            "parameters": [world],
            "get": _told("world", "One world", _ref("World"), errors=(404, 422)),
        },
        "/v1/worlds/{world}/tasks": {
            "parameters": [world],
            "get": {**_told("tasks", "A panel of tasks", _ref("Panel"), errors=(404, 422)), "parameters": query},
        },
        "/v1/worlds/{world}/tasks/{task}": {
            "parameters": [world, task],
            "get": _told("task", "One task", _ref("Task"), errors=(404, 422)),
        },
        "/v1/worlds/{world}/tasks/{task}/expert": {
            "parameters": [world, task],
            "get": _told(
                "expert",
                "Actions that solve the task; null: no expert",
                _object(actions={"type": ["array", "null"], "items": _TEXT}, optional={"thoughts": thoughts}),
                errors=(404, 422, 500, 504),
            ),
        },
        "/v1/worlds/{world}/vocabulary": {
            "parameters": [world],
            "get": _told(
                "vocabulary",
                "Every word of the world; null: open",
                _object(words={"type": ["array", "null"], "items": _TEXT}),
                errors=(404, 422, 500, 504),
            ),
        },
        "/v1/worlds/{world}/score": {
            "parameters": [world],
            "post": _asked("score", "The score of an episode", _ref("Episode"), _ref("Score"), errors=(500, 504)),
        },
    }


def _paths_of_sessions() -> Schema:
    session = _parameter("session", _TEXT, about="the id of a session")
    gone = (409, 410, 504)
    created = _asked(
        "createSession",
        "A new session, its episode begun",
        _ref("Create"),
        _ref("Begun"),
        errors=(410, 503, 504),
        status=201,
    )
    begun = created["responses"]["201"]
    names = {"look": "get", "step": "post", "reset": "post", "close": "delete"}
    tail = {"look": "", "step": "/step", "reset": "/reset", "close": ""}
    begun["links"] = {
        name: {
            "operationRef": f"#/paths/~1v1~1sessions~1{{session}}{tail[name].replace('/', '~1')}/{method}",
            "parameters": {"session": "$response.body#/session"},
        }
        for name, method in names.items()
    }
    return {
        "/v1/sessions": {"post": created},
        "/v1/sessions/{session}": {
            "parameters": [session],
            "get": _told("look", "Where the session stands; renews its lease", _ref("Look"), errors=(404, 410)),
            "delete": _told("close", "Give the session back", _object(closed={"type": "boolean"}), errors=(404,)),
        },
        "/v1/sessions/{session}/reset": {
            "parameters": [session],
            "post": _asked("reset", "Another episode in this session", _ref("Reset"), _ref("Begun"), errors=gone),
        },
        "/v1/sessions/{session}/step": {
            "parameters": [session],
            "post": _asked(
                "step",
                "Take a step, or hear the answer to the last one again",
                _ref("Step"),
                _ref("Stepped"),
                errors=gone,
            ),
        },
        "/v1/steps": {
            "post": _asked(
                "steps", f"At most {BATCH} steps; each fails alone", _ref("Steps"), _ref("Results"), errors=()
            ),
        },
    }


def _schemas() -> Schema:
    seen = {"observation": _TEXT, "info": _FREE}
    done = {"terminated": {"type": "boolean"}, "truncated": {"type": "boolean"}}
    task = {"anyOf": [{"type": "string", "description": "the id of a task"}, _ref("Task")]}
    state = {"enum": ["open", "running", "ended"]}
    return {
        "Error": {
            **_object(kind=_TEXT, message=_TEXT, expected={"type": ["string", "number", "null"]}, status=_COUNT),
            "description": "`kind` is a class of evolvent.errors; `retry_after_s` where the server is full",
        },
        "Health": _object(status=_TEXT, sessions=_FREE, capacity=_COUNT, created=_COUNT, steps=_COUNT, restarts=_COUNT),
        "About": _object(name=_TEXT, protocol=_COUNT, versions=_FREE, worlds=_list(_TEXT), ws=_TEXT),
        "World": _object(
            name=_TEXT,
            version=_TEXT,
            instructions=_TEXT,
            grammar=_FREE,
            horizon=_COUNT,
            reward_range=_list({"type": "number"}),
            tiers=_list(_TEXT),
            blocking={"type": "boolean"},
            vocabulary={"type": "boolean"},
        ),
        "Task": _object(id=_TEXT, world=_TEXT, version=_TEXT, spec=_FREE, kind=_TEXT, tier=_TEXT, split=_TEXT),
        "Panel": _object(tasks=_list(_ref("Task")), total=_COUNT, offset=_COUNT),
        "Episode": _object(rewards=_list(_REWARD), info=_FREE),
        "Score": _object(raw=_REWARD, unit=_REWARD, success={"type": ["boolean", "null"]}),
        "Create": _object(optional={"seed": _SEED}, world=_TEXT, task=task),
        "Reset": _object(optional={"seed": _SEED}, task=task),
        "Begun": _object(session=_TEXT, step=_COUNT, **seen),
        "Step": _object(optional={"step": _STEP}, action=_ACTION),
        "Stepped": _object(reward=_REWARD, step=_COUNT, **seen, **done),
        "Steps": _object(steps={"type": "array", "maxItems": BATCH, "items": _ref("BatchStep")}),
        "BatchStep": _object(optional={"step": _STEP}, session=_TEXT, action=_ACTION),
        "Results": _object(results=_list({"anyOf": [_ref("Stepped"), _object(error=_ref("Error"))]})),
        "Look": _object(
            session=_TEXT,
            world=_TEXT,
            state=state,
            task={"anyOf": [_ref("Task"), {"type": "null"}]},
            rewards=_list(_REWARD),
            step=_COUNT,
            **seen,
        ),
    }


def _told(name: str, about: str, schema: Schema, *, errors: Sequence[int] = (), status: int = 200) -> Schema:
    """An operation without a body."""
    fine = {"description": about, "content": {"application/json": {"schema": schema}}}
    return {
        "operationId": name,
        "summary": about,
        "responses": {str(status): fine, **{str(code): _error(code) for code in sorted({*_ALWAYS, *errors})}},
    }


def _asked(name: str, about: str, body: Schema, answer: Schema, *, errors: Sequence[int], status: int = 200) -> Schema:
    """An operation with a JSON body."""
    told = _told(name, about, answer, errors=(404, 413, 422, *errors), status=status)
    return {**told, "requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}


def _error(code: int) -> Schema:
    made: Schema = {"description": _ABOUT[code], "content": {"application/json": {"schema": _ref("Error")}}}
    if code == 503:
        made["headers"] = {"Retry-After": {"schema": _COUNT, "required": True}}
    return made


def _parameter(name: str, schema: Schema, *, place: str = "path", required: bool = True, about: str = "") -> Schema:
    return {"name": name, "in": place, "required": required, "schema": schema, "description": about or name}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(*, optional: Schema | None = None, **required: Schema) -> Schema:
    """An object with these fields; others may come with them."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}
