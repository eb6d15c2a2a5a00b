"""The `evolvent` command: finds the verb, runs it, and turns whatever happens into an exit code and a clear sentence.

Exit codes: 0 done, 1 failed, 2 bad config or usage, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import FrameType

from rich.console import Console

from evolvent import __version__
from evolvent.cli.console import open_console
from evolvent.cli.parsing import choose
from evolvent.cli.registry import needs_train
from evolvent.errors import ConfigError, EvolventError, Problem, boundary
from evolvent.logs import FORMAT, configure, hidden, secrets_in
from evolvent.view.escape import plain

__all__ = ["VERBS", "main"]

VERBS = {
    "evolve": "the main job: clone, explore, keep, learn, evaluate, report",
    "collect": "play tasks with a policy, an expert or at random; keep the episodes",
    "train": "clone recorded episodes into a policy",
    "eval": "measure a policy on its panels, with intervals",
    "search": "search instead of decoding: what accuracy costs, method by method",
    "watch": "evaluate the snapshots of a training while it runs",
    "chat": "talk to the newest snapshot of a training, or to any policy",
    "worlds": "list | show | play | audit the worlds",
    "new": "world | method: begin a package of your own, with its tests",
    "serve": "serve worlds, or a policy, to others over HTTP and WebSocket",
    "runs": "list | show | export | import | recover | track | push | pull",
    "data": "describe, convert, mask and thin data sets",
    "memory": "build | query a memory of what others thought, saw and did",
    "view": "write the report of a run",
    "publish": "write a policy of a run as a model folder with a model card",
    "export": "write a policy for a device: floats and int8, both measured",
    "bench": "compare two results; say what a controlled study shows",
    "doctor": "say what this machine offers and what is missing",
}
_SERVES_A_POLICY = "serve-policy"  # FOLDER: what `serve --policy FOLDER` does
_MODEL_VERBS = ("evolve", "train", "eval", "search", "export")
FAILED, USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code.

    `--debug` anywhere shows the trace of a failure, `--log-json` anywhere writes logs as JSON lines to standard error.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    if "--log-json" in words:
        os.environ[FORMAT] = "json"  # worker processes inherit it
    words = [word for word in words if word not in ("--debug", "--log-json")]
    configure(os.environ)
    console, errors = open_console(), open_console(stderr=True)
    try:
        with _terminable(), boundary(EvolventError, "a fault of evolvent itself (--debug shows where)"):
            code = _quietly(words, console)
    except EvolventError as error:
        if debug:
            errors.print(hidden(traceback.format_exc(), secrets_in(os.environ)), soft_wrap=True)
        errors.print(hidden(_sentence(error), secrets_in(os.environ)), soft_wrap=True)
        code = USAGE if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        errors.print("interrupted", soft_wrap=True)
        code = INTERRUPTED
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 0 if leave.code is None else FAILED
    return code


def _quietly(words: Sequence[str], console: Console) -> int:
    """Run the words; a reader that went away (`evolvent runs list | head`) ends the command without a complaint."""
    try:
        code = _run(words, console)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    return code


def _run(words: Sequence[str], console: Console) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        console.print(_usage(), soft_wrap=True)
        return 0 if words else USAGE
    if words[0] in ("-V", "--version"):
        console.print(f"evolvent {__version__}")
        return 0
    if words[0] == _SERVES_A_POLICY:
        words = ["serve", *_with_policy(words[1:])]
    verb, rest = choose("evolvent", words, VERBS)
    if verb in _MODEL_VERBS:
        needs_train(f"evolvent {verb}")
    run = import_module(f"evolvent.cli.{verb}").run
    return int(run(rest, console))


def _with_policy(words: Sequence[str]) -> list[str]:
    """The words of `serve-policy` as `serve` takes them: the first names the policy."""
    if words and not words[0].startswith("-"):
        return ["--policy", *words]
    if any(word.partition("=")[0] in ("--policy", "--config", "-h", "--help") for word in words):
        return list(words)
    raise ConfigError([Problem(f"evolvent {_SERVES_A_POLICY}", "got no policy", "expected its folder, or a run")])


def _usage() -> str:
    verbs = "\n".join(f"  {verb:9}{about}" for verb, about in VERBS.items())
    return (
        "usage: evolvent VERB ...\n\nAgents that learn by acting.\n\n" + verbs + "\n\n"
        "`evolvent VERB --help` says more. `--debug` shows the trace of a failure,\n"
        "`--log-json` writes logs as JSON lines to standard error."
    )


def _sentence(error: EvolventError) -> str:
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        lines = "\n".join(f"  {plain(str(problem))}" for problem in error.problems)
        return f"error: {len(error.problems)} problems\n{lines}"
    return "error: " + plain(str(error).replace("\n", " "))


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM becomes an orderly exit: `finally` blocks run, what is finished stays, the code is 143."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    raise SystemExit(main())
