"""A command that kills itself at a chosen one of its writes: see `Launched(before=...)`.

What counts is every `fsync` and `replace`: a command makes them in its own order, so that the moment does not depend on
how busy the machine is. `COUNTED` names a file that holds how many there were; at number `KILLED_AT` it is gone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any


def at_write(rank: int) -> None:
    """Count the writes of this process, and end it by SIGKILL at the chosen one."""
    counted, killed_at = Path(os.environ["COUNTED"]), int(os.environ.get("KILLED_AT", "0"))
    count = 0

    def counting(whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            counted.write_text(str(count), encoding="ascii")
            if count == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*given, **more)

        return call

    os.fsync, os.replace = counting(os.fsync), counting(os.replace)  # type: ignore[assignment]
