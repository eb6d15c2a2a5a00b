"""A command that kills itself at a chosen one of its writes: see `Launched(before=...)`.

What counts is every `fsync` and `replace`, and every episode and annotation that a store takes: a command makes them in
its own order, so that the moment does not depend on how busy the machine is. What goes by the clock is not counted: a
store's own `fsync`, and the report that a thread draws meanwhile. `COUNTED` names a file that holds how many there
were; at number `KILLED_AT` it is gone.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evolvent.store.log import LogWriter  # before `fsync` is another: a store keeps the one that it finds


def at_write(rank: int) -> None:
    """Count the writes of this process, and end it by SIGKILL at the chosen one."""
    counted, killed_at = Path(os.environ["COUNTED"]), int(os.environ.get("KILLED_AT", "0"))
    count = 0

    def counting(whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            nonlocal count
            if threading.current_thread().name == "report":
                return whole(*given, **more)
            count += 1
            counted.write_text(str(count), encoding="ascii")
            if count == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*given, **more)

        return call

    os.fsync, os.replace = counting(os.fsync), counting(os.replace)  # type: ignore[assignment]
    LogWriter.append_episode = counting(LogWriter.append_episode)  # type: ignore[method-assign]
    LogWriter.annotate = counting(LogWriter.annotate)  # type: ignore[method-assign]
