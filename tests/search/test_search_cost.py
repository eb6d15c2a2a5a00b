"""What tree search computes, to the token: `benchmarks.search_cost` on small models, and that its peers do the same."""

from __future__ import annotations

import itertools

import pytest
import torch

from benchmarks.search_cost import WIDTH, Cell, Models, Ours, Turn, models_of, row_of, shape, tagged
from benchmarks.search_cost_peers import Opened, PathCopied, Reprefill, differences, refed, rounds_of
from evolvent.engine.driver import MultiModelEngine
from evolvent.engine.local import LocalEngine
from evolvent.search.records import SearchResult

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 112,
}
CELLS = [
    Cell("beam", 3, 4),
    Cell("beam", 40, 9),
    Cell("descend", 40, 4),
    Cell("commit", 40, 4),
    Cell("leaves", 40, 4),
    Cell("token", 40, 12),
]
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def models() -> Models:
    return models_of(shape(**SMALL), seed=0)


@pytest.fixture(scope="module")
def ours(models) -> Ours:
    return Ours(models, slots=64)


def texts(result: SearchResult) -> list[tuple[int, ...]]:
    return [(*state.prompt, *state.written) for state in result.tree.states]


def fed(result: SearchResult) -> tuple[int, int]:
    """What each model has to be fed for a tree, counted from the tree alone: (policy, judge)."""
    tree, paths = result.tree, texts(result)
    judged = {path[:end] for path in paths[1:] for end in range(1, len(path) + 1)}
    inner = [node for node in range(1, len(tree)) if tree.is_expanded(node)]
    drawn = sum(
        len(tree.states[node].written) - len(tree.states[int(tree.parent[node])].written) - 1
        for node in range(1, len(tree))
    )  # the last token of a child is fed when the child is expanded
    return len(paths[0]) + drawn + len(inner), len(judged)


# ------------------------------------------------------------------ the counts


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_each_token_of_the_tree_is_computed_once_in_each_model(ours, cell):
    before = [ours.engine.engine_of(name).usage.computed for name in ("policy", "judge")]
    played = ours.play(cell, [next(numbers)])
    (result,) = played.results
    after = [ours.engine.engine_of(name).usage.computed for name in ("policy", "judge")]
    expansions = sum(result.tree.is_expanded(node) for node in range(len(result.tree)))
    assert expansions == result.spent.expansions > cell.depth - 1
    assert all(
        len(opened.tokens) == WIDTH for group in rounds_of(result, together=False, listed=False) for opened in group
    )
    assert tuple(new - old for new, old in zip(after, before, strict=True)) == fed(result)
    assert played.usage == played.hook == played.told == sum(fed(result))
    assert 0.5 < played.usage / cell.limit(expansions) <= 1
    assert ours.engine.usage.recomputed == 0


def test_spans_have_their_length_and_searches_come_to_their_ends(ours):
    for cell in CELLS:
        (result,) = ours.play(cell, [next(numbers)]).results
        assert all(len(state.written) % cell.span == 0 for state in result.tree.states)
        assert len(result.tree.states[result.best_node].written) == cell.depth * cell.span
        assert result.ended_by == "done" and len(result.finished) == {"beam": 4, "descend": 4}.get(cell.search, 1)


def test_problems_that_run_together_compute_what_each_computes_alone(ours):
    for cell in (Cell("beam", 40, 3), Cell("commit", 40, 3), Cell("token", 40, 5)):
        chosen = [next(numbers) for _ in range(3)]
        together = ours.play(cell, chosen)
        assert together.usage == together.hook == together.told == sum(sum(fed(one)) for one in together.results)
        paths = [texts(result) for result in together.results]
        del together  # what is held elsewhere would not be computed again
        alone = [ours.play(cell, [number]) for number in chosen]
        assert [texts(one.results[0]) for one in alone] == paths


def test_rows_that_are_too_few_are_told_by_all_counts(models):
    tight = Ours(models)
    tight.engine = MultiModelEngine(
        {
            name: LocalEngine(given, slots=2, max_cached_tokens=1)
            for name, given in (("policy", models.policy), ("judge", models.judge))
        }
    )
    played = tight.play(Cell("beam", 40, 3), [1])
    usage = tight.engine.usage
    assert usage.recomputed > 0 and played.usage == played.hook == played.told + usage.recomputed


def test_a_tag_behind_a_span_is_one_more_token_of_each_child_for_the_judge(ours):
    number = next(numbers)
    plain, with_tags = Cell("beam", 40, 4), tagged(ours, Cell("beam", 40, 4), number)
    assert 0.9 < with_tags <= 1
    expansions = 1 + 4 * 3
    counted = with_tags * (plain.limit(expansions) + WIDTH * expansions)
    assert counted == pytest.approx(2 * 40 + WIDTH * 16 * expansions + (expansions - 1), abs=3)  # equal first tokens


def test_a_hook_on_the_model_itself_counts_the_same():
    models = models_of(shape(**SMALL, hidden_act="gelu"), seed=0)  # not of the fused family: it runs its own forward
    ours, seen = Ours(models, slots=32), {"policy": 0, "judge": 0}
    for name, given in (("policy", models.policy), ("judge", models.judge)):

        def count(module, arguments, named, name=name):
            seen[name] += named["input_ids"].numel()

        given.model.model.register_forward_pre_hook(count, with_kwargs=True)
    for cell in (Cell("beam", 40, 4), Cell("descend", 40, 4), Cell("token", 40, 6)):
        before = dict(seen)
        usages = {
            name: (ours.engine.engine_of(name).usage.computed, ours.engine.engine_of(name).usage.padded)
            for name in seen
        }
        played = ours.play(cell, [next(numbers)])
        for name in seen:
            usage, (computed, padded) = ours.engine.engine_of(name).usage, usages[name]
            assert seen[name] - before[name] == usage.computed - computed + usage.padded - padded > 0
        assert played.hook == 0 and played.usage == played.told <= cell.limit(played.results[0].spent.expansions)


# ------------------------------------------------------------------ the peers


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_peers_compute_the_same_tree(ours, models, cell):
    (result,) = ours.play(cell, [next(numbers)]).results
    rounds = rounds_of(result, together=cell.search == "beam", listed=cell.search == "token")
    limit = cell.limit(result.spent.expansions)
    for kind, most in ((Reprefill, 100.0), (PathCopied, 1.0)):
        peer = kind(models.policy.model, models.judge.model, models.head)
        told = peer.replay(rounds)
        assert sorted(told.values) == sorted(told.logprobs) == list(range(1, len(result.tree)))
        assert differences(result, told) < 1e-5
        assert sum(fed(result)) <= peer.fed <= most * limit
        if kind is Reprefill:
            assert peer.fed == refed(rounds) > limit
    told.values[1] += 0.01
    assert differences(result, told) > 0.009


def test_the_tokens_that_the_published_code_feeds():
    path = tuple(range(10))
    sampled = Opened(0, path, (1, 2), ((1, 2, 3), (4, 5, 6)), (False, False), False)
    assert refed([[sampled]]) == 2 * (10 + 2) + 2 * (10 + 3)
    listed = Opened(0, path, (1, 2), ((1,), (4,)), (False, False), True)
    assert refed([[listed], [sampled]]) == 10 + 2 * 11 + 50


def test_path_copied_lets_go_of_what_nobody_goes_on_from(ours, models):
    (result,) = ours.play(Cell("commit", 40, 4), [next(numbers)]).results
    peer = PathCopied(models.policy.model, models.judge.model, models.head)
    peer.replay(rounds_of(result, together=False, listed=False))
    assert not peer._written and not peer._judged


# ------------------------------------------------------------------ the figures


def test_a_line_of_the_table_takes_medians_of_ratios_and_the_worst_of_counts():
    turns = [
        Turn(10, 0.9, True, {"ours": 1.0, "reprefill": 8.0}, {"reprefill": 20.0}, 1e-7),
        Turn(10, 0.95, True, {"ours": 2.0, "reprefill": 40.0}, {"reprefill": 22.0}, 3e-7),
        Turn(20, 0.8, False, {"ours": 2.0, "reprefill": 18.0}, {"reprefill": 21.0}, 2e-7),
    ]
    row = row_of(Cell("beam", 512, 8), turns)
    assert row["computed_over_limit"] == 0.95 and row["counts_agree"] is False
    assert row["x_reprefill"] == 9.0 and row["reprefill_over_limit"] == 22.0
    assert row["ours_per_cpu_s"] == 10.0 and row["reprefill_per_cpu_s"] == 1.11
    assert row["largest_difference"] == 3e-7


def test_models_are_what_they_are_said_to_be(models):
    config = shape()
    assert (config.hidden_size, config.num_hidden_layers) == (128, 4)
    assert config.num_key_value_heads < config.num_attention_heads
    first, second = (given.model.lm_head.weight for given in (models.policy, models.judge))
    assert first.shape == second.shape and not torch.equal(first, second)
    assert models.policy.model.config._attn_implementation == "sdpa"
    assert models.head.outer.weight.abs().sum() > 0
