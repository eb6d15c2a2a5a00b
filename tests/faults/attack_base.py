"""What attacks on a box are made of, and the host that they attack.

An attack is a source whose `f()` returns the host's secret, or "escaped", where it gets what it wants.

The secret is in a file, in the environment and behind sockets of the host, and it is what a judge would expect `f()`
to return. So one rule holds for all: no attack may make `f()` return it, nor return "escaped", nor leave a trace. And
what comes out of any of them can be printed and written: the text of an error, the value, and the outcome as a whole.

Should the containment fail, the host takes no harm: attacks create small numbers of objects, and change nothing.
"""

from __future__ import annotations

import gc
import json
import os
import secrets
import socket
import textwrap
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from evolvent.sandbox.box import find_parent_group
from evolvent.sandbox.bubblewrap import isolation
from evolvent.sandbox.limits import CallRequest, Outcome, SandboxLimits
from evolvent.sandbox.pool import SandboxPool

LIMITS = SandboxLimits(wall_s=1.5, cpu_s=5, memory_mb=256, total_mb=256, processes=24, output_kb=64)
DENIED = ("raised", "value")  # an attack that is refused returns something else, or raises
GONE = ("killed", "limit", "timeout")
LIBC = """
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
def raw(x86, arm, *args):
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(x86 if platform.machine() == "x86_64" else arm), *map(word, args))
def word(arg):
    return ctypes.c_long(arg) if isinstance(arg, int) else arg
def call(x86, arm, *args):
    return "escaped" if raw(x86, arm, *args) != -1 else os.strerror(ctypes.get_errno())
def refused(x86, arm, *args):
    # a call that fails for another reason than the filter would have succeeded with better arguments
    if raw(x86, arm, *args) == -1 and ctypes.get_errno() in (errno.EPERM, errno.ENOSYS):
        return errno.errorcode[ctypes.get_errno()]
    return "escaped"
"""


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
    nice: int = field(default_factory=lambda: os.getpriority(os.PRIO_PROCESS, 0))

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
        return f"{attack.name}: {why}" if (why := unwritable(outcome)) else ""

    def touched(self) -> list[str]:
        """What has been changed or reached from outside."""
        wrong = list(self.reached)
        if os.getpriority(os.PRIO_PROCESS, 0) != self.nice:
            wrong.append("the priority of the host's process was changed")
        if self.file.read_text(encoding="utf-8") != self.secret:
            wrong.append("the secret's file was written")
        wrong += [f"{path} was made" for path in self.file.parent.iterdir() if path != self.file]
        return wrong + [f"{place} was made" for place in ("/usr/evolvent", "/evolvent") if Path(place).exists()]


def unwritable(outcome: Outcome) -> str:
    """Why an outcome cannot be printed, or written as UTF-8; "" where it can."""
    if not outcome.error.isprintable() or len(outcome.error) > 1000:
        return f"its error is not one printable line: {ascii(outcome.error)[:80]}"
    try:
        texts = [repr(outcome), str(outcome.value), outcome.error, outcome.stdout, *_strings(outcome.value)]
        json.dumps(texts, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:  # an integer without repr, or half a character
        return f"it cannot be written: {error}"
    return ""


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _strings(pair)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from _strings(part)


def below(pid: int) -> set[int]:
    """The processes that this one has started, and theirs."""
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text(encoding="ascii").split()):
            found |= {child} | (below(child) if Path(f"/proc/{child}").exists() else set())
    return found


class Before:
    """What this process holds of its system, looked at before attacks and again after them."""

    def __init__(self) -> None:
        self.held = self._held()

    def left_behind(self) -> list[str]:
        """What is there that was not there before, once all boxes are closed."""
        gc.collect()
        now = self._held()
        return [
            f"{kind}: {', '.join(map(str, sorted(now[kind] - old)))}"
            for kind, old in self.held.items()
            if now[kind] - old
        ]

    @staticmethod
    def _held() -> dict[str, set[str]]:
        groups = find_parent_group()
        folder = Path("/proc/self/fd")
        descriptors = {entry.name for entry in folder.iterdir() if entry.exists()}
        own = {str(pid) for pid in (os.getpid(), *below(os.getpid()))}
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        tables = [Path(f"/proc/sysvipc/{kind}") for kind in ("msg", "sem", "shm")]
        return {
            "processes": {str(pid) for pid in below(os.getpid())},
            "descriptors": descriptors,
            "threads": {thread.name for thread in threading.enumerate()},
            "groups": {path.name for path in groups.glob(f"evolvent-{os.getpid()}-*")} if groups else set(),
            "locks": {line.split(":", 1)[1] for line in locks if own & set(line.split())},
            "objects of IPC": {
                f"{table.name} {line.split()[1]}"
                for table in tables
                if table.exists()
                for line in table.read_text(encoding="ascii").splitlines()[1:]
                if own & set(line.split()[4:6])
            },
        }


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


@dataclass(frozen=True)
class Attacked:
    """What became of attacks: how each ended, what the honest jobs after them said, what was touched and left."""

    host: Host
    outcomes: dict[str, Outcome]
    honest: list[tuple[str, object]]
    touched: list[str]
    left_behind: list[str]

    def escaped(self, attack: Attack) -> str:
        return self.host.escaped(attack, self.outcomes[attack.name])


def attacked(attacks: Sequence[Attack], folder: Path) -> Attacked:
    """All attacks, four at a time, each followed by an honest job."""
    isolation()
    before = Before()

    def run(attack: Attack) -> tuple[str, Outcome, Outcome]:
        (outcome,) = boxes.observe(found.filled(attack), [CallRequest("f")], attack.limits)
        (honest,) = boxes.observe("def f(): return 6 * 7", [CallRequest("f")], SandboxLimits(wall_s=60.0))
        return attack.name, outcome, honest

    with host(folder) as found:
        with SandboxPool(at_once=4) as boxes, ThreadPoolExecutor(4) as threads:
            rows = list(threads.map(run, attacks))
        touched = found.touched()
    outcomes = {name: outcome for name, outcome, _ in rows}
    honest = [(honest.status, honest.value) for *_, honest in rows]
    return Attacked(found, outcomes, honest, touched, before.left_behind())


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
