"""Policies with adapters are learned, checkpointed, and served: by the fast engine where weights can stand for the
adapter, by recomputation where it has virtual tokens."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small_training import WORDS, small_config, small_parts, small_policy

from evolvent.engine import decoders, fused
from evolvent.engine.asks import GREEDY, LogitsAsk, SampleAsk, Sampling, ScoreAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import ConfigError, ContextOverflow, WeightsChanged
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.models.adapters import AdapterConfig, adapt, adapter_tensors, merge_adapter, trainable
from evolvent.models.cpu_layers import packs_weights
from evolvent.models.policy import load_policy
from evolvent.scale.local_backend import LocalBackend

MERGEABLE, VIRTUAL = ("lora", "dora", "ia3"), ("prefix", "prompt")
KINDS = (*MERGEABLE, *VIRTUAL)


def policy_of(kind, *, seed=1, moved=0.3, **changes):
    config = AdapterConfig(**{"kind": kind, "rank": 2, "alpha": 4, "tokens": 3, **changes})
    policy = adapt(small_policy(), config, seed=seed)
    generator = torch.Generator().manual_seed(3)
    for weight in policy.model.parameters():
        if weight.requires_grad:
            weight.data.add_(torch.randn(weight.shape, generator=generator) * moved)
    return policy


def whole_batches(**changes):
    """A training in which every update sees all the data."""
    return small_config(epochs=6, batch_tokens=100_000, weight_decay=0.0, max_grad_norm=None, lr=1e-2, **changes)


def plain_losses(policy, parts, config):
    """The oracle: one sequence after another through all logits."""
    model, losses = policy.model, []
    learned = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(learned, betas=config.betas, weight_decay=0.0)
    for update in range(6):
        total, count = torch.zeros((), dtype=torch.float64), 0
        for sequence in parts:
            ids = torch.from_numpy(sequence.ids.astype(np.int64))
            logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0, 1 - len(ids) :]
            weight = torch.from_numpy(sequence.weight[1:])
            scores = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]
            total, count = total - (weight * scores).double().sum(), count + int((weight != 0).sum())
        optimizer.zero_grad()
        (total / count).backward()
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate(update, update / 6)
        optimizer.step()
        losses.append(float(total.detach() / count))
    return losses


@pytest.mark.parametrize("kind", KINDS)
def test_learning_equals_the_plain_loop(kind):
    policy, oracle = policy_of(kind), policy_of(kind)
    frozen = {name: w.clone() for name, w in policy.model.named_parameters() if not w.requires_grad}
    parts, config = small_parts(policy, 12), whole_batches()
    learner = Learner(policy, weighted_nll, config, seed=0)
    report = learner.fit(parts)
    expected = plain_losses(oracle, parts, config)
    assert np.abs(np.array(report.losses) - expected).max() < 5e-6
    assert report.losses[-1] < report.losses[0] - 0.01
    for name, weight in policy.model.named_parameters():
        if name in frozen:
            assert weight.grad is None and torch.equal(weight, frozen[name]) and weight not in learner.optimizer.state
    assert len(learner.optimizer.state) == len(trainable(policy.model))


@pytest.mark.parametrize("kind", MERGEABLE)
def test_packed_rows_learn_the_same(kind):
    reports = []
    for layout in ("bucketed", "packed"):
        policy = policy_of(kind)
        reports.append(Learner(policy, weighted_nll, whole_batches(layout=layout), seed=0).fit(small_parts(policy, 12)))
    assert np.abs(np.array(reports[0].losses) - reports[1].losses).max() < 5e-6


@pytest.mark.parametrize("kind", VIRTUAL)
def test_packed_rows_and_virtual_tokens_are_refused(kind):
    with pytest.raises(ConfigError, match="packed rows"):
        Learner(policy_of(kind), weighted_nll, whole_batches(layout="packed"), seed=0)
    assert Learner(policy_of(kind), weighted_nll, whole_batches(), seed=0).layout == "bucketed"


@pytest.mark.parametrize("kind", ["lora", "prompt"])
def test_a_checkpoint_holds_the_adapter_and_goes_on_from_it(tmp_path, kind):
    def fit(folder, stop=None):
        policy = policy_of(kind, dropout=0.2)
        learner = Learner(policy, weighted_nll, small_config(), seed=5)
        checkpoint = Checkpointer(folder, every=2)
        report = learner.fit(
            small_parts(policy, 20), checkpoint=checkpoint, should_stop=lambda: learner.updates == stop
        )
        return report, adapter_tensors(policy.model), policy

    whole, tensors, policy = fit(tmp_path / "whole")
    fit(tmp_path / "torn", stop=3)
    resumed, again, _ = fit(tmp_path / "torn")
    assert resumed.losses == whole.losses and all(torch.equal(tensors[name], again[name]) for name in tensors)
    largest = max(path.stat().st_size for path in tmp_path.rglob("*.safetensors"))
    learned = sum(w.numel() for w in policy.model.parameters() if w.requires_grad)
    assert largest < 4 * 2 * learned + 20_000 and policy.parameters() > 2 * learned


def test_what_is_learned_leaves_the_given_policy_alone():
    policy = policy_of("lora")
    before = adapter_tensors(policy.model)
    clone = policy.clone()
    Learner(clone, weighted_nll, whole_batches(), seed=0).fit(small_parts(policy, 4))
    after, learned = adapter_tensors(policy.model), adapter_tensors(clone.model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(torch.equal(before[name], learned[name]) for name in before)


# ---------------------------------------------------------------------- serving

TEXTS = ([7, 8, 9, 10, 11], [12], [13, 14, 15, 7, 7, 7, 8, 9], [7, 8, 9, 16])


def scores(policy, engine):
    return [answer.logprobs for answer in ask_and_wait([ScoreAsk(None, text) for text in TEXTS], engine(policy))]


def by_hand(policy, text):
    with torch.inference_mode():
        logits = policy.model(input_ids=torch.tensor([text]), use_cache=False).logits[0, -len(text) :]
    return torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(text[1:])[:, None])[:, 0].numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_recomputation_serves_every_adapter(kind):
    policy = policy_of(kind)
    for text, found in zip(TEXTS, scores(policy, RecomputeEngine), strict=True):
        np.testing.assert_allclose(found[1:], by_hand(policy, text), atol=1e-5)
    plain = small_policy()
    assert (
        max(
            np.abs(a - b).max()
            for a, b in zip(scores(policy, RecomputeEngine), scores(plain, RecomputeEngine), strict=True)
        )
        > 1e-2
    )


@pytest.mark.parametrize("kind", MERGEABLE)
def test_the_local_engine_serves_what_can_be_merged(kind):
    policy = policy_of(kind)
    engine = LocalEngine(policy, slots=4)
    oracle = RecomputeEngine(policy)
    asks = [
        SampleAsk(None, text, 6, frozenset(), (), setting, (1, 2))
        for text in TEXTS
        for setting in (GREEDY, Sampling(temperature=0.9))
    ]
    asks += [LogitsAsk(None, text, hidden) for text in TEXTS for hidden in (False, True)]
    for ask, found, expected in zip(asks, ask_and_wait(asks, engine), ask_and_wait(asks, oracle), strict=True):
        if isinstance(ask, LogitsAsk):
            np.testing.assert_allclose(found, expected, atol=2e-5)
            continue
        assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in expected]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=2e-5)


@pytest.fixture
def packing(monkeypatch):
    """Engines pack the weights of small models, as they do those of large ones."""
    monkeypatch.setattr("evolvent.engine.fused._MAX_COPIED", 0)
    monkeypatch.setattr("evolvent.models.cpu_layers.MIN_PRETRAINED", 1)
    if not packs_weights(torch.zeros(2, 2), 10):
        pytest.skip("needs PyTorch with oneDNN on this processor")


def test_merged_and_packed_weights_are_never_all_there_at_once(monkeypatch, packing):
    policy, held, merged = policy_of("lora", targets=("all-linear",)), list[int](), []
    plain, pack = decoders.plain_model, fused.pack_weight

    def merge(model):
        merged.append(plain(model))
        return merged[-1]

    def watch(weight):
        (model,) = merged
        held.append(sum(part.numel() for name, part in model.named_parameters() if "_proj" in name))
        return pack(weight)

    monkeypatch.setattr(decoders, "plain_model", merge)
    monkeypatch.setattr(fused, "pack_weight", watch)
    engine = LocalEngine(policy, slots=2)
    assert engine._decoder.is_packed
    layers = len(merged[0].model.layers)
    assert held[::4] == [held[0] * left // layers for left in range(layers, -1, -1)], "four packed weights a layer"
    (scored,) = ask_and_wait([ScoreAsk(None, TEXTS[0])], engine)
    np.testing.assert_allclose(scored.logprobs[1:], by_hand(policy, TEXTS[0]), atol=1e-5)


def test_a_decoder_that_differs_leaves_the_next_one_whole_weights(monkeypatch, packing):
    measure = decoders._measure_difference

    def differ(decoder, model, **settings):
        return 1.0 if isinstance(decoder, fused.FusedDecoder) else measure(decoder, model, **settings)

    monkeypatch.setattr(decoders, "_measure_difference", differ)
    policy = policy_of("lora", targets=("all-linear",))
    engine = LocalEngine(policy, slots=2)
    assert isinstance(engine._decoder, decoders.ModuleDecoder)
    (scored,) = ask_and_wait([ScoreAsk(None, TEXTS[0])], engine)
    np.testing.assert_allclose(scored.logprobs[1:], by_hand(policy, TEXTS[0]), atol=1e-5)


def test_an_engine_notices_that_an_adapter_has_learned():
    policy = policy_of("lora")
    engine = LocalEngine(policy, slots=2)
    ask_and_wait([ScoreAsk(None, [7, 8])], engine)
    with torch.no_grad():
        next(weight for weight in policy.model.parameters() if weight.requires_grad).add_(1.0)
    with pytest.raises(WeightsChanged):
        ask_and_wait([ScoreAsk(None, [7, 8])], engine)
    engine.sync(policy.next_version())
    (found,) = ask_and_wait([ScoreAsk(None, TEXTS[0])], engine)
    np.testing.assert_allclose(found.logprobs[1:], by_hand(policy, TEXTS[0]), atol=1e-5)


@pytest.mark.parametrize("kind", VIRTUAL)
def test_virtual_tokens_take_the_engine_that_recomputes(kind):
    policy = policy_of(kind)
    with pytest.raises(ConfigError, match=f"{kind} tuning cannot be merged"):
        LocalEngine(policy)
    verbs = LocalBackend({}, small_config())
    engine = verbs.serve_policy(policy)
    assert isinstance(engine, RecomputeEngine) and engine.context == policy.context == 64 - 3
    assert isinstance(verbs.serve_policy(small_policy()), LocalEngine)
    assert isinstance(verbs.serve_policy(policy), RecomputeEngine)


@pytest.mark.parametrize("kind", VIRTUAL)
def test_a_text_may_fill_what_virtual_tokens_leave(kind):
    policy = policy_of(kind)
    engine = RecomputeEngine(policy)
    full = [7 + number % len(WORDS) for number in range(60)]
    ((last,),) = ask_and_wait([SampleAsk(None, full, 9, frozenset(), (), GREEDY, (0,))], engine)
    assert last.stop == "length" and len(last.ids) == 1
    with pytest.raises(ContextOverflow):
        ask_and_wait([ScoreAsk(None, [*full, 7, 8])], engine)
    (hidden,) = ask_and_wait([LogitsAsk(None, full, True)], engine)
    (logits,) = ask_and_wait([LogitsAsk(None, full)], engine)
    head = policy.model.get_output_embeddings().weight.detach().numpy()
    np.testing.assert_allclose(head @ hidden, logits, atol=1e-5)


def test_origins_tell_adapters_apart(tmp_path: Path):
    verbs = LocalBackend({}, small_config())
    policies = [small_policy(), *(policy_of(kind, moved=0.0) for kind in KINDS), policy_of("lora")]
    origins = [verbs.origin(policy) for policy in policies]
    assert len(set(origins)) == len(origins)
    for number, policy in enumerate(policies):
        verbs.save(policy, tmp_path / str(number))
        again = verbs.load(tmp_path / str(number))
        assert verbs.origin(again) == origins[number]
    assert verbs.origin(merge_adapter(policies[-1])) not in origins
    assert load_policy(tmp_path / "4").context == 64 - 3
