"""Fault 25: SIGTERM in the middle of a training: the update is finished, the state saved, the process ends with 143."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from small_training import same, train

PROGRAM = """
import signal, sys
from pathlib import Path
import torch
from small_training import train

torch.set_num_threads(1)
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))

def waiting(metrics):
    print(metrics.update, flush=True)
    if metrics.update == 4:
        sys.stdin.readline()

report, _ = train(Path(sys.argv[1]), on_update=waiting, should_stop=lambda: bool(asked), every=1000)
sys.exit(0 if report.finished else 143)
"""


def test_sigterm_saves_and_the_resumed_training_is_equal(tmp_path: Path) -> None:
    (tmp_path / ".writing-1").mkdir()  # what a terminated writer left
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None and process.stdin is not None
        while process.stdout.readline().strip() != "4":
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.wait(timeout=60) == 143
    assert [path.name for path in tmp_path.iterdir()] == ["update-000000004"]
    assert same(train(tmp_path), train(None))
