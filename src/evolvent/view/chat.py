"""The chat page: a small local server around a chat agent, and the page that it serves.

Everything said is text: it is escaped on the server, hidden characters are shown, and the content policy of the page
lets nothing run or load but its own style and its one script, both known by their digests. The page works without the
script too; the script only spares it from being loaded anew.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import exp, log
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from jinja2 import Environment
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from evolvent.errors import AtCapacity, EvolventError, LimitExceeded, boundary
from evolvent.view.escape import mark_hidden
from evolvent.view.templating import build_environment, style_sheet
from evolvent.web import Access, App, guard_app

if TYPE_CHECKING:
    from evolvent.agents.speaker import Conversation, PolicyChat

__all__ = ["ChatInfo", "chat_app", "chat_page"]

_MAX_CONVERSATIONS = 64  # conversations that are remembered
_MAX_WAITING = 16  # replies that are asked for at once
_MAX_CHARS = 20_000  # characters of what is said
_SHADE_PROBABILITIES = (0.9, 0.7, 0.4, 0.15)  # probabilities at which the shade of a piece changes, as in the report
_CONVERSATION_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_SCRIPT = re.compile(r"<script>(.*)</script>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChatInfo:
    """Facts shown beside the conversation.

    Args:
        name: of the run or model. settings: the settings of replies, in a line.
        vocabulary_size: the size of a closed vocabulary; 0: an open one.
    """

    name: str
    settings: str = ""
    vocabulary_size: int = 0


@dataclass
class _Conversations:
    """The chat agent, which answers requests one at a time, and the conversations by their secret ids."""

    speaker: PolicyChat
    start: Conversation
    stop: Callable[[], bool]
    waiting: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    by_number: OrderedDict[str, Conversation] = field(default_factory=OrderedDict)

    def get(self, number: str) -> Conversation:
        """Returns a conversation; a new conversation for an unknown id."""
        return self.by_number.get(number, self.start)

    async def reply(self, number: str, text: str) -> None:
        """Generates a reply and stores it."""
        if self.waiting >= _MAX_WAITING:
            raise AtCapacity("too many requests at once", retry_after_s=5, value=self.waiting)
        self.waiting += 1
        try:
            async with self.lock:
                conversation = self.get(number)
                exchange = await asyncio.to_thread(self.speaker.reply, conversation, text, stop=self.stop)
                self.by_number[number] = conversation.after(exchange)
                self.by_number.move_to_end(number)
                while len(self.by_number) > _MAX_CONVERSATIONS:
                    self.by_number.popitem(last=False)
        finally:
            self.waiting -= 1


def chat_app(
    speaker: PolicyChat,
    start: Conversation,
    info: ChatInfo,
    *,
    access: Access,
    stop: Callable[[], bool] = lambda: False,
) -> App:
    """Builds the guarded server.

    `/` begins a conversation, `/talk/ID` shows it and takes messages (a form), and `/state` returns the current and
    the newest model.

    Args:
        speaker: the agent that replies; no other caller uses it meanwhile.
        start: the conversation before the first message.
        stop: True interrupts the reply that is being written: the server is ending.
    """
    conversations = _Conversations(speaker, start, stop)

    async def begin(request: Request) -> Response:
        return RedirectResponse(f"/talk/{secrets.token_urlsafe(16)}", 303)

    async def show(request: Request) -> Response:
        number = request.path_params["number"]
        return (
            _page_response(conversations, info, number) if _CONVERSATION_ID.fullmatch(number) else await begin(request)
        )

    async def receive(request: Request) -> Response:
        number, text = request.path_params["number"], ""
        if not _CONVERSATION_ID.fullmatch(number):
            return await begin(request)
        try:
            text = _parse_message(await request.body())
            with boundary(EvolventError, "the reply failed"):
                await conversations.reply(number, text)
        except EvolventError as error:
            return _page_response(conversations, info, number, problem=str(error), draft=text)
        return RedirectResponse(f"/talk/{number}#end", 303)

    async def state(request: Request) -> Response:
        try:
            newest = speaker.newest()
        except EvolventError:
            newest = None  # the next reply says what is wrong
        return JSONResponse({"voice": _voice_name(speaker), "newest": newest}, headers=_response_headers())

    path = "/talk/{number}"
    routes = [Route("/", begin), Route("/state", state), Route(path, show), Route(path, receive, methods=["POST"])]
    return guard_app(Starlette(routes=routes), access)


def _parse_message(body: bytes) -> str:
    """Parses the message of the form. Line ends are those of the form; surrounding space is removed."""
    fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=8)
    text = fields.get("text", [""])[0].replace("\r\n", "\n").strip()
    if not 0 < len(text) <= _MAX_CHARS:
        raise LimitExceeded(
            "message is empty or too long", value=f"{len(text)} characters", expected=f"1 to {_MAX_CHARS}"
        )
    return text


def _voice_name(speaker: PolicyChat) -> str | None:
    return speaker.voice.name if speaker.voice else None


def _page_response(
    conversations: _Conversations, info: ChatInfo, number: str, *, problem: str = "", draft: str = ""
) -> Response:
    page = chat_page(
        conversations.get(number),
        info,
        number=number,
        voice=_voice_name(conversations.speaker),
        problem=problem,
        draft=draft,
    )
    return HTMLResponse(page.encode("utf-8", "replace"), 400 if problem else 200, headers=_response_headers())


# ---------------------------------------------------------------------- the page


def chat_page(
    conversation: Conversation, info: ChatInfo, *, number: str, voice: str | None, problem: str = "", draft: str = ""
) -> str:
    """Renders a conversation as one HTML document.

    Args:
        number: the secret id of the conversation, to which the form is sent.
        voice: the name of the model that replies.
        problem: the error of the last message. draft: its text, for another try.
    """
    return (
        _build_environment()
        .get_template("chat.html")
        .render(
            talk=conversation.exchanges,
            name=info.name,
            settings=info.settings,
            words=info.vocabulary_size,
            number=number,
            voice=voice,
            problem=problem,
            draft=draft,
            most=_MAX_CHARS,
            style=_chat_style(),
        )
    )


@cache
def _build_environment() -> Environment:
    return build_environment(
        {
            "marked": _mark_message,
            "shade": _shade_class,
            "chance": _format_probability,
            "brief": _format_seconds,
            "count": "{:,}".format,
        },
        max_chars=_MAX_CHARS,
    )


def _mark_message(text: str) -> Markup:
    return mark_hidden(text, limit=4 * _MAX_CHARS)


def _shade_class(logprob: float) -> str:
    return f"unsure-{sum(logprob < log(chance) for chance in _SHADE_PROBABILITIES)}"


def _format_probability(logprob: float) -> str:
    return f"probability {exp(min(0.0, logprob)):.2g}"


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{1000 * seconds:.0f} ms"


@cache
def _chat_style() -> Markup:
    return style_sheet() + Markup((files("evolvent.view") / "chat.css").read_text(encoding="utf-8"))


@cache
def _response_headers() -> Mapping[str, str]:
    """Returns the headers of every answer. The content policy names the style and the script of the page by their
    digests.
    """
    script = _SCRIPT.search(files("evolvent.view").joinpath("templates/chat.html").read_text(encoding="utf-8"))
    allowed = {"style-src": str(_chat_style()), "script-src": script[1] if script else ""}
    digests = [f"{name} 'sha256-{_sha256_base64(text)}'" for name, text in allowed.items()]
    rules = [
        "default-src 'none'",
        *digests,
        "connect-src 'self'",
        "img-src data:",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ]
    return {
        "content-security-policy": "; ".join(rules),
        "cache-control": "no-store",
        "referrer-policy": "same-origin",
        "x-content-type-options": "nosniff",
    }


def _sha256_base64(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
