"""Comments in code: where they may stand, what they may say, and that the code stays what it was."""

from __future__ import annotations

import ast
import os
import subprocess
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.curate import comments
from evolvent.curate.comments import (
    Density,
    Note,
    add_all_comments,
    add_comments,
    code_tokens,
    density,
    find_open_lines,
    find_refusal,
    is_same_code,
)
from evolvent.curate.languages import LANGUAGES
from evolvent.curate.syntax import parse_source
from evolvent.errors import SampleInvalid

# language -> source and the lines above which a note may stand; the rest is text of one kind or another
PLACES = {
    "python": (
        '#!/usr/bin/python\n# -*- coding: utf-8 -*-\nx = """a\nb\n"""\n\nif x and \\\n   x:\n    y = (1,\n  2)\n',
        {3, 7, 9, 10},
    ),
    "c": ("#define A(x) \\\n  x\n/* a\n b */\nint x;\n#if 1 // c\\\nd\n#endif\n", {1, 3, 5, 6, 8}),
    "cpp": ('auto s = R"(\na)";\nint x = 1;\n', {1, 3}),
    "csharp": ('class A {\n string s = @"\n";\n string t = """\n a\n """;\n}\n', {1, 2, 4, 7}),
    "go": ("package a\n\nvar s = `\n`\nvar t = 1\n", {1, 3, 5}),
    "java": ('class A {\n String s = """\n a\n """;\n /** d\n */ int x;\n}\n', {1, 2, 5, 7}),
    "javascript": ("#!/usr/bin/env node\nlet s = `\n${x +\n1}`;\nlet j = <A>\n {x}\n</A>;\nf();\n", {2, 5, 8}),
    "typescript": ("let s: string = `\n`;\ntype T = {\n a: string;\n};\n", {1, 3, 4, 5}),
    "tsx": ("let j = (\n <A>\n  b\n </A>\n);\n", {1, 2, 5}),
    "rust": ('#![allow(x)]\nfn f() {\n let s = r#"\n"#;\n}\n', {1, 2, 3, 5}),
    "ruby": ("# encoding: utf-8\nx = <<~E\n  a\nE\ny = %w[a\n b]\nz = 1\n__END__\ndata\n", {2, 5, 7, 8}),
    "php": ("<b>\n<?php\n$x = 1;\n$y = <<<E\n a\nE;\n?>\n<i>\n<?php\nf();\n", {3, 4, 7, 10}),
    "bash": ("#!/bin/bash\ncat <<E\na\nE\nx='\n'\nf \\\n g\n((\n 1\n))\ny=$((1 +\n 2))\nh\n", {2, 5, 7, 9, 12, 14}),
    "lua": ('s = [[\na]]\nx = "b"\n', {1, 3}),
}


def needs(language):
    known = LANGUAGES[language]
    if known.reader == "tree-sitter" and find_spec(known.grammar[0]) is None and not os.environ.get("CI"):
        pytest.skip(f"{known.grammar[0]} is not installed")


def test_density_by_hand():
    assert density("x = 1 # one\n", "python") == Density(5, 0, 12)
    assert density("x = 1 # one\n", "python").share == 5 / 12
    documented = density('"""A"""\nx = 1 # one\n', "python")
    assert documented == Density(5, 7, 20)
    assert documented.share_with_docstrings == 12 / 20
    assert density("", "python").share == density("", "python").share_with_docstrings == 0.0
    assert density("#!/bin/sh\n# a\n", "python") == Density(3, 0, 14)
    assert density('"# é"\n# é\n', "python") == Density(3, 5, 10)


def test_density_of_a_source_that_cannot_be_read():
    with pytest.raises(SampleInvalid):
        density("def f(:\n", "python")
    with pytest.raises(SampleInvalid):
        code_tokens("x\0", "python")
    needs("go")
    assert density("package a // c\nfunc {\n", "go").comment_chars == 4  # recovered


def test_code_tokens():
    assert code_tokens("x = 1  # c\n", "python") == (
        ("NAME", "x"),
        ("OP", "="),
        ("NUMBER", "1"),
        ("NEWLINE", "\n"),
    )
    needs("go")
    assert code_tokens("// c\npackage a\n\n// d\nvar b int\n", "go") == (
        ("package", "package"),
        ("package_identifier", "a"),
        ("newline", ""),
        ("var", "var"),
        ("identifier", "b"),
        ("type_identifier", "int"),
    )


@pytest.mark.parametrize(
    ("source", "notes", "expected"),
    [
        ("if x:\n\ty = 1\n", [(2, "one")], "if x:\n\t# one\n\ty = 1\n"),
        ("x = 1\r\ny = 2\r\n", [(2, "a"), (1, "b"), (2, "c")], "# b\r\nx = 1\r\n# a\r\n# c\r\ny = 2\r\n"),
        ("x = 1", [(1, "a")], "# a\nx = 1"),
        ("x = 1\r\ny = 2", [(2, "a")], "x = 1\r\n# a\r\ny = 2"),
        ("\ufeffx = 1\n", [(1, "a")], "\ufeff# a\nx = 1\n"),
        ("\fx = 1\n", [(1, "a")], "# a\n\fx = 1\n"),
        ("f(a,\n  b)\n", [(2, "größer → 日本")], "f(a,\n  # größer → 日本\n  b)\n"),
        ("x = 'a\u2028b'\ny = 1\n", [(2, "a")], "x = 'a\u2028b'\n# a\ny = 1\n"),
    ],
)
def test_insertion_by_hand(source, notes, expected):
    assert add_all_comments(source, [Note(*note) for note in notes], "python") == expected


@pytest.mark.parametrize("language", PLACES)
def test_where_a_note_may_stand(language):
    needs(language)
    source, places = PLACES[language]
    assert parse_source(source, language).fault == ""
    assert set(find_open_lines(source, language)) == places
    done = add_comments(source, [Note(line, f"note {line}") for line in range(-1, 20)], language)
    assert done.outcome == "commented"
    assert {note.line for note in done.placed} == places
    assert len(done.refused) == 21 - len(places)
    assert is_same_code(parse_source(source, language), parse_source(done.source, language))


@pytest.mark.parametrize("language", PLACES)
def test_verification_does_not_trust_the_places(language, monkeypatch):
    """With every line declared open, a note in a string is found by its tokens, and the source comes back."""
    needs(language)
    source, places = PLACES[language]
    inside = {
        "python": 4,
        "c": 2,
        "cpp": 2,
        "csharp": 3,
        "go": 4,
        "java": 3,
        "javascript": 3,
        "typescript": 2,
        "tsx": 3,
        "rust": 4,
        "ruby": 3,
        "php": 1,
        "bash": 3,
        "lua": 2,
    }[language]
    assert inside not in places
    monkeypatch.setattr(comments, "_find_closed_lines", lambda *_: {})
    done = add_comments(source, [Note(inside, "note")], language)
    assert (done.outcome, done.source, done.placed) == ("code_changed", source, ())
    assert done.refused[0].reason == "the code would change"


@pytest.mark.parametrize("language", PLACES)
def test_every_changed_token_is_seen(language):
    needs(language)
    source, _ = PLACES[language]
    before = parse_source(source, language)
    closed = {place for start, end in before.comments for place in range(start, end)}
    first = source.find("\n") if source.startswith("#!/") else 0
    places = [at for at in range(first, len(source)) if at not in closed and not source[at].isspace()]
    assert len(places) > 10
    for at in places:
        other = "x" if source[at] != "x" else "y"
        assert not is_same_code(before, parse_source(source[:at] + other + source[at + 1 :], language)), source[
            at - 5 : at + 5
        ]


@pytest.mark.parametrize(
    ("text", "language", "reason"),
    [
        ("", "c", "empty"),
        (" a", "c", "padded"),
        ("a" * 1001, "c", "longer"),
        ("a\nb", "python", "line break"),
        ("a\rb", "python", "line break"),
        ("a\vb", "python", "line break"),
        ("a\fb", "c", "line break"),
        ("a\x85b", "c", "line break"),
        ("a\u2028b", "javascript", "line break"),
        ("a\u2029b", "javascript", "line break"),
        ("a\x00b", "c", "line break"),
        ("a\tb", "c", "control"),
        ("a\u202eb", "c", "invisible"),
        ("\ufeffa", "c", "invisible"),
        ("a\ud800", "c", "line break"),
        ("a */ b", "c", "end"),
        ("a ?> b", "php", "end"),
        ("a --> b", "javascript", "end"),
        ("a </SCRIPT>", "javascript", "end"),
        ("path C:\\", "c", "backslash"),
        ("what??/", "c", "backslash"),
        ("a \\u000a b", "java", "may not hold"),
        ("a `b`", "bash", "may not hold"),
        ("!shebang", "python", "special"),
        ("/ doc", "rust", "special"),
        ("[[ long", "lua", "special"),
        ("+build linux", "go", "special"),
        ("coding: latin-1", "python", "directive"),
        ("see vim: set ts=4", "python", "directive"),
        ("type: ignore", "python", "directive"),
        ("is it noqa or not", "python", "directive"),
        ("fmt: off", "python", "directive"),
        ("pragma: no cover", "python", "directive"),
        ("eslint-disable-next-line", "javascript", "directive"),
        ("the @ts-ignore mark", "typescript", "directive"),
        ("go:embed a", "go", "directive"),
        ("shellcheck disable=SC1", "bash", "directive"),
        ("frozen_string_literal: true", "ruby", "directive"),
        ("rubocop:disable all", "ruby", "directive"),
        ("clang-format off", "cpp", "directive"),
        ("NOLINT(x)", "cpp", "directive"),
        ("fall through", "c", "directive"),
        ("Code generated by x. DO NOT EDIT.", "go", "directive"),
    ],
)
def test_texts_that_are_refused(text, language, reason):
    assert reason in find_refusal(text, language)


@pytest.mark.parametrize(
    "text",
    [
        "Adds one.",
        "größer → 日本 🙂",
        "the \\n ends it",
        "see f(x)[0] = {1}",
        "'a' and \"b\"",
        "50 % of $HOME",
        "the prototype: a draft",
        "a \\u000a b",
        "family 👨\u200d👩\u200d👧",
    ],
)
def test_texts_that_are_not_refused(text):
    assert find_refusal(text, "python") == ""
    assert add_all_comments("x = 1\n", [Note(1, text)], "python") == f"# {text}\nx = 1\n"


def test_a_bad_note_does_not_cost_the_others():
    done = add_comments("x = 1\ny = 2\n", [Note(2, "two"), Note(1, "noqa"), Note(9, "far"), Note(1, "one")], "python")
    assert done.source == "# one\nx = 1\n# two\ny = 2\n"
    assert done.placed == (Note(1, "one"), Note(2, "two"))
    assert {refused.note.text for refused in done.refused} == {"noqa", "far"}
    with pytest.raises(SampleInvalid, match="line 9"):
        add_all_comments("x = 1\n", [Note(9, "far")], "python")


def test_nothing_to_do_and_nothing_that_can_be_done():
    assert add_comments("x = 1\n", [], "python").outcome == "unchanged"
    assert add_comments("", [Note(1, "a")], "python").outcome == "unchanged"
    done = add_comments("def f(:\n", [Note(1, "a")], "python")
    assert (done.outcome, done.source) == ("unparsable", "def f(:\n")
    assert find_open_lines("def f(:\n", "python") == ()
    with pytest.raises(SampleInvalid, match="parse"):
        add_all_comments("def f(:\n", [Note(1, "a")], "python")


def test_trees_must_be_equal_where_tokens_are():
    one, other = parse_source("x = 1\n", "python"), parse_source("x = 2\n", "python")
    crossed = type(one)(one.tokens, tree=other.tree)
    assert is_same_code(one, one)
    assert not is_same_code(one, crossed)
    assert not is_same_code(one, type(one)(one.tokens))
    assert not is_same_code(one, parse_source("def f(:\n", "python"))


def test_a_sum_too_long_to_compare_is_left_alone():
    source = "x = " + " + ".join(["1"] * 2_000) + "\n"
    done = add_comments(source, [Note(1, "a")], "python")
    assert (done.outcome, done.source) == ("code_changed", source)


def test_a_script_runs_as_before(tmp_path):
    needs("bash")
    source = PLACES["bash"][0].replace("f \\\n g\n", "echo \\\n g\n").replace("\nh\n", "\necho $y $x\n")
    done = add_comments(source, [Note(line, "say \"it's ( { $x") for line in find_open_lines(source, "bash")], "bash")
    assert done.outcome == "commented"
    path = tmp_path / "script.sh"
    outputs = []
    for text in (source, done.source):
        path.write_text(text, encoding="utf-8")
        outputs.append(subprocess.run(["bash", str(path)], capture_output=True, text=True, check=True, timeout=20))
    assert outputs[0].stdout == outputs[1].stdout == "a\ng\n3\n"
    assert outputs[1].stderr == ""


LIBRARY = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 30))
def test_the_standard_library_keeps_its_code(seed, count):
    rng = np.random.default_rng(seed)
    path = LIBRARY[int(rng.integers(len(LIBRARY)))]
    source = path.read_bytes().decode("utf-8")[:25_000].rpartition("\n\n")[0] + "\n"
    lines = find_open_lines(source, "python")
    if not lines:  # cut in the middle of something
        return
    places = rng.choice(lines, size=min(count, len(lines)), replace=False)
    notes = [Note(int(line), f"note {at} é") for at, line in enumerate(places)]
    written = add_all_comments(source, notes, "python")
    marks = {f"# {note.text}" for note in notes}
    assert [line for line in written.split("\n") if line.strip() not in marks] == source.split("\n")
    assert written.count("\n") == source.count("\n") + len(notes)
    assert ast.dump(ast.parse(written)) == ast.dump(ast.parse(source))
