"""Fault 45: fork bombs, endless memory, output and files, daemons, deaf processes: contained, and nothing is left.

Every attack of `attacks` ends in a failing outcome, and the host is as before.
"""

from __future__ import annotations

import pytest
from attack_base import Attacked, attacked, host
from attacks import ATTACKS, ENVIRONMENT, FILES, NETWORK, PLAIN

from evolvent.sandbox.limits import CallRequest
from evolvent.sandbox.pool import SandboxPool


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Attacked:
    return attacked(PLAIN, tmp_path_factory.mktemp("host"))


def test_there_are_enough():
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 200


@pytest.mark.parametrize("attack", PLAIN, ids=lambda attack: attack.name)
def test_it_does_not_get_out(results, attack):
    assert results.escaped(attack) == ""


def test_the_host_is_untouched(results):
    assert results.touched == []


def test_later_jobs_are_unaffected(results):
    assert set(results.honest) == {("value", 42)}


def test_nothing_survives(results):
    assert results.left_behind == []


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
