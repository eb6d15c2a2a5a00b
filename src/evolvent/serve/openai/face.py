"""A policy behind an OpenAI-compatible server: `/v1/models`, `/v1/chat/completions`, `/v1/completions`.

SGLang's native routes (`sglang.py`) answer beside them.

Extensions to OpenAI's API: `return_token_ids` returns the ids of prompt and reply (in vLLM's fields), the
log-probabilities are those of the distribution that was sampled from, the fingerprint names the policy's version, and a
conversation whose requests have one `x-session-id` continues from its sampled tokens. `tools.py` describes how tools
are shown and calls are read. A seed gives the same reply whatever else runs. Generation for a disconnected client is
canceled. If a root is given, `/update_weights_from_disk` loads other weights from it (`reload.py`): every reply is of
one version, which its fingerprint names. A reply in progress starts again under the new weights; a streamed reply in
progress ends with 409, to be requested again. From the same root vLLM's `/v1/load_lora_adapter` and SGLang's
`/load_lora_adapter` load an adapter over the served base (`adapters.py`): a model of its own name.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from evolvent.engine.asks import Constraint
from evolvent.errors import (
    AccessDenied,
    AtCapacity,
    ConfigError,
    ContextOverflow,
    EvolventError,
    Problem,
    boundary,
    unknown_name_problem,
)
from evolvent.messages import Message
from evolvent.serve.connections import ConnectionTable
from evolvent.serve.metrics import (
    EXPOSITION_CONTENT_TYPE,
    Family,
    LabeledCounter,
    MeasuredApp,
    Sample,
    format_exposition,
    make_gauge,
)
from evolvent.serve.openai.adapters import AdapterTable, sum_usage
from evolvent.serve.openai.conversations import ConversationCache
from evolvent.serve.openai.generator import CLIENT, Generator
from evolvent.serve.openai.recording import (
    RecordedTurn,
    RewardRequest,
    SessionName,
    SessionRecorder,
    read_session_name,
)
from evolvent.serve.openai.reload import (
    load_adapted,
    load_replacement,
    parse_adapter,
    parse_model,
    parse_reload,
)
from evolvent.serve.openai.reply import Choice, ReplyFormat, encode_error, http_status
from evolvent.serve.openai.request import BaseCompletionRequest as AnyCompletionRequest
from evolvent.serve.openai.request import ChatRequest, CompletionRequest, parse_request, read_response_schema
from evolvent.serve.openai.responses import ResponseFormat, parse_responses
from evolvent.serve.openai.sglang import (
    GenerateFormat,
    GenerateRequest,
    describe_model,
    parse_generate,
    parse_tokenize,
)
from evolvent.serve.openai.tools import RenderedChat, ToolOffer, ToolRenderer, parse_offer, session_key
from evolvent.serve.openai.writing import ReplyWriter, adjust_tokens
from evolvent.serve.wire import NotFound, decode_error, decode_json, encode_json
from evolvent.trajectory import JsonObject, canonical_json
from evolvent.web import Access, App, Receive, Scope, Send, guard_app
from evolvent.web import Message as Event

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = [
    "GuardMarker",
    "PolicyDialect",
    "RefusalTranslator",
    "build_policy_app",
    "encode_event",
    "json_response",
    "run_while_connected",
]


T = TypeVar("T")
_PASSED_GUARD_KEY = "evolvent.reached"


class GuardMarker:
    """Marks requests that have passed the guard."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_PASSED_GUARD_KEY] = True
        await self._app(scope, receive, send)


class RefusalTranslator:
    """Converts answers of the guard to OpenAI's form: 401 without the token, as clients expect of a key, else 403."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start_event: Event | None = None

        async def send_translated(message: Event) -> None:
            nonlocal start_event
            if scope.get(_PASSED_GUARD_KEY) or scope["type"] != "http":
                return await send(message)
            if message["type"] == "http.response.start":
                start_event = message
                return None
            row = json.loads(message["body"])
            body, status = encode_error(decode_error(row)), row["status"]
            if str(row["expected"]).startswith("Authorization:"):
                body["error"] |= {"type": "authentication_error", "code": "invalid_api_key"}
                status = 401
            response = json_response(body, status)
            if start_event is not None:
                response.headers.update(
                    {
                        key.decode(): value.decode()
                        for key, value in start_event["headers"]
                        if key in (b"connection", b"retry-after")
                    }
                )
            return await response(scope, receive, send)

        await self._app(scope, receive, send_translated)


def json_response(row: JsonObject | list[object], status: int = 200, *, error: EvolventError | None = None) -> Response:
    """Returns a JSON value as a response; after AtCapacity it includes the time of a retry."""
    headers = {"retry-after": f"{error.retry_after_s:.0f}"} if isinstance(error, AtCapacity) else None
    return Response(encode_json(row), status, headers, "application/json")


def encode_event(row: JsonObject) -> bytes:
    """Encodes a server-sent event."""
    return b"data: " + encode_json(row) + b"\n\n"


async def run_while_connected(request: Request, awaitable: Awaitable[T]) -> T:
    """Returns the value of an awaitable that is canceled when the client leaves. Raises ClientDisconnect then."""

    async def wait_for_disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(awaitable), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


_log = logging.getLogger(__name__)
_MIN_PROMPT_CHARS, _MIN_MESSAGES = 1 << 16, 1024  # characters and messages of a prompt that are read in any case
_MAX_CHARS_PER_TOKEN = 64  # characters; a prompt with more for every token of the context cannot fit, and is not read
_COUNTED_PATHS = (
    "v1",
    "generate",
    "tokenize",
    "model_info",
    "get_model_info",
    "health",
    "metrics",
)  # paths that are counted
_MAX_REQUEST_ID = 200  # characters of a request's id that is repeated in the answer
_MAX_DRAIN_S, _DRAIN_POLL_S = 60.0, 0.01  # how long new weights wait for recorded streams, and between two looks
_CLIENT_CLOSED_STATUS = 499  # for a client that has left, as nginx logs it


def _build_generator(policy: Policy) -> Generator:
    from evolvent.engine.fitting import engine_for

    return Generator(policy, engine_for(policy))


def _rename_model(body: object, name: str) -> object:
    """Returns the body of a request under the name of the adapter that answers it."""
    fields = dict(body) if isinstance(body, Mapping) else {}
    return {**fields, "model": name, "lora_path": None}


def _request_id(request: Request) -> str:
    """Returns the id that a client gave its request, where it is a short word, or else a new one."""
    client_id = request.headers.get("x-request-id", "")
    is_word = 0 < len(client_id) <= _MAX_REQUEST_ID and client_id.isprintable() and client_id.isascii()
    return client_id if is_word else f"req_{secrets.token_hex(12)}"


class _ClosingStream(StreamingResponse):
    """A stream of events that closes what it used, however it ends."""

    def __init__(self, content: AsyncIterator[bytes], headers: Mapping[str, str], used: ExitStack) -> None:
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._content, self._used = content, used

    def convert(self, convert_lines: Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]) -> None:
        """Replaces the lines of the stream, before it is sent."""
        self.body_iterator = convert_lines(self._content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._used:
            await super().__call__(scope, receive, send)


class PolicyDialect:
    """The routes around one generator.

    Args:
        generator: generates the replies; the server enters it first (`lifespan`).
        name: name of the model.
        reload: folder from which other weights may be loaded; None: none.
        recorder: records the sessions of agents; None: nothing is recorded.
        build_generator: makes the generator of a policy with an adapter; None: one with an engine of 64 slots.
    """

    def __init__(
        self,
        generator: Generator,
        name: str,
        *,
        reload: Path | None = None,
        recorder: SessionRecorder | None = None,
        build_generator: Callable[[Policy], Generator] | None = None,
    ) -> None:
        self._build_generator = build_generator or _build_generator
        self._adapters: AdapterTable[PolicyDialect] = AdapterTable()
        self._generator, self._name, self._root, self._recorder = generator, name, reload, recorder
        self._reloading = asyncio.Lock()
        self._accepts_parts, self._num_parts = asyncio.Event(), 0
        self._accepts_parts.set()
        self._created = int(time.time())
        self._conversations = ConversationCache()
        self._toolbox: ToolRenderer | None = None
        self._errors = LabeledCounter("evolvent_errors_total", "Requests that failed, by kind.", "kind")

    def routes(self, host: object = None, task_index: object = None) -> Sequence[BaseRoute]:
        """Returns the routes. They answer errors in OpenAI's form."""
        reload_routes = (
            []
            if self._root is None
            else [
                Route("/update_weights_from_disk", self._reload_weights, methods=["POST"]),
                Route("/v1/load_lora_adapter", self._with_error_answers(self._load_adapter), methods=["POST"]),
                Route("/v1/unload_lora_adapter", self._with_error_answers(self._unload_adapter), methods=["POST"]),
                Route("/load_lora_adapter", partial(self._answer_as_sglang, self._load_adapter), methods=["POST"]),
                Route("/unload_lora_adapter", partial(self._answer_as_sglang, self._unload_adapter), methods=["POST"]),
            ]
        )
        session_routes = [
            Route(f"{prefix}/sessions{path}", self._with_error_answers(handler), methods=[method])
            for prefix in ("", "/v1")
            for path, handler, method in (
                ("", self._count_sessions, "GET"),
                ("/{session:path}/reward", self._reward_session, "POST"),
                ("/{session:path}", self._get_session, "GET"),
            )
            if self._recorder is not None
        ]
        return [
            *reload_routes,
            *session_routes,
            Route("/v1/models", self._with_error_answers(self._list_models)),
            Route("/v1/models/{model:path}", self._with_error_answers(self._get_model)),
            Route("/v1/chat/completions", self._with_error_answers(self._complete_chat), methods=["POST"]),
            Route("/v1/responses", self._with_error_answers(self._respond), methods=["POST"]),
            Route("/v1/completions", self._with_error_answers(self._complete_text), methods=["POST"]),
            Route("/generate", self._with_error_answers(self._generate), methods=["POST"]),
            Route("/model_info", self._with_error_answers(self._get_info)),
            Route("/get_model_info", self._with_error_answers(self._get_info)),
            Route("/tokenize", self._with_error_answers(self._tokenize), methods=["POST"]),
        ]

    def _with_error_answers(
        self, handle: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Returns a handler that answers errors."""

        async def answered(request: Request) -> Response:
            address = request.client.host if request.client is not None else ""
            CLIENT.set(f"{address} {request.headers.get('authorization', '')}")
            try:
                with boundary(EvolventError, "a fault of the server itself"):
                    response = await handle(request)
            except EvolventError as error:
                if isinstance(error.__cause__, ClientDisconnect):
                    return Response(status_code=_CLIENT_CLOSED_STATUS)
                self._record_error(error)
                response = json_response(encode_error(error), http_status(error), error=error)
            response.headers["x-request-id"] = _request_id(request)
            return response

        return answered

    def _record_error(self, error: EvolventError) -> None:
        """Counts an error. An untyped error is a fault of the server: it is logged."""
        self._errors.add(type(error).__name__)
        if type(error) is EvolventError:
            _log.error("%s", error, exc_info=error)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Runs the generator."""
        async with self._generator, nullcontext() if self._recorder is None else self._recorder:
            try:
                yield
            finally:
                await self._adapters.close()

    async def sync(self, policy: Policy) -> None:
        """Loads other weights from now on; conversations continue unless the tokenizer changes."""
        old_tokenizer = self._generator.policy.tokenizer
        self._adapters.remove_all()  # they are of the base that goes
        await self._generator.sync(policy)
        if policy.tokenizer is not old_tokenizer and policy.tokenizer.get_vocab() != old_tokenizer.get_vocab():
            self._conversations = ConversationCache()

    async def _reload_weights(self, request: Request) -> Response:
        """Loads other weights, and answers as SGLang does; an extra field names the served weights."""
        try:
            with boundary(EvolventError, "a fault of the server itself"):
                policy = await self._load_served_policy(parse_reload(decode_json(await request.body())).model_path)
        except EvolventError as error:
            self._record_error(error)
            row = {"success": False, "message": str(error), **encode_error(error)}
            return json_response(row, http_status(error), error=error)
        message = f"version {policy.version} is served"
        row = {"success": True, "message": message, "num_paused_requests": 0}
        return json_response(row | {"system_fingerprint": self._generator.fingerprint})

    async def _load_served_policy(self, path: str) -> Policy:
        """Loads a policy on a thread while others are served, then serves it. Raises AtCapacity during another load."""
        if self._root is None:
            raise AccessDenied("this server does not accept weights", hint="start it with --reload ROOT")
        if self._reloading.locked():
            raise AtCapacity("other weights are being loaded", retry_after_s=1.0)
        async with self._reloading:
            policy = await asyncio.to_thread(load_replacement, self._root, path, self._generator.policy)
            self._accepts_parts.clear()
            try:
                await self._drain_parts()
                await self.sync(policy)
            finally:
                self._accepts_parts.set()
        return policy

    async def _load_adapter(self, request: Request) -> Response:
        """Loads an adapter over the served base on a thread, and answers as vLLM does."""
        adapter = parse_adapter(decode_json(await request.body()))
        if adapter.lora_path is None:
            raise ConfigError([Problem("lora_path", "missing folder of the adapter", "name a folder inside the root")])
        self._adapters.check_name(adapter.lora_name, base=self._name)
        if self._root is None:
            raise AccessDenied("this server does not accept weights", hint="start it with --reload ROOT")
        if self._reloading.locked():
            raise AtCapacity("other weights are being loaded", retry_after_s=1.0)
        async with self._reloading:
            generator = await asyncio.to_thread(self._build_adapted, self._root, adapter.lora_path)
            make_dialect = partial(PolicyDialect, name=adapter.lora_name, recorder=self._recorder)
            await self._adapters.add(adapter.lora_name, generator, make_dialect)
        return Response(f"Success: LoRA adapter {adapter.lora_name!r} added successfully.", media_type="text/plain")

    def _build_adapted(self, root: Path, path: str) -> Generator:
        return self._build_generator(load_adapted(root, path, self._generator.policy))

    async def _unload_adapter(self, request: Request) -> Response:
        """Drops an adapter, and answers as vLLM does."""
        name = parse_adapter(decode_json(await request.body())).lora_name
        self._adapters.remove(name)
        return Response(f"Success: LoRA adapter {name!r} removed successfully.", media_type="text/plain")

    async def _answer_as_sglang(self, handle: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
        """Handles a request about an adapter, and answers in SGLang's form."""
        try:
            with boundary(EvolventError, "a fault of the server itself"):
                await handle(request)
        except EvolventError as error:
            self._record_error(error)
            row = {"success": False, "error_message": str(error), "loaded_adapters": None}
            return json_response(row, 400 if isinstance(error, NotFound) else http_status(error), error=error)
        loaded: dict[str, object] = dict.fromkeys(self._adapters.names, "")  # it tells no path of this machine
        return json_response({"success": True, "error_message": "", "loaded_adapters": loaded})

    async def _drain_parts(self) -> None:
        """Waits until the recorded replies that are written in parts have ended; new ones wait for the weights.

        An agent whose stream broke off would have to be changed to ask again.
        """
        deadline = time.monotonic() + _MAX_DRAIN_S
        while self._num_parts and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)

    def _end_parts(self) -> None:
        self._num_parts -= 1

    @property
    def _sessions(self) -> SessionRecorder:
        """Returns the recorder. Raises AccessDenied where nothing is recorded."""
        if self._recorder is None:
            raise AccessDenied("this server does not record sessions", hint="start it with --record RUN")
        return self._recorder

    async def _count_sessions(self, request: Request) -> Response:
        return json_response(self._sessions.count_sessions())

    async def _get_session(self, request: Request) -> Response:
        return json_response(self._sessions.describe(request.path_params["session"]))

    async def _reward_session(self, request: Request) -> Response:
        reward_request = parse_model(RewardRequest, decode_json(await request.body()))
        return json_response(await self._sessions.reward_session(request.path_params["session"], reward_request))

    def health(self) -> JsonObject:
        """Returns live metrics."""
        writer = self._generator.fingerprint
        return {"status": "ok", "model": self._name, "writer": writer, "open": self._generator.open}

    def families(self) -> list[Family]:
        """Returns live metrics for `/metrics`."""
        generator, num_adapters = self._generator, len(self._adapters.names)
        usage = sum_usage([generator.usage, self._adapters.count_usage()])
        token_counts = (
            ("generated", usage.generated, "Tokens written."),
            ("computed", usage.computed, "Tokens computed."),
        )
        return [
            make_gauge("evolvent_requests_open", "Texts that are being written or wait to be.", generator.open),
            make_gauge("evolvent_requests_waiting", "Asks that wait for their client's turn.", generator.num_waiting),
            Family(
                "evolvent_requests_refused_total",
                "counter",
                "Requests answered 503, as too many were open.",
                (Sample(generator.num_refused),),
            ),
            make_gauge("evolvent_engine_queue", "Asks that the engine has taken and not answered.", generator.queued),
            make_gauge("evolvent_adapters_loaded", "Adapters that are served over the base.", num_adapters),
            make_gauge("evolvent_policy_version", "Version of the weights that are served.", generator.policy.version),
            *(
                Family(f"evolvent_tokens_{name}_total", "counter", help, (Sample(count),))
                for name, count, help in token_counts
            ),
            self._errors.family(),
        ]

    async def _list_models(self, request: Request) -> Response:
        adapters = [{**dialect._describe_model(), "parent": self._name} for dialect in self._adapters.dialects]
        return json_response({"object": "list", "data": [self._describe_model(), *adapters]})

    async def _get_model(self, request: Request) -> Response:
        return json_response(self._find_dialect(request.path_params["model"])._describe_model())

    def _describe_model(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "evolvent",
            "max_model_len": self._generator.context,
            "system_fingerprint": self._generator.fingerprint,
            "logprobs_mode": "processed_logprobs",
        }

    def _find_dialect(self, model: str, adapter: str | None = None) -> PolicyDialect:
        """Returns what answers for a model: this, or an adapter of it. Raises NotFound for an unknown one.

        Args:
            adapter: the adapter as SGLang's requests name it, beside the model; None: the model says all.
        """
        name = adapter or model
        found_dialect = self if name == self._name else self._adapters.find(name)
        if found_dialect is None or (adapter is not None and model != self._name):
            unknown = name if found_dialect is None else model
            names = [self._name, *self._adapters.names]
            raise NotFound([unknown_name_problem("model", unknown[:80], names)])
        return found_dialect

    async def _complete_chat(self, request: Request) -> Response:
        return await self._answer_chat(request, decode_json(await request.body()))

    async def _respond(self, request: Request) -> Response:
        """Answers a request of `/v1/responses` by a chat completion."""
        responses_request = parse_responses(decode_json(await request.body()))
        response_format = ResponseFormat(responses_request)
        reply = await self._answer_chat(request, responses_request.to_chat())
        if isinstance(reply, _ClosingStream):
            reply.convert(response_format.stream_events)
            return reply
        response = json_response(response_format.body(json.loads(bytes(reply.body))))
        response.headers.update(
            {name: value for name, value in reply.headers.items() if name.startswith("x-evolvent-")}
        )
        return response

    async def _answer_chat(self, request: Request, body: object) -> Response:
        """Answers the body of a chat completion."""
        chat_request = parse_request(ChatRequest, body)
        dialect = self._find_dialect(chat_request.model, chat_request.lora_path)
        if dialect is not self:
            return await dialect._answer_chat(request, _rename_model(body, dialect._name))
        name = read_session_name(request.headers, body)
        self._check_length(len(chat_request.messages), [])
        messages = chat_request.conversation()
        offer = parse_offer(chat_request)
        serialized = [canonical_json([tool.as_openai() for tool in offer.tools])] if offer.tools else []
        serialized += [canonical_json(dict(call.arguments)) for message in messages for call in message.calls]
        self._check_length(len(messages), [*(message.text for message in messages), *serialized])
        form = ReplyFormat(
            True,
            self._name,
            self._decode_token,
            chat_request.logprobs,
            chat_request.return_token_ids,
            chat_request.return_weight_versions,
            chat_request.top_logprobs,
        )
        # Grammars are built in a thread, since a large one is compiled in another process first.
        schema, constraint = read_response_schema(chat_request.response_format), None
        if schema is not None and not offer.tools:
            constraint = await asyncio.to_thread(self._get_renderer().constrain_schema, schema)
        elif schema is not None or offer.is_required:
            await asyncio.to_thread(self._get_renderer().prepare, offer, schema)
        with ExitStack() as open_turn:
            turn = self._begin_turn(messages, name, form, open_turn)
            read_key, stored_key = (name.session, name.session) if turn is None else turn.cache_keys
            rendered, prompt = self._render_chat(messages, offer, read_key, answer_schema=schema)
            note = partial(self._store_reply, messages, session_key(stored_key, offer))
            if constraint is None and rendered is not None:
                constraint = rendered.constraint
            writer = self._make_writer(
                chat_request, form, on_choice=note, tools=rendered, constraint=constraint, turn=turn
            )
            return await self._answer_request(request, chat_request, writer, [prompt], turn, open_turn)

    def _render_chat(
        self,
        messages: Sequence[Message],
        offer: ToolOffer,
        session: str | None,
        *,
        answer_schema: JsonObject | None = None,
    ) -> tuple[RenderedChat | None, list[int]]:
        """Returns the prompt of a conversation, and with tools how its reply is read."""
        policy, session = self._generator.policy, session_key(session, offer)
        if offer.tools or any(message.calls or message.role == "tool" for message in messages):
            rendered = self._get_renderer().render(messages, offer, answer_schema=answer_schema)
            after = partial(rendered.tokens_after, policy=policy)
            return rendered, self._conversations.continue_templated(messages, session, after) or rendered.ids
        return None, self._conversations.encode_prompt(messages, policy.dialect, session)

    def _echo_texts(self, completion_request: CompletionRequest, prompts: Sequence[list[int]]) -> list[str]:
        """Returns the texts of the prompts."""
        decode = self._generator.policy.tokenizer.decode
        return [
            text if isinstance(text, str) else str(decode(ids))
            for text, ids in zip(completion_request.prompts(), prompts, strict=True)
        ]

    def _begin_turn(
        self, messages: Sequence[Message], name: SessionName, reply_format: ReplyFormat, open_turn: ExitStack
    ) -> RecordedTurn | None:
        """Begins to record a request, where the server records; the turn is finished with `open_turn`."""
        if self._recorder is None:
            return None
        turn = self._recorder.begin_turn(messages, name, decode=self._generator.policy.dialect.text)
        turn.reply_id = reply_format.reply_id
        open_turn.callback(turn.finish)
        return turn

    async def _complete_text(self, request: Request) -> Response:
        return await self._answer_text(request, decode_json(await request.body()))

    async def _answer_text(self, request: Request, body: object) -> Response:
        """Handles the body of a completion."""
        completion_request = parse_request(CompletionRequest, body)
        dialect = self._find_dialect(completion_request.model, completion_request.lora_path)
        if dialect is not self:
            return await dialect._answer_text(request, _rename_model(body, dialect._name))
        form = ReplyFormat(
            False,
            self._name,
            self._decode_token,
            completion_request.logprobs is not None,
            completion_request.return_token_ids,
            completion_request.return_weight_versions,
            0 if completion_request.return_token_ids else completion_request.logprobs or 0,
        )
        prompts = self._encode_prompts(completion_request)
        echoed_prompts = self._echo_texts(completion_request, prompts) if completion_request.echo else ()
        name = read_session_name(request.headers, body)
        with ExitStack() as open_turn:
            turn = None
            if name.session is not None and len(prompts) == 1:  # others belong to no conversation
                prompt_text = self._generator.policy.dialect.text(prompts[0])
                turn = self._begin_turn([Message("user", prompt_text)], name, form, open_turn)
            writer = self._make_writer(completion_request, form, turn=turn)
            writer = replace(writer, echoed_prompts=echoed_prompts)
            return await self._answer_request(request, completion_request, writer, prompts, turn, open_turn)

    async def _generate(self, request: Request) -> Response:
        generate_request = parse_generate(decode_json(await request.body()))
        return await self._find_dialect(generate_request.lora_path or self._name)._answer_ids(request, generate_request)

    async def _answer_ids(self, request: Request, generate_request: GenerateRequest) -> Response:
        """Handles a request of `/generate`."""
        completion_request = generate_request.to_completion(self._name)
        stops = self._generator.policy.dialect.stop_ids
        form = GenerateFormat(
            False,
            self._name,
            self._decode_token,
            generate_request.return_logprob,
            stop_ids=stops,
            request=generate_request.rid,
        )
        body = await run_while_connected(
            request, self._make_writer(completion_request, form).write_all(self._encode_prompts(completion_request))
        )
        return json_response(body["replies"] if generate_request.has_list_answer else body["replies"][0])

    async def _get_info(self, request: Request) -> Response:
        return json_response(describe_model(self._generator, self._name))

    async def _tokenize(self, request: Request) -> Response:
        text = parse_tokenize(decode_json(await request.body())).prompt
        self._check_length(1, [text])
        ids = self._encode_prompt(text)
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": self._generator.context})

    def _encode_prompts(self, completion_request: CompletionRequest) -> list[list[int]]:
        """Encodes every prompt to token ids."""
        prompts = completion_request.prompts()
        self._check_length(len(prompts), [prompt for prompt in prompts if isinstance(prompt, str)])
        return [self._encode_prompt(prompt) for prompt in prompts]

    def _get_renderer(self) -> ToolRenderer:
        """Returns the tool renderer of the served policy."""
        if self._toolbox is None or not self._toolbox.supports(self._generator.policy):
            self._toolbox = ToolRenderer(self._generator.policy)
        return self._toolbox

    def _make_writer(
        self,
        completion_request: AnyCompletionRequest,
        reply_format: ReplyFormat,
        *,
        on_choice: Callable[[Choice], None] = lambda choice: None,
        tools: RenderedChat | None = None,
        constraint: Constraint | None = None,
        turn: RecordedTurn | None = None,
    ) -> ReplyWriter:
        sampling_spec = completion_request.sampling_spec(self._generator.context)
        policy = self._generator.policy
        constraint = adjust_tokens(completion_request, policy, constraint)
        writer = ReplyWriter(
            self._generator, policy.dialect, sampling_spec, reply_format, on_choice, tools, constraint=constraint
        )
        if turn is None:
            return writer
        is_constrained = constraint is not None
        num_choices = len(sampling_spec.seeds)
        turn.note_sampling(sampling_spec.sampling, num_choices=num_choices, is_constrained=is_constrained)

        def record_choice(choice: Choice) -> None:
            on_choice(choice)
            turn.add_choice(choice)

        return replace(writer, on_choice=record_choice, on_part=turn.track_choice)

    async def _answer_request(
        self,
        request: Request,
        completion_request: AnyCompletionRequest,
        writer: ReplyWriter,
        prompts: Sequence[list[int]],
        turn: RecordedTurn | None,
        open_turn: ExitStack,
    ) -> Response:
        """Returns the whole reply, or a stream that has started: errors before its start have their own status.

        Args:
            turn: the turn that is recorded; None: none is.
            open_turn: ends with the reply.
        """
        session_headers = {} if turn is None else {"x-evolvent-session": quote(turn.session_id, safe="/: ")}
        if turn is not None and (completion_request.stream or writer.sampling_spec.stops):
            await self._accepts_parts.wait()
            self._num_parts += 1
            open_turn.callback(self._end_parts)
        if not completion_request.stream:
            response = json_response(await run_while_connected(request, writer.write_all(prompts)))
            response.headers.update(session_headers)
            return response
        events = writer.stream_events(prompts, usage=completion_request.stream_options.include_usage)
        first = await run_while_connected(request, anext(events))
        headers = {"cache-control": "no-store", **session_headers}
        return _ClosingStream(self._stream_lines(first, events), headers, open_turn.pop_all())

    async def _stream_lines(self, first: JsonObject, events: AsyncIterator[JsonObject]) -> AsyncIterator[bytes]:
        """Yields server-sent events; an error after the first is one of them, and the last."""
        yield encode_event(first)
        try:
            with boundary(EvolventError, "a fault of the server itself"):
                async for event in events:
                    yield encode_event(event)
        except EvolventError as error:
            self._record_error(error)
            yield encode_event(encode_error(error))
            return
        yield b"data: [DONE]\n\n"

    def _check_length(self, count: int, texts: Sequence[str]) -> None:
        """Refuses prompts that are far too long before they are tokenized, which happens on the event loop."""
        context, length = self._generator.context, sum(map(len, texts))
        if count > max(_MIN_MESSAGES, context) or length > max(_MIN_PROMPT_CHARS, _MAX_CHARS_PER_TOKEN * context):
            length_text = f"{length} characters" if length else f"{count} messages"
            raise ContextOverflow(
                "the prompt is longer than the context", value=length_text, expected=f"at most {context} tokens"
            )

    def _encode_prompt(self, prompt: str | list[int]) -> list[int]:
        """Encodes a prompt to token ids; text is tokenized with control tokens included."""
        if not isinstance(prompt, str):
            return prompt
        return [int(token) for token in self._generator.policy.tokenizer.encode(prompt)]

    def _decode_token(self, index: int) -> str:
        return str(self._generator.policy.tokenizer.decode([index]))

    def _store_reply(self, messages: Sequence[Message], session: str | None, choice: Choice) -> None:
        """Records a reply by its tokens; a reply that a stop text ended keeps the tokens of that text.

        A reply with calls that are not told is rendered again, since the client answers only the one that it knows.
        """
        if session is None or choice.drops_calls:
            return
        ids, stops = choice.sample.ids.tolist(), self._generator.policy.dialect.stop_ids
        reply = Message("assistant", choice.text, choice.calls)
        self._conversations.store_reply(
            messages, session, reply=reply, ids=[*choice.prompt, *ids], stopped=bool(ids) and ids[-1] in stops
        )


def build_policy_app(dialect: PolicyDialect, *, access: Access, connections: ConnectionTable | None = None) -> App:
    """Builds a separate server for one policy, guarded; every error has OpenAI's form.

    `GET /health` returns live metrics, `GET /metrics` the counts in Prometheus' text format.

    Args:
        connections: those of the server that runs the app, for `/metrics`; None: they are not told.
    """
    connection_families = connections.families if connections is not None else list[Family]

    async def health(request: Request) -> Response:
        return json_response(dialect.health())

    async def answer_http_error(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        error_class = NotFound if status == 404 else ConfigError
        typed_error = error_class(
            f"{request.method} {request.url.path[:200]}: {getattr(error, 'detail', 'failed')}",
            hint="there are /v1/models, /v1/chat/completions, /v1/responses, /v1/completions and /generate",
        )
        row = encode_error(typed_error)
        row["error"]["code"] = "unknown_url" if status == 404 else None
        return json_response(row, status)

    async def metrics(request: Request) -> Response:
        return Response(
            format_exposition([*dialect.families(), *measured_app.families(), *connection_families()]),
            media_type=EXPOSITION_CONTENT_TYPE,
        )

    routes = [Route("/health", health), Route("/metrics", metrics), *dialect.routes()]
    app = Starlette(routes=routes, lifespan=dialect.lifespan, exception_handlers={HTTPException: answer_http_error})
    measured_app = MeasuredApp(RefusalTranslator(guard_app(GuardMarker(app), access)), _COUNTED_PATHS)
    return measured_app
