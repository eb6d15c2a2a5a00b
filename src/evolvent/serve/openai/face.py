"""A policy behind an OpenAI-compatible server: `/v1/models`, `/v1/chat/completions`, `/v1/completions`.

SGLang's native routes (`sglang.py`) answer beside them.

Beside what OpenAI describes: `return_token_ids` gives the ids that were read and written (in vLLM's fields), the
log-probabilities are those of the distribution that was sampled from, the fingerprint names the policy's version, and a
conversation whose requests bear one `x-session-id` is continued from the very tokens that were written in it. Tools are
shown and calls are read as `tools.py` says. A seed gives the same reply whatever else runs. What is written for a
client that has left is taken back. Where a root is named, `/update_weights_from_disk` takes other weights from it
(`reload.py`): every reply is of one version, which its fingerprint names. A reply under way begins again under the new
weights; one with parts is ended by 409, to be asked for again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    boundary,
    unknown,
)
from evolvent.messages import Message
from evolvent.serve.metrics import EXPOSITION, Counts, Family, Measured, Sample, exposition, gauge
from evolvent.serve.openai.answering import Reached, Refusals, attended, event_line, json_answer
from evolvent.serve.openai.conversations import Conversations
from evolvent.serve.openai.generator import Generator
from evolvent.serve.openai.reload import handed_over, read_reload
from evolvent.serve.openai.reply import Choice, Form, error_body, status_code
from evolvent.serve.openai.request import ChatRequest, CompletionRequest, read_request
from evolvent.serve.openai.request import Request as Asked
from evolvent.serve.openai.sglang import GenerateForm, model_info, read_generate, read_tokenize
from evolvent.serve.openai.tools import Shown, Toolbox, read_offer, session_of
from evolvent.serve.openai.writing import Writing
from evolvent.serve.wire import NotFound, decoded
from evolvent.trajectory import canonical_json
from evolvent.web import Access, App, guarded

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["PolicyFace", "policy_app"]

_log = logging.getLogger(__name__)
_SESSION_LENGTH = 200
_READ, _MESSAGES = 1 << 16, 1024  # characters and messages of a prompt that are read in any case
_OF_A_TOKEN = 64  # characters; a prompt with more for every token of the context cannot fit, and is not read
_HEADS = ("v1", "generate", "tokenize", "model_info", "get_model_info", "health", "metrics")  # paths that are counted
_GONE = 499  # for a client that has left, as nginx logs it


class PolicyFace:
    """The routes around one generator.

    Args:
        generator: what writes; whoever serves the face enters it first (`lifespan`).
        name: what the model is called.
        reload: the folder that other weights may be taken from; None: none are.
    """

    def __init__(self, generator: Generator, name: str, *, reload: Path | None = None) -> None:
        self._generator, self._name, self._root = generator, name, reload
        self._reloading = asyncio.Lock()
        self._created = int(time.time())
        self._conversations = Conversations()
        self._toolbox: Toolbox | None = None
        self._errors = Counts("evolvent_errors_total", "Requests that failed, by kind.", "kind")

    def routes(self, host: object = None, catalogue: object = None) -> Sequence[BaseRoute]:
        """Its routes. They answer errors in OpenAI's form."""
        taking = [] if self._root is None else [Route("/update_weights_from_disk", self._reload, methods=["POST"])]
        return [
            *taking,
            Route("/v1/models", self._answering(self._models)),
            Route("/v1/models/{model:path}", self._answering(self._model)),
            Route("/v1/chat/completions", self._answering(self._chat), methods=["POST"]),
            Route("/v1/completions", self._answering(self._complete), methods=["POST"]),
            Route("/generate", self._answering(self._generate), methods=["POST"]),
            Route("/model_info", self._answering(self._info)),
            Route("/get_model_info", self._answering(self._info)),
            Route("/tokenize", self._answering(self._tokenize), methods=["POST"]),
        ]

    def _answering(self, handle: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """A handler whose errors are answered."""

        async def answered(request: Request) -> Response:
            try:
                with boundary(EvolventError, "a fault of the server itself"):
                    return await handle(request)
            except EvolventError as error:
                if isinstance(error.__cause__, ClientDisconnect):
                    return Response(status_code=_GONE)
                self._told(error)
                return json_answer(error_body(error), status_code(error), after=error)

        return answered

    def _told(self, error: EvolventError) -> None:
        """Count an error. What is no typed error is a fault of the server: it is logged."""
        self._errors.add(type(error).__name__)
        if type(error) is EvolventError:
            _log.error("%s", error, exc_info=error)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """Runs the generator."""
        async with self._generator:
            yield

    async def sync(self, policy: Policy) -> None:
        """Serve other weights from now on; conversations go on, unless the tokens mean something else now."""
        before = self._generator.policy.tokenizer
        await self._generator.sync(policy)
        if policy.tokenizer is not before and policy.tokenizer.get_vocab() != before.get_vocab():
            self._conversations = Conversations()

    async def _reload(self, request: Request) -> Response:
        """Take other weights, and answer as SGLang does; beside its fields, whose weights are served now."""
        try:
            with boundary(EvolventError, "a fault of the server itself"):
                policy = await self._taken(read_reload(decoded(await request.body())).model_path)
        except EvolventError as error:
            self._told(error)
            row = {"success": False, "message": str(error), **error_body(error)}
            return json_answer(row, status_code(error), after=error)
        told = f"version {policy.version} is served"
        row = {"success": True, "message": told, "num_paused_requests": 0}
        return json_answer(row | {"system_fingerprint": self._generator.fingerprint})

    async def _taken(self, path: str) -> Policy:
        """Read a policy on a thread, while others are answered, and serve it. Raises AtCapacity: one is being read."""
        if self._root is None:
            raise AccessDenied("this server takes no weights", hint="start it with --reload ROOT")
        if self._reloading.locked():
            raise AtCapacity("other weights are being taken", retry_after_s=1.0)
        async with self._reloading:
            policy = await asyncio.to_thread(handed_over, self._root, path, self._generator.policy)
            await self.sync(policy)
        return policy

    def health(self) -> dict[str, Any]:
        """Live figures."""
        writer = self._generator.fingerprint
        return {"status": "ok", "model": self._name, "writer": writer, "open": self._generator.open}

    def families(self) -> list[Family]:
        """Live figures in the terms of `/metrics`."""
        generator, told = self._generator, self._generator.usage
        counted = (("generated", told.generated, "Tokens written."), ("computed", told.computed, "Tokens computed."))
        return [
            gauge("evolvent_requests_open", "Texts that are being written or wait to be.", generator.open),
            gauge("evolvent_engine_queue", "Asks that the engine has taken and not answered.", generator.queued),
            gauge("evolvent_policy_version", "Version of the weights that are served.", generator.policy.version),
            *(
                Family(f"evolvent_tokens_{name}_total", "counter", help, (Sample(count),))
                for name, count, help in counted
            ),
            self._errors.family(),
        ]

    async def _models(self, request: Request) -> Response:
        return json_answer({"object": "list", "data": [self._card()]})

    async def _model(self, request: Request) -> Response:
        self._named(request.path_params["model"])
        return json_answer(self._card())

    def _card(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "evolvent",
            "max_model_len": self._generator.context,
            "system_fingerprint": self._generator.fingerprint,
            "logprobs_mode": "processed_logprobs",
        }

    def _named(self, model: str) -> None:
        if model != self._name:
            raise NotFound([unknown("model", model[:80], [self._name])])

    async def _chat(self, request: Request) -> Response:
        asked = read_request(ChatRequest, decoded(await request.body()))
        self._named(asked.model)
        session = request.headers.get(SESSION_HEADER)
        if session is not None and len(session) > _SESSION_LENGTH:
            raise LimitExceeded(f"a {SESSION_HEADER} that is too long", value=len(session), expected=_SESSION_LENGTH)
        self._check_length(len(asked.messages), [])
        messages = asked.conversation()
        offer, policy = read_offer(asked), self._generator.policy
        written = [canonical_json([tool.as_openai() for tool in offer.tools])] if offer.tools else []
        written += [canonical_json(dict(call.arguments)) for message in messages for call in message.calls]
        self._check_length(len(messages), [*(message.text for message in messages), *written])
        shown, session = None, session_of(session, offer)
        if offer.tools or any(message.calls or message.role == "tool" for message in messages):
            shown = self._tools().show(messages, offer)
            after = partial(shown.after, policy=policy)
            prompt = self._conversations.continued(messages, session, after) or shown.ids
        else:
            prompt = self._conversations.read(messages, policy.dialect, session)
        form = Form(True, self._name, self._word, asked.logprobs, asked.return_token_ids, asked.return_weight_versions)
        note = partial(self._noted, messages, session)
        return await self._replied(request, asked, self._writing(asked, form, note=note, tools=shown), [prompt])

    async def _complete(self, request: Request) -> Response:
        asked = read_request(CompletionRequest, decoded(await request.body()))
        self._named(asked.model)
        form = Form(
            False,
            self._name,
            self._word,
            asked.logprobs is not None,
            asked.return_token_ids,
            asked.return_weight_versions,
        )
        return await self._replied(request, asked, self._writing(asked, form), self._prompts(asked))

    async def _generate(self, request: Request) -> Response:
        given = read_generate(decoded(await request.body()))
        asked = given.completion(self._name)
        stops = self._generator.policy.dialect.stop_ids
        form = GenerateForm(False, self._name, self._word, given.return_logprob, stop_ids=stops, request=given.rid)
        body = await attended(request, self._writing(asked, form).whole(self._prompts(asked)))
        return json_answer(body["replies"] if given.several else body["replies"][0])

    async def _info(self, request: Request) -> Response:
        return json_answer(model_info(self._generator, self._name))

    async def _tokenize(self, request: Request) -> Response:
        text = read_tokenize(decoded(await request.body())).prompt
        self._check_length(1, [text])
        ids = self._read(text)
        return json_answer({"tokens": ids, "count": len(ids), "max_model_len": self._generator.context})

    def _prompts(self, asked: CompletionRequest) -> list[list[int]]:
        """The ids of every prompt."""
        given = asked.prompts()
        self._check_length(len(given), [prompt for prompt in given if isinstance(prompt, str)])
        return [self._read(prompt) for prompt in given]

    def _tools(self) -> Toolbox:
        """What shows tools to the policy that is served."""
        if self._toolbox is None or not self._toolbox.fits(self._generator.policy):
            self._toolbox = Toolbox(self._generator.policy)
        return self._toolbox

    def _writing(
        self,
        asked: Asked,
        form: Form,
        *,
        note: Callable[[Choice], None] = lambda choice: None,
        tools: Shown | None = None,
    ) -> Writing:
        wanted = asked.wanted(self._generator.context)
        return Writing(self._generator, self._generator.policy.dialect, wanted, form, note, tools)

    async def _replied(
        self, request: Request, asked: Asked, writing: Writing, prompts: Sequence[list[int]]
    ) -> Response:
        """The whole reply, or a stream of it that has begun: until then errors have a status of their own."""
        if not asked.stream:
            return json_answer(await attended(request, writing.whole(prompts)))
        events = writing.events(prompts, usage=asked.stream_options.include_usage)
        first = await attended(request, anext(events))
        kind, headers = "text/event-stream", {"cache-control": "no-store"}
        return StreamingResponse(self._lines(first, events), media_type=kind, headers=headers)

    async def _lines(self, first: dict[str, Any], events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
        """Server-sent events; an error after the first is one of them, and the last."""
        yield event_line(first)
        try:
            with boundary(EvolventError, "a fault of the server itself"):
                async for event in events:
                    yield event_line(event)
        except EvolventError as error:
            self._told(error)
            yield event_line(error_body(error))
            return
        yield b"data: [DONE]\n\n"

    def _check_length(self, count: int, texts: Sequence[str]) -> None:
        """Refuse what is far too long before it is made tokens, which happens on the event loop."""
        context, length = self._generator.context, sum(map(len, texts))
        if count > max(_MESSAGES, context) or length > max(_READ, _OF_A_TOKEN * context):
            told = f"{length} characters" if length else f"{count} messages"
            raise ContextOverflow("a prompt longer than the context", value=told, expected=f"at most {context} tokens")

    def _read(self, prompt: str | list[int]) -> list[int]:
        """The ids of a prompt; of a text, as the tokenizer reads it, control tokens included."""
        if not isinstance(prompt, str):
            return prompt
        return [int(token) for token in self._generator.policy.tokenizer.encode(prompt)]

    def _word(self, index: int) -> str:
        return str(self._generator.policy.tokenizer.decode([index]))

    def _noted(self, messages: Sequence[Message], session: str | None, choice: Choice) -> None:
        """Remember a reply by its tokens; one that was ended by a text keeps the tokens of that text."""
        if session is None:
            return
        ids, stops = choice.written.ids.tolist(), self._generator.policy.dialect.stop_ids
        said = Message("assistant", choice.text, choice.calls)
        self._conversations.note(
            messages, session, reply=said, ids=[*choice.prompt, *ids], stopped=bool(ids) and ids[-1] in stops
        )


def policy_app(face: PolicyFace, *, access: Access) -> App:
    """A server of its own for one policy, guarded; every error has OpenAI's form.

    `GET /health` tells live figures, `GET /metrics` counts in Prometheus' text format.
    """

    async def health(request: Request) -> Response:
        return json_answer(face.health())

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        told = NotFound if status == 404 else ConfigError
        said = told(
            f"{request.method} {request.url.path[:200]}: {getattr(error, 'detail', 'failed')}",
            hint="there are /v1/models, /v1/chat/completions, /v1/completions and /generate",
        )
        row = error_body(said)
        row["error"]["code"] = "unknown_url" if status == 404 else None
        return json_answer(row, status)

    async def figures(request: Request) -> Response:
        return Response(exposition([*face.families(), *measured.families()]), media_type=EXPOSITION)

    routes = [Route("/health", health), Route("/metrics", figures), *face.routes()]
    app = Starlette(routes=routes, lifespan=face.lifespan, exception_handlers={HTTPException: refused})
    measured = Measured(Refusals(guarded(Reached(app), access)), _HEADS)
    return measured
