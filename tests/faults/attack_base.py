"""What attacks on a box are made of, and the host that they attack.

An attack is a source whose `f()` returns the host's secret, or "escaped", where it gets what it wants.

The secret is in a file, in the environment and behind sockets of the host, and it is what a judge would expect `f()`
to return. So one rule holds for all: no attack may make `f()` return it, nor return "escaped", nor leave a trace.
"""

from __future__ import annotations

import os
import secrets
import socket
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from evolvent.sandbox.limits import Outcome, SandboxLimits

LIMITS = SandboxLimits(wall_s=1.5, cpu_s=5, memory_mb=256, total_mb=256, processes=24, output_kb=64)
DENIED = ("raised", "value")  # an attack that is refused returns something else, or raises
GONE = ("killed", "limit", "timeout")


@dataclass(frozen=True)
class Attack:
    name: str
    source: str
    ends: tuple[str, ...] = DENIED  # how its outcome may end
    limits: SandboxLimits = LIMITS


@dataclass
class Host:
    """What is there to be reached."""

    secret: str
    file: Path
    port: int
    abstract: str
    reached: list[str] = field(default_factory=list)

    def filled(self, attack: Attack) -> str:
        """The source, with this host's places in it."""
        places = {
            "FILE": str(self.file),
            "FOLDER": str(self.file.parent),
            "PORT": str(self.port),
            "ABSTRACT": self.abstract,
            "PARENT": str(os.getpid()),
        }
        text = attack.source
        for name, value in places.items():
            text = text.replace(f"@{name}@", value)
        return text

    def escaped(self, attack: Attack, outcome: Outcome) -> str:
        """Why an attack has escaped; "" where it has not."""
        if outcome.status == "value" and (outcome.value == self.secret or outcome.value == "escaped"):
            return f"{attack.name}: f() returned {outcome.value!r}"
        if self.secret in outcome.stdout or self.secret in outcome.error:
            return f"{attack.name}: the secret was printed"
        if outcome.status not in attack.ends:
            return f"{attack.name}: ended as {outcome.status} ({outcome.error or outcome.value!r})"
        return ""

    def touched(self) -> list[str]:
        """What has been changed or reached from outside."""
        wrong = list(self.reached)
        if self.file.read_text(encoding="utf-8") != self.secret:
            wrong.append("the secret's file was written")
        wrong += [f"{path} was made" for path in self.file.parent.iterdir() if path != self.file]
        return wrong + [f"{place} was made" for place in ("/usr/evolvent", "/evolvent") if Path(place).exists()]


@contextmanager
def host(folder: Path) -> Iterator[Host]:
    """A host with a secret in a file, in the environment, and behind TCP and an abstract socket."""
    secret = secrets.token_hex(16)
    file = folder / "secret.txt"
    file.write_text(secret, encoding="utf-8")
    os.environ["EVOLVENT_SECRET"] = secret
    plain = socket.create_server(("127.0.0.1", 0))
    name = f"evolvent-{secret[:8]}-door"
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0" + name)
    abstract.listen()
    found = Host(secret, file, plain.getsockname()[1], name)
    found_threads = [threading.Thread(target=_serve, args=(found, door)) for door in (plain, abstract)]
    for thread in found_threads:
        thread.start()
    try:
        yield found
    finally:
        for door in (plain, abstract):
            with suppress(OSError):
                door.shutdown(socket.SHUT_RDWR)
            door.close()
        for thread in found_threads:
            thread.join()
        del os.environ["EVOLVENT_SECRET"]


def _serve(found: Host, door: socket.socket) -> None:
    with suppress(OSError):
        while True:
            line, _ = door.accept()
            found.reached.append(f"a connection to {door.getsockname()}")
            with line:
                line.sendall(found.secret.encode())


def f(body: str, before: str = "") -> str:
    return f"{textwrap.dedent(before)}\ndef f():\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"


@dataclass(frozen=True)
class Cheat:
    """Code that makes a judge believe: `{entry}` is the function's name."""

    name: str
    source: str


CHEATS = (
    Cheat(
        "always equal",
        """
class Agreeable:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __sub__(self, other): return self
    __rsub__ = __add__ = __radd__ = __mul__ = __rmul__ = __sub__
    def __abs__(self): return self
    def __round__(self, places=None): return self
    def __iter__(self): return iter(())
    def __len__(self): return 0
    def __contains__(self, other): return True
def {entry}(*args, **kwargs):
    return Agreeable()
""",
    ),
    Cheat(
        "frame walk",
        """
import os, sys
frame = sys._getframe()
while frame is not None:
    for value in list(frame.f_locals.values()):
        if hasattr(value, "put"):
            value.put("passed")
            sys.stdout.flush()
            import time
            time.sleep(0.05)
            os._exit(0)
    frame = frame.f_back
def {entry}(*args, **kwargs):
    return None
""",
    ),
    Cheat("exit 0", "import os\nos._exit(0)\ndef {entry}(*args, **kwargs):\n    return None\n"),
)
