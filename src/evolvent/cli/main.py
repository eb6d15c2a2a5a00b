"""The `evolvent` command: finds the verb, runs it, and turns the outcome into an exit code and a clear message.

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
from evolvent.cli.setup.registry import require_train_extra
from evolvent.cli.terminal.console import open_console
from evolvent.cli.terminal.parsing import choose_verb
from evolvent.errors import ConfigError, EvolventError, Problem, user_boundary
from evolvent.logs import FORMAT_VARIABLE, configure, find_secrets, hide_secrets
from evolvent.models.placement import find_memory_limit, free_address_bytes
from evolvent.view.escape import show_hidden

__all__ = ["VERBS", "find_module", "main"]

_FAULT = "a fault of evolvent itself (--debug shows where)"
_SHORTAGES = ("can't allocate memory", "annot allocate memory", "failed to map segment", "can't start new thread")
_MODEL_ADDRESS_BYTES = 2**30  # addresses that torch, transformers and pyarrow take before a model is loaded
VERBS = {
    "evolve": "clone experts, explore, keep successes, learn, evaluate (AgentEvol)",
    "collect": "play tasks with a policy, an expert or at random; store episodes",
    "train": "SFT, DPO, reward and value models, RL, data methods, teams, sequences",
    "eval": "measure success on held-out tasks, with confidence intervals",
    "search": "compare tree search with sampling at equal token budgets",
    "watch": "evaluate the snapshots of a training run while it goes on",
    "chat": "chat with a policy, or with the newest snapshot of a training run",
    "worlds": "list | show | play | audit the worlds",
    "models": "list | get | show pretrained models on this machine",
    "new": "world | method: create your own package, with tests",
    "serve": "serve worlds or a policy over HTTP and WebSocket",
    "runs": "list | show | export | import | recover | track | push | pull",
    "data": "stats | convert | comment | mask | irrelevance | select | dedup",
    "memory": "build | query a memory of demonstrations for in-context retrieval",
    "view": "write the report of a run",
    "publish": "write a policy of a run as a model folder with a model card",
    "export": "write a policy in float and int8, with measured latency and accuracy",
    "bench": "compare results, with paired intervals; report a controlled study",
    "doctor": "check what is installed on this machine and what is missing",
}
_WITH_KINDS = ("data", "publish", "train")  # their commands stand beside their parts, in a folder each
_SERVE_POLICY = "serve-policy"  # FOLDER: what `serve --policy FOLDER` does
_MODEL_VERBS = ("evolve", "train", "eval", "search", "export")
FAILED, USAGE, INTERRUPTED, TERMINATED = 1, 2, 130, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line; returns its exit code.

    `--debug` anywhere shows the trace of a failure, `--log-json` anywhere writes logs as JSON lines to standard
    error.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_debug = "--debug" in arguments
    if "--log-json" in arguments:
        os.environ[FORMAT_VARIABLE] = "json"  # worker processes inherit it
    arguments = [word for word in arguments if word not in ("--debug", "--log-json")]
    configure(os.environ)
    console, error_console = open_console(), open_console(stderr=True)
    try:
        with _exit_on_sigterm(), user_boundary(EvolventError, _FAULT):
            code = _run_quietly(arguments, console)
    except EvolventError as caught:
        error = _describe_shortage(caught)
        if is_debug:
            error_console.print(hide_secrets(traceback.format_exc(), find_secrets(os.environ)), soft_wrap=True)
        error_console.print(hide_secrets(_format_error(error), find_secrets(os.environ)), soft_wrap=True)
        code = USAGE if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        error_console.print("interrupted", soft_wrap=True)
        code = INTERRUPTED
    except SystemExit as exit_error:
        code = exit_error.code if isinstance(exit_error.code, int) else 0 if exit_error.code is None else FAILED
    return code


def _run_quietly(argv: Sequence[str], console: Console) -> int:
    """Runs the arguments; a reader that went away (`evolvent runs list | head`) ends the command without an error."""
    try:
        code = _run_verb(argv, console)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    return code


def _run_verb(argv: Sequence[str], console: Console) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        console.print(_format_usage(), soft_wrap=True)
        return 0 if argv else USAGE
    if argv[0] in ("-V", "--version"):
        console.print(f"evolvent {__version__}")
        return 0
    if argv[0] == _SERVE_POLICY:
        argv = ["serve", *_translate_serve_policy(argv[1:])]
    verb, verb_argv = choose_verb("evolvent", argv, VERBS)
    if verb in _MODEL_VERBS:
        _check_addresses(verb)
        require_train_extra(f"evolvent {verb}")
    run_command = import_module(f"evolvent.cli.{find_module(verb)}").run
    return int(run_command(verb_argv, console))


def find_module(verb: str) -> str:
    """Returns the module below `evolvent.cli` that runs a verb."""
    return f"{verb}.command" if verb in _WITH_KINDS else verb


def _translate_serve_policy(argv: Sequence[str]) -> list[str]:
    """Converts the arguments of `serve-policy` to those of `serve`: the first one names the policy."""
    if argv and not argv[0].startswith("-"):
        return ["--policy", *argv]
    if any(word.partition("=")[0] in ("--policy", "--config", "-h", "--help") for word in argv):
        return list(argv)
    raise ConfigError([Problem(f"evolvent {_SERVE_POLICY}", "no policy given", "pass a policy folder or a run")])


def _format_usage() -> str:
    verbs = "\n".join(f"  {verb:9}{about}" for verb, about in VERBS.items())
    return (
        "usage: evolvent VERB ...\n\nAgents that learn by acting.\n\n" + verbs + "\n\n"
        "`evolvent VERB --help` says more. `--debug` shows the trace of a failure,\n"
        "`--log-json` writes logs as JSON lines to standard error."
    )


def _check_addresses(verb: str) -> None:
    """Checks that a limit of addresses leaves room for the packages of a command that runs models.

    Raises:
        ConfigError: there is too little, which would end in libraries that cannot be loaded.
    """
    free_bytes = free_address_bytes()
    if free_bytes is not None and free_bytes < _MODEL_ADDRESS_BYTES and "torch" not in sys.modules:
        raise ConfigError(
            f"the limit of addresses (ulimit -v) is too low for evolvent {verb}",
            value=f"{free_bytes / 1e9:.2f} GB free",
            expected=f"at least {_MODEL_ADDRESS_BYTES / 1e9:.2f} GB",
            hint="raise ulimit -v",
        )


def _describe_shortage(error: EvolventError) -> EvolventError:
    """Returns the error of a command; where an allocation was refused, one that says how much memory is left."""
    cause = error.__cause__
    while cause is not None and isinstance(cause, EvolventError):
        cause = cause.__cause__
    is_shortage = isinstance(cause, MemoryError) or any(text in str(cause) for text in _SHORTAGES)
    if cause is None or not error.what.startswith(_FAULT) or not is_shortage:
        return error
    free_bytes, limit_name = find_memory_limit()
    return EvolventError(
        "there is not enough memory",
        value=f"{type(cause).__name__} {str(cause)[:200]}".strip(),
        expected=f"more than the {free_bytes / 1e9:.2f} GB that {limit_name} leaves now",
        hint="use a smaller model, fewer --slots, a lower --context, or raise the limit",
    )


def _format_error(error: EvolventError) -> str:
    if error.what.startswith(f"{_FAULT} at "):  # the innermost line outside of packages is the user's
        return "error: " + show_hidden(f"your code failed at {error.what.removeprefix(f'{_FAULT} at ')}")
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        lines = "\n".join(f"  {show_hidden(str(problem))}" for problem in error.problems)
        return f"error: {len(error.problems)} problems\n{lines}"
    return "error: " + show_hidden(str(error).replace("\n", " "))


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Turns SIGTERM into an orderly exit: `finally` blocks run, finished work stays, and the exit code is 143."""

    def raise_exit(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    previous_handler = signal.signal(signal.SIGTERM, raise_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


if __name__ == "__main__":
    raise SystemExit(main())
