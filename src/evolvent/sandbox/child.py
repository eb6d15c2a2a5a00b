"""The program inside a box: it loads one source, answers calls of its functions with values, and ends.

It runs in `python -I -S` with the folder of this file and nothing else of the library. Every import is paid for with
each box: `json` and `typing` would double its start, so JSON is read and written by json's own C part.

Once the source is loaded nothing here is trusted any more: code in the same process can change this module, write
frames itself, or end the process. All of that only makes wrong values, and the right ones were never here. The reader
on the other side expects lies.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from _json import encode_basestring_ascii, make_encoder, make_scanner
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader

from evolvent.sandbox.values import HEAD, SIZE, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType, TracebackType
    from typing import Any

__all__ = ["Line", "main"]

_NAME, _FILE = "candidate", "<candidate>"
_MIB = 2**20
_ERROR = 500  # characters of an exception's text


_Json = type(
    "_Json",
    (),
    {
        "strict": True,
        "object_hook": None,
        "object_pairs_hook": None,
        "parse_float": float,
        "parse_int": int,
        "parse_constant": float,
        "memo": {},
    },
)
_read: Callable[[str, int], tuple[dict[str, Any], int]] = make_scanner(_Json())
_written: Callable[[object, int], tuple[str, ...]] = make_encoder(
    None, repr, encode_basestring_ascii, None, ":", ",", False, False, False
)


class Line:
    """The two descriptors on which frames come in and go out."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing

    def read(self) -> dict[str, Any]:
        """The next frame; the end of the line ends the process."""
        return _read(self._exactly(int.from_bytes(self._exactly(HEAD), "little")).decode("ascii"), 0)[0]

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.read(self.incoming, size - len(data))
            if not part:
                os._exit(0)
            data += part
        return bytes(data)

    def write(self, row: dict[str, Any]) -> None:
        """Send a row; one that is too large goes as "malformed"."""
        body = "".join(_written(row, 0)).encode("ascii")
        if len(body) > SIZE:
            self.write({"malformed": f"an answer of {len(body)} bytes, at most {SIZE}"})
            return
        data = memoryview(len(body).to_bytes(HEAD, "little") + body)
        while data:
            data = data[os.write(self.outgoing, data) :]


class _Caught:
    """Whatever the code raises, SystemExit and KeyboardInterrupt too, ends here: to the outside it is a text.

    This is the boundary between the code and the box, as `errors.boundary` is for the library, which is not in here.
    """

    kind: type[BaseException] | None = None
    error: BaseException | None = None
    trace: TracebackType | None = None

    def __enter__(self) -> _Caught:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.kind, self.error, self.trace = kind, error, trace
        return True

    def text(self) -> str:
        """Class, text and line of what was raised; "" where nothing was. The exception's own text may raise, too."""
        if self.kind is None:
            return ""
        line, said, trace = "", "", self.trace
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _FILE:
                line = f" (line {trace.tb_lineno})"
            trace = trace.tb_next
        with _Caught():
            said = str(self.error)[:_ERROR]
        return f"{self.kind.__name__}{': ' if said else ''}{said}{line}"


class _Loader(SourceFileLoader):
    """Loads a text as a module by the import system's own way."""

    def __init__(self, text: str) -> None:
        super().__init__(_NAME, _FILE)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        """The text, compiled."""
        return self.source_to_code(self.text, _FILE)


def _limit(limits: dict[str, Any]) -> None:
    """Lower the limits of this process and all that it starts; without privileges nobody can raise them again.

    The process has used CPU seconds already, to start and to import.
    """
    cpu = int(time.process_time()) + 1 + int(limits["cpu_s"])
    for what, soft, hard in (
        (resource.RLIMIT_AS, limits["memory_mb"] * _MIB, limits["memory_mb"] * _MIB),
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * _MIB, limits["file_mb"] * _MIB),
        (resource.RLIMIT_NOFILE, limits["files"], limits["files"]),
        (resource.RLIMIT_NPROC, limits["processes"], limits["processes"]),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        if what == resource.RLIMIT_NPROC and not soft:
            continue
        ceiling = resource.getrlimit(what)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(what, (soft, hard))


def _load(line: Line, text: str, outside: list[str]) -> tuple[ModuleType, str]:
    """The source as a module, with the outside's functions in it, and what it raised ("": nothing)."""
    loader = _Loader(text)
    module = type(sys)(_NAME)
    module.__spec__, module.__loader__ = ModuleSpec(_NAME, loader, origin=_FILE), loader
    sys.modules[_NAME] = module
    for name in outside:
        setattr(module, name, _outside(line, name))
    with _Caught() as caught:
        loader.exec_module(module)
    return module, caught.text()


def _outside(line: Line, name: str) -> Any:
    """A function whose calls are answered outside the box."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        line.write({"call": name, "args": encode(args), "kwargs": encode(kwargs)})
        reply = line.read()
        if "value" in reply:
            return decode(reply["value"])
        raise RuntimeError(str(reply.get("failed")))

    ask.__name__ = ask.__qualname__ = name
    return ask


def _answer(module: ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    """Call one function; its value, or what it raised."""
    value: Any = None
    with _Caught() as caught:
        if request["entry"]:
            found: Any = module
            for part in request["entry"].split("."):
                found = getattr(found, part)
            value = found(*decode(request["args"]), **decode(request["kwargs"]))
    if caught.kind is not None:
        return {"raised": caught.text()}
    row: dict[str, Any] = {}
    with _Caught() as caught:
        row = {"value": encode(value)}
    return row if caught.kind is None else {"malformed": caught.text()}


def _flush(first: Any) -> None:
    """What was printed goes out before the answer does: the reader tells by that what belongs to it."""
    for stream in (first, sys.stdout):
        with _Caught():
            stream.flush()


def _quiet(descriptor: int, flags: int) -> None:
    null = os.open(os.devnull, flags)
    os.dup2(null, descriptor)
    os.close(null)


def main(outgoing: int, packages: list[str]) -> None:
    """Import packages ahead, say so, then do one job.

    Args:
        outgoing: the descriptor for answers; requests come on standard input.
        packages: modules to import before the source is known.
    """
    line = Line(os.dup(0), outgoing)
    os.set_inheritable(outgoing, False)
    _quiet(0, os.O_RDONLY)
    for package in packages:
        import_module(package)
    out = sys.stdout
    line.write({"ready": True})
    job = line.read()
    _quiet(2, os.O_WRONLY)
    _limit(job["limits"])
    module, failed = _load(line, job["source"], job["outside"])
    _flush(out)
    line.write({"raised": failed} if failed else {"loaded": True})
    while True:
        request = line.read()
        if "end" in request:
            line.write({"end": True})
            os._exit(0)
        row = _answer(module, request)
        _flush(out)
        line.write(row)
