"""Rows of data as demonstrations of a policy: what is read, and what of it is learned.

{"messages": [...]}  {"prompt", "completion"}     conversations: the replies are learned
{"question", "answer"}  {"problem", "solution"}   the layouts of GSM8K and MATH, as a prompt and its completion
{"query", "tools", "answers"}                     function calls: the calls are learned
{"text"}                                          raw text: all of it is learned
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evolvent.curate.shards import Row
from evolvent.errors import SampleInvalid

if TYPE_CHECKING:
    from evolvent.learn.token_sequences import Parts
    from evolvent.learn.windows import Intake, TooLong
    from evolvent.models.policy import Policy
    from evolvent.models.toolprompt import ToolPrompt

__all__ = ["alone", "demonstration", "demonstrations", "prompt_for"]

_PAIRS = (("question", "answer"), ("problem", "solution"), ("instruction", "output"))
_FORMS = "messages, prompt and completion, question and answer, problem and solution, query with tools, or text"


def prompt_for(policy: Policy) -> ToolPrompt:
    """How tools are shown to a policy: by its own chat template where that shows them, else as small models read them
    (`Compact`, over whole words), else in Hammer's four blocks.
    """
    from evolvent.errors import ConfigError
    from evolvent.models.toolchat import ChatTools
    from evolvent.models.toolprompt import Compact, FourBlocks

    if policy.dialect.name == "words":
        return Compact()
    try:
        return ChatTools(policy.tokenizer)
    except ConfigError:  # no template, or one that ignores tools
        return FourBlocks()


def demonstration(
    row: Row,
    policy: Policy,
    *,
    name: str,
    prompt: ToolPrompt | None = None,
    too_long: TooLong = "refuse",
    context: int | None = None,
) -> Parts:
    """A row as one sequence of the policy's tokens, learning weights on what is to be learned.

    Args:
        name: of the sequence. prompt: how tools are shown; None: as `prompt_for` says.
        too_long: what becomes of a row beyond the context: refused, or cut at its end.
        context: longest sequence in tokens; None: the policy's.
    Raises:
        SampleInvalid: a row of no known form, too long, or without anything to learn. VocabularyMismatch: a word that
            the policy does not know.
    """
    from evolvent.learn.rows import Reading, conversation, document_encoder
    from evolvent.learn.taught import taught
    from evolvent.learn.windows import fitted, text_parts
    from evolvent.messages import Message

    longest = Reading(context=context).tokens(policy)
    if {"tools", "answers"} <= set(row):
        from evolvent.curate.irrelevance import read_row

        made = (prompt or prompt_for(policy)).tokens(read_row(row), policy.dialect)
        part = taught(name, made.prompt, made.target)
    elif (said := _said(row)) is not None:
        part = conversation(name, [Message.of_openai(one) for one in said], policy.dialect)
    elif isinstance(row.get("text"), str):
        part = text_parts(name, document_encoder(policy.tokenizer)(row["text"]))
    else:
        raise SampleInvalid("a row of another form", value=sorted(map(str, row)), expected=_FORMS)
    return fitted(part, longest, too_long=too_long)[0]


def _said(row: Row) -> list[Mapping[str, Any]] | None:
    """The messages of a row; None where it is no conversation."""
    if isinstance(row.get("messages"), list):
        return list(row["messages"])
    if "prompt" in row and "completion" in row:
        return [*_side(row["prompt"], "user"), *_side(row["completion"], "assistant")]
    for asked, answered in _PAIRS:
        if isinstance(row.get(asked), str) and isinstance(row.get(answered), str):
            return [*_side(row[asked], "user"), *_side(row[answered], "assistant")]
    return None


def _side(value: Any, role: str) -> list[Mapping[str, Any]]:
    if isinstance(value, list) and value:
        return value
    if not isinstance(value, str) or not value.strip():
        raise SampleInvalid(f"a row without text of the {role}", value=value, expected="text, or messages")
    return [{"role": role, "content": value}]


def demonstrations(
    rows: Iterable[Row],
    policy: Policy,
    *,
    too_long: TooLong = "refuse",
    context: int | None = None,
    intake: Intake | None = None,
) -> Iterator[Parts]:
    """The demonstrations of rows, lazily, named by their places; those that make none are counted and left out."""
    from evolvent.errors import VocabularyMismatch
    from evolvent.learn.windows import Intake

    tally, prompt = Intake() if intake is None else intake, prompt_for(policy)
    for place, row in enumerate(rows):
        tally.rows += 1
        try:
            yield demonstration(row, policy, name=f"row-{place}", prompt=prompt, too_long=too_long, context=context)
        except (SampleInvalid, VocabularyMismatch) as error:
            tally.refuse(f"row {place}", error)
        else:
            tally.parts += 1


def alone(part: Parts, policy: Policy) -> Parts:
    """The answer of a demonstration without its prompt, as a reply to nothing: what `ifd_scores` divides by.

    Raises:
        SampleInvalid: no answer in one piece, or nothing before it.
    """
    import numpy as np

    from evolvent.curate.difficulty import answer_places
    from evolvent.learn.taught import taught

    places = answer_places(part)
    if places[0] <= 1 or np.any(np.diff(places) != 1):
        raise SampleInvalid(
            "no single answer after a prompt", value=f"{len(places)} tokens", expected="a prompt and one reply"
        )
    return taught(f"{part.trajectory}/alone", policy.dialect.open("", ""), part.ids[places].tolist())
