"""What tree search costs: computed tokens over the limit, and expansions per CPU-second, beside two other ways.

    python -m benchmarks.search_cost [--json] [--quick] [--save]

A policy and a model that judges (a value head on its hidden states) are equal random Llamas: width 128, 4 layers, 8
heads over 2 of keys and values, float32, sdpa, one thread. Spans have 8 tokens: no token and no text ends them. `beam`
expands 4 nodes of width 4 at once; `descend` is MCTS with 4 paths, one leaf at a time; `commit` is MCTS with 10
simulations before each move; `token` is the same over single tokens, the 4 likeliest. Prompts have 64, 256 or 512
tokens, trees are 8 to 64 actions deep.

The limit of a search over P tokens of prompt with E expansions of W children of T tokens is L = 2 (P + W T E): each
token of the tree once in each model. Ours is counted by the engines (`Usage`), by a hook on their forwards and by the
search itself; the three must agree. Peers (`benchmarks.search_cost_peers`) replay the expansions of the same trees with
transformers' own models: `reprefill` feeds the whole path anew at each expansion, as the published code does, and
`path_copied` copies a cache for each node. They spend nothing on deciding or on text. What they compute for each child
must be what the search was told. Sides take turns on the same prompts; times are CPU seconds of the process, ratios are
medians of the ratios of each turn.

`x_batching`: CPU time of 16 problems one after another over 16 together. `mcts_over_bon_cpu`: CPU time of MCTS over
that of best-of-n, each for one computed token, 16 problems together; the worst of `descend` and `commit` at both ends
of the prefixes. The table has it for one problem alone too, and `leaves`: `commit` with 4 leaves at once. Shapes that
would take long to feed anew are not replayed whole by `reprefill`: evenly spaced expansions stand for all, in
proportion to the tokens fed.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.reporting import RESULTS, about, command_line, finish
from benchmarks.search_cost_peers import PathCopied, Peer, Reprefill, differences, refed, rounds_of
from evolvent.engine.arena import Arena
from evolvent.engine.driver import MultiModelEngine, run_jobs
from evolvent.engine.fused import FusedDecoder
from evolvent.engine.local import LocalEngine
from evolvent.engine.streams import Plan
from evolvent.models.heads import ValueHead, fresh_head
from evolvent.reward.process import SpanScorer, TagIds
from evolvent.reward.values import ValueScorer
from evolvent.search.beam import beam
from evolvent.search.mcts import Commit, Descend, mcts
from evolvent.search.records import Budget, SearchResult
from evolvent.search.samples import best_of_n
from evolvent.search.scorers import Scorer
from evolvent.search.texts import search_text
from evolvent.search.writing import Writing, begin_text

RESULT = RESULTS / "search_cost.json"
WIDTH, SPAN, TOGETHER, SIMULATIONS = 4, 8, 16, 10
SEARCHES: dict[str, Callable[..., Any]] = {
    "beam": partial(beam, width=WIDTH, keep=4),
    "descend": partial(mcts, width=WIDTH, start=Descend(paths=4)),
    "commit": partial(mcts, width=WIDTH, start=Commit(SIMULATIONS)),
    "token": partial(mcts, width=WIDTH, start=Commit(SIMULATIONS)),
    "leaves": partial(mcts, width=WIDTH, start=Commit(SIMULATIONS), leaves=4),
}
PEERS: dict[str, type[Peer]] = {"reprefill": Reprefill, "path_copied": PathCopied}
GOALS = {
    "computed_over_limit_max": 1.0,
    "x_reprefill_d8": 25.0,
    "x_reprefill_d64": 50.0,
    "x_path_copy": 1.0,
    "x_batching": 3.0,
    "mcts_over_bon_cpu": 1.5,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One shape of search."""

    search: str
    prefix: int
    depth: int

    @property
    def span(self) -> int:
        return 1 if self.search == "token" else SPAN

    def limit(self, expansions: int) -> int:
        """L: each token of the tree once in each of the two models."""
        return 2 * (self.prefix + WIDTH * self.span * expansions)


@dataclass(frozen=True)
class Given:
    """What an engine needs of a policy."""

    model: Any
    context: int
    version: int = 0
    tokenizer: Any = None


@dataclass(frozen=True)
class Models:
    """The two models, and what values are read with."""

    policy: Given
    judge: Given
    head: ValueHead


def models_of(config: LlamaConfig, *, seed: int) -> Models:
    """Two random models of one shape, and a head whose values differ."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = [AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval() for _ in range(2)]
        head = fresh_head(config.hidden_size, seed=seed)
        torch.nn.init.normal_(head.outer.weight, std=config.hidden_size**-0.5)
    policy, judge = (Given(model, config.max_position_embeddings) for model in made)
    return Models(policy, judge, head)


def shape(**changes: Any) -> LlamaConfig:
    """The models of the benchmark."""
    usual = {
        "vocab_size": 1000,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1040,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return LlamaConfig(**(usual | changes))


@dataclass(frozen=True, slots=True)
class Played:
    """Searches that ran together: results, CPU seconds, and tokens by `Usage`, by the hook and by the searches."""

    results: tuple[SearchResult, ...]
    seconds: float
    usage: int
    hook: int
    told: int


class Ours:
    """Searches over the two engines' tries.

    Args:
        slots: rows of each engine; more than 16 beams ask for at once.
    """

    def __init__(self, models: Models, *, slots: int = 384) -> None:
        self.models = models
        self.engine = MultiModelEngine(
            {
                name: LocalEngine(given, slots=slots)
                for name, given in (("policy", models.policy), ("judge", models.judge))
            }
        )

    def play(
        self,
        cell: Cell,
        problems: Sequence[int],
        *,
        search: Callable[..., Any] | None = None,
        scorer: Scorer | None = None,
    ) -> Played:
        """Search all these problems together; a problem's number makes its prompt and its random numbers.

        Numbers are to be new ones each time: engines remember prompts as long as somebody holds them.
        """
        begin = search or partial(SEARCHES[cell.search], depth=cell.depth)
        scorers = [scorer or ValueScorer(self.models.head, model="judge") for _ in problems]
        works = [self._work(cell, problem, begin, scorer=own) for problem, own in zip(problems, scorers, strict=True)]
        usage = self.engine.usage.computed
        with recount() as hook:
            began = time.process_time()
            done = list(run_jobs(works, self.engine, slots=len(works)))
            seconds = time.process_time() - began
        results = [one.value for one in sorted(done, key=lambda one: one.index) if one.value is not None]
        if len(results) < len(works):
            raise next(one.error for one in done if one.error is not None)
        told = sum(result.spent.computed for result in results)
        return Played(tuple(results), seconds, self.engine.usage.computed - usage, hook[0], told)

    def _work(self, cell: Cell, problem: int, begin: Callable[..., Any], *, scorer: Scorer) -> Any:
        rng = np.random.default_rng(problem)
        vocabulary, context = self.models.policy.model.config.vocab_size, self.models.policy.context
        prompt = rng.integers(0, vocabulary, cell.prefix)
        prompt[0] = problem % vocabulary  # no two problems share a beginning
        root = begin_text(prompt.tolist(), seed=problem)
        writing = Writing(
            lambda ids: " ".join(map(str, ids)),
            frozenset(),
            context,
            cell.depth * cell.span,
            span_tokens=SPAN,
            level="token" if cell.search == "token" else "span",
            separators=(),
        )
        return search_text(begin(root, Budget(), rng), writing=writing, scorer=scorer)


@contextmanager
def recount() -> Iterator[list[int]]:
    """Counts the tokens that go through a fused forward while open, whichever engine's it is."""
    counts, forward = [0], FusedDecoder.forward

    def counted(self: FusedDecoder, ids: torch.Tensor, plan: Plan, arena: Arena) -> None:
        counts[0] += len(ids)
        forward(self, ids, plan, arena)

    FusedDecoder.forward = counted  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        FusedDecoder.forward = forward  # type: ignore[method-assign]


# ------------------------------------------------------------------ one shape, all sides


@dataclass(frozen=True, slots=True)
class Turn:
    """What a turn has measured: expansions, tokens over the limit, CPU seconds by side."""

    expansions: int
    over_limit: float
    agree: bool  # the three counts
    seconds: dict[str, float]
    peers_over_limit: dict[str, float]
    difference: float


def turn(ours: Ours, cell: Cell, problem: int, *, replayed: dict[str, int]) -> Turn:
    """One search, and peers on its expansions.

    Args:
        replayed: by peer, how many expansions at most; where there are more, evenly spaced ones stand for all.
    """
    played = ours.play(cell, [problem])
    result = played.results[0]
    limit = cell.limit(result.spent.expansions)
    rounds = rounds_of(result, together=cell.search == "beam", listed=cell.search == "token")
    seconds, over, worst = {"ours": played.seconds}, {}, 0.0
    for name, most in replayed.items():
        chosen = rounds
        if name == "reprefill":
            single = [[opened] for group in rounds for opened in group]
            count = min(most, len(single))
            chosen = [single[int((at + 0.5) * len(single) / count)] for at in range(count)]
        peer = PEERS[name](ours.models.policy.model, ours.models.judge.model, ours.models.head)
        began = time.process_time()
        told = peer.replay(chosen)
        took = time.process_time() - began
        fed = peer.fed if chosen is rounds else refed(rounds)
        seconds[name], over[name] = took * fed / peer.fed, fed / limit
        worst = max(worst, differences(result, told))
    agree = played.usage == played.hook == played.told
    return Turn(result.spent.expansions, played.usage / limit, agree, seconds, over, worst)


def row_of(cell: Cell, turns: Sequence[Turn]) -> dict[str, Any]:
    """A line of the table: medians over the turns, ratios turn by turn."""
    row: dict[str, Any] = {**asdict(cell), "expansions": [each.expansions for each in turns]}
    row["computed_over_limit"] = round(max(each.over_limit for each in turns), 4)
    row["counts_agree"] = all(each.agree for each in turns)
    for side in turns[0].seconds:
        rates = [each.expansions / each.seconds[side] for each in turns]
        row[f"{side}_per_cpu_s"] = round(statistics.median(rates), 2)
        if side != "ours":
            row[f"x_{side}"] = round(statistics.median(t.seconds[side] / t.seconds["ours"] for t in turns), 2)
            row[f"{side}_over_limit"] = round(max(each.peers_over_limit[side] for each in turns), 2)
    row["largest_difference"] = max(each.difference for each in turns)
    return row


# ------------------------------------------------------------------ many problems; best-of-n


def batching(ours: Ours, cell: Cell, numbers: Iterator[int], *, turns: int) -> dict[str, Any]:
    """CPU seconds of an expansion, one problem after another and all together, and how many times less."""
    ratios, together, alone = [], [], []
    for _ in range(turns):
        singles = [ours.play(cell, [next(numbers)]) for _ in range(TOGETHER)]
        alone.append(_each(singles))
        together.append(_each([ours.play(cell, [next(numbers) for _ in range(TOGETHER)])]))
        ratios.append(alone[-1] / together[-1])
    return {
        **asdict(cell),
        "alone_ms": round(1e3 * statistics.median(alone), 2),
        "together_ms": round(1e3 * statistics.median(together), 2),
        "x_batching": round(statistics.median(ratios), 2),
    }


def _each(played: Sequence[Played]) -> float:
    expansions = sum(result.spent.expansions for one in played for result in one.results)
    return sum(one.seconds for one in played) / expansions


def beside_best_of_n(ours: Ours, cell: Cell, numbers: Iterator[int], *, together: int, turns: int) -> dict[str, Any]:
    """CPU time of a search for each computed token over that of best-of-n with as nearly as possible as many tokens."""
    ratios, n, computed = [], 0, []
    for _ in range(turns):
        tree = ours.play(cell, [next(numbers) for _ in range(together)])
        n = max(1, round((tree.told / together / 2 - cell.prefix) / (cell.depth * cell.span)))
        flat = ours.play(cell, [next(numbers) for _ in range(together)], search=partial(best_of_n, n=n))
        ratios.append(tree.seconds / tree.told / (flat.seconds / flat.told))
        computed += [tree.told // together, flat.told // together]
    return {
        **asdict(cell),
        "together": together,
        "n": n,
        "computed": computed[-2:],
        "ratio": round(statistics.median(ratios), 2),
    }


def tagged(ours: Ours, cell: Cell, number: int) -> float:
    """The same count for a judge that reads a tag behind every span: it is one more token of each child, for it."""
    played = ours.play(cell, [number], scorer=SpanScorer(TagIds(997, 998, 999), "judge"))
    expansions = played.results[0].spent.expansions
    return played.usage / (cell.limit(expansions) + WIDTH * expansions)


# ------------------------------------------------------------------ the report


def cells_of(*, quick: bool) -> list[Cell]:
    """All shapes."""
    prefixes, depths = ((64, 512), (8,)) if quick else ((64, 256, 512), (8, 64))
    spans = [
        Cell(search, prefix, depth)
        for depth in depths
        for prefix in prefixes
        for search in ("beam", "descend", "commit")
    ]
    return spans + [Cell("token", prefix, 16 if quick else 64) for prefix in prefixes]


def measured(ours: Ours, numbers: Iterator[int], *, quick: bool) -> list[dict[str, Any]]:
    """The table. Beams at the longest prefix have several turns; peers are spared the middle one in deep trees."""
    rows = []
    for cell in cells_of(quick=quick):
        headline = cell.search == "beam" and cell.prefix == 512
        count = (2 if quick or cell.depth > 8 else 3) if headline else 1
        replayed = {"reprefill": 32 if headline else 12, "path_copied": 0}
        if (cell.prefix, cell.depth) == (256, 64):
            replayed = {}
        turns = [turn(ours, cell, next(numbers), replayed=replayed) for _ in range(count)]
        rows.append(row_of(cell, turns))
        shown = {name: value for name, value in rows[-1].items() if name not in asdict(cell)}
        print(
            f"{cell.search:8} P {cell.prefix:3} D {cell.depth:2}  "
            + "  ".join(f"{name} {value}" for name, value in shown.items()),
            flush=True,
        )
    return rows


def report(*, quick: bool, seed: int) -> dict[str, Any]:
    """Everything measured and derived."""
    ours, numbers = Ours(models_of(shape(), seed=seed)), itertools.count(1)
    for name in ("beam", "token"):  # warms up
        turn(ours, Cell(name, 64, 2), next(numbers), replayed=dict.fromkeys(PEERS, 2))
    rows = measured(ours, numbers, quick=quick)
    prefix, turns = (64, 1) if quick else (512, 2)
    batched = [batching(ours, Cell("beam", prefix, 8), numbers, turns=turns)]
    others = [Cell("descend", prefix, 8), Cell("commit", prefix, 8), Cell("token", 64, 16)]
    batched += [batching(ours, cell, numbers, turns=1) for cell in ([] if quick else others)]
    flat = [
        beside_best_of_n(ours, Cell(search, length, 8), numbers, together=count, turns=turns)
        for length in ((64,) if quick else (64, 512))
        for search in ("descend", "commit", "leaves")
        for count in (TOGETHER, 1)
    ]
    beams = {row["depth"]: row for row in rows if row["search"] == "beam" and row["prefix"] == 512}
    return {
        "benchmark": "search_cost",
        "unit": "CPU seconds, one thread",
        "goals": GOALS,
        "computed_over_limit_max": max(row["computed_over_limit"] for row in rows),
        "x_reprefill_d8": beams[8]["x_reprefill"],
        "x_reprefill_d64": beams[64]["x_reprefill"] if 64 in beams else None,
        "x_path_copy": min(row["x_path_copied"] for row in beams.values()),
        "x_batching": batched[0]["x_batching"],
        "mcts_over_bon_cpu": max(
            row["ratio"] for row in flat if row["together"] == TOGETHER and row["search"] != "leaves"
        ),
        "counts_agree": all(row["counts_agree"] for row in rows),
        "tagged_over_limit": round(tagged(ours, Cell("beam", 64, 8), next(numbers)), 4),
        "cells": rows,
        "batching": batched,
        "best_of_n": flat,
        "quick": quick,
        "seed": seed,
        **about("torch", "transformers", "numpy", threads=1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("search_cost", __doc__, quick="few shapes, shallow trees: about a minute", save=RESULT)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    result = report(quick=options.quick, seed=options.seed)
    for row in (*result["batching"], *result["best_of_n"]):
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    for name, goal in GOALS.items():
        print(f"{name:24} {result[name]}   goal {goal:g}")
    finish(result, options)


if __name__ == "__main__":
    main()
