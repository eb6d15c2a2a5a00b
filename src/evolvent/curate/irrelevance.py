"""Irrelevance augmentation (Hammer, arXiv 2410.04587): requests that no tool answers: the right ones are taken away.

A sample loses every tool that its answer calls, and the answer becomes to call nothing. That is only true where no tool
that stays could do the same. It is verified: a tool that stays must not take the gold arguments, whatever its
parameters are called, while its description is near that of the tool which was called. What several tools could do
together, or what a measure of likeness does not see, is not found out this way.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evolvent.curate.similarity import accepts, similarity
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.files import disk_errors, write_atomic
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.schemas import json_schema, tool_of
from evolvent.trajectory import canonical_json, sample_rng, sample_seed

__all__ = [
    "LIMIT",
    "Irrelevant",
    "Near",
    "answerable",
    "card",
    "drop_gold",
    "irrelevant",
    "read_row",
    "row_of",
    "write_irrelevance",
]

Near = Callable[[Tool, Tool], float]
LIMIT = 0.7
"""How near is too near, by `similarity`: of BFCL's distractors, which are all meant to be wrong, 2 % are nearer."""


def answerable(
    call: Call, gold: Tool, tools: Iterable[Tool], *, near: Near = similarity, limit: float = LIMIT
) -> Tool | None:
    """The first of some tools that could stand in for the one of a call: near to it, and taking its arguments.

    Arguments that only repeat a default of the gold tool need no parameter: without them the call is the same.
    """
    told = Call(call.name, _needed(call, gold))
    return next(
        (tool for tool in tools if near(gold, tool) >= limit and (accepts(tool, call) or accepts(tool, told))), None
    )


def _needed(call: Call, gold: Tool) -> dict[str, Any]:
    schema = json_schema(gold.parameters)
    known, required = schema["properties"], schema.get("required", ())
    return {
        name: value
        for name, value in call.arguments.items()
        if name in required
        or not isinstance(known.get(name), Mapping)
        or "default" not in known[name]
        or known[name]["default"] != value
    }


def drop_gold(
    sample: CallSample,
    *,
    near: Near = similarity,
    limit: float = LIMIT,
    pool: Sequence[Tool] = (),
    rng: np.random.Generator | None = None,
) -> CallSample | None:
    """The sample without the tools that its answer calls, and with nothing to call; its id gets `/irrelevant`.

    Args:
        near: likeness of two tools, 0 to 1.
        limit: from where on two tools are near.
        pool: tools of which some take the places of those that went, so that the number of tools tells nothing; the
            same verification holds for them.
        rng: draws from the pool, and in which place they come; None: in the pool's order, at the end.
    Returns:
        None where a tool that stays could answer, where no tool would be left, or where nothing was to be called.
    Raises:
        SampleInvalid: a gold call of a tool that is not there, or a schema that is none.
    """
    made = _dropped(sample, near=near, limit=limit, pool=pool, rng=rng)
    return made if isinstance(made, CallSample) else None


def _dropped(
    sample: CallSample, *, near: Near, limit: float, pool: Sequence[Tool], rng: np.random.Generator | None
) -> CallSample | str:
    """The sample without its gold tools, or why there is none: "no_calls", "answerable" or "no_tools"."""
    if not sample.calls:
        return "no_calls"
    by_name = {tool.name: tool for tool in sample.tools}
    missing = [call.name for call in sample.calls if call.name not in by_name]
    if missing:
        raise SampleInvalid(
            f"sample {sample.id!r}: a call of {missing[0]!r}, which is none of the tools", value=sorted(by_name)[:8]
        )
    gold = {call.name for call in sample.calls}
    stays = [tool for tool in sample.tools if tool.name not in gold]
    uses = [(call, by_name[call.name]) for call in sample.calls]
    # One call that something else can make is enough: calling that much would be right, calling nothing would not.
    if any(answerable(call, tool, stays, near=near, limit=limit) for call, tool in uses):
        return "answerable"
    places = range(len(pool)) if rng is None else rng.permutation(len(pool))
    for place in places:
        if len(stays) >= len(sample.tools):
            break
        other = pool[place]
        known = other.name in by_name or any(other.name == tool.name for tool in stays)
        if not known and not any(answerable(call, tool, [other], near=near, limit=limit) for call, tool in uses):
            stays.insert(len(stays) if rng is None else int(rng.integers(len(stays) + 1)), other)
    return CallSample(f"{sample.id}/irrelevant", sample.messages, tuple(stays)) if stays else "no_tools"


@dataclass(frozen=True, slots=True)
class Irrelevant:
    """What a mixture holds, and what was left out.

    Args:
        samples: the given ones in their order, each followed by its irrelevant copy where it has one.
        made: how many copies there are.
        wanted: how many were asked for.
        left_out: why other samples have none: "no_calls", "answerable", "no_tools", "invalid", "copied before".
    """

    samples: tuple[CallSample, ...]
    made: int
    wanted: int
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The share of copies among all samples."""
        return self.made / len(self.samples) if self.samples else 0.0

    @property
    def copies(self) -> tuple[CallSample, ...]:
        """The irrelevant copies alone."""
        return tuple([sample for sample in self.samples if sample.id.endswith("/irrelevant")])


def irrelevant(
    samples: Sequence[CallSample],
    share: float,
    *,
    seed: int,
    near: Near = similarity,
    limit: float = LIMIT,
    pool: Sequence[Tool] = (),
) -> Irrelevant:
    """Samples, and irrelevant copies of some of them, so that copies are `share` of the whole (in the paper 1/9).

    Which samples get a copy depends on their ids and the seed, not on their order. Where too few can have one, fewer
    are made, and the counts say so.

    Args:
        share: at least 0, less than 1.
    Raises:
        ConfigError: another share, or two samples of one id.
    """
    problems = [] if 0 <= share < 1 else [Problem("share", f"a share of {share}", "give a number from 0 to below 1")]
    ids = {sample.id for sample in samples}
    if len(ids) < len(samples):
        problems.append(Problem("samples", f"two of {len(samples)} have one id", "give each its own"))
    if problems:
        raise ConfigError(problems)
    wanted = round(len(samples) * share / (1 - share))
    left_out: Counter[str] = Counter()
    copies: dict[str, CallSample] = {}
    for sample in sorted(samples, key=lambda one: sample_seed(seed, "irrelevant", one.id)):
        if len(copies) >= wanted:
            break
        if f"{sample.id}/irrelevant" in ids:
            left_out["copied before"] += 1
            continue
        rng = sample_rng(seed, "irrelevant tools", sample.id)
        try:
            made = _dropped(sample, near=near, limit=limit, pool=pool, rng=rng)
        except SampleInvalid:
            made = "invalid"
        if isinstance(made, str):
            left_out[made] += 1
        else:
            copies[sample.id] = made
    mixed = [one for sample in samples for one in (sample, copies.get(sample.id)) if one is not None]
    return Irrelevant(tuple(mixed), len(copies), wanted, dict(left_out))


# ---------------------------------------------------------------------------------------------------- a data set


def row_of(sample: CallSample) -> dict[str, str]:
    """A sample as a row of texts, as xLAM and Hammer write them: `id`, `query`, `tools`, `answers`, and all `messages`.

    Structures are JSON text: tools have schemas of different shapes, which a table has no type for.

    Raises:
        SampleInvalid: values that JSON does not have.
    """
    parts: dict[str, list[dict[str, Any]]] = {
        "tools": [_tool_row(tool) for tool in sample.tools],
        "answers": [{"name": call.name, "arguments": dict(call.arguments)} for call in sample.calls],
        "messages": [message.as_openai() for message in sample.messages],
    }
    try:  # keys keep their order: prompts show them so
        texts = {key: json.dumps(part, ensure_ascii=False, allow_nan=False) for key, part in parts.items()}
    except (TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid(f"sample {sample.id!r} holds what JSON does not have", value=str(error)) from error
    return {"id": sample.id, "query": sample.request, **texts}


def _tool_row(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}


def read_row(row: Mapping[str, Any]) -> CallSample:
    """The sample of a row; also of one of xLAM's or Hammer's, which has no `messages`, and whose id may be a number.

    Raises:
        SampleInvalid: a row of another form.
    """
    try:
        tools, answers = json.loads(row["tools"]), json.loads(row["answers"])
        messages = [Message.of_openai(one) for one in json.loads(row["messages"])] if "messages" in row else []
        calls = tuple([Call(str(one["name"]), dict(one["arguments"])) for one in answers])
        found = tuple(messages) or (Message("user", str(row["query"])),)
        return CallSample(str(row["id"]), found, tuple([tool_of(one) for one in tools]), calls)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise SampleInvalid(
            "a row that is no sample of function calls", value=str(error), expected="id, query, tools, answers"
        ) from error


def write_irrelevance(
    folder: Path,
    samples: Sequence[CallSample],
    *,
    licence: str,
    source: str,
    report: Irrelevant | None = None,
    name: str = "irrelevance",
) -> dict[str, str]:
    """Write samples as a data set, `data/train.jsonl`, with its card, `README.md`; `datasets.load_dataset` reads it.

    The same samples give the same bytes.

    Args:
        licence: SPDX name of the licence of the samples (that of the data they were made of).
        source: what they were made of, a sentence for the card.
        report: of `irrelevant`, for the counts of what was left out.
    Returns:
        SHA-256 by file.
    Raises:
        ConfigError: no licence, no source, or no samples. StoreUnavailable, NoSpace: the folder cannot be written.
    """
    problems = [
        Problem(where, f"{value!r}", "say what it is")
        for where, value in (("licence", licence), ("source", source))
        if not value.strip() or "\n" in value
    ]
    if not samples:
        problems.append(Problem("samples", f"{len(samples)} samples", "a data set has some"))
    if problems:
        raise ConfigError(problems)
    rows = "".join(json.dumps(row_of(sample), ensure_ascii=True) + "\n" for sample in samples)
    files = {"data/train.jsonl": rows}
    digests = {path: hashlib.sha256(text.encode()).hexdigest() for path, text in files.items()}
    files["README.md"] = card(samples, licence=licence, source=source, report=report, name=name, digests=digests)
    for path, text in files.items():
        with disk_errors(folder):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / path, text)
    return {path: hashlib.sha256(text.encode()).hexdigest() for path, text in files.items()}


def card(
    samples: Sequence[CallSample],
    *,
    licence: str,
    source: str,
    report: Irrelevant | None = None,
    name: str = "irrelevance",
    digests: Mapping[str, str],
) -> str:
    """The card of such a data set: front matter that Hugging Face's tools read, counts, hashes, and how it was made."""
    abstain = sum(not sample.calls for sample in samples)
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
        ("samples to which no tool fits", abstain),
        ("different tools", tools),
        ("tools a sample, mean", f"{sum(len(one.tools) for one in samples) / len(samples):.2f}"),
    ]
    if report is not None:
        counts += [("copies asked for", report.wanted), ("copies made", report.made)]
        counts += [(f"no copy: {why.replace('_', ' ')}", count) for why, count in sorted(report.left_out.items())]
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
            *[f"| {what} | {count} |" for what, count in counts],
            "",
            "| file | SHA-256 |",
            "|---|---|",
            *[f"| {path} | `{digests[path]}` |" for path in sorted(digests)],
            "",
            f"Licence: {licence}",
            "",
        ]
    )
