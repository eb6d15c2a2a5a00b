"""Function masking (Hammer, Lin et al., arXiv 2410.04587): tools under meaningless names, drawn anew every
epoch.

A model that is fine-tuned on tools learns their names and fails under other naming conventions. With masking
only the descriptions tell the purpose of a tool. A share `ratio` of the samples is masked, each completely or
not at all: functions, parameters at every depth, and defaults that an argument repeats. The map of a masked
sample converts calls back to the original names.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Literal

import numpy as np

from evolvent.curate.outlines import Scrub, is_mapping, is_name, outline_tool
from evolvent.curate.renaming import KeyMap, NameMap, build_tool_keys, rename_sample, token_pattern, unmask_calls
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.messages import CallSample, Tool
from evolvent.trajectory import sample_rng

__all__ = ["SYLLABLES", "MaskSpec", "NameMap", "Style", "mask_epoch", "mask_sample", "unmask_calls"]

Style = Literal["random", "published", "snake", "camel"]
SYLLABLES = tuple(map("".join, product("bdfgklmnprstvz", "aeiou", "bdgklmnprstvxz")))
"""What names are made of in the styles snake and camel where no words are given: `zor`, `kip`, 980 of them."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TABLES = {  # for each style a byte's first symbol and later ones; 256 bytes over 52 or 63 symbols are nearly even
    "random": (_LETTERS, _LETTERS + "0123456789_"),
    "published": (_LETTERS + "0123456789_.", _LETTERS + "0123456789_."),
}
_BYTES = {
    key: tuple(bytes(ord(symbols[b % len(symbols)]) for b in range(256)) for symbols in alphabets)
    for key, alphabets in _TABLES.items()
}
_PYTHON = frozenset(keyword.kwlist)  # a call may be written in Python
_LENGTHS = {"function": (5, 15), "parameter": (4, 10)}
_FREE = frozenset(("type", "description", "default", "title", "required", "optional"))  # constrain no value
_SCALARS = frozenset((str, int, float, bool, type(None)))
_SHORT = 3  # letters of a word that may be an article or a preposition
_SCALES = (12.0, 100.0, 1e3, 1e6, 1e9)  # "2 dozen", "2 hundred", "2 thousand" ...
_ROUNDS = 50  # how often names that are taken are drawn again


@dataclass(frozen=True, slots=True)
class MaskSpec:
    """Settings of masking.

    Args:
        ratio: Share of samples that are masked, 0 to 1.
        names, params: Whether functions and parameters are renamed.
        defaults: "whole_token": a default that a gold argument repeats becomes another value in schema,
            description, answer and request, where that is safe: it is a number or one word, its parameter admits
            any value of its type, no other argument has it, and the text holds it at most once, as a separate
            token.
        style: "random": 5 to 15 symbols for functions and 4 to 10 for parameters of A-Z a-z 0-9 `_`, a letter
            first; "published": the same with dots and digits anywhere, as released (not every provider accepts
            these names); "snake" and "camel": joined pieces, `zor_kip` and `zorKip`.
        words: Pieces for snake and camel; (): `SYLLABLES`. Use some of these for a vocabulary of whole words. A
            tokenizer that reads `zor_kip` as one word needs it written in pieces, as `models.toolprompt.Compact`
            does, or names of one piece.
        pieces: Minimum and maximum number of pieces of a name. Names of (1, 1) are single words.
        scrub: Treatment of old names in descriptions, see `renaming.rename_sample`.
        shuffle: Whether tools are shuffled, masked or not; otherwise the position of a tool may reveal the answer.
    Raises:
        ConfigError: lists all problems.
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
            problems.append(Problem("ratio", f"got {self.ratio}, expected a number from 0 to 1"))
        for setting, value, choices in (
            ("style", self.style, ("random", "published", "snake", "camel")),
            ("defaults", self.defaults, ("off", "whole_token")),
            ("scrub", self.scrub, ("off", "names", "every")),
        ):
            if value not in choices:
                problems.append(Problem(setting, f"unknown value {value!r}", f"known: {', '.join(choices)}"))
        invalid_words = [word for word in self.words if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,14}", word)]
        if invalid_words or len(set(self.words)) < len(self.words):
            problems.append(
                Problem(
                    "words",
                    f"{invalid_words[0]!r}" if invalid_words else "one is given twice",
                    "give different ones, 1 to 15 letters and digits, a letter first",
                )
            )
        if not 1 <= self.pieces[0] <= self.pieces[1] <= 4:
            problems.append(Problem("pieces", f"{self.pieces}", "give two numbers from 1 to 4, the smaller one first"))
        if problems:
            raise ConfigError(problems)

    @classmethod
    def published(cls) -> MaskSpec:
        """Returns the settings of the paper's release: two of three samples, its alphabet, descriptions unchanged."""
        return cls(style="published", scrub="off")


def mask_sample(sample: CallSample, rng: np.random.Generator, spec: MaskSpec) -> tuple[CallSample, NameMap]:
    """Masks a sample with probability `spec.ratio`, and returns it with the map that converts calls back.

    Duplicate tools are merged. Results of tools are data and stay; names that they mention are in `NameMap.unrenamed`.
    Gold arguments are as valid under the masked schema as they were under the original one.

    Args:
        sample: The sample.
        rng: Generator of the names and of the order of tools.
        spec: Settings of masking.
    Raises:
        SampleInvalid: two different tools of one name, a gold call of a missing tool, a schema that cannot be renamed
            (it refers to itself or constrains its names), or too few words for all names.
    """
    is_masked = bool(rng.random() < spec.ratio)
    tools = _distinct_tools(sample)
    if spec.shuffle and len(tools) > 1:
        raw = _random_bytes(rng, len(tools))
        order = sorted(range(len(tools)), key=lambda index: raw[8 * index : 8 * index + 8])
        tools = [tools[index] for index in order]
    sample = CallSample(sample.id, sample.messages, tuple(tools), sample.calls)
    if not is_masked:
        return sample, NameMap()
    names = _draw_names(sample, rng, spec)
    return rename_sample(sample, names, scrub=spec.scrub), names


def mask_epoch(
    samples: Iterable[CallSample],
    spec: MaskSpec,
    *,
    seed: int,
    epoch: int,
    on_invalid: Callable[[CallSample, SampleInvalid], None] | None = None,
) -> Iterator[tuple[CallSample, NameMap]]:
    """Yields the samples of an epoch, each masked by its own random numbers: neither order nor batching matters.

    Args:
        samples: The samples.
        spec: Settings of masking.
        seed, epoch: Seed the random numbers of each sample together with its id.
        on_invalid: Called with samples that cannot be masked, which are left out; None: the first one is raised.
    Raises:
        SampleInvalid: see `mask`, with the sample's id.
    """
    for sample in samples:
        try:
            yield mask_sample(sample, sample_rng(seed, epoch, sample.id), spec)
        except SampleInvalid as error:
            located_error = SampleInvalid(f"sample {sample.id!r}: {error}")
            if on_invalid is None:
                raise located_error from error
            on_invalid(sample, located_error)


def _random_bytes(rng: np.random.Generator, count: int) -> bytes:
    """Draws eight random bytes per count; the generator's own `bytes` is several times slower for so few."""
    return np.asarray(rng.bit_generator.random_raw(count)).astype("<u8").tobytes()


def _distinct_tools(sample: CallSample) -> list[Tool]:
    """Returns the tools of a sample without duplicates."""
    tools = {tool.name: tool for tool in sample.tools}
    for tool in sample.tools if len(tools) < len(sample.tools) else ():
        if tools[tool.name] != tool:
            raise SampleInvalid(f"two different tools have the name {tool.name!r}", expected="one tool per name")
    for call in sample.calls:
        if call.name not in tools:
            raise SampleInvalid(f"unknown tool {call.name!r}", value=sorted(tools)[:8])
    return list(tools.values())


def _draw_names(sample: CallSample, rng: np.random.Generator, spec: MaskSpec) -> NameMap:
    """Draws new, different names for everything to be renamed; none of them occurs in the sample."""
    outlines = [outline_tool(tool) for tool in sample.tools]
    used_names = {tool.name for tool in sample.tools}.union(
        *[tool_outline.names for tool_outline in outlines], *[tool_outline.reserved_names for tool_outline in outlines]
    )
    used_names.update(_argument_keys(sample))
    functions = [tool.name for tool in sample.tools] if spec.names else []
    parameter_names = [tool_outline.names if spec.params else () for tool_outline in outlines]
    kinds = ["function"] * len(functions) + ["parameter"] * sum(map(len, parameter_names))
    new_names = iter(_draw_new_names(rng, spec, kinds, used_names=used_names))
    tools = {name: next(new_names) for name in functions}
    keys: dict[str, KeyMap] = {}
    if spec.params:
        for tool_outline in outlines:
            keys[tool_outline.tool.name] = build_tool_keys(
                tool_outline, {name: next(new_names) for name in tool_outline.names}
            )
    defaults_by_tool = (
        {tool_outline.tool.name: tool_outline.defaults for tool_outline in outlines if tool_outline.defaults}
        if spec.defaults != "off"
        else {}
    )
    values = _draw_defaults(sample, defaults_by_tool, rng=rng, spec=spec) if defaults_by_tool else {}
    return NameMap(tools, keys, values, _find_mentions(sample, [*functions, *chain.from_iterable(parameter_names)]))


def _argument_keys(sample: CallSample) -> Iterator[str]:
    pending: list[Any] = [call.arguments for call in sample.calls]
    pending += [call.arguments for message in sample.messages for call in message.calls]
    while pending:
        value_node = pending.pop()
        if is_mapping(value_node):
            yield from value_node
            pending += [value for value in value_node.values() if type(value) not in _SCALARS]
        elif isinstance(value_node, (list, tuple)):
            pending += value_node


def _find_mentions(sample: CallSample, old_names: Sequence[str]) -> tuple[str, ...]:
    """Finds the names (not ordinary words) that the texts of the conversation mention."""
    text = "\n".join([message.text for message in sample.messages])
    candidates = [name for name in dict.fromkeys(old_names) if name in text and is_name(name)]
    return tuple([name for name in candidates if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)])


# ---------------------------------------------------------------------------------------------------- names


def _draw_new_names(
    rng: np.random.Generator, spec: MaskSpec, kinds: Sequence[str], *, used_names: set[str]
) -> list[str]:
    """Draws one unused name for each kind, and adds the names to `used_names`."""
    new_names: list[str] = []
    for _ in range(_ROUNDS):
        missing = kinds[len(new_names) :]
        if not missing:
            return new_names
        for name in _draw_candidates(rng, spec, missing):
            if name not in used_names and name not in _PYTHON:
                used_names.add(name)
                new_names.append(name)
    raise SampleInvalid(
        f"cannot find {len(kinds)} new names",
        value=f"{len(spec.words)} words, pieces {spec.pieces}",
        expected="names that do not occur in the sample",
        hint="add words or pieces",
    )


def _draw_candidates(rng: np.random.Generator, spec: MaskSpec, kinds: Sequence[str]) -> Iterator[str]:
    """Yields one random name for each kind."""
    if spec.style in _BYTES:
        raw = _random_bytes(rng, 2 * len(kinds))  # sixteen a name: fifteen symbols and a length
        first, later = [raw.translate(table).decode() for table in _BYTES[spec.style]]
        for offset, kind in zip(range(0, len(raw), 16), kinds, strict=True):
            low, high = _LENGTHS[kind]
            length = low + (raw[offset + 15] * (high - low + 1) >> 8)
            yield first[offset] + later[offset + 1 : offset + length]
        return
    syllables = spec.words or SYLLABLES
    fewest, counts, size = spec.pieces[0], spec.pieces[1] - spec.pieces[0] + 1, len(syllables)
    for number in np.asarray(rng.bit_generator.random_raw(len(kinds))).tolist():
        number, extra_pieces = divmod(number, counts)
        pieces = []
        for _ in range(fewest + extra_pieces):
            number, word_index = divmod(number, size)
            pieces.append(syllables[word_index])
        yield "_".join(pieces) if spec.style == "snake" else pieces[0] + "".join(map(str.capitalize, pieces[1:]))


# ---------------------------------------------------------------------------------------------------- defaults


def _draw_defaults(
    sample: CallSample,
    defaults_by_tool: Mapping[str, Mapping[str, Mapping[str, Any]]],
    *,
    rng: np.random.Generator,
    spec: MaskSpec,
) -> dict[tuple[str, str], tuple[Any, Any]]:
    """Draws new values for defaults that gold arguments repeat and that may change.

    Args:
        defaults_by_tool: By tool, its outermost parameters that have a default.
    Returns:
        (tool, parameter) -> (old value, new value).
    """
    exchanged: dict[tuple[str, str], tuple[Any, Any]] = {}
    for call in sample.calls:
        for name, value in call.arguments.items():
            parameter_schema = defaults_by_tool.get(call.name, {}).get(name)
            if parameter_schema is None or (call.name, name) in exchanged:
                continue
            if (
                type(value) not in (int, float, str)
                or str(parameter_schema["default"]) != str(value)
                or isinstance(parameter_schema["default"], bool)
            ):
                continue
            texts = {str(old) for old, _ in exchanged.values()} | {str(new) for _, new in exchanged.values()}
            new = _draw_value(value, rng, spec)
            is_safe = (
                new is not None
                and _is_replaceable(sample, (call.name, name), parameter_schema)
                and str(value) not in texts
            )
            if is_safe and str(new) not in texts and _is_unused(sample, new):
                exchanged[call.name, name] = (value, new)
    return exchanged


def _is_replaceable(sample: CallSample, parameter_path: tuple[str, str], entry: Mapping[str, Any]) -> bool:
    """Returns whether a default is one token, may be any value, and occurs only where it would be changed."""
    text = str(entry["default"])
    if not _FREE.issuperset(entry) or re.fullmatch(r"-?\d+(?:\.\d+)?|\w+", text) is None:
        return False
    arguments = [((call.name, name), value) for call in sample.calls for name, value in call.arguments.items()]
    other_values = [
        entry
        for argument_path, value in arguments
        if argument_path != parameter_path
        for entry in _collect_texts(value)
    ]
    if any(_may_refer_to(text, entry) for entry in other_values) or (text.isalpha() and len(text) < _SHORT):
        return False
    last = next((entry for entry in reversed(sample.messages) if entry.role == "user"), None)
    if any(text in message.text for message in sample.messages if message is not last):
        return False
    texts = [entry.get("description"), last.text if last else ""]
    return all(_occurs_at_most_once(text, mention_text) for mention_text in texts if isinstance(mention_text, str))


def _may_refer_to(text: str, argument: str) -> bool:
    """Returns whether an argument may be the value of a text in the request: it contains it, equals it, or is its
    multiple.
    """
    if token_pattern(text).search(argument) is not None:
        return True
    try:
        value, number = float(text), float(argument)
    except ValueError:
        return False
    return value == number or (value != 0 and number / value in _SCALES)


def _occurs_at_most_once(text: str, container: str) -> bool:
    """Returns whether a text occurs in another at most once, as a separate token."""
    return text not in container or (container.count(text) == 1 and token_pattern(text).search(container) is not None)


def _collect_texts(value: Any) -> set[str]:
    """Collects the values inside a value, as texts."""
    texts, pending = set(), [value]
    while pending:
        value_node = pending.pop()
        if isinstance(value_node, Mapping):
            pending += value_node.values()
        elif isinstance(value_node, (list, tuple)):
            pending += value_node
        else:
            texts.add(str(value_node))
    return texts


def _is_unused(sample: CallSample, new_value: Any) -> bool:
    """Returns whether a new value occurs in no argument and in no request."""
    if any(str(new_value) in _collect_texts(dict(call.arguments)) for call in sample.calls):
        return False
    return token_pattern(str(new_value)).search(sample.request) is None


def _draw_value(value: Any, rng: np.random.Generator, spec: MaskSpec) -> Any:
    """Draws another value of the same type: an int plus 1 to 4, a float plus a fraction of 1, or a new word for a
    text.
    """
    if isinstance(value, int):
        return value + int(rng.integers(1, 5))
    if isinstance(value, float):
        new_float = round(value + int(rng.integers(1, 100)) / 100, 6)
        return new_float if 0 < abs(new_float - value) < 1 else None  # so large or small that the sum would not be near
    if spec.style in _BYTES:
        raw = _random_bytes(rng, 1)
        first, later = [raw.translate(table).decode() for table in _BYTES["random"]]
        return first[0] + later[1:5].replace("_", "x")
    syllables = spec.words or SYLLABLES
    return syllables[int(rng.integers(len(syllables)))]
