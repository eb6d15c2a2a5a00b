"""Measures the language of a source tree: vague names, bare participles, docstrings without a verb.

The figures are signs, not goals: a name is good when it says what the value holds. The word lists are those by which
other libraries were measured, so that figures compare (TRL, Gymnasium, Stable-Baselines3 and starlette have at most
.6 %
vague local names, no functions named by a participle, and 49 to 70 % docstrings that open with a verb).
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["COMMON_VERBS", "PARTICIPLES", "QUESTION_WORDS", "VAGUE_NAMES", "Language", "is_verb", "measure_language"]

VAGUE_NAMES = frozenset(
    [
        "found",
        "made",
        "said",
        "told",
        "known",
        "given",
        "wanted",
        "own",
        "one",
        "ones",
        "each",
        "other",
        "others",
        "kept",
        "taken",
        "taught",
        "held",
        "seen",
        "shown",
        "asked",
        "drawn",
        "played",
        "tried",
        "whole",
        "least",
        "most",
        "words",
        "place",
        "places",
        "way",
        "how",
        "what",
        "who",
        "where",
        "when",
        "rest",
        "thing",
        "things",
        "by",
        "at",
        "on",
        "of",
        "to",
        "here",
        "there",
        "whose",
        "such",
        "mine",
        "theirs",
        "heat",
        "room",
        "chosen",
        "judged",
        "measured",
        "looked",
    ]
)
PARTICIPLES = frozenset(
    [
        "found",
        "made",
        "said",
        "told",
        "known",
        "given",
        "wanted",
        "kept",
        "taken",
        "taught",
        "held",
        "seen",
        "shown",
        "asked",
        "read",
        "drawn",
        "played",
        "tried",
        "placed",
        "chosen",
        "judged",
        "measured",
        "looked",
        "named",
        "lost",
        "spent",
        "begun",
        "done",
        "gone",
        "met",
        "put",
        "sent",
        "written",
    ]
)
QUESTION_WORDS = frozenset(["What", "Where", "Who", "Whose", "Whether", "Which", "How", "When"])
_OPENINGS = frozenset(
    [
        "The",
        "A",
        "An",
        "This",
        "These",
        "All",
        "Each",
        "One",
        "None",
        "Same",
        "As",
        "Of",
        "In",
        "For",
        "With",
        "Is",
        "Are",
        "Its",
        "Their",
        "Every",
        "Any",
        "No",
        "Not",
        "So",
        "Those",
        "That",
        "Names",
        "Tokens",
        "Rows",
        "True",
        "False",
    ]
)
_CAPITALIZED = re.compile(r"^[A-Z][a-z]+$")
_BASE_VERBS = [
    "add",
    "append",
    "apply",
    "ask",
    "assign",
    "attach",
    "build",
    "call",
    "cancel",
    "check",
    "choose",
    "clear",
    "close",
    "collect",
    "combine",
    "compare",
    "compile",
    "compute",
    "configure",
    "connect",
    "convert",
    "copy",
    "count",
    "create",
    "decide",
    "decode",
    "delete",
    "describe",
    "detect",
    "discard",
    "draw",
    "drop",
    "emit",
    "encode",
    "end",
    "ensure",
    "estimate",
    "evaluate",
    "execute",
    "expand",
    "explain",
    "export",
    "extend",
    "extract",
    "fail",
    "fetch",
    "fill",
    "filter",
    "find",
    "finish",
    "fit",
    "flatten",
    "fold",
    "fork",
    "format",
    "generate",
    "get",
    "give",
    "group",
    "handle",
    "hash",
    "hide",
    "hold",
    "import",
    "infer",
    "initialize",
    "insert",
    "interrupt",
    "iterate",
    "join",
    "keep",
    "kill",
    "label",
    "launch",
    "learn",
    "let",
    "limit",
    "list",
    "load",
    "lock",
    "log",
    "look",
    "lower",
    "make",
    "map",
    "mark",
    "mask",
    "match",
    "measure",
    "merge",
    "move",
    "name",
    "normalize",
    "open",
    "order",
    "pack",
    "pad",
    "pair",
    "parse",
    "pass",
    "pick",
    "place",
    "plan",
    "play",
    "plot",
    "prepare",
    "print",
    "process",
    "produce",
    "prove",
    "pull",
    "push",
    "put",
    "quote",
    "raise",
    "rank",
    "read",
    "rebuild",
    "receive",
    "record",
    "recover",
    "reduce",
    "refuse",
    "register",
    "reject",
    "release",
    "remove",
    "rename",
    "render",
    "repeat",
    "replace",
    "report",
    "reset",
    "resolve",
    "restore",
    "resume",
    "return",
    "reuse",
    "run",
    "sample",
    "save",
    "scale",
    "scan",
    "schedule",
    "score",
    "search",
    "select",
    "send",
    "serialize",
    "serve",
    "set",
    "share",
    "show",
    "shuffle",
    "sign",
    "sort",
    "split",
    "start",
    "step",
    "stop",
    "store",
    "stream",
    "submit",
    "sum",
    "take",
    "tell",
    "test",
    "tokenize",
    "track",
    "train",
    "transform",
    "translate",
    "trim",
    "try",
    "turn",
    "unpack",
    "unwrap",
    "update",
    "upload",
    "use",
    "validate",
    "verify",
    "wait",
    "walk",
    "warn",
    "weigh",
    "wrap",
    "write",
    "yield",
    "zip",
]


def _third_person(verb: str) -> str:
    if verb.endswith(("s", "x", "ch", "sh")):
        return verb + "es"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + "s"


COMMON_VERBS = frozenset([*_BASE_VERBS, *map(_third_person, _BASE_VERBS)])


@dataclass
class Language:
    """Counts of one source tree, with examples of each sign."""

    files: int = 0
    names: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)
    docstrings: Counter[str] = field(default_factory=Counter)
    question_docstrings: int = 0
    docstring_examples: int = 0
    fmt_skips: int = 0
    single_neighbour_modules: int = 0
    vague: Counter[str] = field(default_factory=Counter)
    participles: Counter[str] = field(default_factory=Counter)
    openings: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, float]:
        """Returns the figures by name; shares are percentages with one decimal."""
        return {
            "files": self.files,
            "vague_names": _percent(self.names["vague"], self.names["all"]),
            "participle_functions": _percent(self.functions["participle"], self.functions["all"]),
            "verb_docstrings": _percent(self.docstrings["verb"], self.docstrings["function"]),
            "question_docstrings": self.question_docstrings,
            "docstring_examples": self.docstring_examples,
            "fmt_skips": self.fmt_skips,
            "single_neighbour_modules": self.single_neighbour_modules,
        }


def _percent(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 1)


def is_verb(word: str) -> bool:
    """Says whether a docstring's first word is a verb, by the list of common ones."""
    bare = word.strip("`.,:;")
    is_word = _CAPITALIZED.match(bare) is not None and bare not in _OPENINGS | QUESTION_WORDS
    return is_word and bare.lower() in COMMON_VERBS


def measure_language(folder: Path) -> Language:
    """Measures every Python file below a folder."""
    language = Language()
    importers: dict[str, set[Path]] = defaultdict(set)
    paths = sorted(path for path in folder.rglob("*.py") if not any(part.startswith(".") for part in path.parts))
    language.files = len(paths)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        language.fmt_skips += len(re.findall(r"# fmt: (?:skip|off)", text))
        for node in ast.walk(ast.parse(text)):
            _count_names(node, language)
            _count_docstring(node, language)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evolvent"):
                importers[node.module or ""].add(path)
    for path in paths:
        users = importers[_module_of(path)] - {path}
        language.single_neighbour_modules += len(users) == 1 and next(iter(users)).parent == path.parent
    return language


def _module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[parts.index("evolvent") :]) if "evolvent" in parts else path.stem


def _count_names(node: ast.AST, language: Language) -> None:
    bound: list[str] = []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        language.functions["all"] += 1
        if node.name.strip("_") in PARTICIPLES:
            language.functions["participle"] += 1
            language.participles[node.name] += 1
        bound = [argument for argument in _arguments(node.args) if argument not in ("self", "cls")]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        bound = [node.id]
    language.names["all"] += len(bound)
    vague = [name for name in bound if name in VAGUE_NAMES]
    language.names["vague"] += len(vague)
    language.vague.update(vague)


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield argument.arg


def _count_docstring(node: ast.AST, language: Language) -> None:
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    text = ast.get_docstring(node) or ""
    if not text.split():
        return
    word = text.split()[0]
    language.question_docstrings += word.strip("`.,:;") in QUESTION_WORDS
    language.docstring_examples += ">>>" in text
    if is_function:
        language.docstrings["function"] += 1
        language.docstrings["verb"] += is_verb(word)
        language.openings.update([] if is_verb(word) else [word])
