"""Breaks ranks that a test starts: called in every rank before its command runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from evolvent.rl.trainer import PolicyTrainer


def halts(rank: int) -> None:
    """Make the rank that `HALTED_RANK` names wait in the second update, and say so in a file, until it is killed."""
    update = PolicyTrainer.update

    def halting(self: PolicyTrainer, *seen: Any, **more: Any) -> None:
        if self.iteration == 2 and rank == int(os.environ["HALTED_RANK"]):
            Path("halted").write_text("here\n", encoding="utf-8")
            time.sleep(300)
        update(self, *seen, **more)

    PolicyTrainer.update = halting  # type: ignore[method-assign]
