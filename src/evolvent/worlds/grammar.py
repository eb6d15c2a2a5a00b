"""Action grammars: convert model text to an action and back. Model text is only split and compared, never evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from evolvent.errors import InvalidAction

__all__ = ["Grammar", "Parsed", "Plain", "ReAct"]


@dataclass(frozen=True, slots=True)
class Parsed:
    """An action and the thought that came before it, where there was one."""

    action: str
    thought: str | None = None


class Grammar(Protocol):
    """A world's action grammar."""

    def parse(self, text: str) -> Parsed:
        """Parses the action in a model's text; raises InvalidAction where the text holds none."""
        ...

    def render(self, parsed: Parsed) -> str:
        """Renders the text that a model should write for an action and its thought: parse(render(p)) == p."""
        ...


@dataclass(frozen=True, slots=True)
class Plain:
    """The whole text is the action."""

    def parse(self, text: str) -> Parsed:
        action = text.strip()
        if not action:
            raise InvalidAction("an empty action", value=text, expected="the text of one action")
        return Parsed(action)

    def render(self, parsed: Parsed) -> str:
        return parsed.action


@dataclass(frozen=True, slots=True)
class ReAct:
    """`Thought:\\n...\\n\\nAction:\\n...` (AgentGym): split at the last `Action:`; one line of action."""

    def parse(self, text: str) -> Parsed:
        before, marker, after = text.rpartition("Action:")
        action = after.strip().split("\n", 1)[0].strip()
        if not marker or not action:
            raise InvalidAction("no action in the text", value=text, expected="'Thought: ...' then 'Action: ...'")
        thought = before.partition("Thought:")[2].strip() if "Thought:" in before else before.strip()
        return Parsed(action, thought or None)

    def render(self, parsed: Parsed) -> str:
        thought = f"Thought:\n{parsed.thought}\n\n" if parsed.thought else ""
        return f"{thought}Action:\n{parsed.action}"
