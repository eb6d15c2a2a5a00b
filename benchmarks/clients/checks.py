"""What the scripts of the clients share. Run by the client's own Python, which need not have evolvent."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, NamedTuple

QUESTION = "Name a color, its share and whether it is dark, as JSON."
MAX_TOKENS = 64


class Endpoint(NamedTuple):
    """The address of the server, the name of its model, and the folder of its tokenizer."""

    url: str
    model: str
    tokenizer: str


def read_endpoint() -> Endpoint:
    """Returns the endpoint that the benchmark passes to the script."""
    return Endpoint(*sys.argv[1:4])


class _Failure:
    """Ends with the block, however a client fails, and keeps why ("": it did not)."""

    problem = ""

    def __enter__(self) -> _Failure:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            self.problem = f"{type(error).__name__}: {error}"[:600]
        return isinstance(error, Exception)


def run_checks(checks: Mapping[str, Callable[[], object]], packages: tuple[str, ...]) -> None:
    """Runs the checks and prints one JSON line for each: its name, why it failed ("": passed) and its `found` value."""
    print(json.dumps({"versions": {name: version(name) for name in packages}}), flush=True)
    for name, check in checks.items():
        started, row = time.monotonic(), dict[str, Any](check=name)
        with _Failure() as failure:
            row["found"] = check()
        row["problem"] = failure.problem
        row["seconds"] = round(time.monotonic() - started, 1)
        print(json.dumps(row, default=str), flush=True)
