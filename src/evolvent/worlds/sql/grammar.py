"""The query in a model's text: in a fenced block of SQL, or as the whole text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from evolvent.errors import InvalidAction
from evolvent.grade.thoughts import split_thoughts
from evolvent.worlds.base import Parsed

__all__ = ["Fenced", "extract_query"]

_FENCE = "```"
_BLOCK = re.compile(r"```[ \t]*(?:sqlite|sql)\b(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def extract_query(text: str) -> tuple[str, str]:
    """Extracts the query from a text, and the text before it.

    The last block marked as `sql` counts, even if its end is missing. Without such a block, the text up to the
    first fence is the query, as for AgentGym's client.
    """
    blocks = list(_BLOCK.finditer(text))
    if not blocks:
        return text.split(_FENCE, 1)[0].strip(), ""
    return blocks[-1][1].strip(), text[: blocks[-1].start()]


@dataclass(frozen=True, slots=True)
class Fenced:
    """A thought, then one query in a block marked as `sql`; the last block counts. A text without a block is the
    query.

    A query without a thought is written bare. A query with a thought is written as in AgentGym's data: `Thought:`,
    `Action:` and a block on separate lines.
    """

    def parse(self, text: str) -> Parsed:
        """Parses the query and the thought of a model's text; raises InvalidAction if there is no query."""
        visible, inner_thought = split_thoughts(text)
        action, preamble = extract_query(visible)
        if not action:
            raise InvalidAction("no query in the text", value=text, expected="one query in a ```sql block")
        thought = preamble.strip().removeprefix("Thought:").removesuffix("Action:").strip()
        return Parsed(action, "\n\n".join(filter(None, (inner_thought, thought))) or None)

    def render(self, parsed: Parsed) -> str:
        """Renders a query, with its thought if there is one."""
        if parsed.thought is None:
            return parsed.action
        return f"Thought:\n{parsed.thought}\n\nAction:\n{_FENCE}sql\n{parsed.action}\n{_FENCE}"
