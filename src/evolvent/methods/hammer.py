"""Hammer: function calling that reads descriptions, not names, and recognizes when no tool fits.

Lin et al., "Hammer: Robust Function-Calling for On-Device Language Models via Function Masking" (arXiv
2410.04587).

    D' = D and irrelevant copies of some of D (every gold tool removed, verified; target: no call)
    for copy = 1..3:
        for sample in D':   with probability 2/3 rename its functions, parameters and defaults at random
    maximize sum log p(calls | request, tools) over all copies

A masked name carries no information, so the model learns to match descriptions; names of a test set that are
unlike those of training then matter little. Masking is sampled anew for every copy and can be undone
(`curate.masking`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeVar

from pydantic import Field

from evolvent.config import Config
from evolvent.curate.irrelevance import mix_irrelevant
from evolvent.curate.masking import MaskSpec, mask_epoch
from evolvent.errors import NothingToLearn, SampleInvalid
from evolvent.learn.taught import build_demonstration
from evolvent.learn.token_sequences import TokenSequence
from evolvent.messages import CallSample, Tool
from evolvent.models.dialects import Dialect
from evolvent.models.toolprompt import ToolPrompt
from evolvent.run import Run

__all__ = ["PLAIN", "HammerConfig", "build_demonstrations", "hammer"]

P = TypeVar("P")


class HammerConfig(Config):
    """Settings of Hammer. The defaults are the paper's, with names that every provider accepts."""

    copies: int = Field(default=3, ge=1, description="how often every sample is learned, masked anew each time")
    ratio: float = Field(default=2 / 3, ge=0, le=1, description="chance that a sample is masked; 0: no masking")
    share: float = Field(default=1 / 9, ge=0, lt=1, description="of requests that no tool answers, among all")
    style: Literal["random", "published", "snake", "camel"] = Field(default="random", description="how names look")
    words: tuple[str, ...] = Field(default=(), description="pieces of snake and camel names; none: syllables")
    pieces: tuple[int, int] = Field(default=(2, 3), description="fewest and most pieces of a snake or camel name")
    defaults: Literal["off", "whole_token"] = Field(
        default="whole_token", description="whether a default that an argument repeats becomes another value"
    )
    scrub: Literal["off", "names", "every"] = Field(default="names", description="old names in descriptions")
    tokens: int | None = Field(default=None, ge=1, description="learned tokens; none: the training config's epochs")

    @property
    def spec(self) -> MaskSpec:
        """Returns the masking."""
        return MaskSpec(
            ratio=self.ratio,
            style=self.style,
            words=self.words,
            pieces=self.pieces,
            defaults=self.defaults,
            scrub=self.scrub,
        )


PLAIN = {"ratio": 0.0, "share": 0.0}
"""The control: the same samples as often, as they are."""


def hammer(
    policy: P,
    samples: Sequence[CallSample],
    *,
    config: HammerConfig,
    run: Run[P],
    prompt: ToolPrompt,
    dialect: Dialect,
    pool: Sequence[Tool] = (),
) -> P:
    """Trains a policy to call functions; returns the trained policy.

    Args:
        samples: requests with tools and gold calls; those that cannot be masked are left out of their copy.
        prompt: writes tools and calls.
        dialect: the policy's.
        pool: tools that replace some of those removed in irrelevant copies.
    Raises:
        ConfigError: two samples share an id.
        NothingToLearn: no sample can be written.
    """
    from evolvent.learn.objectives import weighted_nll

    all_samples = mix_irrelevant(samples, config.share, seed=run.seed, pool=pool).samples
    data = list(build_demonstrations(all_samples, config, prompt, dialect=dialect, seed=run.seed))
    if not data:
        raise NothingToLearn(
            "no usable function-calling sample",
            value=f"{len(samples)} samples",
            expected="samples that can be masked and written",
        )
    return run.fit(policy, data, weighted_nll, tokens=config.tokens)


def build_demonstrations(
    samples: Sequence[CallSample], config: HammerConfig, prompt: ToolPrompt, *, dialect: Dialect, seed: int
) -> Iterator[TokenSequence]:
    """Yields all copies of all samples, each with its own random masking, written for the dialect."""
    for copy in range(config.copies):
        for sample, _ in mask_epoch(samples, config.spec, seed=seed, epoch=copy, on_invalid=lambda one, why: None):
            try:
                prompt_tokens = prompt.tokens(sample, dialect)
            except SampleInvalid:  # it spells a control mark of the prompt, or values that JSON does not have
                continue
            yield build_demonstration(f"{sample.id}~{copy}", prompt_tokens.prompt, prompt_tokens.target)
