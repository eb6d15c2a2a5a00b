"""`python -m tests.scale.slowed -m evolvent ...`: the command, slow as long as there is a file `slow`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from evolvent.cli.main import main
from evolvent.learn.learner import Learner

PAUSE_S = 0.4

if __name__ == "__main__":
    whole = Learner.update

    def update(self: Any, batches: Any) -> Any:
        time.sleep(PAUSE_S if Path("slow").exists() else 0)
        return whole(self, batches)

    Learner.update = update  # type: ignore[method-assign]
    sys.exit(main(sys.argv[3:]))
