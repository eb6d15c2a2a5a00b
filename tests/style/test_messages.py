"""The messages of errors and warnings follow a template and avoid constructions that readers stumble over.

`tools/list_messages.py` lists all of them. InvalidAction is left out: recorded episodes hold its texts as observations,
so a change of words would be another version of the world.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from house import ROOT

_TOOL = ROOT / "tools" / "list_messages.py"
_spec = importlib.util.spec_from_file_location("list_messages", _TOOL)
assert _spec is not None and _spec.loader is not None
list_messages = importlib.util.module_from_spec(_spec)
sys.modules["list_messages"] = list_messages
_spec.loader.exec_module(list_messages)

# Texts whose words others fixed: observations of worlds, the protocol of OpenEnv, and Python's own errors.
EXEMPT = {"InvalidAction", "_InvalidExpression", "_RpcError", "RefusedMessage", "_PythonError"}

NOUN_PHRASE = "a whole message like 'a row that cannot be read'"
BANNED = {
    "there is no X": r"\bthere (?:is|are|was|were) (?:no|none|nothing|nobody)\b",
    "no such X": r"\bno such\b",
    "X is no Y": r"\b(?:is|are|was|were|be) no (?!longer\b)\w",
    "X that is none": r"\bthat (?:is|are) none\b|\b(?:is|are) none\b",
    "of its own": r"\bof (?:its|their|one's) own\b",
    "X of that name": r"\bof (?:that|this) (?:name|id)\b$",
    "bare what": r"\bwhat (?:came|was|is|were|are|has|had|it|this|follows|nobody)\b|^what\b",
    "nobody": r"\bnobody\b",
    "a fault of evolvent": r"\bfault of evolvent\b",
    "is not there": r"\b(?:is|are|was) (?:not |already )?there\b|\bthere already\b",
    NOUN_PHRASE: r"^an? (?:[\w-]+ ){1,3}(?:that|which|whose) ",
    "British spelling": r"licen[c]e\b|\blabell|\bcolou?r(?<=our)|\bquantis|\bstandardis|\btokenis|\bbehaviour\b",
    "metaphor": r"\b(?:desk|seat|rota|voice|wide awake|from nowhere)\b",
}


@pytest.fixture(scope="module")
def messages() -> list:
    found = [message for message in list_messages.list_messages() if message.exception not in EXEMPT]
    assert len(found) > 2000, "the tool no longer finds the messages"
    return found


@pytest.mark.parametrize("construction", BANNED)
def test_messages_avoid_construction(messages, construction):
    pattern = re.compile(BANNED[construction], re.IGNORECASE)
    hits = [
        f"{message.file}:{message.line}: {text}"
        for message in messages
        for text in (message.literals[:1] if construction == NOUN_PHRASE else message.literals)
        if pattern.search(_prose(text))
    ]
    assert hits == []


def _prose(text: str) -> str:
    """Returns a text without the names of flags and fields, whose spelling is fixed."""
    return re.sub(r"--?[\w.]+|\b\w+_\w+\b|`[^`]*`", "", text)


@pytest.mark.parametrize(
    ("construction", "text"),
    [
        ("there is no X", "there is no world of that name"),
        ("no such X", "no such session"),
        ("X is no Y", "{} is no number"),
        ("X that is none", "a tool call that is none"),
        ("of its own", "rows have no attributes of their own"),
        ("bare what", "what came"),
        ("a fault of evolvent", "a fault of evolvent itself"),
        (NOUN_PHRASE, "a row that cannot be read"),
        ("British spelling", "the licence of {}"),
    ],
)
def test_patterns_match_their_construction(construction, text):
    assert re.search(BANNED[construction], text)


def test_tool_lists_message_with_its_local_texts(tmp_path: Path):
    path = tmp_path / "sample.py"
    path.write_text(
        "def check(k):\n    message = f'k: got {k}, expected 1 or more'\n"
        "    if k < 1:\n        raise ValueError(message)\n"
        "    raise build(f'{k} is wrong', 'raise k')\n",
        encoding="utf-8",
    )
    first, second = list_messages.list_messages([path])
    assert (first.line, first.exception, first.literals) == (4, "ValueError", ("k: got {}, expected 1 or more",))
    assert (second.exception, second.literals) == ("build", ("{} is wrong", "raise k"))
