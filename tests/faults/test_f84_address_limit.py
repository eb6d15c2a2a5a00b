"""Fault 84: a limit of addresses (`ulimit -v`): a command fits itself, or says one sentence before anything is trained.

Torch, threads and the arena of keys and values reserve addresses that they never write; a limit counts them all. The
engine takes a share of what is left, and what is left is asked for before the first stage.
"""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest
import torch

from evolvent.cli import main as command_line
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError, EvolventError
from evolvent.models import placement
from evolvent.models.placement import check_working_memory, free_address_bytes
from evolvent.view import data
from tests.faults import sums

SMALL = (
    *("--policy", "xs", "--worlds", "lookup", "--demonstrations", "[6]", "--explore", "4", "--namings", "1"),
    *("--method.iterations", "1", "--method.clone_tokens", "[2000]", "--method.round_tokens", "500"),
    *("--panel.limit", "2"),
)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    from evolvent.models.policy import load_policy

    return load_policy(sums.write(tmp_path_factory.mktemp("policy")) / "policy")


def limited(monkeypatch, free_bytes: int) -> None:
    """Makes the system say that this process may take so many bytes of addresses more."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    limits = {resource.RLIMIT_AS: (used + free_bytes, used + free_bytes)}
    no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda limit_id: limits.get(limit_id, no_limit))


@pytest.mark.long
@pytest.mark.parametrize("kilobytes", [900_000, 1_200_000, 1_350_000, 1_600_000])
def test_evolve_fits_itself_or_says_so_before_it_trains(command, tmp_path, kilobytes):
    """Where the border lies depends on the build of torch; that there is nothing between is what counts."""
    words = [*command.program, "evolve", *SMALL, "--output_dir", str(tmp_path / "run")]
    completed = subprocess.run(
        ["sh", "-c", 'ulimit -v "$0" && exec "$@"', str(kilobytes), *words],
        capture_output=True,
        text=True,
        env=command.environment(),
        timeout=300,
    )
    if completed.returncode == 0:
        assert (tmp_path / "run" / "model").is_dir() and "no report was written" not in completed.stderr
        return
    errors = [line for line in completed.stderr.splitlines() if line]
    assert len(errors) == 1 and errors[0].startswith("error: "), completed.stderr
    assert "ulimit -v" in errors[0] and "fault of evolvent" not in errors[0]
    assert not (tmp_path / "run" / "stages").exists()


def test_what_is_left_is_the_limit_without_what_is_taken(monkeypatch):
    assert free_address_bytes() is None or free_address_bytes() >= 0
    limited(monkeypatch, 300_000_000)
    assert 0 < free_address_bytes() <= 310_000_000
    assert placement.find_memory_limit()[1] == "the limit of addresses (ulimit -v)"
    limited(monkeypatch, -1)
    assert free_address_bytes() == 0


def test_work_that_does_not_fit_is_refused_with_its_numbers(monkeypatch, policy):
    limited(monkeypatch, 400 * 2**20)
    check_working_memory(policy.model, context=policy.context, trains=False)
    with pytest.raises(
        ConfigError, match=r"^the work does not fit the limit of addresses \(ulimit -v\): got 0\.\d\d GB"
    ):
        check_working_memory(policy.model, context=policy.context, trains=True)


def test_a_command_asks_before_it_loads_torch(monkeypatch, tmp_path, capsys):
    """As a new process does, which has not loaded it yet."""
    monkeypatch.delitem(command_line.sys.modules, "torch")
    limited(monkeypatch, 500_000_000)
    assert command_line.main(["evolve", *SMALL, "--output_dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1 and "is too low for evolvent evolve: got 0.5" in said
    assert not (tmp_path / "run").exists()


def test_the_engine_takes_a_share_of_the_addresses(monkeypatch, policy):
    engine = LocalEngine(policy, slots=64)
    assert engine._rows.arena.rows == 64
    row_bytes = engine._rows.arena.capacity * engine._decoder.shape.token_bytes(torch.float32)
    free_bytes = 40 * row_bytes
    monkeypatch.setattr("evolvent.engine.local.free_address_bytes", lambda: free_bytes)
    monkeypatch.setattr("evolvent.engine.local.available_bytes", lambda device: free_bytes)
    assert LocalEngine(policy, slots=64)._rows.arena.rows == 10
    monkeypatch.setattr("evolvent.engine.local.available_bytes", lambda device: row_bytes // 2)
    with pytest.raises(EvolventError, match="a text of the whole context does not fit the free memory of cpu"):
        LocalEngine(policy, slots=64)


@pytest.mark.parametrize(
    "cause", [MemoryError(), OSError(12, "Cannot allocate memory"), RuntimeError("can't start new thread")]
)
def test_a_refused_allocation_is_told_as_what_it_is(monkeypatch, capsys, cause):
    def fail(argv, console):
        raise cause

    monkeypatch.setattr(command_line, "_run_quietly", fail)
    assert command_line.main(["eval"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: there is not enough memory: got {type(cause).__name__}") and "leaves now" in said
    assert "a fault of evolvent" not in said


def test_a_small_file_takes_little_memory_to_read(monkeypatch, tmp_path):
    """A read of up to 256 MiB sets all of them aside, whatever the file holds."""
    sizes = []

    class Counted:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def fileno(self):
            return self.file.fileno()

        def read(self, size):
            sizes.append(size)
            return self.file.read(size)

    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"{}\n")
    whole = Path.open
    monkeypatch.setattr(Path, "open", lambda self, mode: Counted(whole(self, mode)))
    assert data._read_bytes(path, []) == b"{}\n" and sizes == [4]
