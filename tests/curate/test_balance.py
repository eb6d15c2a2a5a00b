"""Balance over worlds."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from evolvent.curate.balance import balance_worlds
from evolvent.trajectory import Task, Trajectory


def some(world: str, count: int) -> list[Trajectory]:
    return [Trajectory(f"{world}/{n}", Task(world, "1", {"n": n}), ()) for n in range(count)]


def test_smaller_worlds_are_repeated_in_turn():
    ids = [t.id for t in balance_worlds([*some("a", 2), *some("b", 5)])]
    assert ids == ["a/0", "a/1", "a/0", "a/1", "a/0", *(f"b/{n}" for n in range(5))]


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9)))
def test_every_world_has_as_many_and_nothing_is_dropped(sizes):
    given_ones = [t for world, count in sizes.items() for t in some(world, count)]
    found = balance_worlds(given_ones)
    counts = Counter(t.task.world for t in found)
    assert set(counts.values()) <= {max(sizes.values(), default=0)}
    assert {t.id for t in found} == {t.id for t in given_ones}
    uses = Counter(t.id for t in found)
    for world, count in sizes.items():
        own = [uses[f"{world}/{n}"] for n in range(count)]
        assert max(own) - min(own) <= 1


def test_one_world_is_left_as_it_is():
    assert balance_worlds(some("a", 3)) == some("a", 3)
    assert balance_worlds([]) == []
