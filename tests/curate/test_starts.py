"""Cuts of demonstrations by hand, frequencies of the curricula, and AdaBack's bounds against a simulated learner."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.curate.starts import Reveal, cut_points, mix_starts, reveal_starts, stage_starts, update_reveals
from evolvent.errors import ConfigError
from evolvent.models.dialects import Lines, dialect_for
from evolvent.models.tiny import word_tokenizer
from evolvent.trajectory import Branch, Generation, Score, Start, Step, Task, Trajectory
from tests.models.test_dialects import byte_tokenizer

WORDS = dialect_for(word_tokenizer(sorted("abcdexyz+-=;#"), context=64), "words")


def shown(*actions, generations=()):
    return Trajectory("shown", TASK, tuple(Step("o", action, 0.0, generations=generations) for action in actions))


TASK = Task("toy", "1", {"n": 0})


def places(cuts):
    return [(cut.step, cut.token) for cut in cuts]


def test_uniform_cuts_by_hand():
    """Seven tokens, a b c . d e . (a stop token ends each action): thirds of the way are after the 2nd and the 5th."""
    found = cut_points(shown("a b c", "d e"), WORDS, 2)
    assert found == (Branch("shown", 1, 1), Branch("shown", 0, 2))
    every = [(1, 2), (1, 1), (1, 0), (0, 3), (0, 2), (0, 1)]
    assert places(cut_points(shown("a b c", "d e"), WORDS, 6)) == every
    assert places(cut_points(shown("a b c", "d e"), WORDS, 99)) == every
    assert cut_points(shown("a b c"), WORDS, 0) == cut_points(shown(), WORDS, 5) == ()


def test_cuts_between_steps_and_at_the_ends_of_spans():
    assert places(cut_points(shown("a", "b c", "d"), WORDS, 9, placement="steps")) == [(2, 0), (1, 0)]
    rationale = shown("x + y ; y - z ### z", "a")
    assert places(cut_points(rationale, WORDS, 9, placement="spans")) == [(1, 0), (0, 7), (0, 4)]
    assert places(cut_points(rationale, WORDS, 1, placement="spans")) == [(0, 7)]
    assert cut_points(shown("a b c"), WORDS, 9, placement="spans") == ()


def test_spans_of_lines_end_after_their_line():
    tokenizer = byte_tokenizer(None, ["<|end|>"])
    dialect, text = Lines(tokenizer), "ab\ncd;\n ef"
    found = cut_points(shown(text), dialect, 9, placement="spans")
    given = [tokenizer.decode(dialect.action(text)[: cut.token]) for cut in found]
    assert given == [" ab\ncd;\n ", " ab\n"]


def test_a_record_with_tokens_keeps_them_and_a_text_is_written_as_the_agent_would():
    ids = np.arange(9, dtype=np.int32)
    sampled = ids > 3
    own = Generation(ids, sampled, np.zeros(9, np.float32))
    assert places(cut_points(shown("a", generations=(own,)), WORDS, 99)) == [(0, 4), (0, 3), (0, 2), (0, 1)]
    longer = cut_points(shown("a"), WORDS, 99, render=lambda step: f"b b {step.action}")
    assert places(longer) == [(0, 3), (0, 2), (0, 1)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), st.integers(0, 12))
def test_cuts_are_evenly_spread_from_the_end_to_the_beginning(lengths, stages):
    record = shown(*(" ".join("a" * length) for length in lengths))
    every = places(cut_points(record, WORDS, 1000))[::-1]
    assert len(every) == sum(lengths) + len(lengths) - 1
    ranks = [0, *(every.index(place) + 1 for place in places(cut_points(record, WORDS, stages))[::-1]), len(every) + 1]
    gaps = np.diff(ranks)
    assert len(gaps) == min(stages, len(every)) + 1
    assert gaps.max() - gaps.min() <= 1 and gaps.min() >= 1


# ------------------------------------------------------------------ curricula

CUTS = {TASK.id: tuple(Branch("shown", 0, token) for token in (5, 4, 3, 2, 1))}
STAGES = [*CUTS[TASK.id], None]


def counted(starts):
    return np.asarray([sum(start.branch == stage for start in starts) for stage in STAGES])


def test_mixed_frequencies_are_uniform_over_all_stages():
    starts = [Start(TASK, sample) for sample in range(6000)]
    observed = counted(mix_starts(starts, CUTS, seed=3))
    assert observed.sum() == 6000
    assert ((observed - 1000) ** 2 / 1000).sum() < 25.7, "chi-square of 5 degrees of freedom, 1 in 10,000"
    assert not np.array_equal(observed, counted(mix_starts(starts, CUTS, seed=4)))


def test_the_beginning_can_have_more_than_its_share_but_never_less():
    starts = [Start(TASK, sample) for sample in range(6000)]
    observed = counted(mix_starts(starts, CUTS, seed=3, min_start_ratio=0.5))
    expected = np.asarray([600.0] * 5 + [3000.0])
    assert ((observed - expected) ** 2 / expected).sum() < 25.7
    assert np.array_equal(
        counted(mix_starts(starts, CUTS, seed=3, min_start_ratio=0.1)), counted(mix_starts(starts, CUTS, seed=3))
    )
    assert counted(mix_starts(starts, CUTS, seed=3, min_start_ratio=1.0))[-1] == 6000
    with pytest.raises(ConfigError, match="0 to 1"):
        mix_starts(starts, CUTS, seed=0, min_start_ratio=1.5)


def test_a_start_is_drawn_by_itself_and_without_a_demonstration_it_is_whole():
    other = Task("toy", "1", {"n": 1})
    starts = [Start(task, sample) for task in (TASK, other) for sample in range(50)]
    found = mix_starts(starts, CUTS, seed=1)
    assert mix_starts(starts[::-1], CUTS, seed=1)[::-1] == found
    assert [start.sample for start in found] == [start.sample for start in starts]
    assert all(start.branch is None for start in found if start.task == other)


def test_stages_follow_one_another_and_end_at_the_beginning():
    cuts = {TASK.id: CUTS[TASK.id][:2]}
    order = [stage_starts([Start(TASK)], cuts, iteration=n, iterations=6)[0].branch for n in range(1, 7)]
    first, second = cuts[TASK.id]
    assert order == [first, first, second, second, None, None]
    assert stage_starts([Start(TASK)], {}, iteration=1, iterations=6)[0].branch is None
    with pytest.raises(ConfigError, match="expected 1 to 6"):
        stage_starts([Start(TASK)], cuts, iteration=7, iterations=6)


def played(branch, unit):
    return Trajectory("t", TASK, (), branch=branch, score=Score(unit, unit, None if unit is None else unit > 0.5))


def test_bounds_by_hand():
    """Five cuts: the k-th before the end shows (6 - k) / 6 of the way."""
    last, first = CUTS[TASK.id][0], CUTS[TASK.id][-1]
    assert update_reveals({}, [played(last, 1.0)], CUTS) == {TASK.id: Reveal(0.0, 5 / 6)}
    assert update_reveals({}, [played(first, 0.0)], CUTS) == {TASK.id: Reveal(1 / 6, 1.0)}
    assert update_reveals({}, [played(None, 1.0)], CUTS) == {TASK.id: Reveal(0.0, 0.0)}
    assert update_reveals({}, [played(first, unit) for unit in (1.0, 0.0, 1.0, 0.0)], CUTS)[TASK.id].high == 1 / 6
    assert update_reveals({}, [played(first, unit) for unit in (1.0, 0.0)], CUTS, threshold=0.6)[TASK.id].low == 1 / 6
    before = {TASK.id: Reveal(0.25, 0.5), "another": Reveal(0.1, 0.2)}
    assert update_reveals(before, [played(first, None)], CUTS) == before


def test_adaptive_is_uniform_at_first_and_keeps_within_its_bounds():
    observed = counted([reveal_starts([Start(TASK)], CUTS, {}, seed=seed)[0] for seed in range(3000)])
    assert ((observed - 500) ** 2 / 500).sum() < 25.7
    for stage, branch in enumerate(reversed(STAGES)):
        exact = {TASK.id: Reveal(float(np.float32(stage / 6)), float(np.float32(stage / 6)))}
        assert reveal_starts([Start(TASK)], CUTS, exact, seed=1)[0].branch == branch, (
            "a stored bound is the stage it was"
        )
    upper = {TASK.id: Reveal(0.5, 1.0)}
    met = counted([reveal_starts([Start(TASK)], CUTS, upper, seed=seed)[0] for seed in range(300)])
    assert met[:3].all() and not met[3:].any()
    group = reveal_starts([Start(TASK, sample) for sample in range(8)], CUTS, {}, seed=5)
    assert len({start.branch for start in group}) == 1, "the samples of a task are shown the same"


def test_what_is_shown_shrinks_as_a_learner_gets_better():
    """A learner that solves from stage `able` on, able falling by one every 12 rounds, ends at the beginning."""
    reveals, met = {}, []
    for number in range(84):
        able = 5 - number // 12
        (start,) = reveal_starts([Start(TASK)], CUTS, reveals, seed=number)
        stage = 0 if start.branch is None else 5 - CUTS[TASK.id].index(start.branch)
        met.append(stage)
        reveals = update_reveals(reveals, [played(start.branch, float(stage >= able))], CUTS)
    assert np.mean(met[:12]) > 3 > 1 > np.mean(met[60:])
    assert met[-6:] == [0] * 6
