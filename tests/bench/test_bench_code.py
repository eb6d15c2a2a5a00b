"""pass@k over problems."""

import pytest

from evolvent.bench.code import Tally, check_ks, pass_at, tallies
from evolvent.errors import ConfigError
from evolvent.trajectory import Task

TASKS = [Task("code", "1", {"row": place}, "kind", "all", "test") for place in range(3)]


def test_the_mean_is_over_problems():
    counted = [Tally(TASKS[0], 5, 2), Tally(TASKS[1], 10, 3), Tally(TASKS[2], 1, 1)]
    assert pass_at(counted[:1], 1).mean == pytest.approx(0.4)
    assert pass_at(counted[1:2], 5).mean == pytest.approx(0.91667, abs=1e-5)
    both = pass_at(counted, 2)
    assert both.n == 2 and both.mean == pytest.approx((0.7 + 1 - 7 / 10 * 6 / 9) / 2)
    with pytest.raises(ConfigError, match="pass@11"):
        pass_at(counted, 11)


def test_tallies_leave_out_what_nobody_judged():
    class Played:
        def __init__(self, task, success):
            self.task, self.success = task, success

    played = [Played(TASKS[0], 1.0), Played(TASKS[0], 0.0), Played(TASKS[1], None)]
    assert tallies(TASKS, played) == (Tally(TASKS[0], 2, 1), Tally(TASKS[1], 0, 0), Tally(TASKS[2], 0, 0))


def test_k_has_to_fit():
    assert check_ks((1, 5), 5) == ()
    for wrong in ((), (0,), (6,)):
        assert "1 <= k <= samples" in check_ks(wrong, 5)[0].what
