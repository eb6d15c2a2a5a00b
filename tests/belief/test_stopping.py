"""Detectors: thresholds worked by hand, the exactness of a decided vote, looks that may be left out, combinations."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.belief.answers import AnswerBelief, normalize_answer, probability_summary
from evolvent.belief.named import parse_detector
from evolvent.belief.stopping import (
    Agreement,
    AllOf,
    AnyOf,
    Decided,
    EntropyBelow,
    Patience,
    Scattered,
    StdBelow,
    StopDecision,
    TraceBelow,
    min_further_votes,
)
from evolvent.belief.summary import BeliefSummary
from evolvent.errors import BatchMismatch, ConfigError, NonFinite

VOTERS = [
    Decided(),
    Agreement(0.7, least=3),
    Agreement(1, least=2),
    Agreement(0.5, least=1),
    Agreement(0.6, patience=2),
    Patience(Agreement(0.5, least=2), 3),
    AnyOf(Agreement(0.8), Decided()),
    Patience(Decided(), 2),
    Scattered(0.4, least=3),
    AnyOf(Agreement(1, least=3), Scattered(0.5, least=2)),
    Patience(Scattered(0.5, 1), 2),
    AllOf(Agreement(0.6, least=2), Patience(Agreement(0.5, least=2), 2)),
]


def numbers(**arrays) -> BeliefSummary:
    return BeliefSummary(**{name: np.asarray(array, np.float64) for name, array in arrays.items()})


def votes(leader, runner_up, left) -> BeliefSummary:
    two = np.array([leader, runner_up], np.float64)
    return numbers(entropy=np.zeros(len(leader)), leader=leader, runner_up=runner_up, cast=two.sum(axis=0), left=left)


def one_by_one(detector, cast, most: int) -> tuple[int, object]:
    """Votes cast when the detector stops a vote that it looks at after each, and the answer then."""
    belief, history = AnswerBelief(most), []
    for answer in cast:
        belief = belief.add(answer)
        history.append(detector(belief.summarize(), history))
        if history[-1].stop[0]:
            break
    return belief.cast, belief.leader


def in_lots(detector, cast, most: int) -> tuple[int, object]:
    """The same with as many votes at once as the detector foresees that it cannot stop before."""
    belief, history = AnswerBelief(most), []
    while belief.cast < most:
        lot = cast[belief.cast : belief.cast + int(min_further_votes(detector, belief.summarize())[0])]
        for answer, count in Counter(lot).items():  # the order within a lot is not known
            belief = belief.add(answer, count)
        history.append(detector(belief.summarize(), history))
        if history[-1].stop[0]:
            break
    return belief.cast, belief.leader


# ---------------------------------------------------------------- places


def test_thresholds_of_places():
    summary = numbers(
        entropy=[0.2, 0.9],
        mean=np.zeros((2, 8)),
        std=[[0.5, 0.9] + [9.0] * 6, [0.5, 1.0] + [0.1] * 6],
        spread=[1.0, 0.99],
    )
    said = StdBelow(1.0)(summary, [])
    assert said.stop.tolist() == [True, False] and said.score.tolist() == [0.9, 1.0]
    assert StdBelow(1.0, ("x", "lifetime"))(summary, []).score.tolist() == [9.0, 0.5]
    assert StdBelow(1.0, (1,))(summary, []).score.tolist() == [0.9, 1.0]
    assert TraceBelow(1.0)(summary, []).stop.tolist() == [False, True]  # below, not at
    assert EntropyBelow(0.9)(summary, []).stop.tolist() == [True, False]
    assert "x, y below 1" in said.reason


def test_what_no_detector_can_look_at_is_refused():
    for wrong in (("x", "speed"), (), (-1,)):
        with pytest.raises(ConfigError, match="dims"):
            StdBelow(1.0, wrong)
    with pytest.raises(ConfigError, match="wind_speed"):  # all that is allowed is named
        StdBelow(1.0, ("colour",))
    for zeta in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="zeta"):
            StdBelow(zeta)
        with pytest.raises(ConfigError, match="zeta"):
            TraceBelow(zeta)
    with pytest.raises(ConfigError) as told:
        Agreement(1.1, least=0, patience=0)
    assert len(told.value.problems) == 3
    flat = numbers(entropy=[0.1], std=[[1.0, 1.0]])
    with pytest.raises(ConfigError, match="dimensions 0 to 1"):
        StdBelow(1.0, ("z",))(flat, [])
    for detector in (Decided(), Agreement(), TraceBelow(1.0)):
        with pytest.raises(ConfigError, match="does not have"):
            detector(flat, [])


def test_summaries_are_checked():
    with pytest.raises(BatchMismatch, match="spread"):
        numbers(entropy=[0.1, 0.2], spread=[1.0])
    with pytest.raises(BatchMismatch, match="std"):
        numbers(entropy=[0.1], mean=[[0.0, 0.0]], std=[[1.0]])
    with pytest.raises(BatchMismatch, match="covariance"):
        numbers(entropy=[0.1], covariance=[[1.0, 1.0]])
    with pytest.raises(NonFinite, match="spread of belief 1"):
        numbers(entropy=[0.1, 0.2], spread=[1.0, np.nan])
    assert len(numbers(entropy=[0.1, 0.2])) == 2


# ---------------------------------------------------------------- votes


def test_decided_never_changes_the_majority_over_all_strings_of_seven_votes():
    saved = Counter[int]()
    for cast in itertools.product("abc", repeat=7):
        used, answer = one_by_one(Decided(), cast, 7)
        assert answer == Counter(cast).most_common(1)[0][0]  # which takes the first seen of equal ones
        if used < 7:
            lead = Counter(cast[:used]).most_common(2)
            assert lead[0][1] - (lead[1][1] if len(lead) > 1 else 0) > 7 - used
        earlier = Counter(cast[: used - 1]).most_common(2)
        margin = (earlier[0][1] if earlier else 0) - (earlier[1][1] if len(earlier) > 1 else 0)
        assert margin <= 7 - (used - 1)  # and it stopped at the first moment that it could
        saved[used] += 1
    assert min(saved) == 4 and saved[4] == 3 * 27


def test_unread_votes_count_as_cast_and_cannot_win():
    for cast in itertools.product("ab\0", repeat=6):
        read = [None if vote == "\0" else vote for vote in cast]
        _, answer = one_by_one(Decided(), read, 6)
        counts = Counter(vote for vote in read if vote is not None)
        assert answer == (counts.most_common(1)[0][0] if counts else None)


@pytest.mark.parametrize("detector", VOTERS, ids=repr)
def test_votes_left_out_could_not_have_stopped_it_over_all_strings(detector):
    for cast in itertools.product("abc", repeat=6):
        if cast[0] == "a" and "c" not in cast[: cast.index("b") if "b" in cast else None]:  # up to their names
            assert in_lots(detector, cast, 6) == one_by_one(detector, cast, 6)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([None, "a", "b", "c", "d"]), min_size=1, max_size=25),
    st.floats(0.05, 1.0),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_votes_left_out_could_not_have_stopped_it(cast, q, least, patience):
    for detector in (
        Agreement(q, least, patience),
        Decided(),
        Scattered(q, least),
        Patience(Agreement(q, least), patience),
    ):
        assert in_lots(detector, cast, len(cast)) == one_by_one(detector, cast, len(cast))


def test_lots_are_as_large_as_they_may_be():
    none = AnswerBelief(7)
    assert min_further_votes(Decided(), none.summarize()).tolist() == [4]
    assert min_further_votes(Decided(), none.add("a", 3).summarize()).tolist() == [1]
    assert min_further_votes(Agreement(0.7, least=3), none.summarize()).tolist() == [3]
    assert min_further_votes(Agreement(0.7, least=3), none.add("a").add("b").add("c").summarize()).tolist() == [
        4
    ]  # 5 of 7
    assert min_further_votes(AnyOf(Agreement(0.7), Decided()), none.summarize()).tolist() == [3]
    assert min_further_votes(EntropyBelow(0.1), none.summarize()).tolist() == [1]


def test_agreement_by_hand():
    said = Agreement(0.7, least=3)(votes([7, 2, 6], [3, 0, 3], [0, 5, 0]), [])
    assert said.stop.tolist() == [True, False, False]  # 7 of 10 is enough, two votes are too few, 6 of 9 is not
    assert said.score.tolist() == pytest.approx([0.3, np.inf, 1 / 3])
    assert one_by_one(Agreement(0.7, least=3), "abbbbbb", 7) == (4, "b")
    assert one_by_one(Agreement(0.7, least=3, patience=3), "abbbbbb", 7) == (6, "b")
    assert one_by_one(Agreement(0.9, least=2, patience=2), "aabaaaaaaaaaaa", 14) == (11, "a")  # 9/10 and 10/11


def test_scattered_by_hand():
    said = Scattered(0.3, least=4)(votes([1, 2, 3, 1], [1, 1, 3, 0], [0, 0, 0, 9]), [])
    assert said.stop.tolist() == [False] * 4  # too few votes, too few, half of them agree, too few
    assert one_by_one(Scattered(0.3, least=4), "abcdefgh", 8) == (4, "a")
    assert one_by_one(Scattered(0.3, least=4), "aabcdefgh", 9) == (7, "a")  # 2 of 7 is the first below .3
    assert one_by_one(Scattered(0.5, least=2), [None, None, "a"], 3) == (2, None)
    assert min_further_votes(Scattered(0.3, least=4), AnswerBelief(9).add("a", 2).add("b").summarize()).tolist() == [4]
    with pytest.raises(ConfigError) as told:
        Scattered(0, least=0)
    assert len(told.value.problems) == 2


def test_a_chance_is_a_belief():
    summary = probability_summary(np.array([0.0, 0.5, 0.9, 1.0]))
    said = Agreement(0.9, least=1)(summary, [])
    assert said.stop.tolist() == [False, False, True, True]
    assert said.score.tolist() == pytest.approx([1.0, 0.5, 0.1, 0.0])
    assert summary.entropy.tolist() == pytest.approx([0.0, np.log(2), 0.3250829734, 0.0])
    with pytest.raises(ConfigError, match="belief is not a probability"):
        probability_summary(np.array([0.5, 1.2]))
    with pytest.raises(ConfigError, match="belief is not a probability"):
        probability_summary(np.array([np.nan]))


# ---------------------------------------------------------------- combinations


def entropies(*rows):
    return [numbers(entropy=row) for row in rows]


def looked(detector, summaries) -> list[StopDecision]:
    history: list[StopDecision] = []
    for summary in summaries:
        history.append(detector(summary, history))
    return history


def test_patience_counts_looks_in_a_row_by_belief():
    said = looked(Patience(EntropyBelow(1.0), 2), entropies([0.5, 2], [2, 0.5], [0.5, 0.6], [0.4, 0.3]))
    assert [each.stop.tolist() for each in said] == [[False, False], [False, False], [False, True], [True, True]]
    assert said[0].score.tolist() == [np.inf, np.inf] and said[2].score.tolist() == [2, 0.6]
    inside = looked(AnyOf(EntropyBelow(0.1), Patience(EntropyBelow(1.0), 2)), entropies([0.5], [0.5], [2], [0.05]))
    assert [bool(each.stop[0]) for each in inside] == [False, True, False, True]
    deep = looked(Patience(Patience(EntropyBelow(1.0), 2), 2), entropies([0.5], [0.5], [0.5]))
    assert [bool(each.stop[0]) for each in deep] == [False, False, True]
    assert [bool(each.stop[0]) for each in looked(Patience(EntropyBelow(1), 1), entropies([0.5], [2]))] == [True, False]


def test_an_episode_that_begins_anew_is_forgotten():
    detector = Patience(EntropyBelow(1.0), 2)
    first = detector(entropies([0.5, 0.5])[0], [])
    history = [first.clear_rows(np.array([True, False]))]
    assert detector(entropies([0.5, 0.5])[0], history).stop.tolist() == [False, True]


def test_any_and_all():
    summary = numbers(entropy=[0.5, 0.5, 2.0], spread=[0.5, 2.0, 2.0])
    either, both = AnyOf(EntropyBelow(1), TraceBelow(1)), AllOf(EntropyBelow(1), TraceBelow(1))
    assert either(summary, []).stop.tolist() == [True, True, False]
    assert both(summary, []).stop.tolist() == [True, False, False]
    assert both(summary, []).score.tolist() == [0, 1, 1] and len(both(summary, []).parts) == 2
    assert " or " in either(summary, []).reason and either == AnyOf(EntropyBelow(1), TraceBelow(1)) != both
    for kind in (AnyOf, AllOf):
        with pytest.raises(ConfigError, match="no detector"):
            kind()


# ---------------------------------------------------------------- text


def test_detectors_are_read():
    assert parse_detector("decided") == Decided()
    assert parse_detector(" agreement:.7 ") == Agreement(0.7)
    assert parse_detector("agreement:.7:least=5:patience=2") == Agreement(0.7, 5, 2)
    assert parse_detector("agreement") == Agreement()
    assert parse_detector("decided or scattered:.3:least=8") == AnyOf(Decided(), Scattered(0.3, 8))
    assert (parse_detector("std:1"), parse_detector("trace:.2"), parse_detector("entropy:.1")) == (
        StdBelow(1.0),
        TraceBelow(0.2),
        EntropyBelow(0.1),
    )
    for wrong in (
        "decided:1",
        "std",
        "agreement:x",
        "agreement:.7:.8",
        "agreement:.7:leat=3",
        "std:1:least=2",
        "agreement:least=1:least=2",
        "agreement:.7:",
    ):
        with pytest.raises(ConfigError, match=r"stop: .*decided, agreement:SHARE"):
            parse_detector(wrong)
    with pytest.raises(ConfigError, match="did you mean 'decided'"):
        parse_detector("decide")
    with pytest.raises(ConfigError, match=r"q: got .*, expected above 0"):
        parse_detector("agreement:2")


# ---------------------------------------------------------------- answers


def test_answers_of_one_meaning_are_one():
    assert normalize_answer(" 0.50 ") == normalize_answer("1/2") == normalize_answer("$0.5")
    assert normalize_answer("New  York ") == normalize_answer("new york") and normalize_answer("  ") is None
    assert normalize_answer((1, 2)) == (1, 2)
    belief = AnswerBelief(5, normalize=normalize_answer).add("7").add("7.0").add("eight").add("")
    assert belief.votes == ((7, 2), ("eight", 1)) and (belief.unparsable, belief.cast, belief.leader) == (1, 4, 7)
    rest = AnswerBelief(3, is_same=lambda one, other: one % 3 == other % 3).add(1).add(2).add(4)
    assert rest.votes == ((1, 2), (2, 1))


def test_what_a_vote_tells_a_detector():
    summary = AnswerBelief(9).add("a", 3).add("b").add(None).summarize()
    assert [float(getattr(summary, name)[0]) for name in ("leader", "runner_up", "cast", "left")] == [3, 1, 5, 4]
    assert summary.entropy[0] == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)))
    assert AnswerBelief(4).summarize().entropy[0] == pytest.approx(np.log(4))
    assert AnswerBelief(4).add("a").summarize().entropy[0] == 0
    with pytest.raises(ConfigError, match="number of votes out of range"):
        AnswerBelief(2).add("a", 3)
    with pytest.raises(ConfigError, match="number of votes out of range"):
        AnswerBelief(0)
