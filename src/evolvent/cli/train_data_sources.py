"""What `evolvent train hammer | comments | p3` read and measure: samples of calls, code, demonstrations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from evolvent.bench.calls import Answered, answer, masked_panel, robustness
from evolvent.curate.card import code_of_row
from evolvent.curate.commenting import OUTCOMES, Source
from evolvent.curate.demonstrations import demonstrations, prompt_for
from evolvent.curate.difficulty import answer_logprobs, by_lines, mean_logprob_score
from evolvent.curate.irrelevance import irrelevant, read_row
from evolvent.curate.masking import SYLLABLES, MaskSpec, masked
from evolvent.curate.notes import asked
from evolvent.curate.origins import read_all
from evolvent.curate.shards import Row
from evolvent.curate.subset import texts_of
from evolvent.engine.fitting import engine_for
from evolvent.errors import ConfigError, NothingToLearn, Problem, SampleInvalid, VocabularyMismatch
from evolvent.learn.token_sequences import Parts
from evolvent.learn.windows import Intake
from evolvent.messages import CallSample
from evolvent.methods.hammer import Hammer
from evolvent.models.policy import Policy
from evolvent.models.toolprompt import Compact, ToolPrompt
from evolvent.stats import wilson
from evolvent.view.escape import clip

__all__ = [
    "Calls",
    "Demonstrations",
    "Material",
    "comments_material",
    "hammer_material",
    "p3_material",
    "samples_of",
]

_PIECES = re.compile(r"\w+|[^\w\s]")
_SPELLED = "[](),=:?\"'{}.-"  # marks of calls as `Compact` writes them
_TOLD = 5


@dataclass
class Material:
    """What a method learns from.

    Attributes:
        items: samples, sources or rows. test: of other rows, to measure on. examples: code for a generator, or None.
        refused: a sentence for everything that was left out.
    """

    items: Sequence[Any]
    test: Sequence[Any] = ()
    examples: Sequence[Any] | None = None
    refused: list[str] = field(default_factory=list)

    def told(self) -> list[str]:
        """What was left out, for people."""
        more = [f"rows left out: {len(self.refused)}"] if self.refused else []
        return [clip(line, 300) for line in self.refused[:_TOLD]] + more

    def words(self) -> tuple[set[str], int]:
        """The words that an untrained size has to know, and how many its longest row has."""
        raise NotImplementedError

    def measured(self, policy: Policy) -> Mapping[str, Any]:
        """What a policy does with the test rows; nothing where there are none."""
        return {}

    def became(self, folder: Path) -> list[str]:
        """What became of the items in a finished run, for people."""
        return []

    def prompt(self, policy: Policy) -> ToolPrompt:
        """How tools are shown to a policy."""
        return prompt_for(policy)

    def pool(self, policy: Policy, *, lines: bool) -> list[Parts]:
        """The demonstrations, in the policy's tokens."""
        raise NotImplementedError


def _counted(texts: Iterable[str]) -> tuple[set[str], int]:
    found: set[str] = set()
    longest = 0
    for text in texts:
        pieces = _PIECES.findall(text)
        found.update(pieces)
        longest = max(longest, len(pieces))
    return found, longest


def _unmeasured(test: Sequence[Any], asked: Sequence[Any]) -> dict[str, int]:
    """How many of the test rows a figure says nothing of, where there are any."""
    return {"test rows left out": len(test) - len(asked)} if len(asked) < len(test) else {}


def _some(items: Sequence[Any], data: Path, what: str, *, refused: Sequence[str]) -> None:
    if not items:
        raise NothingToLearn(
            f"{data} holds no {what}", value=refused[0] if refused else "no rows", expected="at least one"
        )


# ---------------------------------------------------------------------------------------------------- hammer


@dataclass
class Calls(Material):
    """Samples of function calls; see `Material`."""

    config: Hammer = field(default_factory=Hammer)
    seed: int = 0
    slots: int = 64
    max_tokens: int = 64

    def words(self) -> tuple[set[str], int]:
        """Those of every copy of every sample, as `Compact` writes it, and the pieces that other names are made of."""
        if self.config.style != "snake":
            what = f"names of the style {self.config.style} are words that a model over whole words cannot spell"
            raise ConfigError([Problem("hammer.style", what, "--hammer.style snake, or --policy a model folder")])
        mixed = irrelevant(self.items, self.config.share, seed=self.seed).samples
        texts, compact = [], Compact()
        for copy in range(self.config.copies):
            shown = masked(mixed, self.config.spec, seed=self.seed, epoch=copy, invalid=lambda one, why: None)
            for sample in [*(one for one, _ in shown), *(self.test if not copy else ())]:
                try:
                    rendered = compact.render(sample)
                except SampleInvalid:  # the method leaves it out as well
                    continue
                texts.append(f"{rendered.prompt}\n{rendered.target}")
        found, longest = _counted(texts)
        return found | {*(self.config.words or SYLLABLES), *_SPELLED}, longest + self.max_tokens

    def measured(self, policy: Policy) -> Mapping[str, Any]:
        """Right answers to the test samples, to the same in other names, and without the tools that are needed; and
        how many samples could not be asked.
        """
        if not self.test:
            return {}
        prompt, engine = self.prompt(policy), engine_for(policy, slots=self.slots)
        plain = [one for one in self.test if self._fits(one, prompt, policy)]
        pieces = {"words": self.config.words, "pieces": self.config.pieces, "style": self.config.style}
        others = list(masked_panel(plain, MaskSpec(1.0, **pieces), seed=self.seed))  # type: ignore[arg-type]
        shown = [one for one in others if self._fits(one, prompt, policy)]
        nothing = [one for one in irrelevant(plain, 0.5, seed=self.seed).copies if self._fits(one, prompt, policy)]
        panels = {"plain": plain, "renamed": shown, "irrelevant": nothing}
        said = {
            name: answer(panel, prompt, policy.dialect, engine=engine, max_tokens=self.max_tokens)
            for name, panel in panels.items()
            if panel
        }
        found: dict[str, Any] = {name: _rate(one) for name, one in said.items()}
        if len(shown) > 1:
            both = {one.id for one in shown}
            drop = robustness([one for one in said["plain"] if one.sample.id in both], said["renamed"])
            found["lost under other names"] = [round(one, 4) for one in (drop.mean, drop.low, drop.high)]
        return found | _unmeasured(self.test, plain)

    def _fits(self, sample: CallSample, prompt: ToolPrompt, policy: Policy) -> bool:
        """Whether a sample can be asked: it can be written, and an answer has room."""
        try:
            return len(prompt.tokens(sample, policy.dialect).prompt) + self.max_tokens <= policy.context
        except (SampleInvalid, VocabularyMismatch):
            return False


def _rate(answers: Sequence[Answered]) -> list[float]:
    """Share of right answers with its 95 % interval."""
    found = wilson(sum(one.verdict.valid for one in answers), len(answers))
    return [round(one, 4) for one in (found.mean, found.low, found.high)]


def hammer_material(config: Any) -> Material:
    """The samples of function calls of `data`, and of `test`.

    Raises:
        NothingToLearn: no sample in the data. ConfigError: nothing that holds rows.
    """
    refused: list[str] = []
    samples = samples_of(config.data, refused)
    _some(samples, config.data, "sample of function calls", refused=refused)
    test = samples_of(config.test, refused) if config.test is not None else []
    return Calls(
        samples,
        test,
        refused=refused,
        config=config.hammer,
        seed=config.seed,
        slots=config.slots,
        max_tokens=config.max_tokens,
    )


def samples_of(data: Path, refused: list[str]) -> list[CallSample]:
    """The samples of function calls of a place; a sentence for each row that is none."""
    found = []
    for number, row in enumerate(read_all(data, refused)):
        try:
            found.append(read_row(row))
        except SampleInvalid as error:
            refused.append(f"{data.name}, row {number}: {error}")
    return found


# ---------------------------------------------------------------------------------------------------- comments


@dataclass
class _Code(Material):
    max_tokens: int = 256

    def words(self) -> tuple[set[str], int]:
        """Those of every request and of the code itself."""
        every = [*self.items, *(self.examples or ())]
        found, longest = _counted(text for one in every for text in (asked(one.text, one.language), one.text))
        numbers = {str(number) for number in range(1, 1 + max(one.text.count("\n") + 1 for one in every))}
        return found | numbers | {"SKIP", "#", "/", "*", "-"}, longest + self.max_tokens

    def became(self, folder: Path) -> list[str]:
        """Of every round, how many sources were kept, and what became of all of them."""
        rows = json.loads((folder / "comments.json").read_bytes())
        return [
            f"round {row['round']}: {row['kept']} of {row['sources']} sources learned, {_outcomes(row)}" for row in rows
        ]


def _outcomes(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{row[name]} {name.replace('_', ' ')}" for name in (*OUTCOMES, "notes") if row[name])


def comments_material(config: Any) -> Material:
    """The code of `data`, and of `examples`.

    Raises:
        NothingToLearn: no code in a language that is known. ConfigError: nothing that holds rows.
    """
    refused: list[str] = []
    sources = _sources(config.data, refused)
    _some(sources, config.data, "code in a language that is known", refused=refused)
    examples = None if config.examples is None else _sources(config.examples, refused)
    return _Code(sources, examples=examples, refused=refused, max_tokens=config.max_tokens)


def _sources(data: Path, refused: list[str]) -> list[Source]:
    found = []
    for number, row in enumerate(read_all(data, refused)):
        code = code_of_row(row)
        if code is None:
            refused.append(f"{data.name}, row {number}: no code, or nothing says its language")
            continue
        try:
            found.append(Source(f"{data.name}:{number}", *code))
        except (SampleInvalid, ConfigError) as error:
            refused.append(f"{data.name}, row {number}: {error}")
    return found


# ---------------------------------------------------------------------------------------------------- p3


@dataclass
class Demonstrations(Material):
    """Rows that are demonstrations; see `Material`."""

    truncate: bool = False

    def words(self) -> tuple[set[str], int]:
        """Those of all texts; rows of function calls as `Compact` writes them."""
        return _counted(text for row in [*self.items, *self.test] for text in [_said(row)])

    def pool(self, policy: Policy, *, lines: bool) -> list[Parts]:
        """The demonstrations of the data; lines as spans where they are asked for."""
        tally = Intake()
        found = list(demonstrations(self.items, policy, too_long=self._how, intake=tally))
        self.refused += map(str, tally.problems)
        if not found:
            raise NothingToLearn(
                "no row is a demonstration",
                value=str(tally.problems[0]) if tally.problems else 0,
                expected="rows with prompt and completion, messages, ...",
            )
        return [by_lines(one, lambda token: str(policy.tokenizer.decode([token]))) for one in found] if lines else found

    @property
    def _how(self) -> Any:
        return "truncate" if self.truncate else "refuse"

    def measured(self, policy: Policy) -> Mapping[str, Any]:
        """How likely the policy finds the answers of the test rows, and how many are none for it."""
        parts = list(demonstrations(self.test, policy, too_long=self._how))
        if not parts:
            return _unmeasured(self.test, parts)
        said = answer_logprobs(policy, parts)
        loss = -float(np.concatenate(said).mean())
        return {
            f"loss a token of {len(parts)} test rows, nats": round(loss, 4),
            "how easy they are": round(float(mean_logprob_score(said).mean()), 4),
            **_unmeasured(self.test, parts),
        }


def _said(row: Row) -> str:
    if {"tools", "answers"} <= set(row):
        try:
            rendered = Compact().render(read_row(row))
        except SampleInvalid:
            return ""
        return f"{rendered.prompt}\n{rendered.target}"
    return "\n".join(texts_of(row))


def p3_material(config: Any) -> Material:
    """The rows of `data`, and of `test`.

    Raises:
        NothingToLearn: no row. ConfigError: nothing that holds rows.
    """
    refused: list[str] = []
    rows = list(read_all(config.data, refused))
    _some(rows, config.data, "row", refused=refused)
    test = list(read_all(config.test, refused)) if config.test is not None else []
    return Demonstrations(rows, test, refused=refused, truncate=config.truncate)
