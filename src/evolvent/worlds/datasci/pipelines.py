"""The language of pipelines: grammar, canonical form, and the answers to texts outside the language.

    scale standard ; select pca 5 ; model forest trees 50 depth none ; end

One clause each, `;` between, `end` last. A clause that is left out is absent, the parameters of a model stand in any
order, and those left out take their defaults. 5 scales x 9 selections x 16 models are 720 pipelines of 3 to 15 words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from types import MappingProxyType

__all__ = ["MODELS", "SCALES", "SELECTS", "SIZES", "WORDS", "Pipeline", "pipelines", "read_pipeline"]

SCALES = ("standard", "minmax", "robust", "maxabs")
SELECTS = ("kbest", "pca")
SIZES = ("2", "5", "10", "half")
MODELS: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "logreg": {"C": ("0.01", "0.1", "1", "10")},
        "knn": {"k": ("1", "5", "15")},
        "tree": {"depth": ("2", "4", "8", "none")},
        "forest": {"trees": ("10", "50"), "depth": ("4", "none")},
        "gnb": {},
    }
)
"""Model -> its parameters in canonical order -> their values."""
_DEFAULTS = {
    ("logreg", "C"): "1",
    ("knn", "k"): "5",
    ("tree", "depth"): "none",
    ("forest", "trees"): "50",
    ("forest", "depth"): "none",
}
_CLAUSES = ("scale", "select", "model")  # in the order in which they stand
_LONGEST = 400  # characters of a text that is read at all
_NUMBER = re.compile(r"(?<!\S)0*(\d*)\s*\.\s*(?=\d)")  # .1 and 0 . 1 are 0.1
WORDS = tuple(
    dict.fromkeys(
        (
            *_CLAUSES,
            "end",
            ";",
            *SCALES,
            *SELECTS,
            *SIZES,
            *MODELS,
            *(name for parameters in MODELS.values() for name in parameters),
            *(value for parameters in MODELS.values() for values in parameters.values() for value in values),
        )
    )
)
"""Every word of the language."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One pipeline; its text is the canonical form.

    Args:
        model: a key of `MODELS`.
        params: all parameters of the model with their values, in canonical order.
        scale: one of `SCALES`, or "" for none.
        select, size: one of `SELECTS` and of `SIZES`, or "" for none.
    """

    model: str
    params: tuple[tuple[str, str], ...] = ()
    scale: str = ""
    select: str = ""
    size: str = ""

    def __str__(self) -> str:
        clauses = [f"scale {self.scale}"] if self.scale else []
        clauses += [f"select {self.select} {self.size}"] if self.select else []
        clauses.append(" ".join(("model", self.model, *(word for pair in self.params for word in pair))))
        return " ; ".join((*clauses, "end"))

    def count_selected(self, columns: int) -> int:
        """Returns how many of `columns` columns the selection keeps; `half` is rounded down, to 1 at least."""
        if not self.select:
            return columns
        return max(1, columns // 2) if self.size == "half" else int(self.size)


@cache
def pipelines() -> tuple[Pipeline, ...]:
    """Returns all 720 pipelines, the plain ones first."""
    models = [
        (model, tuple(zip(names, values, strict=True)))
        for model, names in MODELS.items()
        for values in product(*names.values())
    ]
    selections = [("", ""), *product(SELECTS, SIZES)]
    return tuple(
        Pipeline(model, params, scale, select, size)
        for scale in ("", *SCALES)
        for select, size in selections
        for model, params in models
    )


def read_pipeline(text: str) -> Pipeline | str:
    """Parses a pipeline; returns the sentence that explains the error (at most 16 words) where the text is none.

    Letters may be upper or lower case, blanks may stand anywhere between words, and `.1` is `0.1`. A sentence quotes a
    word of the text only where it is a word of the language: what is said stays within a closed vocabulary.
    """
    if len(text) > _LONGEST:
        return "too long"
    normalized = _NUMBER.sub(
        lambda parameters_by_clause: f"{parameters_by_clause[1] or '0'}.", text.lower().replace(";", " ; ")
    )
    clauses = [clause.split() for clause in normalized.split(";")]
    if clauses[-1] != ["end"]:
        return "the last clause is end"
    parameters_by_clause: dict[str, Sequence[str]] = {}
    for head, *parameters in (clause or [""] for clause in clauses[:-1]):
        if head not in _CLAUSES:
            return f"{_quote(head)} begins no clause : expected scale , select or model"
        if any(_CLAUSES.index(head) <= _CLAUSES.index(earlier) for earlier in parameters_by_clause):
            return "the order is scale ; select ; model ; end"
        parameters_by_clause[head] = parameters
    if "model" not in parameters_by_clause:
        return "expected a clause model"
    problem = _check_scale(parameters_by_clause.get("scale")) or _check_select(parameters_by_clause.get("select"))
    if problem:
        return problem
    model = _parse_model(parameters_by_clause["model"])
    if isinstance(model, str):
        return model
    scale, select = (tuple(parameters_by_clause.get(name, ())) for name in ("scale", "select"))
    return Pipeline(*model, *(scale or ("",)), *(select or ("", "")))


def _quote(word: str) -> str:
    return _QUOTABLE_WORDS.get(word, "that")


_QUOTABLE_WORDS = {word.lower(): word for word in WORDS if word != ";" and "." not in word}


def _check_scale(parameters: Sequence[str] | None) -> str:
    if parameters is None or (len(parameters) == 1 and parameters[0] in SCALES):
        return ""
    return f"expected scale and one of {' , '.join(SCALES)}"


def _check_select(parameters: Sequence[str] | None) -> str:
    if parameters is None or (len(parameters) == 2 and parameters[0] in SELECTS and parameters[1] in SIZES):
        return ""
    if not parameters or parameters[0] not in SELECTS:
        return f"expected select and one of {' , '.join(SELECTS)}"
    return f"expected {parameters[0]} and one of {' , '.join(SIZES)}"


def _parse_model(tokens: Sequence[str]) -> tuple[str, tuple[tuple[str, str], ...]] | str:
    """Parses model and parameters, with defaults filled in; returns the error text where they are malformed."""
    if not tokens or tokens[0] not in MODELS:
        return f"expected model and one of {' , '.join(MODELS)}"
    model, pairs = tokens[0], tokens[1:]
    names = {name.lower(): name for name in MODELS[model]}
    values: dict[str, str] = {}
    for index in range(0, len(pairs), 2):
        name = names.get(pairs[index])
        if name is None:
            expected = " and ".join(names.values()) or "no parameter"
            return f"{model} takes {expected} , not {_quote(pairs[index])}"
        if name in values:
            return f"{name} is given twice"
        allowed = MODELS[model][name]
        if index + 1 == len(pairs) or pairs[index + 1] not in allowed:
            return f"expected {name} and one of {' '.join(allowed)}"
        values[name] = pairs[index + 1]
    return model, tuple((name, values.get(name, _DEFAULTS[model, name])) for name in MODELS[model])
