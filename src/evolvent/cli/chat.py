"""`evolvent chat RUN`: talk to the newest snapshot of a training, or to any policy; in the terminal, or on a page."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from rich.console import Console

from evolvent.cli.console import open_console
from evolvent.cli.parsing import Parser
from evolvent.cli.registry import POLICIES, needs_train, policy
from evolvent.errors import ConfigError, EvolventError, Problem
from evolvent.serve.listen import listen, url_of
from evolvent.view.escape import plain
from evolvent.web import App, bound_to

if TYPE_CHECKING:
    from evolvent.agents.speaker import Conversation, Source, Speaker

__all__ = ["run"]

_ANEW = "/new"
_GRACE_S = 5  # how long requests may take to end when the server is stopped


def _parser() -> Parser:
    parser = Parser(
        "evolvent chat",
        "Talk to a policy. Of a run that trains it is always the newest snapshot, of one that has ended its model. "
        f"A line is what you say; {_ANEW} begins anew; the end of input (Ctrl-D) ends.",
    )
    parser.add("policy", help="a run, or a model folder")
    parser.add("--once", metavar="TEXT", help="say this, print the reply and end")
    parser.add("--page", action="store_true", help="serve a page to talk on, at this machine only")
    parser.add("--port", type=int, default=0, help="of the page (default: a free one)")
    parser.add("--system", metavar="TEXT", default="", help="instructions before the conversation")
    parser.add("--temperature", type=_number, default=0.7, help="0: the likeliest token (default: 0.7)")
    parser.add("--top-p", type=_number, default=1.0, help="the share of probability that is kept (default: 1)")
    parser.add("--max-tokens", type=_count, default=256, help="longest reply (default: 256)")
    parser.add("--context", type=_count, default=4096, help="longest conversation in tokens (default: 4096)")
    parser.add("--seed", type=int, default=0, help="of the replies (default: 0)")
    parser.add("--device", default="cpu", help="where the model runs, as cuda:0 (default: cpu)")
    parser.add("--threads", type=_count, default=1, help="threads of torch (default: 1)")
    return parser


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1000:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of 0 or more")
    return value


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of 1 or more")
    return int(text)


def run(words: Sequence[str], console: Console) -> int:
    """Talk until the input ends; returns the exit code. Trouble with what was said is told, and the talk goes on."""
    found = _parser().read(words)
    if found.page and found.once is not None:
        raise ConfigError([Problem("evolvent chat", "got both --page and --once", "one of them")])
    if not 0 <= found.port < 65536:
        raise ConfigError([Problem("--port", f"got {found.port}, expected 0 to 65535")])
    needs_train("evolvent chat")
    import torch

    from evolvent.agents.speaker import Conversation, Speaker
    from evolvent.engine.asks import Sampling

    torch.set_num_threads(found.threads)
    sampling = Sampling(found.temperature, top_p=found.top_p)
    speaker = Speaker(_source(found), sampling=sampling, max_tokens=found.max_tokens, seed=found.seed)
    start = Conversation(found.system)
    if found.page:
        return _page(found, speaker, start, console=console)
    if found.once is not None:
        said = speaker.say(start, found.once)
        _tell(open_console(stderr=True), said.notes)  # what a script reads is the reply alone
        console.print(plain(said.reply), soft_wrap=True)
        return 0
    return _terminal(speaker, start, console)


def _source(found: argparse.Namespace) -> Source:
    """Who speaks: a run's newest snapshot or model, or the one policy of a folder.

    Raises:
        ConfigError: no such folder. CheckpointError and others: a policy that cannot be loaded.
    """
    from evolvent.agents.speaker import Fixed, Following, Voice

    folder = Path(found.policy)
    if found.policy in POLICIES or not folder.is_dir():
        hint = "the folder of a run, or of a model"
        raise ConfigError([Problem("policy", f"there is nobody to talk to at {found.policy!r}", hint)])
    if (folder / "snapshots").is_dir():
        return Following(folder, found.device, found.context)
    chosen = replace(policy(found.policy, []), limit=found.context)
    chosen.model.to(found.device)
    return Fixed(Voice(chosen, folder.resolve().name))


# ---------------------------------------------------------------------- the terminal


def _terminal(speaker: Speaker, start: Conversation, console: Console) -> int:
    _tell(console, speaker.refresh())
    talk, alone = start, not sys.stdin.isatty()
    while True:
        line = _line(console, alone)
        if line is None:
            return 0
        text = line.strip()
        if text == _ANEW:
            talk = start
        if text in ("", _ANEW):
            continue
        try:
            said = speaker.say(talk, text)
        except EvolventError as error:
            console.print(plain(f"({error})"), soft_wrap=True)
            continue
        _tell(console, said.notes)
        shortened = " (earlier turns did not fit and were left out)" if said.shortened else ""
        cut = " [cut at the limit]" if said.cut else ""
        console.print(plain(f"{said.voice} > {said.reply}{cut}{shortened}"), soft_wrap=True)
        console.file.flush()
        talk = talk.after(said)


def _line(console: Console, alone: bool) -> str | None:
    """The next line of input, None at its end; asked for only where somebody looks."""
    try:
        return (sys.stdin.readline() or None) if alone else console.input("you > ")
    except EOFError:
        return None


def _tell(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(plain(f"-- {note}"), soft_wrap=True)
    console.file.flush()


# ---------------------------------------------------------------------- the page


class _Server(uvicorn.Server):
    """Uvicorn's server; whoever writes a reply is told when it is to end."""

    def __init__(self, config: uvicorn.Config, leaving: threading.Event) -> None:
        super().__init__(config)
        self._leaving = leaving

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End: the reply that is being written is given up. Uvicorn raises the signal again when it has ended."""
        self._leaving.set()
        super().handle_exit(sig, frame)


def _page(found: argparse.Namespace, speaker: Speaker, start: Conversation, *, console: Console) -> int:
    from evolvent.view.chat import About, chat_app

    notes = speaker.refresh()
    leaving = threading.Event()
    about = About(Path(found.policy).resolve().name, _settings(found), _closed_words(speaker))
    with listen("127.0.0.1", found.port) as bound:
        access = bound_to("127.0.0.1")
        app: App = chat_app(speaker, start, about, access=access, stop=leaving.is_set)
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        _tell(console, notes)
        console.print(plain(f"talk at {url_of(bound)} (Ctrl-C ends)"), soft_wrap=True)
        console.file.flush()
        _Server(config, leaving).run(sockets=[bound])
    return 0


def _settings(found: argparse.Namespace) -> str:
    top = f", top p {found.top_p:g}" if found.top_p < 1 else ""
    return f"temperature {found.temperature:g}{top}, at most {found.max_tokens} tokens"


def _closed_words(speaker: Speaker) -> int:
    voice = speaker.voice
    return len(voice.policy.tokenizer) if voice is not None and voice.policy.dialect.name == "words" else 0
