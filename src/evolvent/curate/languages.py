"""Programming languages for comment augmentation: names, files, comment marks and readers.

`evolvent.curate.syntax` reads sources: Python by `tokenize` and `ast`; twelve languages by tree-sitter, one
wheel each (extra `code`); a few more by pygments' lexers, which know tokens but no syntax, so faults there are
not detected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from evolvent.errors import ConfigError, unknown_name_problem

__all__ = ["LANGUAGES", "Language", "detect_language", "get_language"]

Reader = Literal["python", "tree-sitter", "pygments"]


@dataclass(frozen=True, slots=True)
class Language:
    """A programming language.

    Args:
        name: Name in data sets, in lower case.
        mark: Start of a comment that ends with its line.
        suffixes: Suffixes of file names, with the dot.
        interpreters: Programs that a shebang names, without version numbers.
        reader: Program that parses the sources.
        grammar: For tree-sitter the module and its function, for pygments the alias of the lexer.
        comments: Node kinds that are comments.
        strings: Node kinds that are one token with all their content: string and character literals.
        closed: Node kinds inside which an inserted line would not be a comment, or might not be one.
        only_if: Node kinds that are closed where they begin with a certain token: kind -> token.
        opening: Node kind before which nothing is code; "" where all is code.
        refused: (pattern that refuses a source, reason), where the reader would misjudge it.
        tolerance: Share of a source that may be wrong to the grammar; nothing is inserted there. Macros make most
            headers of C wrong in places, and their strings and comments are found without the rest.
        unfit: Texts that no comment may hold.
        same: Node kinds that a grammar distinguishes by their context: kind -> the kind it counts as.
        files: Whole file names that identify the language.
    """

    name: str
    mark: str
    suffixes: tuple[str, ...]
    interpreters: tuple[str, ...] = ()
    reader: Reader = "tree-sitter"
    grammar: tuple[str, str] = ("", "language")
    comments: frozenset[str] = frozenset({"comment"})
    strings: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    only_if: Mapping[str, str] = field(default_factory=dict)
    opening: str = ""
    refused: tuple[str, str] = ("", "")
    tolerance: float = 0.0
    unfit: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


_BOTH = frozenset({"line_comment", "block_comment"})
_C_STRINGS = frozenset({"string_literal", "char_literal", "raw_string_literal", "system_lib_string"})
_JS_STRINGS = frozenset({"string", "template_string", "template_literal_type", "regex"})
_JS_COMMENTS = frozenset({"comment", "html_comment"})
_JSX = frozenset({"jsx_element", "jsx_self_closing_element"})
_RUBY_STRINGS = frozenset(
    {
        "string",
        "string_array",
        "symbol_array",
        "heredoc_body",
        "regex",
        "subshell",
        "delimited_symbol",
        "character",
        "uninterpreted",
    }
)
_PHP_STRINGS = frozenset({"string", "encapsed_string", "heredoc", "nowdoc", "shell_command_expression"})
_BASH_STRINGS = frozenset({"string", "raw_string", "ansi_c_string", "translated_string", "heredoc_body"})
# A `#` line inside these is text or arithmetic to bash, whatever the grammar says.
_BASH_CLOSED = frozenset(
    {
        "heredoc_redirect",
        "arithmetic_expansion",
        "c_style_for_statement",
        "test_command",
        "expansion",
        "regex",
        "command_substitution",
        "subscript",
    }
)
_SHARP_STRINGS = frozenset(
    {
        "string_literal",
        "verbatim_string_literal",
        "raw_string_literal",
        "interpolated_string_expression",
        "character_literal",
    }
)
# Java reads \u000a as the end of the line before it reads comments: no reader here follows it there.
_ESCAPES = (r"\\u+00[0-7][0-9a-fA-F]", "unicode escapes of ASCII characters")
# What stands above `import "C"` is C, although it looks like a comment.
_CGO = (r'(?m)^[^\S\n]*(?:import\s+)?"C"\s*$', "a cgo preamble")

_TABLE = (
    Language("python", "#", (".py", ".pyi", ".pyw"), ("python",), "python"),
    Language(
        "c", "//", (".c", ".h"), (), "tree-sitter", ("tree_sitter_c", "language"), strings=_C_STRINGS, tolerance=0.05
    ),
    Language(
        "cpp",
        "//",
        (".cc", ".cpp", ".cxx", ".c++", ".hh", ".hpp", ".hxx", ".ipp"),
        (),
        "tree-sitter",
        ("tree_sitter_cpp", "language"),
        strings=_C_STRINGS,
        tolerance=0.05,
    ),
    Language(
        "csharp",
        "//",
        (".cs",),
        (),
        "tree-sitter",
        ("tree_sitter_c_sharp", "language"),
        strings=_SHARP_STRINGS,
    ),
    Language(
        "go",
        "//",
        (".go",),
        (),
        "tree-sitter",
        ("tree_sitter_go", "language"),
        strings=frozenset({"interpreted_string_literal", "raw_string_literal", "rune_literal"}),
        refused=_CGO,
    ),
    Language(
        "java",
        "//",
        (".java",),
        (),
        "tree-sitter",
        ("tree_sitter_java", "language"),
        _BOTH,
        frozenset({"string_literal", "character_literal"}),
        refused=_ESCAPES,
        unfit=("\\u",),
    ),
    Language(
        "javascript",
        "//",
        (".js", ".mjs", ".cjs", ".jsx"),
        ("node", "nodejs", "bun"),
        "tree-sitter",
        ("tree_sitter_javascript", "language"),
        _JS_COMMENTS,
        _JS_STRINGS,
        _JSX,
    ),
    Language(
        "typescript",
        "//",
        (".ts", ".mts", ".cts"),
        ("ts-node", "deno", "tsx"),
        "tree-sitter",
        ("tree_sitter_typescript", "language_typescript"),
        _JS_COMMENTS,
        _JS_STRINGS,
    ),
    Language(
        "tsx",
        "//",
        (".tsx",),
        (),
        "tree-sitter",
        ("tree_sitter_typescript", "language_tsx"),
        _JS_COMMENTS,
        _JS_STRINGS,
        _JSX,
    ),
    Language(
        "rust",
        "//",
        (".rs",),
        (),
        "tree-sitter",
        ("tree_sitter_rust", "language"),
        _BOTH,
        frozenset({"string_literal", "raw_string_literal", "char_literal"}),
    ),
    Language(
        "ruby",
        "#",
        (".rb", ".gemspec", ".rake"),
        ("ruby",),
        "tree-sitter",
        ("tree_sitter_ruby", "language"),
        strings=_RUBY_STRINGS,
        files=("Rakefile", "Gemfile"),
    ),
    Language(
        "php",
        "//",
        (".php",),
        ("php",),
        "tree-sitter",
        ("tree_sitter_php", "language_php"),
        strings=_PHP_STRINGS,
        closed=frozenset({"text_interpolation"}),
        opening="php_tag",
    ),
    Language(
        "bash",
        "#",
        (".sh", ".bash"),
        ("sh", "bash", "dash", "ksh"),
        "tree-sitter",
        ("tree_sitter_bash", "language"),
        strings=_BASH_STRINGS,
        closed=_BASH_CLOSED,
        only_if={"compound_statement": "(("},
        unfit=("`",),
        same={"extglob_pattern": "word"},
        files=(".bashrc", ".profile", ".bash_profile"),
    ),
    Language("lua", "--", (".lua",), ("lua", "luajit"), "pygments", ("pygments", "lua")),
    Language("kotlin", "//", (".kt", ".kts"), ("kotlin",), "pygments", ("pygments", "kotlin")),
    Language("scala", "//", (".scala", ".sc"), ("scala",), "pygments", ("pygments", "scala")),
    Language("swift", "//", (".swift",), ("swift",), "pygments", ("pygments", "swift")),
    Language("r", "#", (".r",), ("rscript",), "pygments", ("pygments", "splus")),
)
LANGUAGES: Mapping[str, Language] = {language.name: language for language in _TABLE}
_BY_SUFFIX = {suffix: language.name for language in _TABLE for suffix in language.suffixes}
_BY_FILE = {name: language.name for language in _TABLE for name in language.files}
_BY_INTERPRETER = {name: language.name for language in _TABLE for name in language.interpreters}
_OTHER_NAMES = {
    "c++": "cpp",
    "c-sharp": "csharp",
    "c#": "csharp",
    "js": "javascript",
    "ts": "typescript",
    "py": "python",
    "sh": "bash",
    "shell": "bash",
    "golang": "go",
}
_SHEBANG = re.compile(r"#!\s*(\S+)([^\n]*)")
# A header with one of these is C++; C has no such lines.
_CPP_HEADER = re.compile(r"(?m)^[^\S\n]*(?:class\s+\w|namespace\b|template\s*<|using\s+\w|#\s*include\s*<\w+>)")


def get_language(name: str) -> Language:
    """Returns the language of a name (`LANGUAGES`, or a usual alternative name).

    Raises:
        ConfigError: for a name that is none, with the nearest one.
    """
    language = LANGUAGES.get(_OTHER_NAMES.get(name.lower(), name.lower()))
    if language is None:
        raise ConfigError([unknown_name_problem("language", name, LANGUAGES)])
    return language


def detect_language(path: str, source: str = "") -> str | None:
    """Detects the language of a file by its name, then by the shebang of its text; None where neither tells."""
    pure_path = PurePath(path)
    name = _BY_FILE.get(pure_path.name) or _BY_SUFFIX.get(pure_path.suffix.lower())
    if name == "c" and pure_path.suffix == ".h" and _CPP_HEADER.search(source):
        return "cpp"
    return name if name is not None or pure_path.suffix else _detect_by_shebang(source)


def _detect_by_shebang(source: str) -> str | None:
    match = _SHEBANG.match(source.removeprefix("\ufeff"))
    if match is None:
        return None
    program = PurePath(match[1]).name
    if program == "env":  # `env -S node --flag`, `env A=1 python3`
        programs = (argument for argument in match[2].split() if not argument.startswith("-") and "=" not in argument)
        program = PurePath(next(programs, "")).name
    return _BY_INTERPRETER.get(program.rstrip(".0123456789").lower())
