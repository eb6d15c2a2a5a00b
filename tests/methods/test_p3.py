"""P3: who is let in when, what is chosen, what is learned; ablations; going on after a stop."""

import numpy as np
import pytest

from evolvent.curate.difficulty import answer_logprobs, mean_logprob_score
from evolvent.curate.features import answer_features
from evolvent.curate.select import unit_features
from evolvent.curate.selectors import random_choice
from evolvent.errors import ConfigError, NothingToLearn
from evolvent.learn.taught import build_demonstration
from evolvent.methods.p3 import FULL, NO_DIFFICULTY, NO_DIVERSITY, NO_PACE, P3Config, p3, select_samples
from evolvent.run import Run
from tests.methods.spelling import WORDS, Spell, babbling, run_of


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return babbling(tmp_path_factory.mktemp("babbler"), Spell(), tokens=2500)


@pytest.fixture(scope="module")
def pool(policy):
    """Right answers in the form that the policy knows, and answers in a form that it never saw."""
    dialect, made = policy.dialect, []
    for first in WORDS:
        for second in WORDS:
            prompt = dialect.open("", f"say {first} {second}")
            made.append(build_demonstration(f"known/{first}/{second}", prompt, dialect.action(f"{first} ; {second}")))
            made.append(
                build_demonstration(f"odd/{first}/{second}", prompt, dialect.action(f"; ; {second} say {first} ;"))
            )
    return made


class Noting(Run):
    def fit(self, policy, data, objective, **more):
        self.__dict__.setdefault("learned", []).append([part.trajectory for part in data])
        return super().fit(policy, data, objective, **more)


def noting(folder):
    run = run_of(folder, Spell())
    run.__class__ = Noting
    run.__dict__["learned"] = []
    return run


def test_the_easier_half_comes_first(policy, pool):
    config = P3Config(rounds=2, count=100)
    first, last = (select_samples(policy, pool, config, number=number, seed=0) for number in (1, 2))
    scores = mean_logprob_score(answer_logprobs(policy, pool))
    assert np.array_equal(first.scores, scores)
    assert first.num_admitted == 16 and last.num_admitted == 32
    easiest = set(np.argsort(-scores)[:16])
    assert set(first.positions.tolist()) == easiest
    assert all(pool[place].trajectory.startswith("known") for place in first.positions)
    assert len(set(last.positions.tolist())) == 32


def test_diversity_is_the_greedy_map_of_what_was_let_in(policy, pool):
    found = select_samples(policy, pool, P3Config(rounds=2, count=3), number=1, seed=0)
    inside = np.flatnonzero(found.scores >= np.percentile(found.scores, 50))
    features = np.asarray(unit_features(answer_features(policy, [pool[int(place)] for place in inside])), np.float64)
    chosen = []
    for _ in range(3):  # the naive greedy, by determinants
        rest = [place for place in range(len(inside)) if place not in chosen]
        best = [np.linalg.slogdet(features[[*chosen, place]] @ features[[*chosen, place]].T)[1] for place in rest]
        chosen.append(rest[int(np.argmax(np.round(best, 9)))])
    assert found.positions.tolist() == inside[chosen].tolist()


@pytest.mark.parametrize(("ablation", "let_in"), [(NO_DIFFICULTY, 32), (NO_PACE, 32), (NO_DIVERSITY, 16), (FULL, 32)])
def test_parts_can_be_left_out(policy, pool, ablation, let_in):
    found = select_samples(policy, pool, P3Config(rounds=2, count=5, **ablation), number=1, seed=0)
    assert found.num_admitted == let_in and len(set(found.positions.tolist())) == 5
    if ablation in (NO_DIVERSITY, FULL):
        other = select_samples(policy, pool, P3Config(rounds=2, count=5, **ablation), number=1, seed=1)
        assert found.positions.tolist() != other.positions.tolist(), "drawn, not chosen"


def test_quality_prefers_the_easy(policy, pool):
    plain, easy = (
        select_samples(policy, pool, P3Config(rounds=1, count=8, quality=quality), number=1, seed=0)
        for quality in (False, True)
    )
    assert easy.scores[easy.positions].mean() > plain.scores[plain.positions].mean()


def test_within_samples_some_spans_lose_their_weight(policy):
    dialect = policy.dialect
    prompt = dialect.open("", "say red blue")
    target = dialect.action("red ; blue ; red ; blue")
    part = build_demonstration("lines", prompt, target)
    spans = np.where(part.written, np.minimum(np.cumsum(part.written) // 3, 2), -1).astype(np.int32)
    object.__setattr__(part, "span", spans)
    config = P3Config(rounds=1, count=1, within=0.5, diverse=False)
    (found,) = select_samples(policy, [part, part], config, number=1, seed=0).sequences
    own = [set(found.weight[spans == number].tolist()) for number in range(3)]
    assert sorted(map(tuple, own)) == [(0.0,), (1.0,), (1.0,)], "two of three spans, whole"


def test_every_round_measures_anew_and_a_run_goes_on(policy, pool, tmp_path):
    config = P3Config(rounds=2, count=6, tokens=200)
    with noting(tmp_path / "run") as run:
        learned = p3(policy, pool, config=config, run=run, select=random_choice)
        names = run.learned
    assert [len(each) for each in names] == [6, 6] and learned.version == policy.version + 2
    with noting(tmp_path / "run") as run:
        again = p3(policy, pool, config=config, run=run, select=random_choice)
        assert run.learned == names and again.version == learned.version
        rows = [row for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines() if '"finished"' in row]
    assert len(rows) == len(set(rows))
    with run_of(tmp_path / "dpp", Spell()) as run:
        other = select_samples(learned, pool, config, number=2, seed=run.seed)
    before = select_samples(policy, pool, config, number=2, seed=run.seed)
    assert not np.array_equal(other.scores, before.scores), "the policy of the round says what is easy"


def test_without_diversity_quality_and_other_selectors_still_count(policy, pool):
    easy = select_samples(policy, pool, P3Config(rounds=1, count=4, diverse=False, quality=True), number=1, seed=0)
    assert set(easy.positions.tolist()) == set(np.argsort(-easy.scores)[:4].tolist())
    asked = []

    def first(features, quality, k, *, rng):
        asked.append(features.shape)
        return random_choice(features, quality, k, rng=rng)

    select_samples(policy, pool, P3Config(rounds=1, count=4, diverse=False), number=1, seed=0, select=first)
    assert asked == [(32, 1)]


def test_samples_that_are_alike_do_not_stop_a_round(policy, pool):
    found = select_samples(policy, [pool[0], pool[0], pool[1]], P3Config(rounds=3, count=2), number=1, seed=0)
    assert found.num_admitted == 2 and len(found.positions) == 2
    assert (
        select_samples(policy, pool[:1], P3Config(rounds=1, count=1, within=0.5), number=1, seed=0)
        .sequences[0]
        .weight.any()
    )


def test_what_cannot_be_chosen(policy, pool, tmp_path):
    with (
        run_of(tmp_path / "run", Spell()) as run,
        pytest.raises(NothingToLearn, match="the demonstration pool is empty"),
    ):
        p3(policy, [], config=P3Config(), run=run)
    with pytest.raises(ConfigError, match="1 to 5"):
        select_samples(policy, pool, P3Config(), number=6, seed=0)
    assert len(select_samples(policy, pool[:1], P3Config(rounds=1), number=1, seed=0).sequences) == 1
