"""Data of `evolvent train hammer | comments | p3`: samples of calls, code, or demonstrations, and their measurement."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from evolvent.bench.calls import CallAnswer, answer_samples, mask_panel, measure_robustness
from evolvent.curate.card import CODE, code_of_row
from evolvent.curate.commenting import OUTCOMES, Source
from evolvent.curate.demonstrations import build_demonstrations, prompt_for
from evolvent.curate.difficulty import answer_logprobs, mean_logprob_score, split_by_lines
from evolvent.curate.irrelevance import mix_irrelevant, row_to_sample
from evolvent.curate.masking import SYLLABLES, MaskSpec, mask_epoch
from evolvent.curate.notes import format_request
from evolvent.curate.origins import read_located_rows, read_source
from evolvent.curate.shards import Row
from evolvent.curate.subset import iterate_texts
from evolvent.errors import ConfigError, NothingToLearn, Problem, SampleInvalid, VocabularyMismatch
from evolvent.learn.token_sequences import TokenSequence
from evolvent.learn.windows import Intake
from evolvent.messages import CallSample
from evolvent.methods.hammer import HammerConfig
from evolvent.models.policy import Policy
from evolvent.models.toolprompt import Compact, ToolPrompt
from evolvent.stats import wilson_interval
from evolvent.trajectory import JsonObject
from evolvent.view.escape import clip

__all__ = [
    "CallData",
    "DemonstrationData",
    "MethodData",
    "read_comments_data",
    "read_hammer_data",
    "read_p3_data",
    "read_samples",
]

_PIECE_PATTERN = re.compile(r"\w+|[^\w\s]")
_CALL_MARKS = "[](),=:?\"'{}.-"  # marks of calls as `Compact` writes them
_MAX_MESSAGES = 5

Item: TypeAlias = Any
"""A sample, a source or a row, as the method has it."""
DataSettings: TypeAlias = Any
"""The settings of a command, to which its class adds the method's own."""


@dataclass
class MethodData:
    """The data of a method.

    Attributes:
        items: samples, sources or rows to learn from.
        test: test samples from other rows.
        examples: code for a generator, or None.
        refused: a message for everything that was left out.
    """

    items: Sequence[Item]
    test: Sequence[Item] = ()
    examples: Sequence[Item] | None = None
    refused: list[str] = field(default_factory=list)

    def describe_refused(self) -> list[str]:
        """Returns messages about the rows that were left out."""
        count_line = [f"rows left out: {len(self.refused)}"] if self.refused else []
        return [clip(line, 300) for line in self.refused[:_MAX_MESSAGES]] + count_line

    def collect_vocabulary(self) -> tuple[set[str], int]:
        """Returns the words that an untrained size has to know, and the number of words of its longest row."""
        raise NotImplementedError

    def measure(self, policy: Policy) -> Mapping[str, object]:
        """Measures a policy on the test rows; returns nothing where there are none."""
        return {}

    def describe_outcomes(self, folder: Path) -> list[str]:
        """Returns lines about the outcomes of the items in a finished run."""
        return []

    def make_prompt(self, policy: Policy) -> ToolPrompt:
        """Returns the format in which a policy sees tools."""
        return prompt_for(policy)

    def tokenize(self, policy: Policy, *, lines: bool) -> list[TokenSequence]:
        """Returns the demonstrations in the policy's tokens."""
        raise NotImplementedError


def _count_words(texts: Iterable[str]) -> tuple[set[str], int]:
    """Returns the distinct words of texts, and the number of words of the longest text."""
    vocabulary: set[str] = set()
    max_length = 0
    for text in texts:
        pieces = _PIECE_PATTERN.findall(text)
        vocabulary.update(pieces)
        max_length = max(max_length, len(pieces))
    return vocabulary, max_length


def _count_unmeasured(test: Sequence[Any], measured_rows: Sequence[Any]) -> dict[str, int]:
    """Returns the number of test rows without a measurement, where there are any."""
    return {"test rows left out": len(test) - len(measured_rows)} if len(measured_rows) < len(test) else {}


def _check_nonempty(items: Sequence[Any], data: Path, kind: str, *, refused: Sequence[str]) -> None:
    if not items:
        raise NothingToLearn(
            f"{data} does not hold {kind}", hint=f"the first refused row: {refused[0]}" if refused else "it has no rows"
        )


# ---------------------------------------------------------------------------------------------------- hammer


@dataclass
class CallData(MethodData):
    """Samples of function calls; see `MethodData`."""

    config: HammerConfig = field(default_factory=HammerConfig)
    seed: int = 0
    slots: int = 64
    max_tokens: int = 64

    def collect_vocabulary(self) -> tuple[set[str], int]:
        """Returns the words of every copy of every sample, as `Compact` writes it, and the pieces of other names."""
        if self.config.style != "snake":
            message = f"a word-level model cannot spell names of the style {self.config.style}"
            raise ConfigError(
                [Problem("hammer.style", message, "set --hammer.style snake, or pass a model folder as --policy")]
            )
        mixed_samples = mix_irrelevant(self.items, self.config.share, seed=self.seed).samples
        texts, compact = [], Compact()
        for copy in range(self.config.copies):
            masked_pairs = mask_epoch(
                mixed_samples,
                self.config.spec,
                seed=self.seed,
                epoch=copy,
                on_invalid=lambda masked_sample, reason: None,
            )
            for sample in [*(masked_sample for masked_sample, _ in masked_pairs), *(self.test if not copy else ())]:
                try:
                    rendered = compact.render(sample)
                except SampleInvalid:  # the method leaves it out as well
                    continue
                texts.append(f"{rendered.prompt}\n{rendered.target}")
        vocabulary, max_length = _count_words(texts)
        return vocabulary | {*(self.config.words or SYLLABLES), *_CALL_MARKS}, max_length + self.max_tokens

    def measure(self, policy: Policy) -> JsonObject:
        """Measures correct answers to the test samples, to the same with other names, and without the needed tools.

        The figures include the number of samples that could not be asked.
        """
        if not self.test:
            return {}
        from evolvent.engine.fitting import engine_for

        prompt, engine = self.make_prompt(policy), engine_for(policy, slots=self.slots)
        usable_samples = [entry for entry in self.test if self._is_usable(entry, prompt, policy)]
        pieces = {"words": self.config.words, "pieces": self.config.pieces, "style": self.config.style}
        renamed_samples = list(mask_panel(usable_samples, MaskSpec(1.0, **pieces), seed=self.seed))  # type: ignore[arg-type]
        usable_renamed = [entry for entry in renamed_samples if self._is_usable(entry, prompt, policy)]
        usable_irrelevant = [
            entry
            for entry in mix_irrelevant(usable_samples, 0.5, seed=self.seed).copies
            if self._is_usable(entry, prompt, policy)
        ]
        panels = {"plain": usable_samples, "renamed": usable_renamed, "irrelevant": usable_irrelevant}
        answers_by_panel = {
            name: answer_samples(panel, prompt, policy.dialect, engine=engine, max_tokens=self.max_tokens)
            for name, panel in panels.items()
            if panel
        }
        figures: dict[str, Any] = {name: _accuracy_interval(entry) for name, entry in answers_by_panel.items()}
        if len(usable_renamed) > 1:
            shared_ids = {entry.id for entry in usable_renamed}
            drop = measure_robustness(
                [entry for entry in answers_by_panel["plain"] if entry.sample.id in shared_ids],
                answers_by_panel["renamed"],
            )
            figures["lost under other names"] = [round(entry, 4) for entry in (drop.mean, drop.low, drop.high)]
        return figures | _count_unmeasured(self.test, usable_samples)

    def _is_usable(self, sample: CallSample, prompt: ToolPrompt, policy: Policy) -> bool:
        """Returns whether a sample can be asked: it can be written, and leaves room for an answer."""
        try:
            return len(prompt.tokens(sample, policy.dialect).prompt) + self.max_tokens <= policy.context
        except (SampleInvalid, VocabularyMismatch):
            return False


def _accuracy_interval(answers: Sequence[CallAnswer]) -> list[float]:
    """Returns the share of correct answers with its 95 % interval."""
    interval = wilson_interval(sum(entry.grade.valid for entry in answers), len(answers))
    return [round(entry, 4) for entry in (interval.mean, interval.low, interval.high)]


def read_hammer_data(config: DataSettings) -> MethodData:
    """Reads the samples of function calls of `data` and `test`.

    Raises:
        NothingToLearn: the data hold no sample.
        ConfigError: a path that holds no rows.
    """
    refused: list[str] = []
    samples = read_samples(config.data, refused)
    _check_nonempty(samples, config.data, "a sample of function calls", refused=refused)
    test = read_samples(config.test, refused) if config.test is not None else []
    return CallData(
        samples,
        test,
        refused=refused,
        config=config.hammer,
        seed=config.seed,
        slots=config.slots,
        max_tokens=config.max_tokens,
    )


def read_samples(data: Path, refused: list[str]) -> list[CallSample]:
    """Reads the samples of function calls at a path; adds a message to `refused` for each row that is not a sample."""
    samples = []
    for location, row in read_located_rows(data, refused):
        try:
            samples.append(row_to_sample(row))
        except SampleInvalid as error:
            refused.append(f"{location}: {error}")
    return samples


# ---------------------------------------------------------------------------------------------------- comments


@dataclass
class _CodeData(MethodData):
    max_tokens: int = 256

    def collect_vocabulary(self) -> tuple[set[str], int]:
        """Returns the words of every request and of the code itself."""
        sources = [*self.items, *(self.examples or ())]
        vocabulary, max_length = _count_words(
            text for source in sources for text in (format_request(source.text, source.language), source.text)
        )
        numbers = {str(number) for number in range(1, 1 + max(source.text.count("\n") + 1 for source in sources))}
        return vocabulary | numbers | {"SKIP", "#", "/", "*", "-"}, max_length + self.max_tokens

    def describe_outcomes(self, folder: Path) -> list[str]:
        """Returns a line for each round: the number of learned sources, and the outcomes of all sources."""
        rows = json.loads((folder / "comments.json").read_bytes())
        return [
            f"round {row['round']}: {row['kept']} of {row['sources']} sources learned, {_format_outcomes(row)}"
            for row in rows
        ]


def _format_outcomes(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{row[name]} {name.replace('_', ' ')}" for name in (*OUTCOMES, "notes") if row[name])


def read_comments_data(config: DataSettings) -> MethodData:
    """Reads the code of `data` and `examples`.

    Raises:
        NothingToLearn: the data hold no code in a known language.
        ConfigError: a path that holds no rows.
    """
    refused: list[str] = []
    sources = _read_sources(config.data, refused)
    _check_nonempty(sources, config.data, "code in a known language", refused=refused)
    examples = None if config.examples is None else _read_sources(config.examples, refused)
    return _CodeData(sources, examples=examples, refused=refused, max_tokens=config.max_tokens)


def _read_sources(data: Path, refused: list[str]) -> list[Source]:
    sources = []
    for number, (location, row) in enumerate(read_located_rows(data, refused)):
        code = code_of_row(row)
        if code is None:
            refused.append(
                f"{location}: it has no code, or its language is unknown (code is text in a column "
                f"{' or '.join(CODE)}; name its language in a column language, or its file in a column path)"
            )
            continue
        try:
            sources.append(Source(f"{data.name}:{number}", *code))
        except (SampleInvalid, ConfigError) as error:
            refused.append(f"{location}: {error}")
    return sources


# ---------------------------------------------------------------------------------------------------- p3


@dataclass
class DemonstrationData(MethodData):
    """Rows that are demonstrations; see `MethodData`."""

    truncate: bool = False

    def collect_vocabulary(self) -> tuple[set[str], int]:
        """Returns the words of all texts; rows of function calls as `Compact` writes them."""
        return _count_words(text for row in [*self.items, *self.test] for text in [_row_text(row)])

    def tokenize(self, policy: Policy, *, lines: bool) -> list[TokenSequence]:
        """Tokenizes the demonstrations of the data, with lines as spans on request."""
        intake = Intake()
        sequences = list(build_demonstrations(self.items, policy, too_long=self._overlong, intake=intake))
        self.refused += map(str, intake.problems)
        if not sequences:
            raise NothingToLearn(
                "the data contain no demonstration",
                value=str(intake.problems[0]) if intake.problems else 0,
                expected="rows with prompt and completion, messages, ...",
            )
        return (
            [split_by_lines(sequence, lambda token: str(policy.tokenizer.decode([token]))) for sequence in sequences]
            if lines
            else sequences
        )

    @property
    def _overlong(self) -> Any:
        return "truncate" if self.truncate else "refuse"

    def measure(self, policy: Policy) -> JsonObject:
        """Measures the log-likelihood of the answers of the test rows, and counts rows that the policy cannot use."""
        sequences = list(build_demonstrations(self.test, policy, too_long=self._overlong))
        if not sequences:
            return _count_unmeasured(self.test, sequences)
        answer_log_probs = answer_logprobs(policy, sequences)
        loss = -float(np.concatenate(answer_log_probs).mean())
        return {
            f"loss a token of {len(sequences)} test rows, nats": round(loss, 4),
            "how easy they are": round(float(mean_logprob_score(answer_log_probs).mean()), 4),
            **_count_unmeasured(self.test, sequences),
        }


def _row_text(row: Row) -> str:
    if {"tools", "answers"} <= set(row):
        try:
            rendered = Compact().render(row_to_sample(row))
        except SampleInvalid:
            return ""
        return f"{rendered.prompt}\n{rendered.target}"
    return "\n".join(iterate_texts(row))


def read_p3_data(config: DataSettings) -> MethodData:
    """Reads the rows of `data` and `test`.

    Raises:
        NothingToLearn: the data hold no row.
        ConfigError: a path that holds no rows.
    """
    refused: list[str] = []
    rows = list(read_source(config.data, refused))
    _check_nonempty(rows, config.data, "a row", refused=refused)
    test = list(read_source(config.test, refused)) if config.test is not None else []
    return DemonstrationData(rows, test, refused=refused, truncate=config.truncate)
