"""Grammars of AgentGym's worlds: they convert model text to an action, and an action to the text that is sent.

There are four forms: after `Action:` (most worlds), in a fenced block (SQL, WebArena), as a call on the last line (the
tool worlds), in tags (SearchQA). `parse` reads an agent's text; `to_wire` returns the text that a client sends for an
action, or None where AgentGym's own clients refuse a text without asking the server. Nothing is ever evaluated.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol

from evolvent.errors import InvalidAction
from evolvent.worlds.base import Grammar, Parsed
from evolvent.worlds.searchqa.tags import SearchGrammar, parse_move

__all__ = [
    "ActionLineGrammar",
    "CraftingGrammar",
    "FencedBlockGrammar",
    "MazeGrammar",
    "TagGrammar",
    "ToolLineGrammar",
    "WireGrammar",
    "WordleGrammar",
    "extract_block",
    "extract_tag",
    "split_tool_line",
]

_MARK = "Action:"
_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9, ]+")
_DIRECTIONS = ("up", "down", "left", "right")
_SEARCH_GRAMMAR = SearchGrammar(tags=True)


class WireGrammar(Grammar, Protocol):
    """A grammar that also defines the text that is sent."""

    def to_wire(self, action: str) -> str | None:
        """Returns the text to send for an action; None: refused here, as AgentGym's clients do."""
        ...


def _parse_thought(text: str) -> str | None:
    return (text.partition("Thought:")[2] if "Thought:" in text else text).strip() or None


@dataclass(frozen=True, slots=True)
class ActionLineGrammar:
    """`Thought:\\n...\\n\\nAction:\\n...`, one line of action.

    which: the first or the last `Action:` counts, or there may be only one.
    """

    which: Literal["first", "last", "only"] = "last"

    def parse(self, text: str) -> Parsed:
        parts = text.split(_MARK)
        if len(parts) < 2 or (self.which == "only" and len(parts) > 2):
            problem = "no action in the text" if len(parts) < 2 else "more than one action in the text"
            raise InvalidAction(problem, value=text, expected="'Thought: ...' then one 'Action: ...'")
        action_index = 1 if self.which == "first" else len(parts) - 1
        action = parts[action_index].strip().split("\n", 1)[0].strip()
        if not action:
            raise InvalidAction("an empty action", value=text, expected="'Thought: ...' then 'Action: ...'")
        return Parsed(action, _parse_thought(_MARK.join(parts[:action_index])))

    def render(self, parsed: Parsed) -> str:
        thought = f"Thought:\n{parsed.thought}\n\n" if parsed.thought else ""
        return f"{thought}{_MARK}\n{parsed.action}"

    def to_wire(self, action: str) -> str | None:
        """Returns the action as it is; model text that could not be parsed is read as leniently as AgentGym does."""
        parts = action.split(_MARK)
        if len(parts) == 1:
            return action.strip()
        return None if self.which == "only" else parts[1 if self.which == "first" else -1].strip()


@dataclass(frozen=True, slots=True)
class CraftingGrammar(ActionLineGrammar):
    """TextCraft: only letters, digits, commas and spaces are sent; removed characters leave no gap."""

    def to_wire(self, action: str) -> str | None:
        text = ActionLineGrammar.to_wire(self, action)
        return None if text is None else " ".join(_OTHER_CHARACTERS.sub("", text).split())


@dataclass(frozen=True, slots=True)
class MazeGrammar(ActionLineGrammar):
    """The maze: a direction alone means a move in that direction."""

    def to_wire(self, action: str) -> str | None:
        text = ActionLineGrammar.to_wire(self, action) or ""
        return f"move {text.lower()}" if text.lower() in _DIRECTIONS else text


@dataclass(frozen=True, slots=True)
class WordleGrammar(ActionLineGrammar):
    """Wordle: a word of five letters is sent with its letters apart."""

    def to_wire(self, action: str) -> str | None:
        text = ActionLineGrammar.to_wire(self, action) or ""
        return " ".join(text.lower()) if len(text) == 5 and text.isalpha() else text


@dataclass(frozen=True, slots=True)
class FencedBlockGrammar:
    """A block between triple backticks: the last block of the language, or (language "") the first of any kind."""

    language: str = ""

    def parse(self, text: str) -> Parsed:
        mark = f"```{self.language}"
        before, opening, after_opening = text.rpartition(mark) if self.language else text.partition(mark)
        action, closing, _ = after_opening.partition("```")
        if not opening or not closing or not action.strip():
            raise InvalidAction("no block of code in the text", value=text, expected=f"{mark} ... ```")
        return Parsed(action.strip(), _parse_thought(before.strip().removesuffix(_MARK)))

    def render(self, parsed: Parsed) -> str:
        thought = f"Thought: {parsed.thought}\n\n" if parsed.thought else ""
        gap = "\n" if self.language else ""
        return f"{thought}{_MARK} ```{self.language}{gap}{parsed.action}{gap}```"

    def to_wire(self, action: str) -> str | None:
        """Returns SQL without its fence; where any block counts, the server reads the block itself."""
        if self.language:
            return action.split(f"```{self.language}")[-1].split("```")[0].strip()
        return action if "```" in action else f"```{action}```"


@dataclass(frozen=True, slots=True)
class ToolLineGrammar:
    """`Thought: ...`, then `Action: NAME with Action Input: {json}` on the last line."""

    def parse(self, text: str) -> Parsed:
        name, arguments_text = split_tool_line(text)
        head = text.strip().rpartition("\n")[0].strip()
        return Parsed(f"{name} with Action Input: {arguments_text or '{}'}", _parse_thought(head))

    def render(self, parsed: Parsed) -> str:
        thought = f"Thought: {parsed.thought}\n\n" if parsed.thought else ""
        return f"{thought}{_MARK} {parsed.action}"

    def to_wire(self, action: str) -> str | None:
        """Returns the full text: the server reads it."""
        return action if _MARK in action else f"{_MARK} {action}"


@dataclass(frozen=True, slots=True)
class TagGrammar:
    """`<search>words</search>` or `<answer>words</answer>`; the first tag counts, the text before it is the thought."""

    def parse(self, text: str) -> Parsed:
        return _SEARCH_GRAMMAR.parse(text)

    def render(self, parsed: Parsed) -> str:
        return _SEARCH_GRAMMAR.render(parsed)

    def to_wire(self, action: str) -> str | None:
        """Returns the action in tags, also if it is in the short form."""
        return extract_tag(action)


def split_tool_line(text: str) -> tuple[str, str]:
    """Returns the name and the input on the last line of a model's text, unparsed.

    Raises:
        InvalidAction: no such line.
    """
    before, separator, arguments_text = text.rstrip().rpartition("\n")[2].partition("Action Input:")
    name = before.rstrip().removesuffix("with")
    if not separator or len(name) == len(before.rstrip()) or not (name := name.rpartition(_MARK)[2].strip()):
        raise InvalidAction(
            "no call of a tool on the last line", value=text, expected="Action: NAME with Action Input: {...}"
        )
    return name, arguments_text.strip()


def extract_tag(text: str) -> str:
    """Returns the first search or answer of a model's text; the text itself if it has none (the world reports that)."""
    move = parse_move(text)
    return text if move is None else move.render(tags=True)


def extract_block(text: str) -> str:
    """Returns the first block between triple backticks; raises InvalidAction if there is none."""
    return FencedBlockGrammar().parse(text).action
