"""The actions of a search agent, in tags or short: `<search>words</search>` is `search words`; `answer` works
alike.

The first pair of tags in a text is its action, as in Search-R1 and AgentGym; the short form must be the whole
text except for a thought. Text is only scanned, in linear time, and never evaluated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from evolvent.errors import InvalidAction
from evolvent.worlds.base import Parsed

__all__ = ["Move", "SearchGrammar", "parse_move"]

Verb = Literal["search", "answer"]
_VERBS: tuple[Verb, ...] = ("search", "answer")
_OPENING_TAG = re.compile(r"<(search|answer)>")
_SHORT = re.compile(r"\s*(search|answer)\s+(\S.*)", re.DOTALL | re.IGNORECASE)
_THINK = re.compile(r"</?think>")


class Move(NamedTuple):
    """A parsed action: search for a text, or give it as the answer. Spaces in the text are single."""

    verb: Verb
    text: str

    def render(self, *, tags: bool) -> str:
        """Renders the move in tags or short; in the other form if its text would be misread in the requested one."""
        forms = f"{self.verb} {self.text}", f"<{self.verb}>{self.text}</{self.verb}>"
        preferred_form, other_form = forms[tags], forms[not tags]
        return preferred_form if parse_move(preferred_form) == self else other_form


def parse_move(text: str) -> Move | None:
    """Parses the move in a text; returns None without a move, or for a move without words."""
    return _find_move(text)[0]


def _find_move(text: str) -> tuple[Move | None, int]:
    """Returns the move in a text and its position."""
    unclosed: set[str] = set()
    for opening in _OPENING_TAG.finditer(text):
        verb = opening[1]
        end = -1 if verb in unclosed else text.find(f"</{verb}>", opening.end())
        if end >= 0:
            return _build_move(verb, text[opening.end() : end]), opening.start()
        unclosed.add(verb)  # no later pair of these tags can close either
        if len(unclosed) == len(_VERBS):
            break
    begin = text.rfind("</think>") + len("</think>") if "</think>" in text else 0
    short = _SHORT.fullmatch(text, begin)
    return (_build_move(short[1].lower(), short[2]), short.start(1)) if short else (None, 0)


def _build_move(verb: str, content: str) -> Move | None:
    content = " ".join(content.split())
    return Move("search" if verb == "search" else "answer", content) if content else None


@dataclass(frozen=True, slots=True)
class SearchGrammar:
    """Parses both forms; writes actions in tags or short. The text before the action is the thought.

    A thought is written as `<think>thought</think>`.

    Args:
        tags: whether actions are written in tags.
    """

    tags: bool = False

    def parse(self, text: str) -> Parsed:
        """Parses the first action in a text; raises InvalidAction if there is none."""
        move, begin = _find_move(text)
        if move is None:
            expected = "<search>words</search> or <answer>name</answer>" if self.tags else "search words or answer name"
            raise InvalidAction("no action in the text", value=text, expected=expected)
        return Parsed(move.render(tags=self.tags), _THINK.sub(" ", text[:begin]).strip() or None)

    def render(self, parsed: Parsed) -> str:
        """Renders the action, after its thought if there is one."""
        return f"<think>{parsed.thought}</think>\n{parsed.action}" if parsed.thought else parsed.action
