"""Why Hammer masks names: a reader that learns from plain tools relies on names, and names change.

The reader is a perceptron over pairs of the request's word with each word of a tool, in its name or its description.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from evolvent.curate.masking import MaskSpec, mask_epoch
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.trajectory import sample_rng
from tests.mechanisms.page import check_table

FUNCTIONS, SHOWN, SAMPLES, EPOCHS = 12, 4, 120, 3
RATIOS = (0.0, 2 / 3, 1.0)
PLAIN, MASKED = MaskSpec(ratio=0.0), MaskSpec(ratio=1.0)


def build_samples(split: str) -> list[CallSample]:
    """Requests for one of four tools; request n is answered by `do_name<n>`, which "handles topic<n>"."""
    tools = [Tool(f"do_name{n}", f"handles topic{n}") for n in range(FUNCTIONS)]
    samples = []
    for number in range(SAMPLES):
        shown = sample_rng(split, number).permutation(FUNCTIONS)[:SHOWN].tolist()
        called = shown[number % SHOWN]
        request = Message("user", f"request{called}")
        samples.append(
            CallSample(f"{split}{number}", (request,), tuple(tools[n] for n in shown), (Call(f"do_name{called}", {}),))
        )
    return samples


def exchange_names(sample: CallSample) -> CallSample:
    """Gives each tool the name of the next: the descriptions tell the truth, the names mislead."""
    names = [tool.name for tool in sample.tools]
    renamed = dict(zip(names, [*names[1:], names[0]], strict=True))
    tools = tuple(replace(tool, name=renamed[tool.name]) for tool in sample.tools)
    return replace(sample, tools=tools, calls=tuple(replace(call, name=renamed[call.name]) for call in sample.calls))


class Reader:
    """Learns which words of a tool go with a request; `reads` names the fields that it sees."""

    def __init__(self, *reads: str) -> None:
        self.reads, self.weights = reads, Counter[tuple[str, str, str]]()

    def features(self, request: str, tool: Tool) -> list[tuple[str, str, str]]:
        words = {"name": tool.name.split("_"), "description": tool.description.split()}
        return [(request, field, word) for field in self.reads for word in words[field]]

    def choose(self, sample: CallSample) -> Tool:
        scores = [sum(self.weights[key] for key in self.features(sample.request, tool)) for tool in sample.tools]
        return sample.tools[int(np.argmax(scores))]

    def learn(self, samples: Iterable[CallSample]) -> None:
        for sample in samples:
            chosen = self.choose(sample)
            called = next(tool for tool in sample.tools if tool.name == sample.calls[0].name)
            if chosen != called:
                self.weights.update(self.features(sample.request, called))
                self.weights.subtract(self.features(sample.request, chosen))

    def accuracy(self, samples: Iterable[CallSample]) -> float:
        return float(np.mean([self.choose(sample).name == sample.calls[0].name for sample in samples]))


def mask(samples: Iterable[CallSample], spec: MaskSpec, *, epoch: int) -> list[CallSample]:
    return [masked for masked, _ in mask_epoch(samples, spec, seed=0, epoch=epoch)]


@cache
def measure(ratio: float, *reads: str) -> dict[str, float]:
    """Trains a reader with this share of masked samples; its accuracy on plain, renamed and exchanged names."""
    reader = Reader(*reads)
    for epoch in range(EPOCHS):
        reader.learn(mask(build_samples("train"), MaskSpec(ratio=ratio), epoch=epoch))
    plain = mask(build_samples("test"), PLAIN, epoch=EPOCHS)
    renamed = mask(build_samples("test"), MASKED, epoch=EPOCHS)
    return {
        "plain": reader.accuracy(plain),
        "renamed": reader.accuracy(renamed),
        "exchanged": reader.accuracy(map(exchange_names, plain)),
    }


def test_names_carry_no_signal_under_masking() -> None:
    """A reader of names alone learns the tools from plain data, and guesses one of four after masked data."""
    assert measure(0.0, "name")["plain"] == 1.0
    assert measure(1.0, "name") == {split: pytest.approx(1 / SHOWN, abs=0.08) for split in measure(1.0, "name")}


@pytest.mark.parametrize("ratio", RATIOS)
def test_descriptions_are_as_good_with_any_names(ratio: float) -> None:
    assert set(measure(ratio, "description").values()) == {1.0}


def test_the_more_is_masked_the_less_a_reader_of_both_trusts_names() -> None:
    accuracies = [measure(ratio, "name", "description") for ratio in RATIOS]
    assert all(accuracy["plain"] == accuracy["renamed"] == 1.0 for accuracy in accuracies)
    exchanged = [accuracy["exchanged"] for accuracy in accuracies]
    assert exchanged[0] < 0.5 and 0.75 < exchanged[1] < 1.0 and exchanged[2] == 1.0


def test_the_page_holds_these_accuracies() -> None:
    rows = [
        [f"{ratio:.2f}", *measure(ratio, "name").values(), measure(ratio, "name", "description")["exchanged"]]
        for ratio in RATIOS
    ]
    heads = ["share masked", *(f"names only, {split}" for split in measure(0.0, "name")), "both, exchanged"]
    check_table(heads, rows)
