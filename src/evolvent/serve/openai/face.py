"""A policy behind an OpenAI-compatible server: `/v1/models`, `/v1/chat/completions`, `/v1/completions`.

SGLang's native routes (`sglang.py`) answer beside them.

Extensions to OpenAI's API: `return_token_ids` returns the ids of prompt and reply (in vLLM's fields), the
log-probabilities are those of the distribution that was sampled from, the fingerprint names the policy's version, and a
conversation whose requests have one `x-session-id` continues from its sampled tokens. `tools.py` describes how tools
are shown and calls are read. A seed gives the same reply whatever else runs. Generation for a disconnected client is
cancelled. If a root is given, `/update_weights_from_disk` loads other weights from it (`reload.py`): every reply is of
one version, which its fingerprint names. A reply in progress starts again under the new weights; a streamed reply in
progress ends with 409, to be requested again.

The tokens of conversations: messages of the OpenAI form become the turns of a policy's dialect.

The text of a message does not determine the tokens that were sampled for it. A client that names its conversation (one
session an episode) therefore continues from the sampled tokens themselves; without a name, or if the client has changed
earlier messages, replies are tokenized again by the dialect.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from evolvent.engine.replies import SESSION_HEADER
from evolvent.errors import (
    AccessDenied,
    AtCapacity,
    ConfigError,
    ContextOverflow,
    EvolventError,
    LimitExceeded,
    Problem,
    boundary,
    unknown_name_problem,
)
from evolvent.messages import Message
from evolvent.models.dialects import Chat, Dialect
from evolvent.serve.metrics import (
    EXPOSITION_CONTENT_TYPE,
    Family,
    LabeledCounter,
    MeasuredApp,
    Sample,
    format_exposition,
    make_gauge,
)
from evolvent.serve.openai.generator import Generator
from evolvent.serve.openai.reload import load_replacement, parse_reload
from evolvent.serve.openai.reply import Choice, ReplyFormat, encode_error, http_status
from evolvent.serve.openai.request import BaseCompletionRequest as AnyCompletionRequest
from evolvent.serve.openai.request import ChatRequest, CompletionRequest, parse_request
from evolvent.serve.openai.sglang import GenerateFormat, describe_model, parse_generate, parse_tokenize
from evolvent.serve.openai.tools import RenderedChat, ToolRenderer, parse_offer, session_key
from evolvent.serve.openai.writing import ReplyWriter
from evolvent.serve.wire import NotFound, decode_json, encode_json
from evolvent.trajectory import JsonObject, canonical_json
from evolvent.web import Access, App, Receive, Scope, Send, guard_app
from evolvent.web import Message as Event

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = [
    "ConversationCache",
    "GuardMarker",
    "PolicyDialect",
    "RefusalTranslator",
    "build_policy_app",
    "encode_event",
    "json_response",
    "run_while_connected",
]


@dataclass(frozen=True, slots=True)
class _ReplyTokens:
    """All tokens of a conversation up to a reply's end, and whether its stop token is among them."""

    ids: NDArray[np.int32]
    stopped: bool


class ConversationCache:
    """The tokens of the newest replies, by session.

    Args:
        remembered: maximum number of tokens that are kept (the newest reply whatever its length). Evicted replies are
            tokenized again if they are continued.
    """

    def __init__(self, *, max_tokens: int = 1 << 23) -> None:
        self._remembered, self._held = max_tokens, 0
        self._known: OrderedDict[bytes, _ReplyTokens] = OrderedDict()

    def encode_prompt(self, messages: Sequence[Message], dialect: Dialect, session: str | None) -> list[int]:
        """Returns all tokens up to the start of the next reply.

        Replies of this session keep the tokens that were sampled. A conversation without such replies is what the
        model's chat template renders, and so is every one where the policy's history is "template".

        Raises:
            ConfigError: messages that are not a conversation (an optional system message, then user and assistant in
                turn,
                the user's last), or calls of tools.
            VocabularyMismatch: a word that the policy does not have.
        """
        system, turns = _split_messages(messages)
        user_texts, replies = turns[::2], turns[1::2]
        keeps_tokens = not (isinstance(dialect, Chat) and dialect.renders_past)
        keys = _prefix_digests(messages[: len(messages) - 1], session) if session and keeps_tokens else []
        for position in range(len(replies), 0, -1):
            reply_tokens = self._lookup(keys[2 * (position - len(replies)) - 1]) if keys else None
            if reply_tokens is not None:
                ids = [*reply_tokens.ids.tolist(), *dialect.turn(user_texts[position], stopped=reply_tokens.stopped)]
                break
        else:
            if isinstance(dialect, Chat):
                return dialect.template.prompt(messages)
            position, ids = 0, list(dialect.open(system, user_texts[0]))
        for reply, text in zip(replies[position:], user_texts[position + 1 :], strict=True):
            ids += [*dialect.action(reply), *dialect.turn(text, stopped=True)]
        return ids

    def continue_templated(
        self, messages: Sequence[Message], session: str | None, tokens_after: Callable[[int, bool], list[int] | None]
    ) -> list[int] | None:
        """Returns all tokens up to the start of the next reply, for a conversation whose turns a template writes.

        Args:
            tokens_after: returns the tokens between the reply with this message index and the next reply; the flag says
                whether its stop token has been written already. None: unknown.
        Returns:
            None if no reply is known, or the tokens after it are unknown: the prompt must be tokenized again.
        """
        keys = _prefix_digests(messages, session) if session else []
        for position in reversed(range(len(keys))):
            reply_tokens = self._lookup(keys[position]) if messages[position].role == "assistant" else None
            if reply_tokens is not None:
                following = tokens_after(position, reply_tokens.stopped)
                return None if following is None else [*reply_tokens.ids.tolist(), *following]
        return None

    def store_reply(
        self, messages: Sequence[Message], session: str, *, reply: Message, ids: Sequence[int], stopped: bool
    ) -> None:
        """Stores the tokens of a reply to these messages.

        Args:
            reply: the reply as the client received it.
            ids: all token ids, those of the prompt first.
        """
        key = _prefix_digests([*messages, reply], session)[-1]
        replaced = self._known.pop(key, None)
        self._known[key] = _ReplyTokens(np.array(ids, np.int32), stopped)
        self._held += len(ids) - (0 if replaced is None else len(replaced.ids))
        while self._held > self._remembered and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._held -= len(oldest.ids)

    def _lookup(self, key: bytes) -> _ReplyTokens | None:
        reply_tokens = self._known.get(key)
        if reply_tokens is not None:
            self._known.move_to_end(key)
        return reply_tokens


def _split_messages(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """Returns the system text, and the texts of user and assistant in turn."""
    turns = list(messages)
    system = turns.pop(0).text if turns and turns[0].role in ("system", "developer") else ""
    roles = [message.role for message in turns]
    expected = ["user", "assistant"] * (len(roles) // 2) + ["user"]
    if roles != expected or any(message.calls for message in messages):
        shown_roles = ", ".join(message.role for message in messages[:8]) or "nothing"
        hint = "send an optional system message, then user and assistant in turn, without tool calls"
        raise ConfigError(
            [Problem("messages", f"cannot be continued: {shown_roles}{' ...' * (len(messages) > 8)}", hint)]
        )
    return system, [message.text for message in turns]


def _prefix_digests(messages: Sequence[Message], session: str | None) -> list[bytes]:
    """Returns a digest for every prefix of the messages: of the session, and of all roles, texts and calls so far."""
    digest = hashlib.sha256(canonical_json(session).encode())
    keys = []
    for message in messages:
        calls = [[call.name, dict(call.arguments)] for call in message.calls]
        digest.update(canonical_json([message.role, message.text, calls]).encode())
        keys.append(digest.copy().digest())
    return keys


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
            kind = LimitExceeded if row["kind"] == "LimitExceeded" else AccessDenied
            body, status = encode_error(kind(row["message"], expected=row["expected"])), row["status"]
            if str(row["expected"]).startswith("Authorization:"):
                body["error"] |= {"type": "authentication_error", "code": "invalid_api_key"}
                status = 401
            response = json_response(body, status)
            if start_event is not None:
                response.headers.update(
                    {key.decode(): value.decode() for key, value in start_event["headers"] if key == b"connection"}
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
    """Returns the value of an awaitable that is cancelled when the client leaves. Raises ClientDisconnect then."""

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
_SESSION_LENGTH = 200
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
_CLIENT_CLOSED_STATUS = 499  # for a client that has left, as nginx logs it


class PolicyDialect:
    """The routes around one generator.

    Args:
        generator: generates the replies; the server enters it first (`lifespan`).
        name: name of the model.
        reload: folder from which other weights may be loaded; None: none.
    """

    def __init__(self, generator: Generator, name: str, *, reload: Path | None = None) -> None:
        self._generator, self._name, self._root = generator, name, reload
        self._reloading = asyncio.Lock()
        self._created = int(time.time())
        self._conversations = ConversationCache()
        self._toolbox: ToolRenderer | None = None
        self._errors = LabeledCounter("evolvent_errors_total", "Requests that failed, by kind.", "kind")

    def routes(self, host: object = None, task_index: object = None) -> Sequence[BaseRoute]:
        """Returns the routes. They answer errors in OpenAI's form."""
        reload_routes = (
            [] if self._root is None else [Route("/update_weights_from_disk", self._reload_weights, methods=["POST"])]
        )
        return [
            *reload_routes,
            Route("/v1/models", self._with_error_answers(self._list_models)),
            Route("/v1/models/{model:path}", self._with_error_answers(self._get_model)),
            Route("/v1/chat/completions", self._with_error_answers(self._complete_chat), methods=["POST"]),
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
            try:
                with boundary(EvolventError, "a fault of the server itself"):
                    return await handle(request)
            except EvolventError as error:
                if isinstance(error.__cause__, ClientDisconnect):
                    return Response(status_code=_CLIENT_CLOSED_STATUS)
                self._record_error(error)
                return json_response(encode_error(error), http_status(error), error=error)

        return answered

    def _record_error(self, error: EvolventError) -> None:
        """Counts an error. An untyped error is a fault of the server: it is logged."""
        self._errors.add(type(error).__name__)
        if type(error) is EvolventError:
            _log.error("%s", error, exc_info=error)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Runs the generator."""
        async with self._generator:
            yield

    async def sync(self, policy: Policy) -> None:
        """Loads other weights from now on; conversations continue unless the tokenizer changes."""
        old_tokenizer = self._generator.policy.tokenizer
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
            await self.sync(policy)
        return policy

    def health(self) -> JsonObject:
        """Returns live metrics."""
        writer = self._generator.fingerprint
        return {"status": "ok", "model": self._name, "writer": writer, "open": self._generator.open}

    def families(self) -> list[Family]:
        """Returns live metrics for `/metrics`."""
        generator, usage = self._generator, self._generator.usage
        token_counts = (
            ("generated", usage.generated, "Tokens written."),
            ("computed", usage.computed, "Tokens computed."),
        )
        return [
            make_gauge("evolvent_requests_open", "Texts that are being written or wait to be.", generator.open),
            make_gauge("evolvent_engine_queue", "Asks that the engine has taken and not answered.", generator.queued),
            make_gauge("evolvent_policy_version", "Version of the weights that are served.", generator.policy.version),
            *(
                Family(f"evolvent_tokens_{name}_total", "counter", help, (Sample(count),))
                for name, count, help in token_counts
            ),
            self._errors.family(),
        ]

    async def _list_models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [self._describe_model()]})

    async def _get_model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return json_response(self._describe_model())

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

    def _check_model(self, model: str) -> None:
        if model != self._name:
            raise NotFound([unknown_name_problem("model", model[:80], [self._name])])

    async def _complete_chat(self, request: Request) -> Response:
        chat_request = parse_request(ChatRequest, decode_json(await request.body()))
        self._check_model(chat_request.model)
        session = request.headers.get(SESSION_HEADER)
        if session is not None and len(session) > _SESSION_LENGTH:
            raise LimitExceeded(f"{SESSION_HEADER} is too long", value=len(session), expected=_SESSION_LENGTH)
        self._check_length(len(chat_request.messages), [])
        messages = chat_request.conversation()
        offer, policy = parse_offer(chat_request), self._generator.policy
        serialized = [canonical_json([tool.as_openai() for tool in offer.tools])] if offer.tools else []
        serialized += [canonical_json(dict(call.arguments)) for message in messages for call in message.calls]
        self._check_length(len(messages), [*(message.text for message in messages), *serialized])
        rendered, session = None, session_key(session, offer)
        if offer.tools or any(message.calls or message.role == "tool" for message in messages):
            rendered = self._get_renderer().render(messages, offer)
            after = partial(rendered.tokens_after, policy=policy)
            prompt = self._conversations.continue_templated(messages, session, after) or rendered.ids
        else:
            prompt = self._conversations.encode_prompt(messages, policy.dialect, session)
        form = ReplyFormat(
            True,
            self._name,
            self._decode_token,
            chat_request.logprobs,
            chat_request.return_token_ids,
            chat_request.return_weight_versions,
        )
        note = partial(self._store_reply, messages, session)
        return await self._answer_request(
            request, chat_request, self._make_writer(chat_request, form, on_choice=note, tools=rendered), [prompt]
        )

    async def _complete_text(self, request: Request) -> Response:
        completion_request = parse_request(CompletionRequest, decode_json(await request.body()))
        self._check_model(completion_request.model)
        form = ReplyFormat(
            False,
            self._name,
            self._decode_token,
            completion_request.logprobs is not None,
            completion_request.return_token_ids,
            completion_request.return_weight_versions,
        )
        return await self._answer_request(
            request,
            completion_request,
            self._make_writer(completion_request, form),
            self._encode_prompts(completion_request),
        )

    async def _generate(self, request: Request) -> Response:
        generate_request = parse_generate(decode_json(await request.body()))
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
    ) -> ReplyWriter:
        sampling_spec = completion_request.sampling_spec(self._generator.context)
        return ReplyWriter(
            self._generator, self._generator.policy.dialect, sampling_spec, reply_format, on_choice, tools
        )

    async def _answer_request(
        self,
        request: Request,
        completion_request: AnyCompletionRequest,
        writer: ReplyWriter,
        prompts: Sequence[list[int]],
    ) -> Response:
        """Returns the whole reply, or a stream that has started: errors before its start have their own status."""
        if not completion_request.stream:
            return json_response(await run_while_connected(request, writer.write_all(prompts)))
        events = writer.stream_events(prompts, usage=completion_request.stream_options.include_usage)
        first = await run_while_connected(request, anext(events))
        kind, headers = "text/event-stream", {"cache-control": "no-store"}
        return StreamingResponse(self._stream_lines(first, events), media_type=kind, headers=headers)

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
        """Records a reply by its tokens; a reply that a stop text ended keeps the tokens of that text."""
        if session is None:
            return
        ids, stops = choice.sample.ids.tolist(), self._generator.policy.dialect.stop_ids
        reply = Message("assistant", choice.text, choice.calls)
        self._conversations.store_reply(
            messages, session, reply=reply, ids=[*choice.prompt, *ids], stopped=bool(ids) and ids[-1] in stops
        )


def build_policy_app(dialect: PolicyDialect, *, access: Access) -> App:
    """Builds a separate server for one policy, guarded; every error has OpenAI's form.

    `GET /health` returns live metrics, `GET /metrics` the counts in Prometheus' text format.
    """

    async def health(request: Request) -> Response:
        return json_response(dialect.health())

    async def answer_http_error(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        error_class = NotFound if status == 404 else ConfigError
        typed_error = error_class(
            f"{request.method} {request.url.path[:200]}: {getattr(error, 'detail', 'failed')}",
            hint="there are /v1/models, /v1/chat/completions, /v1/completions and /generate",
        )
        row = encode_error(typed_error)
        row["error"]["code"] = "unknown_url" if status == 404 else None
        return json_response(row, status)

    async def metrics(request: Request) -> Response:
        return Response(
            format_exposition([*dialect.families(), *measured_app.families()]), media_type=EXPOSITION_CONTENT_TYPE
        )

    routes = [Route("/health", health), Route("/metrics", metrics), *dialect.routes()]
    app = Starlette(routes=routes, lifespan=dialect.lifespan, exception_handlers={HTTPException: answer_http_error})
    measured_app = MeasuredApp(RefusalTranslator(guard_app(GuardMarker(app), access)), _COUNTED_PATHS)
    return measured_app
