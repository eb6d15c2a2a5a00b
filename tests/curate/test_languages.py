"""Languages: by file and shebang; every reader finds comments, strings and tokens at their places."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest

from evolvent.curate import syntax
from evolvent.curate.languages import LANGUAGES, detect_language, get_language
from evolvent.curate.syntax import MAX_CHARS, parse_source
from evolvent.errors import ConfigError, MissingExtra

# language -> source, its comments, its strings: each has a string with the mark of a comment in it
SAMPLES = {
    "python": ("x = f(\"# no\")  # één\ny = 'ü'  # zwei\n", ["# één", "# zwei"], ['"# no"', "'ü'"]),
    "c": ('char *s = "// ü"; /* é */ int c = \'"\'; // end\n', ["/* é */", "// end"], ['"// ü"', "'\"'"]),
    "cpp": ('auto s = R"(// ü\n)"; // é\n', ["// é"], ['R"(// ü\n)"']),
    "csharp": ('class A { string s = @"// ü"; /* é */ }\n', ["/* é */"], ['@"// ü"']),
    "go": ("package a\nvar s = `// ü\n` // é\n", ["// é"], ["`// ü\n`"]),
    "java": ('class A { String s = "// ü"; /* é */ } // x\n', ["/* é */", "// x"], ['"// ü"']),
    "javascript": (
        "let s = `// ü ${a /* in */}`; // é\nlet r = /#'\"/;\n",
        ["// é"],
        ["`// ü ${a /* in */}`", "/#'\"/"],
    ),
    "typescript": ('let s: string = "// ü"; // é\n', ["// é"], ['"// ü"']),
    "tsx": ('let s = <A b="// ü">// no</A>; // é\n', ["// é"], ['"// ü"']),
    "rust": ('/// é\nfn f() { let s = r#"// ü"#; /* a /* b */ */ }\n', ["/// é", "/* a /* b */ */"], ['r#"// ü"#']),
    "ruby": ('s = "# ü #{x}" # é\n=begin\nz\n=end\n', ["# é", "=begin\nz\n=end"], ['"# ü #{x}"']),
    "php": ("<?php\n$s = '// ü'; // é\n# b\n", ["// é", "# b"], ["'// ü'"]),
    "bash": ("s='# ü' # é\necho a#b\n", ["# é"], ["'# ü'"]),
    "lua": ('s = "-- ü" -- é\n', ["-- é"], ['"-- ü"']),
    "kotlin": ('val s = "// ü" // é\n', ["// é"], ['"// ü"']),
    "scala": ('val s = "// ü" // é\n', ["// é"], ['"// ü"']),
    "swift": ('let s = "// ü" // é\n', ["// é"], ['"// ü"']),
    "r": ('s <- "# ü" # é\n', ["# é"], ['"# ü"']),
}


def needs(language: str) -> None:
    """Outside CI a test of a language whose wheel is not installed is skipped; in CI it must run."""
    known = LANGUAGES[language]
    absent = known.reader == "tree-sitter" and find_spec(known.grammar[0]) is None
    if absent and not os.environ.get("CI"):
        pytest.skip(f"{known.grammar[0]} is not installed")


def texts(source, spans):
    return [source[start:end] for start, end in spans]


def test_every_language_has_a_sample():
    assert set(SAMPLES) == set(LANGUAGES)
    assert sum(language.reader != "pygments" for language in LANGUAGES.values()) >= 10


@pytest.mark.parametrize("language", SAMPLES)
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_comments_and_strings(language, bom):
    needs(language)
    source, comments, strings = SAMPLES[language]
    source = bom + source
    reading = parse_source(source, language)
    assert reading.fault == ""
    assert texts(source, reading.comments) == comments
    assert texts(source, reading.strings) == strings


@pytest.mark.parametrize("language", SAMPLES)
def test_tokens_hold_all_code_and_no_comment(language):
    needs(language)
    source = SAMPLES[language][0]
    reading = parse_source(source, language)
    bare = list(source)
    for start, end in reading.comments:
        bare[start:end] = " " * (end - start)
    joined = "".join(text for _, text in reading.tokens)
    assert "".join(joined.split()) == "".join("".join(bare).split())


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("a/b.py", "", "python"),
        ("B.PYI", "", "python"),
        ("x.h", "int f(void);\n", "c"),
        ("x.h", "namespace a {\n", "cpp"),
        ("x.h", "#include <vector>\n", "cpp"),
        ("x.h", "#include <stdio.h>\n", "c"),
        ("x.tsx", "", "tsx"),
        ("x.cjs", "", "javascript"),
        ("Rakefile", "", "ruby"),
        (".bashrc", "", "bash"),
        ("run", "#!/usr/bin/env python3.12\n", "python"),
        ("run", "\ufeff#!/usr/bin/env -S node --x\n", "javascript"),
        ("run", "#! /bin/sh -e\n", "bash"),
        ("run", "#!/usr/bin/env A=1 ruby\n", "ruby"),
        ("run", "#!\n", None),
        ("run", "#!/usr/bin/perl\n", None),
        ("run", "x = 1\n", None),
        ("x.txt", "#!/bin/sh\n", None),
        ("x.R", "", "r"),
    ],
)
def test_the_language_of_a_file(path, source, expected):
    assert detect_language(path, source) == expected


def test_names_of_languages():
    assert get_language("C++").name == "cpp"
    assert get_language("Shell").name == "bash"
    with pytest.raises(ConfigError, match="javascript"):
        get_language("javascrip")


def test_docstrings():
    source = (
        '"""Mödule"""\nclass A:\n    "Cläss" """two"""\n    x = "no"\n'
        'async def f(): "one"\nif f:\n    def g():\n        b"bytes"\n    def h():\n        f"{A}"\n'
        'def i():\n    ("in" # c\n     "brackets")\n'
    )
    reading = parse_source(source, "python")
    found = texts(source, reading.docstrings)
    assert found == ['"""Mödule"""', '"Cläss" """two"""', '"one"', '"in" # c\n     "brackets"']
    assert texts(source, reading.strings) == ['"no"', 'b"bytes"', 'f"{A}"']


def test_a_nested_string_is_one_string():
    source = (
        "x = f'{a['k'] if b else \"c\"} {d!r:>{e}}' + 'y'\n" if sys.version_info >= (3, 12) else "x = f'{a}' + 'y'\n"
    )
    assert len(parse_source(source, "python").strings) == 2


def test_a_shebang_is_no_comment_and_an_attribute_of_rust_is_none():
    assert parse_source("#!/bin/sh\n# c\n", "python").comments == ((10, 13),)
    needs("rust")
    source = "#![allow(x)] // c\n"
    assert texts(source, parse_source(source, "rust").comments) == ["// c"]


@pytest.mark.parametrize(
    ("language", "source", "fault"),
    [
        ("python", "def f(:\n", "does not parse"),
        ("python", "x = 1\0", "NUL"),
        ("python", "x = 1\ry = 2\n", "carriage"),
        ("python", "x = '\ud800'\n", "no encoding"),
        ("python", "x" * (MAX_CHARS + 1), "longer"),
        ("python", "(" * 10_000 + ")" * 10_000, "does not parse"),
        ("python", "-" * 100_000 + "1", "does not parse"),
        ("go", "func {", "does not parse"),
        ("go", 'package a\n// int x;\nimport "C"\n', "cgo"),
        ("java", "class A { // \\u000a int x;\n}\n", "escapes"),
        ("c", "int f( { ) } }}} (((", "does not parse"),
        ("bash", "if x; then\n", "does not parse"),
    ],
)
def test_faults(language, source, fault):
    needs(language)
    assert fault in parse_source(source, language).fault


def test_few_mistakes_of_a_header_are_tolerated_and_closed():
    needs("c")
    good = "".join(f"int name_{number}(int a, char *b);\n" for number in range(40))
    wrong = "__BEGIN_DECLS {\nint f ) (\n"
    reading = parse_source(good + wrong, "c")
    assert reading.fault == ""
    assert any(start >= len(good) - 1 for start, _ in reading.closed)
    assert parse_source(wrong, "c").fault


def test_lines_count_as_tokens():
    needs("javascript")
    joined, split = parse_source("return x\n", "javascript"), parse_source("return\nx\n", "javascript")
    assert joined.tokens != split.tokens
    assert parse_source("return /* a\n b */ x\n", "javascript").tokens == split.tokens


def test_a_missing_wheel_names_the_extra(monkeypatch):
    syntax._load_grammar.cache_clear()
    monkeypatch.setitem(sys.modules, "tree_sitter_go", None)
    with pytest.raises(MissingExtra, match=r"evolvent\[code\]"):
        parse_source("package a\n", "go")


def test_strings_are_told_from_docstrings_in_linear_time():
    """The work is counted, not timed: twice as much source takes no more than about twice the calls."""

    def work(functions):
        source = "".join(f'def f{n}(a="x"):\n    """Doc."""\n    return "y"\n' for n in range(functions))
        calls = 0

        def count(frame, event, what):
            nonlocal calls
            calls += event == "call" and frame.f_code.co_filename == syntax.__file__

        sys.setprofile(count)
        try:
            found = parse_source(source, "python")
        finally:
            sys.setprofile(None)
        assert (len(found.docstrings), len(found.strings)) == (functions, 2 * functions)
        return calls

    assert work(200) < 3 * work(100)


def test_a_version_after_an_interpreter_is_looked_at_once():
    """Time that grew with the square of its length would be hours here."""
    assert detect_language("run", f"#!/usr/bin/python{'3.' * 400_000}\n") == "python"
    assert detect_language("run", f"#!/usr/bin/python{'3.' * 400_000}x\n") is None


def test_blank_lines_are_looked_at_once():
    """Time that grew with the square of a run of blank lines would be hours here."""
    blank = "\n" * 400_000
    assert detect_language("a.h", f"{blank}int x;") == "c"
    assert detect_language("a.h", f"{blank}  class A;") == "cpp"
    if find_spec("tree_sitter_go") is not None:
        assert parse_source(f"package a\n{blank}var x = 1\n", "go").fault == ""
        assert "cgo" in parse_source(f'package a\n{blank}\timport\n\n"C"  \n', "go").fault
