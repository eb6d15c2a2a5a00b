"""Fault 81: a box answers with what nobody can print: huge numbers, half characters, terminal codes, endless names.

The error is one printable line, the value can be printed and written as UTF-8, or the answer is malformed.
"""

from __future__ import annotations

import pytest
from attack_base import Attacked, attacked
from attacks import TEXTS


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Attacked:
    return attacked(TEXTS, tmp_path_factory.mktemp("host"))


@pytest.mark.parametrize("attack", TEXTS, ids=lambda attack: attack.name)
def test_it_does_not_get_out(results, attack):
    assert results.escaped(attack) == ""


def test_the_host_is_as_before(results):
    assert (results.touched, results.left_behind) == ([], [])
    assert set(results.honest) == {("value", 42)}
