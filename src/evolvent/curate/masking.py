"""Function masking (Hammer, Lin et al., arXiv 2410.04587): tools under names that say nothing, drawn anew every epoch.

A model that is tuned on tools learns their names and fails where others name things differently. Masked, only the
descriptions tell what a tool is for. Of the samples a share `ratio` is masked, each all or nothing: functions,
parameters at every depth, and defaults that an argument repeats. The map that comes with a masked sample takes calls
back into the names of the original.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Literal

import numpy as np

from evolvent.curate.outlines import Scrub, is_mapping, is_name, outline
from evolvent.curate.renaming import Keys, NameMap, renamed, token, tool_keys, unmask
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.messages import CallSample, Tool
from evolvent.trajectory import sample_rng

__all__ = ["SYLLABLES", "MaskSpec", "NameMap", "Style", "mask", "masked", "unmask"]

Style = Literal["random", "published", "snake", "camel"]
SYLLABLES = tuple(map("".join, product("bdfgklmnprstvz", "aeiou", "bdgklmnprstvxz")))
"""What names are made of in the styles snake and camel where no words are given: `zor`, `kip`, 980 of them."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TABLES = {  # for each style a byte's first symbol and later ones; 256 bytes over 52 or 63 symbols are nearly even
    "random": (_LETTERS, _LETTERS + "0123456789_"),
    "published": (_LETTERS + "0123456789_.", _LETTERS + "0123456789_."),
}
_BYTES = {key: tuple(bytes(ord(one[b % len(one)]) for b in range(256)) for one in two) for key, two in _TABLES.items()}
_PYTHON = frozenset(keyword.kwlist)  # a call may be written in Python
_LENGTHS = {"function": (5, 15), "parameter": (4, 10)}
_FREE = frozenset(("type", "description", "default", "title", "required", "optional"))  # constrain no value
_SCALARS = frozenset((str, int, float, bool, type(None)))
_SHORT = 3  # letters of a word that may be an article or a preposition
_SCALES = (12.0, 100.0, 1e3, 1e6, 1e9)  # "2 dozen", "2 hundred", "2 thousand" ...
_ROUNDS = 50  # how often names that are taken are drawn again


@dataclass(frozen=True, slots=True)
class MaskSpec:
    """What is masked, and how names look.

    Args:
        ratio: share of samples that are masked, 0 to 1.
        names, params: whether functions and parameters are renamed.
        defaults: "whole_token": a default that a gold argument repeats becomes another value in schema, description,
            answer and request, where that is safe: it is a number or one word, its parameter admits any value of its
            type, no other argument has it, and the text holds it once, as a token of its own, or not at all.
        style: "random": 5 to 15 symbols for functions and 4 to 10 for parameters of A-Z a-z 0-9 `_`, a letter first;
            "published": the same with dots and digits anywhere, as released (not every provider takes such names);
            "snake" and "camel": pieces joined, `zor_kip` and `zorKip`.
        words: pieces for snake and camel; (): `SYLLABLES`. For a vocabulary of whole words give some of these. A
            tokenizer that takes `zor_kip` for one word needs it written in pieces, as `models.toolprompt.Compact` does,
            or names of one piece.
        pieces: fewest and most pieces of a name. Names of (1, 1) are words themselves.
        scrub: old names in descriptions, see `renaming.renamed`.
        shuffle: whether tools come in a drawn order, masked or not; else the place of a tool may tell that it is meant.
    Raises:
        ConfigError: all that is wrong.
    """

    ratio: float = 2 / 3
    names: bool = True
    params: bool = True
    defaults: Literal["off", "whole_token"] = "whole_token"
    style: Style = "random"
    words: tuple[str, ...] = ()
    pieces: tuple[int, int] = (2, 3)
    scrub: Scrub = "names"
    shuffle: bool = True

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.ratio <= 1:
            problems.append(Problem("ratio", f"a share of {self.ratio}", "give a number from 0 to 1"))
        for where, value, known in (
            ("style", self.style, ("random", "published", "snake", "camel")),
            ("defaults", self.defaults, ("off", "whole_token")),
            ("scrub", self.scrub, ("off", "names", "every")),
        ):
            if value not in known:
                problems.append(Problem(where, f"unknown: {value!r}", f"known: {', '.join(known)}"))
        wrong = [word for word in self.words if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,14}", word)]
        if wrong or len(set(self.words)) < len(self.words):
            problems.append(
                Problem(
                    "words",
                    f"{wrong[0]!r}" if wrong else "one is given twice",
                    "give different ones, 1 to 15 letters and digits, a letter first",
                )
            )
        if not 1 <= self.pieces[0] <= self.pieces[1] <= 4:
            problems.append(Problem("pieces", f"{self.pieces}", "give two numbers from 1 to 4, the smaller one first"))
        if problems:
            raise ConfigError(problems)

    @classmethod
    def published(cls) -> MaskSpec:
        """As in the paper's release: two of three samples, its alphabet, names in descriptions left."""
        return cls(style="published", scrub="off")


def mask(sample: CallSample, rng: np.random.Generator, spec: MaskSpec) -> tuple[CallSample, NameMap]:
    """The sample in drawn names with probability `spec.ratio`, and the map that takes calls back.

    Tools that are given twice are reduced to one. Results of tools are data and stay; names that they tell are in
    `NameMap.left`. Gold arguments are as valid under the masked schema as they were under the original one.

    Raises:
        SampleInvalid: two different tools of one name, a gold call of a tool that is not there, a schema that cannot be
            renamed (`renaming.finite`), or too few words for all names.
    """
    drawn = bool(rng.random() < spec.ratio)
    tools = _distinct(sample)
    if spec.shuffle and len(tools) > 1:
        raw = _bytes(rng, len(tools))
        order = sorted(range(len(tools)), key=lambda place: raw[8 * place : 8 * place + 8])
        tools = [tools[place] for place in order]
    sample = CallSample(sample.id, sample.messages, tuple(tools), sample.calls)
    if not drawn:
        return sample, NameMap()
    names = _draw(sample, rng, spec)
    return renamed(sample, names, scrub=spec.scrub), names


def masked(
    samples: Iterable[CallSample],
    spec: MaskSpec,
    *,
    seed: int,
    epoch: int,
    invalid: Callable[[CallSample, SampleInvalid], None] | None = None,
) -> Iterator[tuple[CallSample, NameMap]]:
    """Samples of an epoch, each masked by random numbers of its own: neither order nor batching matters.

    Args:
        invalid: told of samples that cannot be masked, which are left out; None: the first one is raised.
    Raises:
        SampleInvalid: see `mask`, with the sample's id.
    """
    for sample in samples:
        try:
            yield mask(sample, sample_rng(seed, epoch, sample.id), spec)
        except SampleInvalid as error:
            told = SampleInvalid(f"sample {sample.id!r}: {error}")
            if invalid is None:
                raise told from error
            invalid(sample, told)


def _bytes(rng: np.random.Generator, words: int) -> bytes:
    """Eight random bytes a word; the generator's own `bytes` takes several times as long for so few."""
    return np.asarray(rng.bit_generator.random_raw(words)).astype("<u8").tobytes()


def _distinct(sample: CallSample) -> list[Tool]:
    """The tools, each once."""
    found = {tool.name: tool for tool in sample.tools}
    for tool in sample.tools if len(found) < len(sample.tools) else ():
        if found[tool.name] != tool:
            raise SampleInvalid(f"two different tools are named {tool.name!r}", expected="one meaning for a name")
    for call in sample.calls:
        if call.name not in found:
            raise SampleInvalid(f"a call of {call.name!r}, which is none of the tools", value=sorted(found)[:8])
    return list(found.values())


def _draw(sample: CallSample, rng: np.random.Generator, spec: MaskSpec) -> NameMap:
    """New names for everything that is to have one, no two alike and none that occurs in the sample."""
    inside = [outline(tool) for tool in sample.tools]
    taken = {tool.name for tool in sample.tools}.union(*[one.names for one in inside], *[one.others for one in inside])
    taken.update(_argument_keys(sample))
    functions = [tool.name for tool in sample.tools] if spec.names else []
    inner = [one.names if spec.params else () for one in inside]
    kinds = ["function"] * len(functions) + ["parameter"] * sum(map(len, inner))
    new = iter(_fresh(rng, spec, kinds, taken=taken))
    tools = {name: next(new) for name in functions}
    keys: dict[str, Keys] = {}
    if spec.params:
        for one in inside:
            keys[one.tool.name] = tool_keys(one, {name: next(new) for name in one.names})
    told = {one.tool.name: one.defaults for one in inside if one.defaults} if spec.defaults != "off" else {}
    values = _defaults(sample, told, rng=rng, spec=spec) if told else {}
    return NameMap(tools, keys, values, _left(sample, [*functions, *chain.from_iterable(inner)]))


def _argument_keys(sample: CallSample) -> Iterator[str]:
    waiting: list[Any] = [call.arguments for call in sample.calls]
    waiting += [call.arguments for message in sample.messages for call in message.calls]
    while waiting:
        one = waiting.pop()
        if is_mapping(one):
            yield from one
            waiting += [value for value in one.values() if type(value) not in _SCALARS]
        elif isinstance(one, (list, tuple)):
            waiting += one


def _left(sample: CallSample, old: Sequence[str]) -> tuple[str, ...]:
    """Names (no ordinary words) that the texts of the conversation tell."""
    text = "\n".join([message.text for message in sample.messages])
    found = [name for name in dict.fromkeys(old) if name in text and is_name(name)]
    return tuple([name for name in found if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)])


# ---------------------------------------------------------------------------------------------------- names


def _fresh(rng: np.random.Generator, spec: MaskSpec, kinds: Sequence[str], *, taken: set[str]) -> list[str]:
    """One name for each kind; they are added to `taken`."""
    found: list[str] = []
    for _ in range(_ROUNDS):
        missing = kinds[len(found) :]
        if not missing:
            return found
        for name in _names(rng, spec, missing):
            if name not in taken and name not in _PYTHON:
                taken.add(name)
                found.append(name)
    raise SampleInvalid(
        f"no {len(kinds)} new names",
        value=f"{len(spec.words)} words, pieces {spec.pieces}",
        expected="names that the sample does not hold",
        hint="give more words or pieces",
    )


def _names(rng: np.random.Generator, spec: MaskSpec, kinds: Sequence[str]) -> Iterator[str]:
    """One name for each kind."""
    if spec.style in _BYTES:
        raw = _bytes(rng, 2 * len(kinds))  # sixteen a name: fifteen symbols and a length
        first, later = [raw.translate(table).decode() for table in _BYTES[spec.style]]
        for place, kind in zip(range(0, len(raw), 16), kinds, strict=True):
            low, high = _LENGTHS[kind]
            length = low + (raw[place + 15] * (high - low + 1) >> 8)
            yield first[place] + later[place + 1 : place + length]
        return
    words = spec.words or SYLLABLES
    fewest, counts, size = spec.pieces[0], spec.pieces[1] - spec.pieces[0] + 1, len(words)
    for number in np.asarray(rng.bit_generator.random_raw(len(kinds))).tolist():
        number, more = divmod(number, counts)
        pieces = []
        for _ in range(fewest + more):
            number, chosen = divmod(number, size)
            pieces.append(words[chosen])
        yield "_".join(pieces) if spec.style == "snake" else pieces[0] + "".join(map(str.capitalize, pieces[1:]))


# ---------------------------------------------------------------------------------------------------- defaults


def _defaults(
    sample: CallSample, told: Mapping[str, Mapping[str, Mapping[str, Any]]], *, rng: np.random.Generator, spec: MaskSpec
) -> dict[tuple[str, str], tuple[Any, Any]]:
    """Defaults that gold arguments repeat and that may change: by tool and parameter, the old and the new value.

    Args:
        told: by tool, its outermost parameters that have a default.
    """
    found: dict[tuple[str, str], tuple[Any, Any]] = {}
    for call in sample.calls:
        for name, value in call.arguments.items():
            one = told.get(call.name, {}).get(name)
            if one is None or (call.name, name) in found:
                continue
            if (
                type(value) not in (int, float, str)
                or str(one["default"]) != str(value)
                or isinstance(one["default"], bool)
            ):
                continue
            texts = {str(old) for old, _ in found.values()} | {str(new) for _, new in found.values()}
            new = _other_value(value, rng, spec)
            safe = new is not None and _replaceable(sample, (call.name, name), one) and str(value) not in texts
            if safe and str(new) not in texts and _unused(sample, new):
                found[call.name, name] = (value, new)
    return found


def _replaceable(sample: CallSample, place: tuple[str, str], one: Mapping[str, Any]) -> bool:
    """Whether a default is one token, may be any value, and is nowhere but where it would be changed."""
    text = str(one["default"])
    if not _FREE.issuperset(one) or re.fullmatch(r"-?\d+(?:\.\d+)?|\w+", text) is None:
        return False
    arguments = [((call.name, name), value) for call in sample.calls for name, value in call.arguments.items()]
    others = [one for where, value in arguments if where != place for one in _texts(value)]
    if any(_told_by(text, one) for one in others) or (text.isalpha() and len(text) < _SHORT):
        return False
    last = next((one for one in reversed(sample.messages) if one.role == "user"), None)
    if any(text in message.text for message in sample.messages if message is not last):
        return False
    places = [one.get("description"), last.text if last else ""]
    return all(_once(text, said) for said in places if isinstance(said, str))


def _told_by(text: str, other: str) -> bool:
    """Whether another argument may be what a text in the request stands for: it holds it, or is it, or its multiple."""
    if token(text).search(other) is not None:
        return True
    try:
        value, number = float(text), float(other)
    except ValueError:
        return False
    return value == number or (value != 0 and number / value in _SCALES)


def _once(text: str, said: str) -> bool:
    """Whether a text does not hold another, or holds it once, as a token of its own."""
    return text not in said or (said.count(text) == 1 and token(text).search(said) is not None)


def _texts(value: Any) -> set[str]:
    """The values inside a value, as texts."""
    found, waiting = set(), [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting += one.values()
        elif isinstance(one, (list, tuple)):
            waiting += one
        else:
            found.add(str(one))
    return found


def _unused(sample: CallSample, new: Any) -> bool:
    """Whether a new value is in no argument and in no request, so that it has one meaning."""
    if any(str(new) in _texts(dict(call.arguments)) for call in sample.calls):
        return False
    return token(str(new)).search(sample.request) is None


def _other_value(value: Any, rng: np.random.Generator, spec: MaskSpec) -> Any:
    """Another value of the same type: an int plus 1 to 4, a float plus part of 1, five symbols or a word for a text."""
    if isinstance(value, int):
        return value + int(rng.integers(1, 5))
    if isinstance(value, float):
        other = round(value + int(rng.integers(1, 100)) / 100, 6)
        return other if 0 < abs(other - value) < 1 else None  # so large or small that the sum would not be near
    if spec.style in _BYTES:
        raw = _bytes(rng, 1)
        first, later = [raw.translate(table).decode() for table in _BYTES["random"]]
        return first[0] + later[1:5].replace("_", "x")
    words = spec.words or SYLLABLES
    return words[int(rng.integers(len(words)))]
