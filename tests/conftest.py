"""Running the command line as users do: in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums in one order: results are compared bit for bit

# A shell's job in the background ignores interrupts, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SRC = Path(__file__).parents[1] / "src"


class Command:
    """`evolvent WORDS` in a new process, with this environment but for what would colour or widen the output."""

    program = (sys.executable, "-m", "evolvent.cli.main")

    def environment(self, **changes: str) -> dict[str, str]:
        """The environment of the process; an empty value removes a name, `PYTHONPATH` comes before the source."""
        kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR")}
        first = changes.pop("PYTHONPATH", "")
        kept |= {"PYTHONPATH": os.pathsep.join(filter(None, (first, str(SRC)))), "OMP_NUM_THREADS": "1"} | changes
        return {key: value for key, value in kept.items() if value}

    def __call__(self, *words: object, cwd: Path | None = None, stdin: str = "", **changes: str):
        """Run it to its end. Output is read as UTF-8; what is none is kept as escapes."""
        return subprocess.run(
            [*self.program, *map(str, words)],
            input=stdin,
            capture_output=True,
            cwd=cwd,
            env=self.environment(**changes),
            encoding="utf-8",
            errors="backslashreplace",
            timeout=300,
        )

    def start(self, *words: object, cwd: Path | None = None, **changes: str):
        """Start it and go on."""
        return subprocess.Popen(
            [*self.program, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=self.environment(**changes),
            encoding="utf-8",
        )


@pytest.fixture(scope="session")
def command() -> Command:
    return Command()
