"""How model text becomes an action in AgentGym's worlds, and how an action is put on the wire.

Four ways of writing: after `Action:` (most worlds), in a fenced block (SQL, WebArena), as a call on the last line (the
tool worlds), in tags (SearchQA). `parse` is what an agent's text is read with; `carry` is what a client sends for an
action, or None where AgentGym's own clients refuse a text without asking the server. Nothing is ever evaluated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol

from evolvent.errors import InvalidAction
from evolvent.worlds.grammar import Grammar, Parsed
from evolvent.worlds.searchqa.tags import SearchGrammar, read_move

__all__ = ["Carrier", "Fenced", "Letters", "Marked", "Tagged", "ToolLine", "Ways", "Words", "fence", "tag", "tool_line"]

_MARK = "Action:"
_OTHER = re.compile(r"[^A-Za-z0-9, ]+")
_WAYS = ("up", "down", "left", "right")
_SEARCH = SearchGrammar(tags=True)


class Carrier(Grammar, Protocol):
    """A grammar that also says what travels."""

    def carry(self, action: str) -> str | None:
        """The text to send for an action; None: refused here, as AgentGym's clients do."""
        ...


def _thought(text: str) -> str | None:
    return (text.partition("Thought:")[2] if "Thought:" in text else text).strip() or None


@dataclass(frozen=True, slots=True)
class Marked:
    """`Thought:\\n...\\n\\nAction:\\n...`, one line of action.

    which: the first or the last `Action:` counts, or there may be only one.
    """

    which: Literal["first", "last", "only"] = "last"

    def parse(self, text: str) -> Parsed:
        parts = text.split(_MARK)
        if len(parts) < 2 or (self.which == "only" and len(parts) > 2):
            wrong = "no action in the text" if len(parts) < 2 else "more than one action in the text"
            raise InvalidAction(wrong, value=text, expected="'Thought: ...' then one 'Action: ...'")
        cut = 1 if self.which == "first" else len(parts) - 1
        action = parts[cut].strip().split("\n", 1)[0].strip()
        if not action:
            raise InvalidAction("an empty action", value=text, expected="'Thought: ...' then 'Action: ...'")
        return Parsed(action, _thought(_MARK.join(parts[:cut])))

    def render(self, parsed: Parsed) -> str:
        thought = f"Thought:\n{parsed.thought}\n\n" if parsed.thought else ""
        return f"{thought}{_MARK}\n{parsed.action}"

    def carry(self, action: str) -> str | None:
        """The action as it is; model text that could not be read is read as leniently as AgentGym does."""
        parts = action.split(_MARK)
        if len(parts) == 1:
            return action.strip()
        return None if self.which == "only" else parts[1 if self.which == "first" else -1].strip()


@dataclass(frozen=True, slots=True)
class Words(Marked):
    """TextCraft: letters, digits, commas and spaces alone travel, and what is left out leaves no gap."""

    def carry(self, action: str) -> str | None:
        text = Marked.carry(self, action)
        return None if text is None else " ".join(_OTHER.sub("", text).split())


@dataclass(frozen=True, slots=True)
class Ways(Marked):
    """The maze: a way alone means a move that way."""

    def carry(self, action: str) -> str | None:
        text = Marked.carry(self, action) or ""
        return f"move {text.lower()}" if text.lower() in _WAYS else text


@dataclass(frozen=True, slots=True)
class Letters(Marked):
    """Wordle: a word of five letters travels with its letters apart."""

    def carry(self, action: str) -> str | None:
        text = Marked.carry(self, action) or ""
        return " ".join(text.lower()) if len(text) == 5 and text.isalpha() else text


@dataclass(frozen=True, slots=True)
class Fenced:
    """A block between triple backticks: the last block of the language, or (language "") the first of any kind."""

    language: str = ""

    def parse(self, text: str) -> Parsed:
        mark = f"```{self.language}"
        before, found, rest = text.rpartition(mark) if self.language else text.partition(mark)
        action, closed, _ = rest.partition("```")
        if not found or not closed or not action.strip():
            raise InvalidAction("no block of code in the text", value=text, expected=f"{mark} ... ```")
        return Parsed(action.strip(), _thought(before.strip().removesuffix(_MARK)))

    def render(self, parsed: Parsed) -> str:
        thought = f"Thought: {parsed.thought}\n\n" if parsed.thought else ""
        gap = "\n" if self.language else ""
        return f"{thought}{_MARK} ```{self.language}{gap}{parsed.action}{gap}```"

    def carry(self, action: str) -> str | None:
        """SQL travels bare; where any block counts, the server reads the block itself."""
        if self.language:
            return action.split(f"```{self.language}")[-1].split("```")[0].strip()
        return action if "```" in action else f"```{action}```"


@dataclass(frozen=True, slots=True)
class ToolLine:
    """`Thought: ...`, then `Action: NAME with Action Input: {json}` on the last line."""

    def parse(self, text: str) -> Parsed:
        name, given = tool_line(text)
        head = text.strip().rpartition("\n")[0].strip()
        return Parsed(f"{name} with Action Input: {given or '{}'}", _thought(head))

    def render(self, parsed: Parsed) -> str:
        thought = f"Thought: {parsed.thought}\n\n" if parsed.thought else ""
        return f"{thought}{_MARK} {parsed.action}"

    def carry(self, action: str) -> str | None:
        """The full text: the server reads it."""
        return action if _MARK in action else f"{_MARK} {action}"


@dataclass(frozen=True, slots=True)
class Tagged:
    """`<search>words</search>` or `<answer>words</answer>`; the first counts, what comes before is the thought."""

    def parse(self, text: str) -> Parsed:
        return _SEARCH.parse(text)

    def render(self, parsed: Parsed) -> str:
        return _SEARCH.render(parsed)

    def carry(self, action: str) -> str | None:
        """In tags, also where the action is in the short form."""
        return tag(action)


def tool_line(text: str) -> tuple[str, str]:
    """The name and the input on the last line of a model's text, as they stand there.

    Raises:
        InvalidAction: no such line.
    """
    before, found, given = text.rstrip().rpartition("\n")[2].partition("Action Input:")
    name = before.rstrip().removesuffix("with")
    if not found or len(name) == len(before.rstrip()) or not (name := name.rpartition(_MARK)[2].strip()):
        raise InvalidAction(
            "no call of a tool on the last line", value=text, expected="Action: NAME with Action Input: {...}"
        )
    return name, given.strip()


def tag(text: str) -> str:
    """The first search or answer of a model's text; the text itself where it holds none (the world says so)."""
    move = read_move(text)
    return text if move is None else move.written(tags=True)


def fence(text: str) -> str:
    """The first block between triple backticks; raises InvalidAction where there is none."""
    return Fenced().parse(text).action
