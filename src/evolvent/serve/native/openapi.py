"""The native dialect as an OpenAPI 3.1 document: every route, every body, every error."""

from __future__ import annotations

from collections.abc import Sequence

from evolvent import __version__
from evolvent.serve.native.operations import MAX_BATCH
from evolvent.serve.sessions import ACTION_CHARS
from evolvent.serve.wire import PROTOCOL
from evolvent.trajectory import JsonObject

__all__ = ["build_document"]

Schema = JsonObject
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
_STATUS_TEXTS = {
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
_COMMON_STATUSES = (400, 403, 405)


def build_document(worlds: Sequence[str]) -> dict[str, object]:
    """Returns the document of a server with these worlds."""
    description = (
        "Worlds for agents: sessions with leases, steps that may safely be repeated, batches. `/v1/ws` carries the "
    )
    description += "same bodies over one WebSocket: `{request_id, op, ...fields}` -> `{request_id, ok | error}`."
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "evolvent",
            "version": __version__,
            "summary": f"protocol {PROTOCOL}",
            "description": description,
        },
        "paths": {**_paths_of_worlds(list(worlds)), **_paths_of_sessions()},
        "components": {
            "schemas": _build_schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _paths_of_worlds(worlds: list[str]) -> Schema:
    world = _make_parameter("world", {"type": "string", "enum": worlds})
    task = _make_parameter("task", _TEXT, description="the id of a task")
    thoughts: Schema = {
        "type": "array",
        "items": {"type": ["string", "null"]},
        "description": "one an action, where the world explains what its expert does",
    }
    query = [
        _make_parameter("split", {"enum": ["train", "dev", "test"]}, location="query"),
        _make_parameter("tier", _TEXT, location="query"),
        _make_parameter("offset", {**_COUNT, "maximum": 10**9 - 1}, location="query", required=False),
        _make_parameter("limit", {**_COUNT, "maximum": 10**9 - 1}, location="query", required=False),
    ]
    return {
        "/": {"get": _get_operation("rootOfServer", "What serves here", _object_schema(name=_TEXT, evolvent=_TEXT))},
        "/health": {"get": _get_operation("health", "Live counts", _make_reference("Health"))},
        "/openapi.json": {"get": _get_operation("openapi", "This document", _FREE)},
        "/v1": {"get": _get_operation("about", "The protocol and the worlds", _make_reference("About"))},
        "/v1/worlds": {
            "get": _get_operation(
                "worlds", "All worlds", _object_schema(worlds=_array_schema(_make_reference("World")))
            )
        },
        "/v1/worlds/{world}": {
            "parameters": [world],
            "get": _get_operation("world", "One world", _make_reference("World"), errors=(404, 422)),
        },
        "/v1/worlds/{world}/tasks": {
            "parameters": [world],
            "get": {
                **_get_operation("tasks", "A panel of tasks", _make_reference("Panel"), errors=(404, 422)),
                "parameters": query,
            },
        },
        "/v1/worlds/{world}/tasks/{task}": {
            "parameters": [world, task],
            "get": _get_operation("task", "One task", _make_reference("Task"), errors=(404, 422)),
        },
        "/v1/worlds/{world}/tasks/{task}/expert": {
            "parameters": [world, task],
            "get": _get_operation(
                "expert",
                "Actions that solve the task; null: no expert",
                _object_schema(actions={"type": ["array", "null"], "items": _TEXT}, optional={"thoughts": thoughts}),
                errors=(404, 422, 500, 504),
            ),
        },
        "/v1/worlds/{world}/vocabulary": {
            "parameters": [world],
            "get": _get_operation(
                "vocabulary",
                "Every word of the world; null: open",
                _object_schema(words={"type": ["array", "null"], "items": _TEXT}),
                errors=(404, 422, 500, 504),
            ),
        },
        "/v1/worlds/{world}/score": {
            "parameters": [world],
            "post": _post_operation(
                "score",
                "The score of an episode",
                _make_reference("Episode"),
                _make_reference("Score"),
                errors=(500, 504),
            ),
        },
    }


def _paths_of_sessions() -> Schema:
    session = _make_parameter("session", _TEXT, description="the id of a session")
    gone = (409, 410, 504)
    created = _post_operation(
        "createSession",
        "A new session, its episode begun",
        _make_reference("Create"),
        _make_reference("Begun"),
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
            "get": _get_operation(
                "look", "Where the session stands; renews its lease", _make_reference("Look"), errors=(404, 410)
            ),
            "delete": _get_operation(
                "close", "Give the session back", _object_schema(closed={"type": "boolean"}), errors=(404,)
            ),
        },
        "/v1/sessions/{session}/reset": {
            "parameters": [session],
            "post": _post_operation(
                "reset",
                "Another episode in this session",
                _make_reference("Reset"),
                _make_reference("Begun"),
                errors=gone,
            ),
        },
        "/v1/sessions/{session}/step": {
            "parameters": [session],
            "post": _post_operation(
                "step",
                "Take a step, or hear the answer to the last one again",
                _make_reference("Step"),
                _make_reference("Stepped"),
                errors=gone,
            ),
        },
        "/v1/steps": {
            "post": _post_operation(
                "steps",
                f"At most {MAX_BATCH} steps; each fails alone",
                _make_reference("Steps"),
                _make_reference("Results"),
                errors=(),
            ),
        },
    }


def _build_schemas() -> Schema:
    observed = {"observation": _TEXT, "info": _FREE}
    ended = {"terminated": {"type": "boolean"}, "truncated": {"type": "boolean"}}
    task = {"anyOf": [{"type": "string", "description": "the id of a task"}, _make_reference("Task")]}
    state = {"enum": ["open", "running", "ended"]}
    return {
        "Error": {
            **_object_schema(kind=_TEXT, message=_TEXT, expected={"type": ["string", "number", "null"]}, status=_COUNT),
            "description": "`kind` is a class of evolvent.errors; `retry_after_s` where the server is full",
        },
        "Health": _object_schema(
            status=_TEXT, sessions=_FREE, capacity=_COUNT, created=_COUNT, steps=_COUNT, restarts=_COUNT
        ),
        "About": _object_schema(name=_TEXT, protocol=_COUNT, versions=_FREE, worlds=_array_schema(_TEXT), ws=_TEXT),
        "World": _object_schema(
            name=_TEXT,
            version=_TEXT,
            instructions=_TEXT,
            grammar=_FREE,
            horizon=_COUNT,
            reward_range=_array_schema({"type": "number"}),
            tiers=_array_schema(_TEXT),
            blocking={"type": "boolean"},
            vocabulary={"type": "boolean"},
        ),
        "Task": _object_schema(id=_TEXT, world=_TEXT, version=_TEXT, spec=_FREE, kind=_TEXT, tier=_TEXT, split=_TEXT),
        "Panel": _object_schema(tasks=_array_schema(_make_reference("Task")), total=_COUNT, offset=_COUNT),
        "Episode": _object_schema(rewards=_array_schema(_REWARD), info=_FREE),
        "Score": _object_schema(raw=_REWARD, unit=_REWARD, success={"type": ["boolean", "null"]}),
        "Create": _object_schema(optional={"seed": _SEED}, world=_TEXT, task=task),
        "Reset": _object_schema(optional={"seed": _SEED}, task=task),
        "Begun": _object_schema(session=_TEXT, step=_COUNT, **observed),
        "Step": _object_schema(optional={"step": _STEP}, action=_ACTION),
        "Stepped": _object_schema(reward=_REWARD, step=_COUNT, **observed, **ended),
        "Steps": _object_schema(steps={"type": "array", "maxItems": MAX_BATCH, "items": _make_reference("BatchStep")}),
        "BatchStep": _object_schema(optional={"step": _STEP}, session=_TEXT, action=_ACTION),
        "Results": _object_schema(
            results=_array_schema(
                {"anyOf": [_make_reference("Stepped"), _object_schema(error=_make_reference("Error"))]}
            )
        ),
        "Look": _object_schema(
            session=_TEXT,
            world=_TEXT,
            state=state,
            task={"anyOf": [_make_reference("Task"), {"type": "null"}]},
            rewards=_array_schema(_REWARD),
            step=_COUNT,
            **observed,
        ),
    }


def _get_operation(
    name: str, description: str, schema: Schema, *, errors: Sequence[int] = (), status: int = 200
) -> Schema:
    """Returns an operation without a body."""
    success = {"description": description, "content": {"application/json": {"schema": schema}}}
    return {
        "operationId": name,
        "summary": description,
        "responses": {
            str(status): success,
            **{str(code): _error_response(code) for code in sorted({*_COMMON_STATUSES, *errors})},
        },
    }


def _post_operation(
    name: str, description: str, body: Schema, answer: Schema, *, errors: Sequence[int], status: int = 200
) -> Schema:
    """Returns an operation with a JSON body."""
    operation = _get_operation(name, description, answer, errors=(404, 413, 422, *errors), status=status)
    return {**operation, "requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}


def _error_response(code: int) -> Schema:
    response: dict[str, object] = {
        "description": _STATUS_TEXTS[code],
        "content": {"application/json": {"schema": _make_reference("Error")}},
    }
    if code == 503:
        response["headers"] = {"Retry-After": {"schema": _COUNT, "required": True}}
    return response


def _make_parameter(
    name: str, schema: Schema, *, location: str = "path", required: bool = True, description: str = ""
) -> Schema:
    return {"name": name, "in": location, "required": required, "schema": schema, "description": description or name}


def _make_reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _array_schema(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object_schema(*, optional: Schema | None = None, **required: Schema) -> Schema:
    """Returns the schema of an object with these fields; others may come with them."""
    return {"type": "object", "required": list(required), "properties": {**required, **(optional or {})}}
