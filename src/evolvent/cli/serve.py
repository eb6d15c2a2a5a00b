"""`evolvent serve`: any set of worlds over HTTP, WebSocket and MCP, in the dialects of several platforms."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import Field
from rich.console import Console

from evolvent.cli.registry import POLICIES, needs_train, policy, worlds
from evolvent.cli.servers import TOKEN
from evolvent.cli.settings import Command, OverWorlds, read_given
from evolvent.errors import ConfigError, MissingExtra, Problem, unknown
from evolvent.serve.app import Face, build
from evolvent.serve.catalogue import Catalogue
from evolvent.serve.host import Host
from evolvent.serve.listen import listen, url_of
from evolvent.serve.local import Limits, LocalHost
from evolvent.serve.native.http import NativeFace
from evolvent.serve.pool.host import PooledHost
from evolvent.view.escape import plain
from evolvent.web import Access, App, bound_to
from evolvent.worlds.base import World

__all__ = ["COMMAND", "FACES", "Serve", "run"]

_GRACE_S = 5  # how long requests may take to end when the server is stopped
_KEEP_ALIVE_S = 75  # longer than the pauses of most clients, so that they do not write into a closed connection


class Serve(OverWorlds):
    """Everything that can be chosen about `evolvent serve`."""

    host: str = Field(default="127.0.0.1", description="address to listen on; beyond the loopback a token is needed")
    port: int = Field(default=8000, ge=0, le=65535, description="0: a free one")
    workers: int = Field(default=0, ge=0, le=256, description="processes that hold the sessions; 0: this one")
    capacity: int = Field(default=1024, ge=1, description="most sessions at once; more are answered 503")
    idle_s: float = Field(default=600.0, gt=0, description="a session unused for so long is closed")
    reset_s: float = Field(default=60.0, gt=0, description="deadline of a reset, for worlds that may hang")
    step_s: float = Field(default=60.0, gt=0, description="deadline of a step, for worlds that may hang")
    faces: tuple[str, ...] = Field(
        default=("all",), description="native, agentgym, openenv, mcp; all: those that are installed"
    )
    token_file: Path | None = Field(
        default=None, description=f"file that holds the token every request must bear; or set {TOKEN}"
    )
    host_names: tuple[str, ...] = Field(default=(), description="further names that clients may call it by")
    origins: tuple[str, ...] = Field(default=(), description="web sites whose pages may call, as https://name")
    allow_specs: bool = Field(
        default=False, description="play tasks that clients wrote themselves; trusted clients only"
    )
    policy: str | None = Field(
        default=None, description="serve this policy to chat with, in place of worlds: a run, a model folder, a size"
    )
    slots: int = Field(default=64, ge=1, description="texts that a served policy writes at once")
    reload: Path | None = Field(
        default=None, description="folder that clients may have a served policy take other weights from; none: no"
    )
    log_requests: bool = Field(default=False, description="print a line a request")


COMMAND = Command(
    "serve", "Serve worlds over HTTP, WebSocket and MCP, or a policy, until interrupted.", Serve, main="worlds"
)


def _agentgym() -> Face:
    from evolvent.serve.agentgym.face import AgentGymFace

    return AgentGymFace()


def _openenv() -> Face:
    from evolvent.serve.openenv.face import OpenEnvFace

    return OpenEnvFace()


def _mcp() -> Face:
    from evolvent.serve.mcp.face import McpFace

    return McpFace()


# By name: what makes the face, and how a client connects ({url}: the server's, {world}: one of its worlds).
FACES: Mapping[str, tuple[Callable[[], Face], str]] = {
    "native": (NativeFace, 'RemoteWorld("{url}/v1/worlds/{world}")'),
    "agentgym": (_agentgym, "{url}/agentgym/ lists one mount a world and dialect"),
    "openenv": (_openenv, "{url}/openenv/{world}"),
    "mcp": (_mcp, "{url}/mcp/{world}"),
}


def run(words: Sequence[str], console: Console) -> int:
    """Serve until interrupted or terminated; returns the exit code."""
    given = read_given(COMMAND, words, console)
    if given is None:
        return 0
    config = given.config
    access, faces = _checked(config)
    if config.policy is not None:
        needs_train("evolvent serve --policy")
    with listen(config.host, config.port) as bound:
        if config.policy is not None:
            app, name = _policy(config, access)
            host: Any = nullcontext()
            server = _Server(_uvicorn(config, app, access))
            server.told = partial(_announce_policy, console, name, bound=bound, reload=config.reload)
        else:
            made = worlds(config.worlds)
            host = _host(config, made)
            server = _Server(_app(config, made, host=host, access=access, faces=faces))
            server.told = partial(_announce, console, config, bound=bound, worlds=list(made), faces=list(faces))
        asyncio.run(_serve(server, host, bound=bound))
    if server.left_by == signal.SIGINT:
        raise KeyboardInterrupt
    if server.left_by is not None:
        raise SystemExit(128 + server.left_by)
    return 0


def _checked(config: Serve) -> tuple[Access, dict[str, Face]]:
    """Who may call, and the faces; everything wrong with either at once."""
    problems: list[Problem] = []
    access, faces = Access(), dict[str, Face]()
    try:
        access = bound_to(config.host, token=_token(config), hosts=config.host_names, origins=config.origins)
    except ConfigError as error:
        problems += error.problems
    if config.reload is not None and config.policy is None:
        problems.append(Problem("reload", "only a policy takes other weights", "serve one with --policy"))
    elif config.reload is not None and not config.reload.is_dir():
        problems.append(
            Problem("reload", f"{config.reload} is no folder", "make it, or name where weights are written")
        )
    try:
        faces = _faces(config.faces)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return access, faces


def _token(config: Serve) -> str | None:
    """The token, from its file or the environment. It is in no argument, message or log."""
    if config.token_file is None:
        return os.environ.get(TOKEN) or None
    try:
        return config.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        told = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError([Problem("token_file", f"{config.token_file} cannot be read: {told}")]) from error


def _faces(names: Sequence[str]) -> dict[str, Face]:
    wrong = [unknown("face", name, (*FACES, "all"), where="faces") for name in names if name not in (*FACES, "all")]
    if wrong or not names:
        raise ConfigError(wrong or [Problem("faces", "got none, expected at least one", "for example native")])
    made: dict[str, Face] = {}
    for name in FACES if "all" in names else dict.fromkeys(names):
        try:
            made[name] = FACES[name][0]()
        except MissingExtra:
            if name in names:
                raise
    return made


def _host(config: Serve, made: Mapping[str, World]) -> LocalHost | PooledHost:
    limits = Limits(config.reset_s, config.step_s)
    if not config.workers:
        return LocalHost(made, capacity=config.capacity, idle_s=config.idle_s, limits=limits)
    return PooledHost(
        made,
        worlds,
        config.worlds,
        workers=config.workers,
        capacity=config.capacity,
        idle_s=config.idle_s,
        limits=limits,
    )


def _app(
    config: Serve, made: Mapping[str, World], *, host: Host, access: Access, faces: Mapping[str, Face]
) -> uvicorn.Config:
    catalogue = Catalogue(made, specs=config.allow_specs)
    return _uvicorn(config, build(host, catalogue, access=access, faces=list(faces.values())), access)


def _policy(config: Serve, access: Access) -> tuple[App, str]:
    """The app around a policy, and what its model is called: the name of its folder, or its size."""
    from evolvent.engine.fitting import engine_for
    from evolvent.serve.openai.face import PolicyFace, policy_app
    from evolvent.serve.openai.generator import Generator

    chosen = config.policy or ""
    served = policy(chosen, list(worlds(config.worlds).values()) if chosen in POLICIES else ())
    name = Path(chosen).resolve().name if chosen not in POLICIES else chosen
    face = PolicyFace(Generator(served, engine_for(served, slots=config.slots)), name, reload=config.reload)
    return policy_app(face, access=access), name


def _uvicorn(config: Serve, app: App, access: Access) -> uvicorn.Config:
    # httptools, which uvicorn prefers where it is installed, keeps headers of any length, whoever sends them.
    return uvicorn.Config(
        app,
        http="h11",
        lifespan="on",
        access_log=config.log_requests,
        log_config=None,
        log_level="info" if config.log_requests else "warning",  # where to is said once, for all logs
        ws_max_size=access.body_bytes,
        ws_per_message_deflate=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )


class _Server(uvicorn.Server):
    """Uvicorn's server, with our signals: whatever ends it, the host is left in good order first."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told: Callable[[], None] = lambda: None
        self.left_by: signal.Signals | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `_serve`."""
        yield

    def leave(self, number: signal.Signals) -> None:
        """Stop serving; a second time, without waiting for anybody."""
        self.force_exit = self.should_exit
        self.should_exit, self.left_by = True, number

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then say so."""
        await super().startup(sockets)
        self.told()


async def _serve(server: _Server, host: Any, *, bound: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.leave, number)
    async with host:
        if not server.should_exit:
            await server.serve(sockets=[bound])


def _announce_policy(console: Console, name: str, *, bound: socket.socket, reload: Path | None) -> None:
    url = url_of(bound)
    console.print(
        f"serving the policy {plain(name)} at {url}/v1 (chat and completions as OpenAI has them)", soft_wrap=True
    )
    words = f"evolvent bench agent-eval --agent endpoint --endpoint {url}/v1 --model {name} --worlds lookup"
    console.print(plain(f"  try {words}"), soft_wrap=True)
    if reload is not None:
        told = f"  POST {url}/update_weights_from_disk takes weights from {reload}"
        console.print(plain(told), soft_wrap=True)
    console.file.flush()


def _announce(
    console: Console, config: Serve, *, bound: socket.socket, worlds: Sequence[str], faces: Sequence[str]
) -> None:
    """What is served, and how to connect: one line a face."""
    url = url_of(bound)
    where = f"worker processes: {config.workers}" if config.workers else "this process"
    lines = [f"serving {', '.join(worlds)} at {url} ({where}, {config.capacity} sessions)"]
    lines += [f"  {name:9} {FACES[name][1].format(url=url, world=worlds[0])}" for name in faces]
    if config.token_file is not None or os.environ.get(TOKEN):
        lines.append("every request must bear the token: Authorization: Bearer TOKEN")
    for line in lines:
        console.print(line, soft_wrap=True)
    console.file.flush()
