"""The chat page: a small local server around whoever replies, and the page that it serves.

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
from evolvent.view.escape import marked
from evolvent.view.templating import environment_of, style_sheet
from evolvent.web import Access, App, guarded

if TYPE_CHECKING:
    from evolvent.agents.speaker import Conversation, Speaker

__all__ = ["About", "chat_app", "chat_page"]

_KEPT = 64  # conversations that are remembered
_WAITING = 16  # replies that are asked for at once
_LONGEST = 20_000  # characters of what is said
_UNSURE = (0.9, 0.7, 0.4, 0.15)  # probabilities at which the shade of a piece changes, as in the report
_NUMBER = re.compile(r"[A-Za-z0-9_-]{22}")
_SCRIPT = re.compile(r"<script>(.*)</script>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class About:
    """What the page says beside the conversation.

    Args:
        name: of the run or model. settings: how it replies, in a line.
        words: the size of a closed vocabulary; 0: an open one.
    """

    name: str
    settings: str = ""
    words: int = 0


@dataclass
class _Desk:
    """The speaker, who answers one after the other, and the conversations by their secret names."""

    speaker: Speaker
    start: Conversation
    stop: Callable[[], bool]
    waiting: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    known: OrderedDict[str, Conversation] = field(default_factory=OrderedDict)

    def talk(self, number: str) -> Conversation:
        """A conversation; one that is not known has not begun."""
        return self.known.get(number, self.start)

    async def say(self, number: str, text: str) -> None:
        """Ask for a reply and remember it."""
        if self.waiting >= _WAITING:
            raise AtCapacity("too many replies are asked for at once", retry_after_s=5, value=self.waiting)
        self.waiting += 1
        try:
            async with self.lock:
                talk = self.talk(number)
                said = await asyncio.to_thread(self.speaker.say, talk, text, stop=self.stop)
                self.known[number] = talk.after(said)
                self.known.move_to_end(number)
                while len(self.known) > _KEPT:
                    self.known.popitem(last=False)
        finally:
            self.waiting -= 1


def chat_app(
    speaker: Speaker, start: Conversation, about: About, *, access: Access, stop: Callable[[], bool] = lambda: False
) -> App:
    """The server, guarded: `/` begins a conversation, `/talk/ID` shows it and takes what is said (a form), `/state`
    tells who speaks and who could.

    Args:
        speaker: who replies; nobody else uses it meanwhile.
        start: the conversation before anything was said.
        stop: True gives up the reply that is being written: the server is ending.
    """
    desk = _Desk(speaker, start, stop)

    async def begin(request: Request) -> Response:
        return RedirectResponse(f"/talk/{secrets.token_urlsafe(16)}", 303)

    async def show(request: Request) -> Response:
        number = request.path_params["number"]
        return _shown(desk, about, number) if _NUMBER.fullmatch(number) else await begin(request)

    async def said(request: Request) -> Response:
        number, text = request.path_params["number"], ""
        if not _NUMBER.fullmatch(number):
            return await begin(request)
        try:
            text = _text(await request.body())
            with boundary(EvolventError, "the reply failed"):
                await desk.say(number, text)
        except EvolventError as error:
            return _shown(desk, about, number, problem=str(error), draft=text)
        return RedirectResponse(f"/talk/{number}#end", 303)

    async def state(request: Request) -> Response:
        try:
            newest = speaker.newest()
        except EvolventError:
            newest = None  # the next reply says what is wrong
        return JSONResponse({"voice": _voice(speaker), "newest": newest}, headers=_headers())

    talk = "/talk/{number}"
    routes = [Route("/", begin), Route("/state", state), Route(talk, show), Route(talk, said, methods=["POST"])]
    return guarded(Starlette(routes=routes), access)


def _text(body: bytes) -> str:
    """What was said, from the form. Line ends are those of the form; the space around it says nothing."""
    fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=8)
    text = fields.get("text", [""])[0].replace("\r\n", "\n").strip()
    if not 0 < len(text) <= _LONGEST:
        raise LimitExceeded(
            "nothing, or too much, was said", value=f"{len(text)} characters", expected=f"1 to {_LONGEST}"
        )
    return text


def _voice(speaker: Speaker) -> str | None:
    return speaker.voice.name if speaker.voice else None


def _shown(desk: _Desk, about: About, number: str, *, problem: str = "", draft: str = "") -> Response:
    page = chat_page(desk.talk(number), about, number=number, voice=_voice(desk.speaker), problem=problem, draft=draft)
    return HTMLResponse(page.encode("utf-8", "replace"), 400 if problem else 200, headers=_headers())


# ---------------------------------------------------------------------- the page


def chat_page(
    talk: Conversation, about: About, *, number: str, voice: str | None, problem: str = "", draft: str = ""
) -> str:
    """A conversation as one HTML document.

    Args:
        number: the secret name of the conversation, where the form goes to.
        voice: who speaks.
        problem: what went wrong with what was said last. draft: that text, for another try.
    """
    return (
        _environment()
        .get_template("chat.html")
        .render(
            talk=talk.exchanges,
            name=about.name,
            settings=about.settings,
            words=about.words,
            number=number,
            voice=voice,
            problem=problem,
            draft=draft,
            most=_LONGEST,
            style=_style(),
        )
    )


@cache
def _environment() -> Environment:
    return environment_of(
        {"marked": _marked, "shade": _shade, "chance": _chance, "brief": _brief, "count": "{:,}".format},
        longest=_LONGEST,
    )


def _marked(text: str) -> Markup:
    return marked(text, limit=4 * _LONGEST)


def _shade(logprob: float) -> str:
    return f"unsure-{sum(logprob < log(chance) for chance in _UNSURE)}"


def _chance(logprob: float) -> str:
    return f"probability {exp(min(0.0, logprob)):.2g}"


def _brief(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{1000 * seconds:.0f} ms"


@cache
def _style() -> Markup:
    return style_sheet() + Markup((files("evolvent.view") / "chat.css").read_text(encoding="utf-8"))


@cache
def _headers() -> Mapping[str, str]:
    """Of every answer. The policy names the style and the script of the page by their digests."""
    script = _SCRIPT.search(files("evolvent.view").joinpath("templates/chat.html").read_text(encoding="utf-8"))
    allowed = {"style-src": str(_style()), "script-src": script[1] if script else ""}
    digests = [f"{name} 'sha256-{_digest(text)}'" for name, text in allowed.items()]
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


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
