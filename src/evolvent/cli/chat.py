"""`evolvent chat RUN`: a conversation with the newest snapshot of a training, or with any policy."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rich.console import Console

from evolvent.cli.setup.registry import POLICIES, require_train_extra, resolve_policy
from evolvent.cli.terminal.console import open_console
from evolvent.cli.terminal.parsing import Parser, add_model_options, read_placement
from evolvent.errors import ConfigError, EvolventError, Problem
from evolvent.serve.listen import listen, listening_url
from evolvent.serve.protocol import LimitedConfig, LimitedServer, make_server_config
from evolvent.view.escape import show_hidden
from evolvent.web import App, build_access

if TYPE_CHECKING:
    from evolvent.agents.speaker import Conversation, PolicyChat, PolicySource

__all__ = ["run"]

_NEW_COMMAND = "/new"
_GRACE_S = 5  # how long requests may take to end when the server is stopped


def _build_parser() -> Parser:
    parser = Parser(
        "evolvent chat",
        "Talk to a policy. Of a run that trains it is always the newest snapshot, of one that has ended its model. "
        f"A line is what you say; {_NEW_COMMAND} begins anew; the end of input (Ctrl-D) ends.",
    )
    parser.add("policy", help="a run, a model folder, a GGUF file, or a model's name")
    parser.add("--once", metavar="TEXT", help="say this, print the reply and end")
    parser.add("--page", action="store_true", help="serve a page to talk on, at this machine only")
    parser.add("--port", type=int, default=0, help="of the page (default: a free one)")
    parser.add("--system", metavar="TEXT", default="", help="instructions before the conversation")
    parser.add("--temperature", type=_parse_number, default=0.7, help="0: the likeliest token (default: 0.7)")
    parser.add("--top-p", type=_parse_number, default=1.0, help="the share of probability that is kept (default: 1)")
    parser.add("--max-tokens", type=_parse_count, default=256, help="longest reply (default: 256)")
    parser.add("--seed", type=int, default=0, help="of the replies (default: 0)")
    add_model_options(parser)
    parser.add("--threads", type=_parse_count, default=1, help="threads of torch (default: 1)")
    return parser


def _parse_number(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1000:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of 0 or more")
    return value


def _parse_count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of 1 or more")
    return int(text)


def run(argv: Sequence[str], console: Console) -> int:
    """Runs the conversation until the input ends; returns the exit code. An error in a reply does not end it."""
    args = _build_parser().parse_argv(argv)
    if args.page and args.once is not None:
        raise ConfigError([Problem("evolvent chat", "got both --page and --once", "use one of them")])
    if not 0 <= args.port < 65536:
        raise ConfigError([Problem("--port", f"got {args.port}, expected 0 to 65535")])
    require_train_extra("evolvent chat")
    import torch

    from evolvent.agents.speaker import Conversation, PolicyChat
    from evolvent.engine.asks import Sampling

    torch.set_num_threads(args.threads)
    sampling = Sampling(args.temperature, top_p=args.top_p)
    policy_chat = PolicyChat(_open_source(args), sampling=sampling, max_tokens=args.max_tokens, seed=args.seed)
    start = Conversation(args.system)
    if args.page:
        return _serve_page(args, policy_chat, start, console=console)
    if args.once is not None:
        exchange = policy_chat.reply(start, args.once)
        _print_notes(open_console(stderr=True), exchange.notes)  # what a script reads is the reply alone
        console.print(show_hidden(exchange.reply), soft_wrap=True)
        return 0
    return _chat_in_terminal(policy_chat, start, console)


def _open_source(args: argparse.Namespace) -> PolicySource:
    """Opens the source of the replying policy: a run's newest snapshot or model, or the policy of a name.

    Raises:
        ConfigError: there is no policy of that name.
        CheckpointError and others: a policy that cannot be loaded.
    """
    from evolvent.agents.speaker import FixedSource, NamedPolicy, SnapshotSource
    from evolvent.models.catalog import locate_model
    from evolvent.models.gguf import find_gguf

    path = Path(args.policy) if args.policy in POLICIES else locate_model(args.policy)
    is_model = path.is_dir() or (path.is_file() and find_gguf(path) is not None)
    if args.policy in POLICIES or not is_model:
        hint = "pass the folder of a run or of a model, a GGUF file, or the name of a fetched model"
        raise ConfigError([Problem("policy", f"no policy found at {args.policy!r}", hint)])
    if (path / "snapshots").is_dir():
        return SnapshotSource(path, read_placement(args))
    loaded_policy = resolve_policy(args.policy, [], placement=read_placement(args))
    return FixedSource(NamedPolicy(loaded_policy, Path(args.policy).resolve().name))


# ---------------------------------------------------------------------- the terminal


def _chat_in_terminal(policy_chat: PolicyChat, start: Conversation, console: Console) -> int:
    _print_notes(console, policy_chat.refresh())
    conversation, is_scripted = start, not sys.stdin.isatty()
    while True:
        line = _read_line(console, is_scripted)
        if line is None:
            return 0
        text = line.strip()
        if text == _NEW_COMMAND:
            conversation = start
        if text in ("", _NEW_COMMAND):
            continue
        try:
            exchange = policy_chat.reply(conversation, text)
        except EvolventError as error:
            console.print(show_hidden(f"({error})"), soft_wrap=True)
            continue
        _print_notes(console, exchange.notes)
        shortened_note = " (earlier turns did not fit and were left out)" if exchange.is_shortened else ""
        cut_note = " [cut at the limit]" if exchange.is_cut else ""
        console.print(
            show_hidden(f"{exchange.policy_name} > {exchange.reply}{cut_note}{shortened_note}"), soft_wrap=True
        )
        console.file.flush()
        conversation = conversation.after(exchange)


def _read_line(console: Console, is_scripted: bool) -> str | None:
    """Reads the next line of input, None at its end; prompts only in a terminal."""
    try:
        return (sys.stdin.readline() or None) if is_scripted else console.input("you > ")
    except EOFError:
        return None


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(show_hidden(f"-- {note}"), soft_wrap=True)
    console.file.flush()


# ---------------------------------------------------------------------- the page


class _ChatServer(LimitedServer):
    """A server that signals the end to the handler which is writing a reply."""

    def __init__(self, config: LimitedConfig, stop_event: threading.Event) -> None:
        super().__init__(config)
        self._leaving = stop_event

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the server and the reply being written; uvicorn raises the signal again afterwards."""
        self._leaving.set()
        super().handle_exit(sig, frame)


def _serve_page(args: argparse.Namespace, policy_chat: PolicyChat, start: Conversation, *, console: Console) -> int:
    from evolvent.view.chat import ChatInfo, chat_app

    notes = policy_chat.refresh()
    stop_event = threading.Event()
    chat_info = ChatInfo(Path(args.policy).resolve().name, _describe_settings(args), _vocabulary_size(policy_chat))
    with listen("127.0.0.1", args.port) as bound:
        access = build_access("127.0.0.1")
        app: App = chat_app(policy_chat, start, chat_info, access=access, stop=stop_event.is_set)
        config = make_server_config(app, ws="none", lifespan="off", timeout_graceful_shutdown=_GRACE_S)
        _print_notes(console, notes)
        console.print(show_hidden(f"talk at {listening_url(bound)} (Ctrl-C ends)"), soft_wrap=True)
        console.file.flush()
        _ChatServer(config, stop_event).run(sockets=[bound])
    return 0


def _describe_settings(args: argparse.Namespace) -> str:
    top_p_text = f", top p {args.top_p:g}" if args.top_p < 1 else ""
    return f"temperature {args.temperature:g}{top_p_text}, at most {args.max_tokens} tokens"


def _vocabulary_size(policy_chat: PolicyChat) -> int:
    named_policy = policy_chat.voice
    return (
        len(named_policy.policy.tokenizer)
        if named_policy is not None and named_policy.policy.dialect.name == "words"
        else 0
    )
