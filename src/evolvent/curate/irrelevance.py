"""Irrelevance augmentation (Hammer, arXiv 2410.04587): requests whose gold tools are removed, so that no tool
fits.

A sample loses every tool that its answer calls, and the new answer calls nothing. This is correct only where no
remaining tool can answer the request. The check: a remaining tool must not accept the gold arguments, under any
parameter names, while its description is near that of the called tool. The check does not detect answers by
several tools together, nor likeness that the measure misses.

Similarity of two tools, independent of their names: by their descriptions and by their parameters.

The measure is deliberately small: no model, no corpus, symmetric, and the same on every machine. It finds tools
that were renamed, or whose descriptions were slightly reworded. It does not understand: a pair that differs in
the one word that matters (scores of soccer, scores of basketball) is equally similar to it. Users with
embeddings can pass another measure.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evolvent.data.forms import parse_list
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.files import disk_errors, write_atomic
from evolvent.grade.matching import heaviest_matching, maximum_matching
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.schemas import find_argument_faults, json_schema, parse_tool
from evolvent.trajectory import JsonObject, canonical_json, sample_rng, sample_seed

__all__ = [
    "LIMIT",
    "IrrelevanceMixture",
    "Near",
    "accepts",
    "content_words",
    "drop_gold",
    "find_substitute",
    "measure_similarity",
    "mix_irrelevant",
    "render_irrelevance_card",
    "row_to_sample",
    "sample_to_row",
    "write_irrelevance",
]


_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_STOP_WORDS = frozenset(
    (
        "a",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "by",
        "can",
        "for",
        "from",
        "given",
        "has",
        "have",
        "how",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "may",
        "must",
        "of",
        "on",
        "one",
        "optional",
        "or",
        "other",
        "parameter",
        "particular",
        "per",
        "provided",
        "should",
        "specific",
        "specified",
        "such",
        "that",
        "the",
        "their",
        "them",
        "then",
        "these",
        "this",
        "those",
        "to",
        "used",
        "user",
        "using",
        "value",
        "via",
        "was",
        "what",
        "when",
        "where",
        "whether",
        "which",
        "will",
        "with",
        "your",
        "default",
        "defaults",
        "e",
        "g",
        "eg",
        "function",
        "tool",
    )
)


def _stem(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    for ending in ("ing", "es", "ed", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


_SYNONYMS = {  # verbs of what tools do, by their kind
    _stem(word): group[0]
    for group in (
        (
            "get",
            "retrieve",
            "fetch",
            "obtain",
            "return",
            "provide",
            "show",
            "display",
            "give",
            "find",
            "search",
            "look",
            "lookup",
            "list",
            "query",
            "check",
            "locate",
        ),
        ("create", "add", "make", "insert", "register", "generate", "new"),
        ("delete", "remove", "drop", "cancel", "clear", "erase"),
        ("update", "change", "modify", "edit", "set", "adjust", "alter"),
        ("compute", "calculate", "determine", "evaluate", "work"),
        ("send", "post", "submit", "deliver"),
        ("book", "reserve", "reservation"),
        ("buy", "purchase", "order"),
        ("current", "present", "now", "currently"),
        ("location", "place", "city", "town"),
    )
    for word in group
}


def content_words(text: str) -> frozenset[str]:
    """Extracts the meaningful words of a text, as stems, with synonymous verbs merged; names are split."""
    text_words = [match.lower() for match in _WORD.findall(text)]
    stems = [_stem(word) for word in text_words if word not in _STOP_WORDS]
    return frozenset([_SYNONYMS.get(stem, stem) for stem in stems])


def _overlap(words_a: frozenset[str], words_b: frozenset[str]) -> float:
    """Computes Dice's coefficient, 0 to 1."""
    return 2 * len(words_a & words_b) / (len(words_a) + len(words_b)) if words_a and words_b else 0.0


def measure_similarity(tool_a: Tool, tool_b: Tool) -> float:
    """Computes the similarity of two tools, 0 to 1; 1 for a tool and its renamed copy.

    0.6 x Dice's coefficient of the content words of the descriptions + 0.4 x the similarity of the parameters: the best
    one-to-one pairing over the larger number of parameters, where a pair of one type counts 1/2 plus half of the
    overlap of the descriptions. Names count where descriptions are empty.

    Raises:
        SampleInvalid: an invalid schema.
    """
    description_words = [content_words(tool.description) or content_words(tool.name) for tool in (tool_a, tool_b)]
    description_overlap = _overlap(description_words[0], description_words[1])
    parameters_a, parameters_b = _list_parameters(tool_a), _list_parameters(tool_b)
    if not parameters_a and not parameters_b:
        return description_overlap
    num_parameters = max(len(parameters_a), len(parameters_b))
    parameter_overlap = (
        heaviest_matching([[_pair_similarity(a, b) for b in parameters_b] for a in parameters_a])
        if parameters_a and parameters_b
        else 0
    )
    return 0.6 * description_overlap + 0.4 * parameter_overlap / (1000 * num_parameters)


def _list_parameters(tool: Tool) -> list[tuple[str, frozenset[str]]]:
    parts: Mapping[str, Any] = json_schema(tool.parameters)["properties"]
    parameters = []
    for name, part in parts.items():
        parameter_schema = part if isinstance(part, Mapping) else {}
        description = str(parameter_schema.get("description") or "") or name
        parameters.append((str(parameter_schema.get("type", "")), content_words(description)))
    return parameters


def _pair_similarity(parameter_a: tuple[str, frozenset[str]], parameter_b: tuple[str, frozenset[str]]) -> int:
    """Computes the similarity of two parameters in thousandths. Integers and other numbers are one type here."""
    kinds = {"number" if kind == "integer" else kind for kind in (parameter_a[0], parameter_b[0])}
    return 0 if len(kinds) > 1 else 500 + round(500 * _overlap(parameter_a[1], parameter_b[1]))


def accepts(tool: Tool, call: Call) -> bool:
    """Returns whether a tool would accept the arguments of a call, whatever its parameters are called.

    Each argument must fit another parameter, and every required parameter must get an argument. A number fits where
    its text fits, and the other way round.

    Raises:
        SampleInvalid: an invalid schema.
    """
    schema = json_schema(tool.parameters)
    names = list(schema["properties"])
    needed = [name for name in schema.get("required", ()) if name in names]
    fits = [[_fits(value, schema["properties"][name]) for name in names] for value in call.arguments.values()]
    if len(needed) > len(fits) or len(fits) > len(names):
        return False
    # Required parameters must all be matched, and all arguments. A graph has a matching that covers a set of rows and a
    # set of columns exactly if it has one that covers each (Mendelsohn and Dulmage, 1958).
    by_name = [[row[names.index(name)] for row in fits] for name in needed]
    return _is_covered(fits) and _is_covered(by_name)


def _is_covered(fits: Sequence[Sequence[bool]]) -> bool:
    return -1 not in maximum_matching(fits)


def _fits(value: Any, schema: Any) -> bool:
    forms = [value]
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            forms.append(json.loads(value[:100]))
    elif isinstance(value, (int, float)):
        forms.append(json.dumps(value))
    wrapper = {"type": "object", "properties": {"value": schema}}
    return any(not find_argument_faults({"value": form}, wrapper) for form in forms)


Near = Callable[[Tool, Tool], float]
LIMIT = 0.7
"""How near is too near, by `similarity`: of BFCL's distractors, which are all meant to be wrong, 2 % are nearer."""


def find_substitute(
    call: Call, gold: Tool, tools: Iterable[Tool], *, near: Near = measure_similarity, limit: float = LIMIT
) -> Tool | None:
    """Finds the first tool that could replace the gold tool of a call: near to it and accepting its arguments; or
    None.

    Arguments that only repeat a default of the gold tool need no parameter: the call means the same without them.
    """
    shortened_call = Call(call.name, _drop_defaults(call, gold))
    return next(
        (
            tool
            for tool in tools
            if near(gold, tool) >= limit and (accepts(tool, call) or accepts(tool, shortened_call))
        ),
        None,
    )


def _drop_defaults(call: Call, gold: Tool) -> dict[str, Any]:
    schema = json_schema(gold.parameters)
    properties, required = schema["properties"], schema.get("required", ())
    return {
        name: value
        for name, value in call.arguments.items()
        if name in required
        or not isinstance(properties.get(name), Mapping)
        or "default" not in properties[name]
        or properties[name]["default"] != value
    }


def drop_gold(
    sample: CallSample,
    *,
    near: Near = measure_similarity,
    limit: float = LIMIT,
    pool: Sequence[Tool] = (),
    rng: np.random.Generator | None = None,
) -> CallSample | None:
    """Returns the sample without the tools that its answer calls, and with nothing to call; its id gets
    `/irrelevant`.

    Args:
        sample: The sample.
        near: Similarity of two tools, 0 to 1.
        limit: Similarity from which two tools are near.
        pool: Tools that replace removed ones, so that the number of tools reveals nothing; they must pass the same
            check.
        rng: Generator that draws tools from the pool and their positions; None: in the order of the pool, at the
            end.
    Returns:
        The sample; None where a remaining tool could answer, where no tool would be left, or where nothing was
            called.
    Raises:
        SampleInvalid: a gold call of a missing tool, or an invalid schema.
    """
    result = _drop_gold_tools(sample, near=near, limit=limit, pool=pool, rng=rng)
    return result if isinstance(result, CallSample) else None


def _drop_gold_tools(
    sample: CallSample, *, near: Near, limit: float, pool: Sequence[Tool], rng: np.random.Generator | None
) -> CallSample | str:
    """Returns the sample without its gold tools, or the reason against it: "no_calls", "answerable" or "no_tools"."""
    if not sample.calls:
        return "no_calls"
    by_name = {tool.name: tool for tool in sample.tools}
    missing = [call.name for call in sample.calls if call.name not in by_name]
    if missing:
        raise SampleInvalid(f"sample {sample.id!r} calls the unknown tool {missing[0]!r}", value=sorted(by_name)[:8])
    gold = {call.name for call in sample.calls}
    remaining_tools = [tool for tool in sample.tools if tool.name not in gold]
    gold_calls = [(call, by_name[call.name]) for call in sample.calls]
    # One call that something else can make is enough: calling that much would be right, calling nothing would not.
    if any(find_substitute(call, tool, remaining_tools, near=near, limit=limit) for call, tool in gold_calls):
        return "answerable"
    indices = range(len(pool)) if rng is None else rng.permutation(len(pool))
    for index in indices:
        if len(remaining_tools) >= len(sample.tools):
            break
        tool_from_pool = pool[index]
        is_known = tool_from_pool.name in by_name or any(tool_from_pool.name == tool.name for tool in remaining_tools)
        if not is_known and not any(
            find_substitute(call, tool, [tool_from_pool], near=near, limit=limit) for call, tool in gold_calls
        ):
            remaining_tools.insert(
                len(remaining_tools) if rng is None else int(rng.integers(len(remaining_tools) + 1)), tool_from_pool
            )
    return (
        CallSample(f"{sample.id}/irrelevant", sample.messages, tuple(remaining_tools))
        if remaining_tools
        else "no_tools"
    )


@dataclass(frozen=True, slots=True)
class IrrelevanceMixture:
    """Samples mixed with irrelevant copies, and counts of the samples without a copy.

    Args:
        samples: The given samples in their order, each followed by its irrelevant copy where it has one.
        num_copies: Number of copies.
        num_requested: Number of copies that were requested.
        left_out: Reason -> number of samples without a copy: "no_calls", "answerable", "no_tools", "invalid",
            "copied before".
    """

    samples: tuple[CallSample, ...]
    num_copies: int
    num_requested: int
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Returns the share of copies among all samples."""
        return self.num_copies / len(self.samples) if self.samples else 0.0

    @property
    def copies(self) -> tuple[CallSample, ...]:
        """Returns the irrelevant copies alone."""
        return tuple([sample for sample in self.samples if sample.id.endswith("/irrelevant")])


def mix_irrelevant(
    samples: Sequence[CallSample],
    share: float,
    *,
    seed: int,
    near: Near = measure_similarity,
    limit: float = LIMIT,
    pool: Sequence[Tool] = (),
) -> IrrelevanceMixture:
    """Adds irrelevant copies to samples, so that copies are a share `share` of all samples (in the paper 1/9).

    Which samples get a copy depends on their ids and the seed, not on their order. Where too few can have one, fewer
    are made, and the counts say so.

    Args:
        share: at least 0, less than 1.
    Raises:
        ConfigError: another share, or two samples of one id.
    """
    problems = [] if 0 <= share < 1 else [Problem("share", f"got {share}, expected a number from 0 to below 1")]
    ids = {sample.id for sample in samples}
    if len(ids) < len(samples):
        problems.append(Problem("samples", f"two of {len(samples)} samples have the same id", "use unique ids"))
    if problems:
        raise ConfigError(problems)
    num_requested = round(len(samples) * share / (1 - share))
    left_out: Counter[str] = Counter()
    copies: dict[str, CallSample] = {}
    for sample in sorted(samples, key=lambda sample_or_copy: sample_seed(seed, "irrelevant", sample_or_copy.id)):
        if len(copies) >= num_requested:
            break
        if f"{sample.id}/irrelevant" in ids:
            left_out["copied before"] += 1
            continue
        rng = sample_rng(seed, "irrelevant tools", sample.id)
        try:
            result = _drop_gold_tools(sample, near=near, limit=limit, pool=pool, rng=rng)
        except SampleInvalid:
            result = "invalid"
        if isinstance(result, str):
            left_out[result] += 1
        else:
            copies[sample.id] = result
    mixed = [
        sample_or_copy
        for sample in samples
        for sample_or_copy in (sample, copies.get(sample.id))
        if sample_or_copy is not None
    ]
    return IrrelevanceMixture(tuple(mixed), len(copies), num_requested, dict(left_out))


# ---------------------------------------------------------------------------------------------------- a data set


def sample_to_row(sample: CallSample) -> dict[str, str]:
    """Converts a sample to a row of texts in the form of xLAM and Hammer: `id`, `query`, `tools`, `answers`,
    `messages`.

    Structures are JSON text: tools have schemas of different shapes, which a table has no type for.

    Raises:
        SampleInvalid: values that JSON does not have.
    """
    parts: dict[str, list[JsonObject]] = {
        "tools": [_tool_row(tool) for tool in sample.tools],
        "answers": [{"name": call.name, "arguments": dict(call.arguments)} for call in sample.calls],
        "messages": [message.as_openai() for message in sample.messages],
    }
    try:  # keys keep their order: prompts show them so
        texts = {key: json.dumps(part, ensure_ascii=False, allow_nan=False) for key, part in parts.items()}
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid(f"sample {sample.id!r} holds a value that is not JSON: {error}") from error
    return {"id": sample.id, "query": sample.request, **texts}


def _tool_row(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def row_to_sample(row: JsonObject) -> CallSample:
    """Converts a row to a sample, also rows of xLAM or Hammer without `messages`, whose id may be a number.

    `tools` and `answers` are lists, or their JSON text. A row without an id has that of its content.

    Raises:
        SampleInvalid: a row of another form.

    >>> tools = [{"name": "rain", "parameters": {}}]
    >>> row_to_sample({"query": "Rain?", "tools": tools, "answers": [{"name": "rain", "arguments": {}}]}).calls
    (Call(name='rain', arguments={}, id=None),)
    """
    texts = {name: row.get(name) for name in ("tools", "answers", "messages")}
    lists = {name: parse_list(value) for name, value in texts.items() if value is not None}
    faults = [name for name in ("tools", "answers") if texts[name] is None]
    if "messages" not in lists and not isinstance(row.get("query"), str):
        faults.append("query")
    if faults:
        raise _sample_error("is missing " + " and ".join(faults), sorted(map(str, row)))
    for name, entries in lists.items():
        if entries is None:
            raise _sample_error(f"has no list in {name}", texts[name])
    try:
        tools = tuple([parse_tool(entry) for entry in lists["tools"] or []])
        calls = tuple([_parse_answer(entry) for entry in lists["answers"] or []])
        messages = tuple([Message.of_openai(entry) for entry in lists.get("messages") or []])
        messages = messages or (Message("user", str(row["query"])),)
        identity = row.get("id")
        identity = _content_id(row) if identity is None else str(identity)
        return CallSample(identity, messages, tools, calls)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _sample_error("cannot be read", str(error)) from error


def _sample_error(problem: str, value: object) -> SampleInvalid:
    expected = "query, tools, answers: lists, or their JSON text"
    return SampleInvalid(f"the function-calling sample {problem}", value=value, expected=expected)


def _parse_answer(entry: object) -> Call:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise _sample_error("has an answer without a name", entry)
    arguments = entry.get("arguments")
    if not isinstance(arguments, Mapping | None):
        raise _sample_error("has arguments that are not an object", arguments)
    return Call(entry["name"], dict(arguments or {}))


def _content_id(row: JsonObject) -> str:
    """Returns an id that rows of equal content share."""
    content = canonical_json([row.get(name) for name in ("query", "messages", "tools", "answers")])
    return f"sample-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def write_irrelevance(
    folder: Path,
    samples: Sequence[CallSample],
    *,
    licence: str,
    source: str,
    report: IrrelevanceMixture | None = None,
    name: str = "irrelevance",
) -> dict[str, str]:
    """Writes samples as a data set, `data/train.jsonl`, with its card, `README.md`; `datasets.load_dataset` reads
    it.

    The same samples give the same bytes.

    Args:
        folder: Folder of the data set.
        samples: The samples.
        licence: SPDX name of the license of the source data.
        source: Origin of the samples, a sentence for the card.
        report: Result of `mix_irrelevant`, for the counts of samples without a copy.
        name: Title of the card.
    Returns:
        SHA-256 by file.
    Raises:
        ConfigError: no license, no source, or no samples. StoreUnavailable, NoSpace: the folder cannot be written.
    """
    problems = [
        Problem(name_of_text, f"got {value!r}, expected a description")
        for name_of_text, value in (("licence", licence), ("source", source))
        if not value.strip() or "\n" in value
    ]
    if not samples:
        problems.append(Problem("samples", f"got {len(samples)} samples, expected at least 1"))
    if problems:
        raise ConfigError(problems)
    rows = "".join(json.dumps(sample_to_row(sample), ensure_ascii=True) + "\n" for sample in samples)
    files = {"data/train.jsonl": rows}
    digests = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in files.items()}
    files["README.md"] = render_irrelevance_card(
        samples, licence=licence, source=source, report=report, name=name, digests=digests
    )
    for path, text in files.items():
        with disk_errors(folder):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / path, text)
    return {path: hashlib.sha256(text.encode()).hexdigest() for path, text in files.items()}


def render_irrelevance_card(
    samples: Sequence[CallSample],
    *,
    licence: str,
    source: str,
    report: IrrelevanceMixture | None = None,
    name: str = "irrelevance",
    digests: Mapping[str, str],
) -> str:
    """Renders the card of an irrelevance data set: front matter for Hugging Face tools, counts, hashes and method."""
    num_without_calls = sum(not sample.calls for sample in samples)
    tools = len({canonical_json(_tool_row(tool)) for sample in samples for tool in sample.tools})
    front = {
        "license": licence,
        "pretty_name": name,
        "task_categories": ["text-generation"],
        "tags": ["function-calling", "irrelevance"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": "data/train.jsonl"}]}],
    }
    counts = [
        ("samples", len(samples)),
        ("samples to which no tool fits", num_without_calls),
        ("different tools", tools),
        ("tools a sample, mean", f"{sum(len(sample_tools.tools) for sample_tools in samples) / len(samples):.2f}"),
    ]
    if report is not None:
        counts += [("copies asked for", report.num_requested), ("copies made", report.num_copies)]
        counts += [(f"no copy: {reason.replace('_', ' ')}", count) for reason, count in sorted(report.left_out.items())]
    return "\n".join(
        [
            "---",
            *[f"{key}: {json.dumps(value)}" for key, value in front.items()],
            "---",
            "",
            f"# {name}",
            "",
            "Requests to tools. Where no tool answers a request, the right answer is to call nothing (`[]`).",
            "",
            f"Made of: {source}",
            "",
            "How: every tool that the answer calls is taken away (Hammer, arXiv 2410.04587). A copy is kept only where",
            "no tool that stays takes the arguments of the answer, whatever its parameters are called, while its",
            "description is near that of the tool which was called. Several tools that answer together are not",
            "looked for.",
            "",
            "Columns, all text: `id`, `query`; `tools`, `answers` and `messages` are JSON.",
            "",
            "| | |",
            "|---|---|",
            *[f"| {label} | {count} |" for label, count in counts],
            "",
            "| file | SHA-256 |",
            "|---|---|",
            *[f"| {path} | `{digests[path]}` |" for path in sorted(digests)],
            "",
            f"License: {licence}",
            "",
        ]
    )
