"""`benchmarks.p3`: what the pool is like, and that each ablation leaves out something else."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.p3.__main__ import QUICK, main
from benchmarks.p3.cell import TASKS, VARIANTS, Protocol, _unequal, drawn, panel, parts_of, untrained, world_of
from evolvent.methods.p3 import P3Config, select_samples
from evolvent.trajectory import Task


def test_common_kinds_are_taken_in_shares_that_fall_with_the_rank():
    made = [
        [Task("w", "1", {"n": n, "of": kind}, kind) for n in range(each)]
        for kind, each in (("a", 20), ("b", 20), ("c", 2))
    ]
    taken = Counter(one.kind for one in _unequal(made, 12))
    assert taken == {"a": 7, "b": 3, "c": 2}  # the next of c would have been its third, and there are two
    assert len(_unequal(made, 99)) == 42 and len({one.id for one in _unequal(made, 99)}) == 42


@pytest.mark.long
@pytest.mark.parametrize("task", TASKS)
def test_a_pool_has_levels_and_the_base_only_the_lowest(task):
    protocol = replace(Protocol(), pool=150, panel=5)
    base, pool = drawn(protocol, task, 0)
    levels = Counter(len(one.kind.split()) for one in pool)
    assert levels == {2: 50, 3: 50, 4: 50}
    below = Counter(len(one.kind.split()) for one in base)
    assert below[2] > 8 * below[3] > 0 and below[4] == 0
    known = {one.id for one in base} | {one.id for one in panel(protocol, task)}
    assert not known & {one.id for one in pool}
    counts = sorted(Counter(one.kind for one in pool).values())
    assert counts[-1] >= 8 * counts[0]


def test_each_variant_chooses_in_its_own_way():
    protocol = replace(QUICK, pool=60)
    world = world_of(protocol, "maths")
    start = untrained(protocol, world, 0)
    parts = parts_of(world, start, drawn(protocol, "maths", 0)[1], 0)
    names = ("p3", "random", "no difficulty", "no pace", "no diversity", "no quality")
    chosen = {}
    for name in names:
        few, more = (P3Config.model_validate({"rounds": 3, "count": count, **VARIANTS[name]}) for count in (8, 30))
        places = [select_samples(start, parts, config, number=1, seed=0).positions for config in (few, more)]
        chosen[name] = tuple(tuple(np.sort(each).tolist()) for each in places)
    assert len(set(chosen.values())) == len(names), chosen


def test_a_wrong_name_is_one_sentence(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["p3", "--variants", "quick"])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and "invalid choice: 'quick'" in said and "Traceback" not in said
