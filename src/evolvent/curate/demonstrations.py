"""Rows of data as demonstrations for a policy, in the forms of `data.forms`.

Of conversations the replies are learned, of function calls the calls, of raw text all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from evolvent.curate.shards import Row
from evolvent.data.forms import FORM_TITLES, detect_form, is_conversation, parse_conversation
from evolvent.errors import SampleInvalid

if TYPE_CHECKING:
    from evolvent.learn.token_sequences import TokenSequence
    from evolvent.learn.windows import Intake, Overlong
    from evolvent.models.policy import Policy
    from evolvent.models.toolprompt import ToolPrompt

__all__ = ["answer_only", "build_demonstration", "build_demonstrations", "prompt_for"]

_EXPECTED = f"{', '.join(FORM_TITLES[form] for form in FORM_TITLES if is_conversation(form))}, or text"


def prompt_for(policy: Policy) -> ToolPrompt:
    """Returns the tool prompt of a policy.

    It is the policy's chat template where the template shows tools, else the form for small models over whole words
    (`Compact`), else Hammer's four blocks.
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


def build_demonstration(
    row: Row,
    policy: Policy,
    *,
    name: str,
    prompt: ToolPrompt | None = None,
    too_long: Overlong = "refuse",
    context: int | None = None,
) -> TokenSequence:
    """Builds one sequence of the policy's tokens from a row, with learning weights on the tokens to be learned.

    Args:
        row: The row.
        policy: The policy whose tokenizer and dialect are used.
        name: Name of the sequence.
        prompt: Tool prompt; None: that of `prompt_for`.
        too_long: Whether a row longer than the context is refused or truncated at its end.
        context: Maximum tokens of a sequence; None: the policy's context.
    Raises:
        SampleInvalid: a row of an unknown form, too long, or without anything to learn. VocabularyMismatch: a word that
            the policy does not know.
    """
    from evolvent.learn.rows import ReadingConfig, conversation_sequence, document_encoder
    from evolvent.learn.taught import build_demonstration
    from evolvent.learn.windows import fit_to_context, text_sequence

    max_length = ReadingConfig(context=context).max_tokens(policy)
    if {"tools", "answers"} <= set(row):
        from evolvent.curate.irrelevance import row_to_sample

        tool_tokens = (prompt or prompt_for(policy)).tokens(row_to_sample(row), policy.dialect)
        sequence = build_demonstration(name, tool_tokens.prompt, tool_tokens.target)
    elif is_conversation(detect_form(row)):
        conversation = parse_conversation(row)
        sequence = conversation_sequence(name, conversation.messages, policy.dialect, tools=conversation.tools)
    elif isinstance(row.get("text"), str):
        sequence = text_sequence(name, document_encoder(policy.tokenizer)(row["text"]))
    else:
        raise SampleInvalid("unknown row format", value=sorted(map(str, row)), expected=_EXPECTED)
    return fit_to_context(sequence, max_length, overlong=too_long)[0]


def build_demonstrations(
    rows: Iterable[Row],
    policy: Policy,
    *,
    too_long: Overlong = "refuse",
    context: int | None = None,
    intake: Intake | None = None,
) -> Iterator[TokenSequence]:
    """Yields the demonstrations of rows lazily, named by row number; rows without a demonstration are counted as
    refused.
    """
    from evolvent.errors import VocabularyMismatch
    from evolvent.learn.windows import Intake

    tally, prompt = Intake() if intake is None else intake, prompt_for(policy)
    for index, row in enumerate(rows):
        tally.rows += 1
        try:
            yield build_demonstration(
                row, policy, name=f"row-{index}", prompt=prompt, too_long=too_long, context=context
            )
        except (SampleInvalid, VocabularyMismatch) as error:
            tally.refuse(f"row {index}", error)
        else:
            tally.parts += 1


def answer_only(sequence: TokenSequence, policy: Policy) -> TokenSequence:
    """Returns the answer of a demonstration without its prompt, as a reply to an empty prompt: the divisor of
    `ifd_scores`.

    Raises:
        SampleInvalid: no answer in one piece, or nothing before it.
    """
    import numpy as np

    from evolvent.curate.difficulty import answer_positions
    from evolvent.learn.taught import build_demonstration

    positions = answer_positions(sequence)
    if positions[0] <= 1 or np.any(np.diff(positions) != 1):
        raise SampleInvalid(
            "the row is not a prompt with a single answer",
            value=f"{len(positions)} tokens",
            expected="a prompt and one reply",
        )
    return build_demonstration(
        f"{sequence.trajectory}/alone", policy.dialect.open("", ""), sequence.ids[positions].tolist()
    )
