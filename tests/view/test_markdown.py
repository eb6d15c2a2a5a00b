"""Hostile text in Markdown and YAML stays text: held against parsers that are not ours."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from evolvent.view.markdown import escape_markdown, format_name, format_table, join_lines, quote_yaml

EVIL = (
    "<script>alert(1)</script>",
    "[click](javascript:alert(1))",
    "![x](https://evil.example/pixel.png)",
    "`a` **b** _c_",
    "a | b \\| c \\",
    "line\n# heading\n---\n- item",
    "<https://evil.example>",
    "&lt;b&gt; &amp;",
    "\u202egnp.exe\x1b[2J",
    "$$x$$ ~~y~~ ~z~",
    "``` \nfence",
    "\ud800 lone",
    "a\u2028b\x85c\x7fd",
    "@everyone #1 www.evil.example",
    "!!python/object:os",
    "- *x",
    "{{ jinja }} {% x %}",
    "'\"",
    "yes",
    "null",
    "1e3",
    ": key",
    "# comment",
    "%TAG",
)
texts = st.one_of(st.sampled_from(EVIL), st.text(max_size=60), st.text("\\`*_[]()<>&|~$@#!:/.w \n-+=1", max_size=30))


def leaves(text: str):
    """Every token of the text that draws something, as CommonMark with tables reads it."""
    for token in MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(text):
        yield token
        yield from token.children or ()


def shown(text: str) -> str:
    return "".join(token.content for token in leaves(text) if token.type in ("text", "code_inline", "text_special"))


@settings(deadline=None)
@given(texts)
def test_text_is_shown_as_it_is(text):
    for made in (escape_markdown(text), format_name(text)):
        tokens = list(leaves(f"It says: {made} .")) if made else []
        kinds = {token.type for token in tokens} - {"paragraph_open", "paragraph_close", "inline"}
        assert kinds <= {"text", "code_inline", "text_special"}, (made, kinds)
    assert shown(f"x{escape_markdown(text, 500)}x") == f"x{join_lines(text, 500)}x"


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
def test_tables_keep_their_cells(rows):
    text = format_table(
        ("one", "two"), [(format_name(a), escape_markdown(b) or "-") for a, b in rows], numbers=("two",)
    )
    tokens = list(leaves(text))
    assert sum(token.type == "td_open" for token in tokens) == 2 * len(rows)
    assert not {token.type for token in tokens} & {"html_inline", "html_block", "link_open", "image", "em_open"}
    cells = [tokens[at + 1].children for at, token in enumerate(tokens) if token.type == "td_open"]
    read = ["".join(child.content for child in cell) for cell in cells]
    assert read == [cell for a, b in rows for cell in (join_lines(a) or "-", join_lines(b) or "-")]


@settings(deadline=None)
@given(texts)
def test_yaml_reads_back_the_text(text):
    assert yaml.safe_load(f"- name: {quote_yaml(text)}\n  value: 1.0\n") == [
        {"name": join_lines(text, 200), "value": 1.0}
    ]
    assert json.loads(quote_yaml(text)) == join_lines(text, 200)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("evolve-1-fit", "`evolve-1-fit`"),
        ("", "-"),
        ("a|b", r"a\|b"),
        ("x_y", "`x_y`"),
        ("*", r"\*"),
        ("http://a", "`http://a`"),
        ("<http://a>", r"\<http\://a\>"),
        ("a\u202eb", r"a\[U+202E\]b"),
    ],
)
def test_names(text, made):
    assert format_name(text) == made


def test_long_text_is_cut_and_says_so():
    assert format_name("x" * 130) == "x" * 120 + r" \[10 more characters are not shown\]"
