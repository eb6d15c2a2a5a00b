"""pass@k over problems."""

import pytest

from evolvent.bench.code import ProblemTally, check_ks, count_samples, mean_pass_at
from evolvent.errors import ConfigError
from evolvent.trajectory import Task

TASKS = [Task("code", "1", {"row": place}, "kind", "all", "test") for place in range(3)]


def test_the_mean_is_over_problems():
    counted = [ProblemTally(TASKS[0], 5, 2), ProblemTally(TASKS[1], 10, 3), ProblemTally(TASKS[2], 1, 1)]
    assert mean_pass_at(counted[:1], 1).mean == pytest.approx(0.4)
    assert mean_pass_at(counted[1:2], 5).mean == pytest.approx(0.91667, abs=1e-5)
    both = mean_pass_at(counted, 2)
    assert both.n == 2 and both.mean == pytest.approx((0.7 + 1 - 7 / 10 * 6 / 9) / 2)
    with pytest.raises(ConfigError, match="pass@11"):
        mean_pass_at(counted, 11)


def test_tallies_leave_out_what_nobody_judged():
    class Played:
        def __init__(self, task, success):
            self.task, self.success = task, success

    played = [Played(TASKS[0], 1.0), Played(TASKS[0], 0.0), Played(TASKS[1], None)]
    assert count_samples(TASKS, played) == (
        ProblemTally(TASKS[0], 2, 1),
        ProblemTally(TASKS[1], 0, 0),
        ProblemTally(TASKS[2], 0, 0),
    )


def test_k_has_to_fit():
    assert check_ks((1, 5), 5) == ()
    for wrong in ((), (0,), (6,)):
        assert "1 <= k <= samples" in check_ks(wrong, 5)[0].what
