"""Function calling measured: what a policy calls for each request, the verdict on it, and what masked names cost.

The measure that nobody reports stands beside the usual one: the same items with their functions and parameters renamed.
A model that reads descriptions loses nothing; one that goes by names does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from evolvent.bench.measures import asked
from evolvent.curate.masking import MaskSpec, mask
from evolvent.engine.asks import GREEDY, Engine, SampleAsk, Sampling, Work
from evolvent.errors import ConfigError, InvalidAction
from evolvent.grade.calls import GoldCall, Verdict, check_calls, exact_gold
from evolvent.messages import Call, CallSample
from evolvent.models.dialects import Dialect
from evolvent.models.toolprompt import ToolPrompt
from evolvent.stats import Interval, paired
from evolvent.trajectory import sample_rng, sample_seed

__all__ = ["Answered", "answer", "judged", "masked_panel", "robustness"]

Gold = Callable[[CallSample], Sequence[GoldCall]]


@dataclass(frozen=True, slots=True)
class Answered:
    """What a policy wrote for a sample.

    Args:
        sample: as it was shown.
        text: what was written. calls: as they were read; None where nothing could be read.
        verdict: on the calls; a text that cannot be read is wrong, and is no way of calling nothing.
        generated: tokens.
    """

    sample: CallSample
    text: str
    calls: tuple[Call, ...] | None
    verdict: Verdict
    generated: int


def answer(
    samples: Sequence[CallSample],
    prompt: ToolPrompt,
    dialect: Dialect,
    *,
    engine: Engine,
    max_tokens: int = 256,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    gold: Gold | None = None,
) -> list[Answered]:
    """Ask a policy for the calls of every sample, and judge them.

    Args:
        gold: the accepted values of a sample's calls; None: its own calls exactly.
    Raises:
        SampleInvalid: a sample that cannot be written. ContextOverflow: a prompt longer than the context.
    """

    def one(sample: CallSample) -> Work[Answered]:
        tokens = prompt.tokens(sample, dialect).prompt
        ask = SampleAsk(
            None, tokens, max_tokens, dialect.stop_ids, (), sampling, (sample_seed(seed, "calls", sample.id),)
        )
        ((written,),) = yield [ask]
        text = dialect.text(written.ids.tolist())
        calls, verdict = judged(text, sample, prompt, gold=gold)
        return Answered(sample, text, calls, verdict, len(written.ids))

    return asked((one(sample) for sample in samples), engine)


def judged(
    text: str, sample: CallSample, prompt: ToolPrompt, *, gold: Gold | None = None
) -> tuple[tuple[Call, ...] | None, Verdict]:
    """The calls of a text, and the verdict on them."""
    try:
        calls = prompt.read(text, sample)
    except InvalidAction as error:
        return None, Verdict(False, "unreadable", "", str(error))
    wanted = exact_gold(sample.calls) if gold is None else gold(sample)
    return calls, check_calls(calls, wanted, sample.tools)


def masked_panel(samples: Sequence[CallSample], spec: MaskSpec, *, seed: int) -> Iterator[CallSample]:
    """The same samples with every name masked, whatever the ratio of the spec."""
    whole = MaskSpec(1.0, spec.names, spec.params, "off", spec.style, spec.words, spec.pieces, spec.scrub, False)
    for sample in samples:
        yield mask(sample, sample_rng(seed, "masked panel", sample.id), whole)[0]


def robustness(plain: Sequence[Answered], renamed: Sequence[Answered]) -> Interval:
    """Accuracy on the original samples minus that on the same samples in other names, paired, with its interval.

    Raises:
        ConfigError: other samples, or in another order.
    """
    if [one.sample.id for one in plain] != [one.sample.id for one in renamed]:
        raise ConfigError("two panels that are not the same samples", value=(len(plain), len(renamed)))
    sides = [[float(one.verdict.valid) for one in side] for side in (plain, renamed)]
    return paired(sides[0], sides[1], rng=sample_rng("robustness")).within(-1.0, 1.0)
