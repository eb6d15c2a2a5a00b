"""`benchmarks.masking`: what it counts as saved, and that its cells are of one protocol."""

from dataclasses import replace

import pytest

from benchmarks.masking.__main__ import QUICK, report
from benchmarks.masking.cell import MAIN, Cell, panels


def row(plain, renamed, irrelevant):
    one = {"generated": 1, "unreadable": 0, "named": 0}
    sides = {"plain": plain, "renamed": renamed, "irrelevant": irrelevant}
    return {"panels": {name: {"right": side, **one} for name, side in sides.items()}, "cpu_s": 1.0, "computed": 10}


def test_what_is_saved_is_a_share_of_the_plain_drop():
    protocol = replace(QUICK, seeds=(0, 1), panel=4)
    rows = {Cell(name, seed): row([1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]) for name in MAIN for seed in (0, 1)}
    rows |= {Cell("both", seed): row([1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0]) for seed in (0, 1)}
    found = report(rows, protocol)
    assert found["drop"]["plain"] == 0.5 and found["drop"]["both"] == 0.25
    assert found["drop_saved"] == pytest.approx(0.5) and found["drop_saved_ci"][0] == 0.25
    assert found["irrelevant_gain"][0] == 0.5 and found["plain_change"][0] == 0.0
    assert report({}, protocol) == {"seeds": []}


def test_a_protocol_has_a_digest_and_panels_of_its_own():
    assert replace(QUICK, tokens=601).digest != QUICK.digest
    shown = panels(QUICK)
    assert [one.id for one in shown["plain"]] == [one.id for one in shown["renamed"]]
    for before, after in zip(shown["plain"], shown["renamed"], strict=True):
        assert not {tool.name for tool in before.tools} & {tool.name for tool in after.tools}
    assert all(not one.calls for one in shown["irrelevant"]) and all(one.calls for one in shown["plain"])
