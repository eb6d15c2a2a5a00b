"""Fault 80: a box takes what the kernel counts for a user: watches, keys, timers, locks, pipes, memory in sockets.

Each is refused or counted, as are calls of newer kernels and objects of the whole machine: none gets out, and nothing
is left.
"""

from __future__ import annotations

import pytest
from attack_base import Attacked, attacked
from attacks import KERNEL


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Attacked:
    return attacked(KERNEL, tmp_path_factory.mktemp("host"))


@pytest.mark.parametrize("attack", KERNEL, ids=lambda attack: attack.name)
def test_it_does_not_get_out(results, attack):
    assert results.escaped(attack) == ""


def test_the_host_is_as_before(results):
    assert (results.touched, results.left_behind) == ([], [])
    assert set(results.honest) == {("value", 42)}
