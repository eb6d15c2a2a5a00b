"""The program inside a sandbox: it loads one source, answers calls of its functions with values, and ends.

It runs in `python -I -S` with the folder of this file and nothing else of the library. Every import costs time in
each sandbox: `json` and `typing` would double its start, so JSON is read and written by json's own C part.

After the source is loaded, nothing here is trusted any more: code in the same process can change this module, write
frames itself, or end the process. All of that only produces wrong values, and the right values were never here. The
reader on the other side expects hostile frames.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from _json import encode_basestring_ascii, make_encoder, make_scanner
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader

from evolvent.sandbox.values import HEADER_BYTES, MAX_FRAME_BYTES, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType, TracebackType
    from typing import Any

__all__ = ["FrameStream", "main"]

_NAME, _FILE = "candidate", "<candidate>"
_MIB = 2**20
_MAX_ERROR_CHARS = 500  # characters of an exception's text
_PENDING = 64  # signals that wait, and timers
_RLIMIT_NAMES = {"MEMLOCK": 0, "MSGQUEUE": 0, "RTPRIO": 0, "NICE": 0, "SIGPENDING": _PENDING}  # counted per user
_PER_USER = tuple(
    (getattr(resource, f"RLIMIT_{name}"), most, most)
    for name, most in _RLIMIT_NAMES.items()
    if hasattr(resource, f"RLIMIT_{name}")
)


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
_scan_json: Callable[[str, int], tuple[dict[str, Any], int]] = make_scanner(_Json())
_encode_json: Callable[[object, int], tuple[str, ...]] = make_encoder(
    None, repr, encode_basestring_ascii, None, ":", ",", False, False, False
)


class FrameStream:
    """The two descriptors on which frames come in and go out."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming, self.outgoing = incoming, outgoing

    def read_frame(self) -> dict[str, Any]:
        """Reads the next frame; the end of the stream ends the process."""
        return _scan_json(
            self._read_exactly(int.from_bytes(self._read_exactly(HEADER_BYTES), "little")).decode("ascii"), 0
        )[0]

    def _read_exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = os.read(self.incoming, size - len(data))
            if not chunk:
                os._exit(0)
            data += chunk
        return bytes(data)

    def write(self, row: dict[str, object]) -> None:
        """Writes a row; a row that is too large is sent as "malformed"."""
        body = "".join(_encode_json(row, 0)).encode("ascii")
        if len(body) > MAX_FRAME_BYTES:
            self.write({"malformed": f"an answer of {len(body)} bytes, at most {MAX_FRAME_BYTES}"})
            return
        data = memoryview(len(body).to_bytes(HEADER_BYTES, "little") + body)
        while data:
            data = data[os.write(self.outgoing, data) :]


class _CaughtError:
    """A context that ends any exception of the code, SystemExit and KeyboardInterrupt too, and keeps it as text.

    This is the boundary between the code and the sandbox, as `errors.boundary` is for the library, which is not in
    here.
    """

    kind: type[BaseException] | None = None
    error: BaseException | None = None
    trace: TracebackType | None = None

    def __enter__(self) -> _CaughtError:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.kind, self.error, self.trace = kind, error, trace
        return True

    def text(self) -> str:
        """Returns class, text and line of the exception, "" without an exception; the exception's own text may
        raise, too.
        """
        if self.kind is None:
            return ""
        line, message, trace = "", "", self.trace
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == _FILE:
                line = f" (line {trace.tb_lineno})"
            trace = trace.tb_next
        with _CaughtError():
            message = str(self.error)[:_MAX_ERROR_CHARS]
        return f"{self.kind.__name__}{': ' if message else ''}{message}{line}"


class _Loader(SourceFileLoader):
    """Loads a text as a module through the import system."""

    def __init__(self, text: str) -> None:
        super().__init__(_NAME, _FILE)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        """Compiles the text."""
        return self.source_to_code(self.text, _FILE)


def _lower_limits(limits: dict[str, Any]) -> None:
    """Lowers the limits of this process and of all its children; without privileges they cannot be raised again.

    The process has used CPU seconds already, to start and to import.
    """
    cpu = int(time.process_time()) + 1 + int(limits["cpu_s"])
    for resource_id, soft, hard in (
        (resource.RLIMIT_AS, limits["memory_mb"] * _MIB, limits["memory_mb"] * _MIB),
        (resource.RLIMIT_CPU, cpu, cpu + 1),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * _MIB, limits["file_mb"] * _MIB),
        (resource.RLIMIT_NOFILE, limits["files"], limits["files"]),
        (resource.RLIMIT_NPROC, limits["processes"], limits["processes"]),
        (resource.RLIMIT_CORE, 1, 1),  # a size of 0 starts the host's handler of crashes all the same (core(5))
        *_PER_USER,
    ):
        if resource_id == resource.RLIMIT_NPROC and not soft:
            continue
        ceiling = resource.getrlimit(resource_id)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(resource_id, (soft, hard))


def _load_source(line: FrameStream, text: str, host_functions: list[str]) -> tuple[ModuleType, str]:
    """Returns the source as a module with its host functions, and the text of the error that it raised ("" for
    none).
    """
    loader = _Loader(text)
    module = type(sys)(_NAME)
    module.__spec__, module.__loader__ = ModuleSpec(_NAME, loader, origin=_FILE), loader
    sys.modules[_NAME] = module
    for name in host_functions:
        setattr(module, name, _make_host_function(line, name))
    with _CaughtError() as caught:
        loader.exec_module(module)
    return module, caught.text()


def _make_host_function(line: FrameStream, name: str) -> Any:
    """Returns a function whose calls are answered outside the sandbox."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        line.write({"call": name, "args": encode(args), "kwargs": encode(kwargs)})
        reply = line.read_frame()
        if "value" in reply:
            return decode(reply["value"], strict=False)
        raise RuntimeError(str(reply.get("failed")))

    ask.__name__ = ask.__qualname__ = name
    return ask


def _call_entry(module: ModuleType, request: dict[str, Any]) -> dict[str, Any]:
    """Calls one function; returns its value, or the error that it raised."""
    value: Any = None
    with _CaughtError() as caught:
        if request["entry"]:
            target: Any = module
            for part in request["entry"].split("."):
                target = getattr(target, part)
            args, kwargs = (decode(request[name], strict=False) for name in ("args", "kwargs"))
            value = target(*args, **kwargs)
    if caught.kind is not None:
        return {"raised": caught.text()}
    row: dict[str, Any] = {}
    with _CaughtError() as caught:
        row = {"value": encode(value)}
    return row if caught.kind is None else {"malformed": caught.text()}


def _flush(original_stdout: Any) -> None:
    """Writes out the printed text before the answer, so that the reader can assign the text to the request."""
    for stream in (original_stdout, sys.stdout):
        with _CaughtError():
            stream.flush()


def _redirect_to_null(descriptor: int, flags: int) -> None:
    null = os.open(os.devnull, flags)
    os.dup2(null, descriptor)
    os.close(null)


def main(outgoing: int, packages: list[str]) -> None:
    """Imports packages ahead, reports that it is ready, then runs one job.

    Args:
        outgoing: descriptor for answers; requests come on standard input.
        packages: modules to import before the source is known.
    """
    line = FrameStream(os.dup(0), outgoing)
    os.set_inheritable(outgoing, False)
    _redirect_to_null(0, os.O_RDONLY)
    for package in packages:
        import_module(package)
    stdout = sys.stdout
    line.write({"ready": True})
    job = line.read_frame()
    _redirect_to_null(2, os.O_WRONLY)
    _lower_limits(job["limits"])
    module, error_text = _load_source(line, job["source"], job["outside"])
    _flush(stdout)
    line.write({"raised": error_text} if error_text else {"loaded": True})
    while True:
        request = line.read_frame()
        if "end" in request:
            line.write({"end": True})
            os._exit(0)
        row = _call_entry(module, request)
        _flush(stdout)
        line.write(row)
