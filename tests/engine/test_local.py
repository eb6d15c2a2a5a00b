"""The local engine against full recomputation: numbers, samples, counts, and what it gives back."""

from __future__ import annotations

import gc
import itertools
from collections import OrderedDict
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from transformers import Qwen3Config

from evolvent.engine.asks import GREEDY, LogitsAsk, SampleAsk, Sampling, ScoreAsk
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.errors import (
    ConfigError,
    ContextOverflow,
    EngineError,
    StaleNode,
    VocabularyMismatch,
    WeightsChanged,
)
from evolvent.models.cpu_layers import packs_weights
from tests.engine.models import CONTEXT, SHAPE, VOCABULARY, Policy, llama, model_of

SETTINGS = (Sampling(), Sampling(temperature=0.7), Sampling(top_k=5), Sampling(top_p=0.8), GREEDY)
CHOICES = ((1, 2, 3), (1, 2, 4, 5), (6, 7))


@pytest.fixture(scope="module")
def policies() -> dict[str, Policy]:
    qwen = Policy(model_of(Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=16)))
    return {"llama": llama(), "qwen3": qwen}


def random_ask(rng: np.random.Generator, nodes: list) -> SampleAsk | ScoreAsk | LogitsAsk:
    """Few different tokens, so that prompts share prefixes and part again."""
    node = nodes[rng.integers(len(nodes))] if nodes and rng.random() < 0.7 else None
    room = CONTEXT - (node.length if node else 0)
    tokens = rng.integers(0, 3, rng.integers(0 if node else 1, 9)).tolist()[: max(0, room - 8)]
    kind = rng.random()
    if kind < 0.15:
        return ScoreAsk(node, tokens or [1])
    if kind < 0.3:
        return LogitsAsk(node, tokens)
    choices = CHOICES if rng.random() < 0.2 else None
    seeds = tuple(int(seed) for seed in rng.integers(0, 1 << 62, rng.integers(1, 4)))
    setting = SETTINGS[rng.integers(len(SETTINGS))]
    stops = frozenset([7, 8]) if rng.random() < 0.5 else frozenset()
    return SampleAsk(node, tokens, int(rng.integers(1, 8)), stops, (), setting, seeds, choices)


def same_answer(ask: SampleAsk | ScoreAsk | LogitsAsk, found: object, oracle: RecomputeEngine) -> None:
    """The same ask, asked with all its tokens at once of the engine that shares nothing."""
    before = ask.node.tokens() if ask.node else []
    whole = [*before, *ask.tokens]
    if isinstance(ask, SampleAsk):
        (expected,) = ask_and_wait(
            [SampleAsk(None, whole, ask.max_tokens, ask.stop_ids, (), ask.sampling, ask.seeds, ask.choices)], oracle
        )
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.ids.tolist() == theirs.ids.tolist() and ours.stop == theirs.stop
            np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=1e-5)
            assert (ours.model_logprobs is None) == (theirs.model_logprobs is None)
            if ours.model_logprobs is not None:
                np.testing.assert_allclose(ours.model_logprobs, theirs.model_logprobs, atol=1e-5)
            assert ours.node.tokens() == theirs.node.tokens() and ours.node.length == len(ours.node.tokens())
    elif isinstance(ask, ScoreAsk):
        (expected,) = ask_and_wait([ScoreAsk(None, whole)], oracle)
        np.testing.assert_allclose(found.logprobs, expected.logprobs[len(before) :], atol=1e-5)
        assert found.node.tokens() == whole
    else:
        (expected,) = ask_and_wait([LogitsAsk(None, whole, ask.hidden)], oracle)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def free_rows(engine: LocalEngine) -> int:
    engine._rows.reap()
    return len(engine._rows._free)


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 8))])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_any_order_of_asks_equals_recomputation(policies: dict[str, Policy], name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cached = (None, 0, 40)[seed % 3]
    engine = LocalEngine(policies[name], slots=int(rng.integers(1, 7)), max_cached_tokens=cached, group_tokens=100)
    oracle = RecomputeEngine(policies[name])
    nodes: list = []
    for _ in range(25):
        asks = [random_ask(rng, nodes) for _ in range(rng.integers(1, 5))]
        with engine.hold([node for node in nodes if rng.random() < 0.2]):
            for ask, found in zip(asks, ask_and_wait(asks, engine), strict=True):
                same_answer(ask, found, oracle)
                if isinstance(ask, SampleAsk):
                    nodes += [each.node for each in found if each.node.length < CONTEXT - 16]
                elif isinstance(ask, ScoreAsk) and found.node.length < CONTEXT - 16:
                    nodes.append(found.node)
        nodes = [node for node in nodes if rng.random() < 0.8]
    assert engine.pending() == 0
    assert engine.usage.forwards > 20
    del asks, ask, found
    nodes.clear()
    gc.collect()
    assert free_rows(engine) == engine._slots
    assert engine._trie.live == 1 and engine._rows.cached == 0
    assert engine._rows.fed.max() <= engine._rows.arena.capacity


@pytest.fixture
def packing(monkeypatch):
    """Engines pack the weights of small models, as they do those of large ones."""
    monkeypatch.setattr("evolvent.engine.fused._MAX_COPIED", 0)
    monkeypatch.setattr("evolvent.models.cpu_layers.MIN_PRETRAINED", 1)
    if not packs_weights(torch.zeros(2, 2), 10):
        pytest.skip("needs PyTorch with oneDNN on this processor")


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_packed_weights_give_the_same_answers_whatever_is_beside(policies, name, packing) -> None:
    rng, engine, oracle = (
        np.random.default_rng(3),
        LocalEngine(policies[name], slots=8),
        RecomputeEngine(policies[name]),
    )
    assert engine._decoder.is_packed
    asks = [random_ask(rng, []) for _ in range(12)]
    for ask, found in zip(asks, ask_and_wait(asks, engine), strict=True):
        same_answer(ask, found, oracle)
    alone = [
        ask_and_wait([SampleAsk(None, [1, 2, 3], 12, seeds=(seed,))], LocalEngine(policies[name], slots=8))[0][0]
        for seed in range(6)
    ]
    (together,) = ask_and_wait([SampleAsk(None, [1, 2, 3], 12, seeds=tuple(range(6)))], engine)
    for one, other in zip(alone, together, strict=True):
        assert one.ids.tolist() == other.ids.tolist() and one.logprobs.tobytes() == other.logprobs.tobytes()


def test_released_memory_is_taken_again_by_the_next_ask(policies, packing) -> None:
    engine, ask = LocalEngine(policies["llama"], slots=4), SampleAsk(None, [1, 2, 3], 6, seeds=(0, 1))
    ((before, _),) = ask_and_wait([ask], engine)
    arena = engine._rows.arena
    assert arena.touched.any() and arena.cache.any()
    engine.release()
    engine.release()
    assert not hasattr(engine, "_decoder"), "copies of the weights"
    assert not (arena.touched.any() or arena.cache.any() or arena.hidden.any()), "pages that were given back are zero"
    with pytest.raises(StaleNode):
        engine.submit(SampleAsk(before.node, [4], 2))
    ((after, _),) = ask_and_wait([ask], engine)
    assert engine._rows.arena is arena and engine._decoder.is_packed
    assert after.ids.tolist() == before.ids.tolist() and after.logprobs.tobytes() == before.logprobs.tobytes()


def test_a_released_engine_does_not_take_changed_weights_for_the_same_version() -> None:
    policy = llama()
    engine = LocalEngine(policy, slots=2)
    ticket = engine.submit(ScoreAsk(None, [1, 2, 3]))
    engine.release()
    (finished,) = engine.poll()
    assert finished.ticket == ticket and isinstance(finished.error, StaleNode)
    with torch.no_grad():
        next(iter(policy.model.parameters())).mul_(1.5)
    engine.submit(ScoreAsk(None, [1, 2, 3]))
    (finished,) = engine.poll()
    assert isinstance(finished.error, WeightsChanged)
    engine.sync(policy)
    (scored,) = ask_and_wait([ScoreAsk(None, [1, 2, 3])], engine)
    (expected,) = ask_and_wait([ScoreAsk(None, [1, 2, 3])], RecomputeEngine(policy))
    np.testing.assert_allclose(scored.logprobs, expected.logprobs, atol=1e-5)


def test_only_rows_that_nobody_refers_to_are_given_back(policies, monkeypatch) -> None:
    engine = LocalEngine(policies["llama"], slots=4)
    ((held,),) = ask_and_wait([SampleAsk(None, [1, 2, 3], 6)], engine)
    ask_and_wait([SampleAsk(None, [5, 6, 7, 8], 6, seeds=(0, 1))], engine)
    touched = engine._rows.arena.touched
    gc.collect()
    engine.release_unused()
    assert np.count_nonzero(touched) == 3, "it is little"
    monkeypatch.setattr("evolvent.engine.local._MIN_RELEASED", 1)
    engine.release_unused()
    assert np.count_nonzero(touched) == 1 and not engine.is_idle
    computed = engine.usage.computed
    ask_and_wait([ScoreAsk(held.node, [4, 5])], engine)
    assert engine.usage.recomputed == 0 and engine.usage.computed <= computed + 3
    del held
    gc.collect()
    assert engine.is_idle
    engine.release_unused()
    assert not touched.any()


@pytest.mark.parametrize("cached", [10_000, 0])
@pytest.mark.parametrize("slots", [1, 3, 16])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_token_is_computed_once(policies: dict[str, Policy], slots: int, seed: int, cached: int) -> None:
    rng = np.random.default_rng(seed)
    engine = LocalEngine(policies["llama"], slots=slots, max_cached_tokens=cached)
    known: set[tuple[int, ...]] = set()
    needed = 0
    nodes: list = []
    keep = []
    for _ in range(25):
        asks = [random_ask(rng, nodes) for _ in range(rng.integers(1, 4))]
        asks = [ask for ask in asks if not isinstance(ask, LogitsAsk)]  # those leave no node behind to keep
        answers = ask_and_wait(asks, engine)
        for ask in asks:
            path = (*(ask.node.tokens() if ask.node else ()), *ask.tokens)
            for end in range(1, len(path) + (not isinstance(ask, ScoreAsk))):
                needed += path[:end] not in known
                known.add(path[:end])
        for ask, answer in zip(asks, answers, strict=True):
            keep.append(answer)
            for each in answer if isinstance(ask, SampleAsk) else ():
                path = tuple(each.node.tokens())
                needed += len(each.ids) - 1  # the last one waits until somebody asks what follows it
                known |= {path[:end] for end in range(1, len(path))}
                nodes += [each.node] if len(path) < CONTEXT - 16 else []
    usage = engine.usage
    assert usage.computed - usage.recomputed == needed
    assert (usage.recomputed == 0) == bool(cached)
    assert usage.generated == sum(len(e.ids) for answer in keep if isinstance(answer, tuple) for e in answer)


def test_dropped_tokens_are_recomputed_and_counted(policies: dict[str, Policy]) -> None:
    engine = LocalEngine(policies["llama"], slots=1, max_cached_tokens=0)
    ((first,),) = ask_and_wait([SampleAsk(None, [1, 2, 3, 4], 3)], engine)
    ((other,),) = ask_and_wait([SampleAsk(None, [9, 8, 7], 3)], engine)
    before = engine.usage.computed
    ask_and_wait([SampleAsk(first.node, [5], 1)], engine)
    assert engine.usage.computed - before == first.node.length + 1
    assert engine.usage.recomputed == first.node.length - 1
    with engine.hold([other.node]):
        ask_and_wait([SampleAsk(first.node, [6], 1)], engine)
    assert other.node.length == 6


def test_the_upper_part_of_what_was_cut_gives_way_too(policies: dict[str, Policy]) -> None:
    """Paths that were moved out, cut, and lost their lower part take no room from what comes later."""
    engine, kept = LocalEngine(policies["llama"], slots=1, max_cached_tokens=24), []

    def moved_out(tokens: list[int], node=None):
        (found,) = ask_and_wait([LogitsAsk(node, tokens, keep=True)], engine)
        ask_and_wait([LogitsAsk(None, [40, 41])], engine)
        return found.node

    for first in range(2):
        (upper,) = ask_and_wait([LogitsAsk(None, [first, *range(2, 11)], keep=True)], engine)
        lower = moved_out([10, 11], upper.node)
        ask_and_wait([LogitsAsk(upper.node, [30]), LogitsAsk(upper.node, [])], engine)  # parts there
        kept.append(upper.node)
        del lower, upper
    node = moved_out([20, *range(2, 11)])
    before = engine.usage.recomputed
    ask_and_wait([LogitsAsk(node, [7])], engine)
    assert engine.usage.recomputed == before and engine._rows.cached <= 24


def test_held_tokens_are_never_recomputed(policies: dict[str, Policy]) -> None:
    engine = LocalEngine(policies["llama"], slots=1, max_cached_tokens=0)
    ((first,),) = ask_and_wait([SampleAsk(None, [1, 2, 3, 4], 3)], engine)
    with engine.hold([first.node]):
        ask_and_wait([SampleAsk(None, [9, 8, 7], 3)], engine)
        before = engine.usage.computed
        ask_and_wait([SampleAsk(first.node, [5], 1)], engine)
    assert engine.usage.computed - before == 2
    assert engine.usage.recomputed == 0


class Counted(OrderedDict):
    """How often something was taken from it."""

    taken = 0

    def popitem(self, last: bool = True):
        self.taken += 1
        return super().popitem(last)


@pytest.mark.parametrize("length", [1, 30])
def test_what_is_held_is_not_looked_through_for_all_that_moves_out(policies: dict[str, Policy], length: int) -> None:
    """Looking costs little beside what moves: quadratic time would show where searches hold thousands of nodes."""
    engine = LocalEngine(policies["llama"], slots=1, max_cached_tokens=64)
    seen = engine._trie.spilled = Counted()

    def node(first: int, second: int):
        (found,) = ask_and_wait([LogitsAsk(None, [first, second] + [7] * length, keep=True)], engine)
        return found.node

    with ExitStack() as holding:
        held = []
        for first, second in itertools.product(range(10), range(10)):
            held.append(node(first, second))
            holding.enter_context(engine.hold(held[-1:]))
        kept = [node(10 + first, second) for first in range(10) for second in range(10)]
        assert seen.taken < 15 * 200, "100 held ones, and 100 that came: each by each would be 10,000 and more"
        before = engine.usage.recomputed
        ask_and_wait([LogitsAsk(one, [3]) for one in held[50:60]], engine)
        assert engine.usage.recomputed == before, "they stayed"
    del kept
    node(30, 31)
    assert engine._rows.cached <= 64, "what nobody holds any more gives way"


def test_segments_that_died_leave_no_trace(policies: dict[str, Policy]) -> None:
    engine = LocalEngine(policies["llama"], slots=1)
    kept = [ask_and_wait([LogitsAsk(None, [first, 2], keep=True)], engine)[0].node for first in range(20)]
    assert len(engine._trie.spilled) == 19
    kept = kept[:5]
    gc.collect()
    assert len(engine._trie.spilled) == 5
    assert {ref().ids[0] for ref in engine._trie.spilled.values()} == {one.tokens()[0] for one in kept}


def test_samples_of_one_prompt_pay_for_it_once(policies: dict[str, Policy]) -> None:
    engine = LocalEngine(policies["llama"], slots=8)
    prompt = list(range(20))
    (samples,) = ask_and_wait([SampleAsk(None, prompt, 4, seeds=tuple(range(8)))], engine)
    assert engine.usage.computed == 20 + 8 * 3
    ask_and_wait([SampleAsk(None, prompt, 1, seeds=(99,)), SampleAsk(None, [*prompt, 3], 1)], engine)
    assert engine.usage.computed == 20 + 8 * 3 + 1
    assert len({tuple(each.ids.tolist()) for each in samples}) > 1


def test_an_output_that_is_kept_has_its_node(policies: dict[str, Policy]) -> None:
    path = [*range(20), 3]
    for engine in (LocalEngine(policies["llama"], slots=4), RecomputeEngine(policies["llama"])):
        plain, state = ask_and_wait([LogitsAsk(None, path), LogitsAsk(None, path, hidden=True)], engine)
        kept, inner, short = ask_and_wait(
            [
                LogitsAsk(None, path, keep=True),
                LogitsAsk(None, path, hidden=True, keep=True),
                LogitsAsk(None, path[:9], keep=True),
            ],
            engine,
        )
        np.testing.assert_allclose(kept.values, plain, atol=1e-5)
        np.testing.assert_allclose(inner.values, state, atol=1e-5)
        assert [kept.node.tokens(), inner.node.tokens(), short.node.tokens()] == [path, path, path[:9]]
        computed = engine.usage.computed
        ask_and_wait([LogitsAsk(kept.node, [5])], engine)
        assert engine.usage.computed - computed == (1 if isinstance(engine, LocalEngine) else len(path) + 1)


@pytest.mark.parametrize("greedy", [True, False])
def test_results_do_not_depend_on_the_number_of_slots(greedy: bool) -> None:
    policy = llama(keys=4)
    results = []
    for slots in (1, 8, 60, 180):
        engine = LocalEngine(policy, slots=slots)
        rng = np.random.default_rng(0)
        prompts = [rng.integers(0, VOCABULARY, rng.integers(5, 20)).tolist() for _ in range(60)]
        setting = GREEDY if greedy else Sampling()
        first = ask_and_wait(
            [SampleAsk(None, p, 6, frozenset([3]), (), setting, (i,)) for i, p in enumerate(prompts)], engine
        )
        asks = [SampleAsk(c.node, [5, 6, i % 50], 6, frozenset([3]), (), setting, (i,)) for i, (c,) in enumerate(first)]
        results.append([*first, *ask_and_wait(asks, engine)])
    for other in results[1:]:
        for (one,), (two,) in zip(results[0], other, strict=True):
            assert one.ids.tolist() == two.ids.tolist()
            np.testing.assert_allclose(one.logprobs, two.logprobs, atol=1e-6)


def test_greedy_samples_have_their_log_probabilities_at_temperature_one(policies: dict[str, Policy]) -> None:
    """Under a constraint too, and next to a sampled row; those of the distribution that was sampled from are 0."""
    engine = LocalEngine(policies["llama"], slots=4)
    choices = ((5, 6), (7,))
    (greedy,), (sampled,), (chosen,) = ask_and_wait(
        [
            SampleAsk(None, [1, 2, 3], 6, frozenset(), (), GREEDY, (0,)),
            SampleAsk(None, [1, 2, 3], 6, frozenset(), (), Sampling(), (0,)),
            SampleAsk(None, [1, 2, 3], 6, frozenset(), (), GREEDY, (0,), choices),
        ],
        engine,
    )
    for continuation in (greedy, chosen):
        (score,) = ask_and_wait([ScoreAsk(None, [1, 2, 3, *continuation.ids.tolist()])], engine)
        np.testing.assert_allclose(continuation.model_logprobs, score.logprobs[3:], atol=1e-5)
        assert not continuation.logprobs.any() and (continuation.model_logprobs < 0).all()
    assert sampled.model_logprobs is None and sampled.pad_model_logprobs(3) is None
    assert greedy.pad_model_logprobs(3).tolist() == [0, 0, 0, *greedy.model_logprobs.tolist()]


def test_a_policy_without_room_queues_and_goes_on(policies: dict[str, Policy]) -> None:
    engine = LocalEngine(policies["llama"], slots=2)
    asks = [SampleAsk(None, [index], 5, seeds=(index,)) for index in range(9)]
    tickets = [engine.submit(ask) for ask in asks]
    assert engine.pending() == 9
    order = []
    while engine.pending():
        order += [finished.ticket for finished in engine.poll()]
    assert order == tickets
    assert engine.poll() == ()


def test_context(policies: dict[str, Policy]) -> None:
    engine = LocalEngine(policies["llama"], slots=2)
    with pytest.raises(ContextOverflow, match="64 tokens"):
        engine.submit(SampleAsk(None, [1] * CONTEXT, 1))
    with pytest.raises(ContextOverflow, match="65 tokens"):
        engine.submit(ScoreAsk(None, [1] * (CONTEXT + 1)))
    ((short,),) = ask_and_wait([SampleAsk(None, [1] * (CONTEXT - 3), 100)], engine)
    assert len(short.ids) == 3 and short.stop == "length"
    with pytest.raises(ContextOverflow):
        engine.submit(SampleAsk(short.node, [], 1))
    assert ask_and_wait([ScoreAsk(None, [1] * CONTEXT)], engine)[0].node.length == CONTEXT


def test_bad_asks_are_refused_at_once(policies: dict[str, Policy]) -> None:
    engine, other = LocalEngine(policies["llama"], slots=2), LocalEngine(policies["llama"], slots=2)
    ((sample,),) = ask_and_wait([SampleAsk(None, [1], 2)], engine)
    with pytest.raises(StaleNode):
        other.submit(SampleAsk(sample.node, [], 1))
    with pytest.raises(VocabularyMismatch, match="50"):
        engine.submit(SampleAsk(None, [1, VOCABULARY], 1))
    with pytest.raises(ConfigError):
        engine.submit(SampleAsk(None, [], 1))
    with pytest.raises(ConfigError):
        engine.submit(SampleAsk(None, [1], 0))
    with pytest.raises(ConfigError, match="is a prefix of another"):
        engine.submit(SampleAsk(None, [1], 3, choices=((1,), (1, 2))))
    with pytest.raises(ConfigError):
        LocalEngine(policies["llama"], slots=0)
    assert engine.pending() == 0


def test_sync_makes_nodes_stale_and_uses_the_new_weights() -> None:
    policy = llama()
    engine = LocalEngine(policy, slots=2)
    ((sample,),) = ask_and_wait([SampleAsk(None, [1, 2], 2)], engine)
    ticket = engine.submit(SampleAsk(None, [3], 4))
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(2.0)
    newer = Policy(policy.model, version=1)
    engine.sync(newer)
    (finished,) = engine.poll()
    assert finished.ticket == ticket and isinstance(finished.error, StaleNode)
    with pytest.raises(StaleNode, match="version 1"):
        engine.submit(SampleAsk(sample.node, [], 1))
    ask = LogitsAsk(None, [1, 2, 3])
    same_answer(ask, ask_and_wait([ask], engine)[0], RecomputeEngine(newer))
    assert engine.version == 1


def test_weights_changed_behind_its_back_are_noticed() -> None:
    policy = llama()
    engine = LocalEngine(policy, slots=2)
    engine.submit(SampleAsk(None, [1, 2], 5))
    engine.poll()
    with torch.no_grad():
        policy.model.model.norm.weight.add_(0.1)
    (finished,) = engine.poll()
    assert isinstance(finished.error, WeightsChanged)
    engine.sync(policy)
    assert ask_and_wait([LogitsAsk(None, [1])], engine)[0].shape == (VOCABULARY,)
    assert free_rows(engine) == 2


def test_a_row_that_is_not_finite_fails_alone() -> None:
    policy = llama()
    with torch.no_grad():
        policy.model.model.embed_tokens.weight[9] = torch.nan
    engine = LocalEngine(policy, slots=3)
    fine = SampleAsk(None, [1, 2], 4, stop_ids=frozenset([9]))
    asks = [fine, SampleAsk(None, [9], 4, seeds=(1, 2)), ScoreAsk(None, [9, 1]), LogitsAsk(None, [9])]
    tickets = [engine.submit(ask) for ask in asks]
    found = {}
    while engine.pending():
        found |= {finished.ticket: finished for finished in engine.poll()}
    assert found[tickets[0]].error is None
    assert all(isinstance(found[ticket].error, EngineError) for ticket in tickets[1:])
    gc.collect()
    same_answer(fine, found[tickets[0]].answer, RecomputeEngine(llama()))
    del found
    assert free_rows(engine) == 3
    for _ in range(3):
        ask = SampleAsk(None, [4, 5, 6], 3, seeds=(1, 2, 3), stop_ids=frozenset([9]))
        same_answer(ask, ask_and_wait([ask], engine)[0], RecomputeEngine(llama()))


def test_stop_strings_and_stop_ids() -> None:
    policy = llama()
    engine = LocalEngine(policy, slots=2)
    ((free,),) = ask_and_wait([SampleAsk(None, [1, 2, 3], 12, seeds=(4,))], engine)
    text = policy.tokenizer.decode(free.ids.tolist())
    ((cut,),) = ask_and_wait([SampleAsk(None, [1, 2, 3], 12, stop_strings=(text[2:4],), seeds=(4,))], engine)
    assert policy.tokenizer.decode(cut.ids.tolist()) == text[: text.index(text[2:4]) + 2] and cut.stop == "stop"
    stop = int(free.ids[5])
    ((cut,),) = ask_and_wait([SampleAsk(None, [1, 2, 3], 12, frozenset([stop]), seeds=(4,))], engine)
    assert cut.ids.tolist() == free.ids.tolist()[: free.ids.tolist().index(stop) + 1] and cut.stop == "stop"
    assert free.stop == "length"


def test_choices_end_with_a_choice(policies: dict[str, Policy]) -> None:
    engine = LocalEngine(policies["llama"], slots=4)
    (samples,) = ask_and_wait([SampleAsk(None, [1], 9, seeds=tuple(range(200)), choices=CHOICES)], engine)
    found = {tuple(each.ids.tolist()) for each in samples}
    assert found == set(CHOICES)
    assert {each.stop for each in samples} == {"choice"}
    total = sum(float(np.exp(next(s for s in samples if tuple(s.ids.tolist()) == c).logprobs.sum())) for c in CHOICES)
    assert total == pytest.approx(1, abs=1e-5)  # log-probabilities are of the limited distribution


@pytest.mark.parametrize("engine", [LocalEngine, RecomputeEngine])
def test_a_choice_with_a_stop_token_inside_is_cut_where_its_room_ends(policies: dict[str, Policy], engine) -> None:
    choices, stop = ((5, 7, 6), (5, 7, 8)), frozenset([7])
    full = [1] * (CONTEXT - 2)
    asks = [
        SampleAsk(None, [1], 2, stop, choices=choices),
        SampleAsk(None, full, 9, stop, choices=choices),
        SampleAsk(None, [1], 3, stop, choices=choices),
    ]
    (short,), (last,), (whole,) = ask_and_wait(asks, engine(policies["llama"]))
    assert [(one.ids.tolist(), one.stop) for one in (short, last)] == [([5, 7], "length")] * 2
    assert whole.stop == "choice" and tuple(whole.ids.tolist()) in choices and last.node.length == CONTEXT
