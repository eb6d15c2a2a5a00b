"""Evaluation of function calling: calls of a policy for each request, their grades, and the accuracy lost on
masked names.

Accuracy on masked names is reported beside the usual accuracy: the same items with renamed functions and
parameters. A model that reads descriptions loses nothing; a model that relies on names does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from evolvent.bench.measures import run_all_jobs
from evolvent.curate.masking import MaskSpec, mask_sample
from evolvent.engine.asks import GREEDY, Engine, Job, SampleAsk, Sampling
from evolvent.errors import ConfigError, InvalidAction
from evolvent.grade.calls import CallGrade, GoldCall, exact_gold_calls, grade_calls
from evolvent.messages import Call, CallSample
from evolvent.models.dialects import Dialect
from evolvent.models.toolprompt import ToolPrompt
from evolvent.stats import Interval, paired_interval
from evolvent.trajectory import sample_rng, sample_seed

__all__ = ["CallAnswer", "answer_samples", "grade_answer", "mask_panel", "measure_robustness"]

Gold = Callable[[CallSample], Sequence[GoldCall]]


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The answer of a policy to a sample.

    Args:
        sample: The sample as it was shown.
        text: The written text.
        calls: The parsed calls; None where the text could not be parsed.
        grade: Grade of the calls; a text that cannot be parsed is wrong, also where no call is expected.
        num_generated: Number of generated tokens.
    """

    sample: CallSample
    text: str
    calls: tuple[Call, ...] | None
    grade: CallGrade
    num_generated: int


def answer_samples(
    samples: Sequence[CallSample],
    prompt: ToolPrompt,
    dialect: Dialect,
    *,
    engine: Engine,
    max_tokens: int = 256,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    gold: Gold | None = None,
) -> list[CallAnswer]:
    """Asks a policy for the calls of every sample, and grades them.

    Args:
        samples: The samples.
        prompt: Tool prompt of the policy.
        dialect: Dialect of the policy.
        engine: Engine that serves the policy.
        max_tokens: Maximum tokens of an answer.
        sampling: Sampling settings.
        seed: Seed of the samples.
        gold: Returns the accepted calls of a sample; None: its own calls exactly.
    Raises:
        SampleInvalid: a sample that cannot be written. ContextOverflow: a prompt longer than the context.
    """

    def answer_one(sample: CallSample) -> Job[CallAnswer]:
        tokens = prompt.tokens(sample, dialect).prompt
        ask = SampleAsk(
            None,
            tokens,
            max_tokens,
            dialect.stop_ids,
            dialect.stop_strings,
            sampling,
            (sample_seed(seed, "calls", sample.id),),
        )
        ((generation,),) = yield [ask]
        text = dialect.text(generation.ids.tolist())
        calls, grade = grade_answer(text, sample, prompt, gold=gold)
        return CallAnswer(sample, text, calls, grade, len(generation.ids))

    return run_all_jobs((answer_one(sample) for sample in samples), engine)


def grade_answer(
    text: str, sample: CallSample, prompt: ToolPrompt, *, gold: Gold | None = None
) -> tuple[tuple[Call, ...] | None, CallGrade]:
    """Returns the calls of a text, and their grade."""
    try:
        calls = prompt.parse_calls(text, sample)
    except InvalidAction as error:
        return None, CallGrade(False, "unreadable", "", str(error))
    gold_calls = exact_gold_calls(sample.calls) if gold is None else gold(sample)
    return calls, grade_calls(calls, gold_calls, sample.tools)


def mask_panel(samples: Sequence[CallSample], spec: MaskSpec, *, seed: int) -> Iterator[CallSample]:
    """Yields the same samples with every name masked, whatever the ratio of the spec."""
    full_spec = MaskSpec(1.0, spec.names, spec.params, "off", spec.style, spec.words, spec.pieces, spec.scrub, False)
    for sample in samples:
        yield mask_sample(sample, sample_rng(seed, "masked panel", sample.id), full_spec)[0]


def measure_robustness(plain: Sequence[CallAnswer], renamed: Sequence[CallAnswer]) -> Interval:
    """Computes the accuracy on the original samples minus that on the same renamed samples, paired, with its
    interval.

    Raises:
        ConfigError: other samples, or in another order.
    """
    if [call_answer.sample.id for call_answer in plain] != [call_answer.sample.id for call_answer in renamed]:
        raise ConfigError("the two panels hold different samples", value=(len(plain), len(renamed)))
    scores = [[float(call_answer.grade.valid) for call_answer in answers] for answers in (plain, renamed)]
    return paired_interval(scores[0], scores[1], rng=sample_rng("robustness")).clip(-1.0, 1.0)
