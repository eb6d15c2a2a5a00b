"""Fault 45: fork bombs, endless memory, output and files, daemons, deaf processes: contained, and nothing is left.

Every attack of `attacks` ends in a failing outcome, and the host is as before.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attack_base import Attack, Host, host
from attacks import ATTACKS, ENVIRONMENT, FILES, NETWORK

from evolvent.sandbox.bubblewrap import isolation
from evolvent.sandbox.limits import CallRequest, Outcome
from evolvent.sandbox.pool import SandboxPool

HONEST = "def f(): return 6 * 7"


def below(pid: int) -> set[int]:
    """The processes that this one has started, and theirs."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text(encoding="ascii").split()):
            found |= {child} | (below(child) if Path(f"/proc/{child}").exists() else set())
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> tuple[Host, dict[str, Outcome], list[str], list[Outcome], set[int]]:
    """All attacks, four at a time, each followed by an honest job; what each ended as; what was touched and left."""
    isolation()
    before = below(os.getpid())

    def attack(one: Attack) -> tuple[str, Outcome, Outcome]:
        (outcome,) = boxes.observe(found.filled(one), [CallRequest("f")], one.limits)
        (honest,) = boxes.observe(HONEST, [CallRequest("f")], one.limits)
        return one.name, outcome, honest

    with host(tmp_path_factory.mktemp("host")) as found:
        with SandboxPool(at_once=4) as boxes, ThreadPoolExecutor(4) as threads:
            rows = list(threads.map(attack, ATTACKS))
        touched = found.touched()
    outcomes = {name: outcome for name, outcome, _ in rows}
    return found, outcomes, touched, [honest for *_, honest in rows], below(os.getpid()) - before


def test_there_are_enough():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 40


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_it_does_not_get_out(results, attack):
    found, outcomes, *_ = results
    assert found.escaped(attack, outcomes[attack.name]) == ""


def test_the_host_is_untouched(results):
    assert results[2] == []


def test_later_jobs_are_unaffected(results):
    assert {(honest.status, honest.value) for honest in results[3]} == {("value", 42)}


def test_nothing_survives(results):
    assert results[4] == set()


@pytest.mark.parametrize(
    "name", ["host file", "host file through a link", "environment", "TCP to the host", "abstract socket"]
)
def test_the_same_attack_succeeds_without_isolation(name, tmp_path):
    """So it is an attack, and the isolation is what stops it."""
    attack = next(attack for attack in (*FILES, *ENVIRONMENT, *NETWORK) if attack.name == name)
    with host(tmp_path) as found, SandboxPool(unsafe=True, ahead=0) as boxes:
        source = found.filled(attack)
        if name == "environment":
            # even without isolation the environment is a new one; the parent's is open to the same user
            source = source.replace("os.environ.get('EVOLVENT_SECRET')", "open(f'/proc/{os.getppid()}/environ').read()")
            outcome = boxes.observe(source, [CallRequest("f")], attack.limits)[0]
            assert outcome.ok and "PATH=" in outcome.value
            return
        if name == "host file through a link":
            source = source.replace("'x'", repr(str(tmp_path / "x")))
        (outcome,) = boxes.observe(source, [CallRequest("f")], attack.limits)
        assert found.escaped(attack, outcome) and outcome.unsafe
        assert found.touched() if name != "host file" else not found.touched()
