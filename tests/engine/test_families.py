"""Families of transformers: every token is computed once, with the numbers of the model's own whole forward."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.family_models import FAMILIES, VOCABULARY, build_model
from evolvent.engine import decoders
from evolvent.engine.asks import LogitsAsk, SampleAsk, ScoreAsk
from evolvent.engine.decoders import decoder_for
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.fitting import engine_for
from evolvent.engine.fused import FusedDecoder
from evolvent.engine.local import LocalEngine
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.policy import tiny_policy
from tests.engine.models import Letters, Policy

CONTEXT = 96


def whole_logits(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_computed_once_and_equals_the_whole_forward(family):
    """Forks of one node, texts that go on, and a node that is released, all at once."""
    model = build_model(family)
    engine = engine_for(Policy(model, context=CONTEXT, tokenizer=Letters()), slots=6)
    assert isinstance(engine, LocalEngine), "recomputation is the oracle alone"
    rng = np.random.default_rng(1)
    tokens = rng.integers(3, VOCABULARY, 60).tolist()
    head, left, right, more = tokens[:20], tokens[20:25], tokens[25:33], tokens[33:]

    (prompt,) = ask_and_wait([ScoreAsk(None, [*head, *left])], engine)
    first = SampleAsk(prompt.node, [], 6, seeds=(1, 2, 3))
    second = SampleAsk(prompt.node, right, 9, seeds=(4,))
    forks, (other,), logits = ask_and_wait([first, second, LogitsAsk(prompt.node, more[:3])], engine)
    texts = [[*head, *left, *fork.ids.tolist()] for fork in forks]
    asks = [SampleAsk(fork.node, more[:4], 5, seeds=(7,)) for fork in forks[:2]]
    fork_texts = [[*text, *more[:4]] for text in texts[:2]]
    del forks
    again = ask_and_wait([*asks, ScoreAsk(other.node, more[4:14])], engine)

    worst = 0.0
    limit = len(head) + len(left) + len(right) + 3 + 2 * 4 + 10 + 3 * 6 + len(other.ids) + 2 * 5
    checks = [(texts[n], None) for n in range(3)] + [([*head, *left, *right, *other.ids.tolist()], other.logprobs)]
    checks += [([*fork_texts[n], *again[n][0].ids.tolist()], again[n][0].logprobs) for n in range(2)]
    for text, logprobs in checks:
        if logprobs is not None:
            expected = torch.from_numpy(whole_logits(model, text)).log_softmax(-1).numpy()
            start = len(text) - len(logprobs)
            found = [expected[start - 1 + n, text[start + n]] for n in range(len(logprobs))]
            worst = max(worst, float(np.abs(np.asarray(found) - logprobs).max()))
    scored = [*head, *left, *right, *other.ids.tolist(), *more[4:14]]
    expected = torch.from_numpy(whole_logits(model, scored)).log_softmax(-1).numpy()
    found = [expected[n - 1, scored[n]] for n in range(len(scored) - 10, len(scored))]
    worst = max(worst, float(np.abs(np.asarray(found) - again[2].logprobs).max()))
    worst = max(worst, float(np.abs(whole_logits(model, [*head, *left, *more[:3]])[-1] - logits).max()))
    assert worst <= 1e-5
    assert engine.usage.computed <= limit, "a token is computed once"
    assert engine.usage.recomputed == 0


KINDS = ["llama", "gemma3_text", "deepseek_v3", "mamba", "mamba2", "lfm2", "qwen3_next", "falcon_h1"]


@pytest.mark.parametrize("family", KINDS)
@pytest.mark.parametrize("max_snapshots", [2, 64])
@pytest.mark.parametrize("steps", [12, pytest.param(25, marks=pytest.mark.long)])
def test_random_trees_of_texts_equal_whole_forwards(family, max_snapshots, steps):
    """Fewer rows than texts: rows change hands, states are kept, dropped and loaded, and prompts have equal lengths."""
    model = build_model(family)
    engine = engine_for(Policy(model, context=CONTEXT, tokenizer=Letters()), slots=3)
    engine._rows._max_snapshots = max_snapshots
    rng = np.random.default_rng(5)
    nodes: list[Any] = [None]
    for step in range(steps):
        asks: list[Any] = []
        for _ in range(int(rng.integers(1, 6))):
            node = nodes[int(rng.integers(len(nodes)))]
            tokens = rng.integers(3, VOCABULARY, int(rng.choice([4, 4, 7]))).tolist()
            if node is not None and node.length > CONTEXT - 20:
                node = None
            asks.append(
                SampleAsk(node, tokens, 3, seeds=(step, step + 1)) if rng.random() < 0.6 else ScoreAsk(node, tokens)
            )
        for answer in ask_and_wait(asks, engine):
            for result in answer if isinstance(answer, tuple) else (answer,):
                text, logprobs = result.node.tokens(), result.logprobs
                expected = torch.from_numpy(whole_logits(model, text)).log_softmax(-1).numpy()
                for place in range(max(1, len(text) - len(logprobs)), len(text)):
                    assert abs(expected[place - 1, text[place]] - logprobs[place - len(text) + len(logprobs)]) < 1e-5
                nodes.append(result.node)
        rng.shuffle(nodes)
        nodes = [None, *[node for node in nodes if node is not None][:7]]


def test_a_merged_adapter_in_bfloat16_shares_prefixes(caplog):
    """Merging rounds single logits by more than any decoder does; it must not lead to recomputation."""
    policy = tiny_policy([f"w{number}" for number in range(60)], size="m")
    policy.model.to(torch.bfloat16)
    adapted = adapt(policy, AdapterConfig(kind="lora", targets=("all-linear",), rank=8, alpha=64), seed=0)
    with torch.no_grad():
        for name, weight in adapted.model.named_parameters():
            if "lora_" in name:
                weight.normal_(0, 0.5, generator=torch.Generator().manual_seed(len(name) + 1))
    assert isinstance(engine_for(adapted, slots=2), LocalEngine)


def test_a_decoder_that_reads_other_positions_is_refused_in_bfloat16(monkeypatch):
    policy = tiny_policy([f"w{number}" for number in range(60)], size="m")
    policy.model.to(torch.bfloat16)
    make = FusedDecoder.__init__

    def broken(self, model, *, capacity):
        make(self, model, capacity=capacity)
        self._turns[10:] = self._turns[9]

    monkeypatch.setattr(FusedDecoder, "__init__", broken)
    with torch.no_grad():  # positions matter to a model that has learned
        for layer in policy.model.model.layers:
            layer.self_attn.q_proj.weight.mul_(8)
            layer.self_attn.k_proj.weight.mul_(8)
    assert not isinstance(decoder_for(policy.model, capacity=64), FusedDecoder)


def sample_texts(family: str, *, seed: int = 0) -> list[tuple[list[int], list[float]]]:
    """Samples three texts of one prompt that end one after the other, so that the number of rows changes."""
    engine = engine_for(Policy(build_model(family, seed=seed), context=CONTEXT, tokenizer=Letters()), slots=4)
    assert isinstance(engine, LocalEngine)
    tokens = np.random.default_rng(1).integers(3, VOCABULARY, 30).tolist()
    asks = [SampleAsk(None, tokens[:12], count, seeds=(count,)) for count in (40, 25, 14)]
    answers = ask_and_wait(asks, engine)
    return [(sample.ids.tolist(), sample.logprobs.tolist()) for (sample,) in answers]


@pytest.mark.parametrize("family", [*KINDS, "bloom", "gpt_oss", "gpt2", "falcon", "jetmoe", "longcat_flash"])
def test_recorded_steps_have_the_numbers_of_the_modules_to_the_last_bit(family, monkeypatch):
    """Also of other weights than those that were recorded. Steps in which Python reads numbers are not recorded."""
    monkeypatch.setattr(decoders._StepGraph, "_recordings", OrderedDict())
    recorded = [sample_texts(family, seed=seed) for seed in (0, 1)]
    recordings = list(decoders._StepGraph._recordings.values())
    assert [recording.is_refused for recording in recordings] == [family in ("jetmoe", "longcat_flash")] * (
        family != "llama"  # its decoder has no modules
    )
    monkeypatch.setattr(decoders, "_STEPS_BEFORE_GRAPH", 1000)
    monkeypatch.setattr(decoders._StepGraph, "_recordings", OrderedDict())
    assert [sample_texts(family, seed=seed) for seed in (0, 1)] == recorded
    assert not decoders._StepGraph._recordings


def test_recorded_steps_follow_weights_that_an_update_changed():
    model = build_model("gemma")
    policy = Policy(model, context=CONTEXT, tokenizer=Letters())
    engine = engine_for(policy, slots=2)
    ask = SampleAsk(None, [5, 6, 7], 30, seeds=(1,))
    ((before,),) = ask_and_wait([ask], engine)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    engine.sync(Policy(model, version=1, context=CONTEXT, tokenizer=Letters()))
    ((after,),) = ask_and_wait([ask], engine)
    assert after.logprobs.tolist() != before.logprobs.tolist()
    expected = torch.from_numpy(whole_logits(model, after.node.tokens())).log_softmax(-1).numpy()
    found = [expected[2 + number, token] for number, token in enumerate(after.ids.tolist())]
    assert np.abs(np.asarray(found) - after.logprobs).max() <= 1e-5


def test_a_recorded_step_that_differs_is_not_used(monkeypatch):
    """A graph of another size is compared with the modules before it is used."""
    monkeypatch.setattr(decoders._StepGraph, "_recordings", OrderedDict())
    expected = sample_texts("gemma")
    (recording,) = decoders._StepGraph._recordings.values()
    graph = recording.graph

    def broken(*inputs):
        graph(*inputs)
        inputs[6].flatten(0, 1).index_fill_(0, inputs[3], 0.5)  # the hidden states of this step

    recording.graph = broken
    recording.checked_sizes.clear()
    assert sample_texts("gemma") == expected
    assert recording.is_refused and recording.graph is None


def test_a_recorded_step_that_fails_gives_way_to_the_modules(monkeypatch, caplog):
    """As one would whose size was taken for a constant: it was right for the sizes that were compared."""
    monkeypatch.setattr(decoders._StepGraph, "_recordings", OrderedDict())
    expected = sample_texts("gemma")
    (recording,) = decoders._StepGraph._recordings.values()

    def broken(*inputs):
        raise RuntimeError("shapes do not match")

    recording.graph = broken
    recording.checked_sizes = {(rows, rows.bit_length(), bits) for rows in range(9) for bits in range(9)}
    assert sample_texts("gemma") == expected
    assert recording.is_refused and "steps of a gemma model are no longer replayed" in caplog.text


def test_hooks_on_modules_run_at_every_step(monkeypatch):
    monkeypatch.setattr(decoders._StepGraph, "_recordings", OrderedDict())
    sample_texts("gemma")
    model, seen = build_model("gemma"), []
    engine = engine_for(Policy(model, context=CONTEXT, tokenizer=Letters()), slots=2)
    model.model.register_forward_pre_hook(lambda module, args, kwargs: seen.append(1), with_kwargs=True)
    ask_and_wait([SampleAsk(None, [5, 6, 7], 30, seeds=(1,))], engine)
    assert len(seen) == 30
