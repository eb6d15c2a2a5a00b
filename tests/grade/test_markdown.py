"""Fences, code spans and labels of replies; CommonMark is read as markdown-it-py reads it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from evolvent.errors import InvalidAction
from evolvent.grade.countdown import grade_expression
from evolvent.grade.markdown import fenced_blocks, find_code_span, split_at_label, unwrap
from evolvent.grade.thoughts import split_thoughts
from evolvent.grade.web_actions import WebAction, parse_reply
from evolvent.serve.toolcalls import CallGrammar
from evolvent.worlds.base import Parsed, Plain, ReAct
from evolvent.worlds.web_replay.world import WebGrammar

LINES = [
    *("```", "````", "~~~", "~~~~", "```python", "~~~py x", "   ```", "    ```", " ```", "code", "    code", "  x", ""),
    *("1. item", "1. ```py", "- ```", "   ```python", "- a", "  ~~~", "> ```", "> code", "> ", "``` `x`", "```` "),
    *("  ```` x", "   - b", "10) x", "text", "***", "# head", "   code"),
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=9).map("\n".join))
@example("```python\ndef f():\n    '''\n    ```\n    >>> f()\n    ```\n    '''\n```")
@example("1. first\n\n   ```python\n   x = 1\n   ```")
def test_fences_are_those_of_commonmark(text):
    tokens = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    expected = [((token.info.split() or [""])[0].lower(), token.content) for token in tokens]
    if text.count("\n-\n") or "\n-" in text[-2:]:
        return  # a line under a text is a heading of another kind
    assert [(block.language, block.text) for block in fenced_blocks(text)] == expected


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("`CLICK [12]`", "CLICK [12]"),
        ("``CLICK [12]``", "CLICK [12]"),
        ("`` `CLICK [12]` ``", "`CLICK [12]`"),
        ("so **`CLICK [12]`**", "CLICK [12]"),
        ("``TYPE [3] [a`b]``", "TYPE [3] [a`b]"),
        ("` `", None),
        ("`a", None),
        ("``a`", None),
        ("none", None),
    ],
)
def test_code_spans_end_at_as_many_back_quotes(text, content):
    span = find_code_span(text)
    assert (span and span[2]) == content
    if span:
        assert text[span[0]] == text[span[1] - 1] == "`"


@pytest.mark.parametrize(
    ("text", "action", "thought"),
    [
        ("Thought:\nx\n\nAction:\ngo north", "go north", "x"),
        ("**Thought:** x\n\n**Action:** go north", "go north", "x"),
        ("**Thought**: x\n\n**Action**: go north", "go north", "x"),
        ("**Action: go north**", "go north", None),
        ("### Action: go north", "go north", None),
        ("__Action:__ go north", "go north", None),
        ("*Action:* go north", "go north", None),
        ("Action: `go north`", "go north", None),
        ("Action: **go north**", "go north", None),
        ('Action: "go north"', "go north", None),
        ("Action: 'go north'", "go north", None),
        ("Action: say 'hi' to 'Bo'", "say 'hi' to 'Bo'", None),
        ("Action:\n```\ngo north\n```", "go north", None),
        ("Action:\n~~~text\ngo north\n~~~", "go north", None),
        ("Action: use key_1 * 2", "use key_1 * 2", None),
        ("<think>Action: look</think>\nAction: go north", "go north", "Action: look"),
        ("<think>hmm</think>\nThought: so\nAction: go north", "go north", "hmm\n\nso"),
        ("Action: look\nObservation: x\nAction: go north", "go north", "Action: look\nObservation: x"),
    ],
)
def test_react_is_read_as_chat_models_write_it(text, action, thought):
    assert ReAct().parse(text) == Parsed(action, thought)


@pytest.mark.parametrize(
    "text",
    ["<think>Action: look</think>go north", "go north", "Action:", "Action: **", "Action:\n```\n```", "Reaction: x"],
)
def test_react_without_a_readable_action_is_refused_with_the_text(text):
    with pytest.raises(InvalidAction) as raised:
        ReAct().parse(text)
    assert raised.value.value == text


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("go north", Parsed("go north")),
        ("<think>\nhmm\n</think>\n\nnorth", Parsed("north", "hmm")),
        ("hmm\n</think>\n\nnorth", Parsed("north", "hmm")),
        ("**go north**", Parsed("go north")),
        ("`go north`", Parsed("go north")),
        ("print('<think>x</think>')", Parsed("print('<think>x</think>')")),
        ('say "</think>" now', Parsed('say "</think>" now')),
        ("**a** and **b**", Parsed("**a** and **b**")),
        ("```python\nx = 1\n```", Parsed("```python\nx = 1\n```")),
    ],
)
def test_a_plain_action_is_read_without_its_thought(text, parsed):
    assert Plain().parse(text) == parsed


def test_a_thought_alone_is_no_action():
    for text in ("<think>go north", "<think>go north</think>", "<think></think>"):
        with pytest.raises(InvalidAction):
            Plain().parse(text)


def test_calls_and_web_actions_are_read_in_markdown():
    assert CallGrammar().parse('**Thought:** x\n**Action:** f {"a": "<think>b</think>"}') == Parsed(
        'f {"a": "<think>b</think>"}', "x"
    )
    assert CallGrammar().parse('<think>Action: g {}</think>\nAction: `f {"a": 1}`').action == 'f {"a": 1}'
    for text in ("``CLICK [12]``", "**`CLICK [12]`**", "<think>`CLICK [1]`</think>`CLICK [12]`"):
        assert parse_reply(text) == WebAction("CLICK", "12")
        assert WebGrammar().parse(text).action == "CLICK [12]"


@pytest.mark.parametrize(
    "response",
    [
        "**(6-4)*(4+8) = 24**",
        "`(6-4)*(4+8) = 24`",
        r"\boxed{(6-4)*(4+8)}",
        r"so \boxed{(6-4)*(4+8) = 24}.",
        "<think>4+8=12</think>\n<answer>(6-4)*(4+8)</answer>",
        "24 = (6-4)*(4+8)",
        "The answer is **(6-4)*(4+8) = 24**.",
        "**Answer:** (6-4)*(4+8)",
        "```\n(6-4)*(4+8)\n```",
    ],
)
def test_countdown_is_read_as_chat_models_write_it(response):
    grade = grade_expression(response, [6, 4, 4, 8], 24)
    assert grade.correct, grade


@pytest.mark.parametrize(
    "response", ["24 = 24", "24 = (6-4)*(4+8) = 25", "**24**", r"\boxed{24}", "<answer></answer>", "**"]
)
def test_countdown_without_an_expression_is_wrong(response):
    assert grade_expression(response, [6, 4, 4, 8], 24).correct is False


def test_labels_and_wrappers():
    assert split_at_label("a **Action:** b", "Action") == ("a ", " b")
    assert split_at_label("Reaction: b", "Action") is None
    assert unwrap("**`x`**") == "x" and unwrap("'a' and 'b'") == "'a' and 'b'" and unwrap("“x”") == "x"
    assert split_thoughts("a <think>b</think> c") == ("a <think>b</think> c", "")
    assert split_thoughts("a <think>b</think> c", leading=False) == ("a  c", "b")
