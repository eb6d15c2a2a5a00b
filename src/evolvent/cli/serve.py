"""`evolvent serve`: any set of worlds over HTTP, WebSocket and MCP, in the dialects of several platforms."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field
from rich.console import Console

from evolvent.cli.setup.model_defaults import print_budget, read_model_facts
from evolvent.cli.setup.prompt_data import load_reward
from evolvent.cli.setup.prompting import HistoryConfig, fill_history
from evolvent.cli.setup.record import RunRecord, read_run_verb, record_run
from evolvent.cli.setup.registry import POLICIES, check_policy_name, load_worlds, require_train_extra, resolve_policy
from evolvent.cli.setup.settings import Command, ModelConfig, WorldsConfig, parse_command
from evolvent.cli.setup.world_registry import TOKEN_VARIABLE
from evolvent.errors import ConfigError, MissingExtra, Problem, unknown_name_problem
from evolvent.serve.app import Dialect, build_app
from evolvent.serve.catalogue import TaskIndex
from evolvent.serve.connections import ConnectionLimits, ConnectionTable, fit_descriptors
from evolvent.serve.host import SessionHost
from evolvent.serve.listen import listen, listening_url
from evolvent.serve.local import LocalHost, WorldDeadlines
from evolvent.serve.native.http import NativeDialect
from evolvent.serve.pool.host import PooledHost
from evolvent.serve.protocol import EncodeRefusal, LimitedConfig, LimitedServer, make_server_config
from evolvent.store.store import Store
from evolvent.view.escape import show_hidden
from evolvent.web import Access, App, build_access
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.models.policy import Policy
    from evolvent.serve.openai.recording import SessionRecorder

__all__ = ["COMMAND", "DIALECTS", "ServeConfig", "run"]

_SHUTDOWN_TIMEOUT_S = 5  # how long requests may take to end when the server is stopped
_SPARE_CONNECTIONS = 64  # of one address, beside one for each session


class ServeConfig(ModelConfig, WorldsConfig):
    """Settings of `evolvent serve`."""

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
        default=None, description=f"file that holds the token every request must bear; or set {TOKEN_VARIABLE}"
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
    record: Path | None = Field(
        default=None, description="folder of the run that sessions of a served policy are recorded in; none: no record"
    )
    session_reward: str = Field(
        default="",
        description="what scores a recorded session at its end: a built-in reward or FILE.py:FUNCTION, called with its "
        "messages (--reward without --data says the same); none: rewards are posted",
    )
    agent: HistoryConfig = Field(default_factory=HistoryConfig, description="past replies of a served policy")
    log_requests: bool = Field(default=False, description="print a line a request, without the values of its query")
    max_connections: int = Field(
        default=0, ge=0, description="most connections at once; 0: twice the capacity, if descriptors allow"
    )
    max_per_address: int = Field(
        default=0, ge=0, description="the same from one other machine; 0: the capacity and 64 more"
    )
    body_timeout_s: float = Field(default=30.0, gt=0, description="deadline of a request's body, for slow uploads")

    def check_inputs(self) -> None:
        """Checks that the served policy exists.

        Raises:
            ConfigError and others: see `check_policy_name`.
        """
        if self.policy:
            check_policy_name(self.policy)


COMMAND = Command(
    "serve",
    "Serve worlds over HTTP, WebSocket and MCP, or a policy, until interrupted.",
    ServeConfig,
    main_field="worlds",
)


def _make_agentgym() -> Dialect:
    from evolvent.serve.agentgym.face import AgentGymDialect

    return AgentGymDialect()


def _make_openenv() -> Dialect:
    from evolvent.serve.openenv.face import OpenEnvDialect

    return OpenEnvDialect()


def _make_mcp() -> Dialect:
    from evolvent.serve.mcp.face import McpDialect

    return McpDialect()


# By name: what makes the face, and how a client connects ({url}: the server's, {world}: one of its worlds).
DIALECTS: Mapping[str, tuple[Callable[[], Dialect], str]] = {
    "native": (NativeDialect, 'RemoteWorld("{url}/v1/worlds/{world}")'),
    "agentgym": (_make_agentgym, "{url}/agentgym/ lists one mount a world and dialect"),
    "openenv": (_make_openenv, "{url}/openenv/{world}"),
    "mcp": (_make_mcp, "{url}/mcp/{world}"),
}


def run(argv: Sequence[str], console: Console) -> int:
    """Serves until interrupted or terminated; returns the exit code."""
    args = parse_command(COMMAND, _rename_reward(argv), console)
    if args is None:
        return 0
    config = args.config
    access, dialects = _check_config(config)
    if config.policy is not None:
        require_train_extra("evolvent serve --policy")
    with listen(config.host, config.port) as bound, ExitStack() as open_record:
        if config.policy is not None:
            print_budget(console, read_model_facts(config.policy), config.device)
            recorder = None if config.record is None else _open_recorder(config, console, open_record)
            connections = _make_connections(config)
            app, name = _make_policy_app(config, access, console, recorder=recorder, connections=connections)
            host: Any = nullcontext()
            server = _SignalServer(_make_server_config(config, app, access, connections))
            server.told = partial(
                _print_policy_address, console, name, bound=bound, reload=config.reload, record=config.record
            )
        else:
            worlds_by_name = load_worlds(config.worlds)
            host = _make_host(config, worlds_by_name)
            server = _SignalServer(_make_app(config, worlds_by_name, host=host, access=access, dialects=dialects))
            server.told = partial(
                _print_addresses,
                console,
                config,
                bound=bound,
                world_names=list(worlds_by_name),
                dialect_names=list(dialects),
            )
        asyncio.run(_run_server(server, host, bound=bound))
    if server.left_by == signal.SIGINT:
        raise KeyboardInterrupt
    if server.left_by is not None:
        raise SystemExit(128 + server.left_by)
    return 0


def _rename_reward(argv: Sequence[str]) -> list[str]:
    """Returns the command line in which `--reward`, unless it goes with `--data`, is the reward of sessions.

    >>> _rename_reward(["--policy", "xs", "--reward=exact"])
    ['--policy', 'xs', '--session_reward=exact']
    """
    if any(word.partition("=")[0] == "--data" for word in argv):
        return list(argv)
    return [
        f"--session_reward{word.removeprefix('--reward')}" if word.partition("=")[0] == "--reward" else word
        for word in argv
    ]


def _check_config(config: ServeConfig) -> tuple[Access, dict[str, Dialect]]:
    """Returns the access rules and the dialects; reports all problems of both at once."""
    problems: list[Problem] = []
    access, dialects = Access(), dict[str, Dialect]()
    try:
        access = build_access(config.host, token=_read_token(config), hosts=config.host_names, origins=config.origins)
    except ConfigError as error:
        problems += error.problems
    if config.reload is not None and config.policy is None:
        problems.append(Problem("reload", "reloading weights needs a policy", "serve a policy with --policy"))
    if config.record is not None and config.policy is None:
        problems.append(Problem("record", "sessions are those of a policy", "serve a policy with --policy"))
    if config.session_reward and config.record is None:
        problems.append(Problem("session_reward", "only recorded sessions are scored", "name a folder with --record"))
    if config.agent.history is not None and config.policy is None:
        problems.append(Problem("agent.history", "past replies are those of a policy", "serve a policy with --policy"))
    if config.reload is not None and config.policy is not None and not config.reload.is_dir():
        problems.append(
            Problem(
                "reload", f"{config.reload} is not a folder", "create it, or pass the folder that receives new weights"
            )
        )
    try:
        dialects = _make_dialects(config.faces)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return access, dialects


def _read_token(config: ServeConfig) -> str | None:
    """Reads the token from its file or the environment. It appears in no argument, message or log."""
    if config.token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return config.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError([Problem("token_file", f"{config.token_file} cannot be read: {reason}")]) from error


def _make_dialects(names: Sequence[str]) -> dict[str, Dialect]:
    problems = [
        unknown_name_problem("face", name, (*DIALECTS, "all"), location="faces")
        for name in names
        if name not in (*DIALECTS, "all")
    ]
    if problems or not names:
        raise ConfigError(problems or [Problem("faces", "got none, expected at least one", "for example native")])
    dialects: dict[str, Dialect] = {}
    for name in DIALECTS if "all" in names else dict.fromkeys(names):
        try:
            dialects[name] = DIALECTS[name][0]()
        except MissingExtra:
            if name in names:
                raise
    return dialects


def _make_host(config: ServeConfig, worlds_by_name: Mapping[str, World]) -> LocalHost | PooledHost:
    limits = WorldDeadlines(config.reset_s, config.step_s)
    if not config.workers:
        return LocalHost(worlds_by_name, capacity=config.capacity, idle_s=config.idle_s, limits=limits)
    return PooledHost(
        worlds_by_name,
        load_worlds,
        config.worlds,
        workers=config.workers,
        capacity=config.capacity,
        idle_s=config.idle_s,
        limits=limits,
    )


def _make_app(
    config: ServeConfig,
    worlds_by_name: Mapping[str, World],
    *,
    host: SessionHost,
    access: Access,
    dialects: Mapping[str, Dialect],
) -> LimitedConfig:
    catalogue, connections = TaskIndex(worlds_by_name, specs=config.allow_specs), _make_connections(config)
    app = build_app(host, catalogue, access=access, dialects=list(dialects.values()), connections=connections)
    return _make_server_config(config, app, access, connections)


def _open_recorder(config: ServeConfig, console: Console, open_record: ExitStack) -> SessionRecorder:
    """Opens the run that sessions are recorded in; it is closed, and told, with `open_record`.

    Raises:
        ConfigError: the folder holds a run of another command. Locked: another server records there.
    """
    from evolvent.serve.openai.recording import SessionRecorder

    folder = config.record or Path()
    verb = read_run_verb(folder)
    if verb not in (None, "serve"):
        raise ConfigError([Problem("record", f"{folder} holds a run of {verb}", "choose another folder")])
    reward = load_reward(config.session_reward) if config.session_reward else None
    store = open_record.enter_context(Store.open(folder / "trajectories", writing=True))
    recorder = SessionRecorder(store, reward=reward, idle_s=config.idle_s, capacity=config.capacity)
    open_record.enter_context(record_run(folder, RunRecord("serve", config, 0)))

    def print_counts() -> None:
        counts = recorder.count_sessions()
        unscored = f", {counts['unscored']} kept without a score" if counts["unscored"] else ""
        num_sessions = counts["scored"] + counts["unscored"]
        line = f"recorded {num_sessions} session{'s' * (num_sessions != 1)}{unscored} in {folder}"
        console.print(show_hidden(line), soft_wrap=True)

    open_record.callback(print_counts)
    return recorder


def _make_policy_app(
    config: ServeConfig,
    access: Access,
    console: Console,
    *,
    recorder: SessionRecorder | None,
    connections: ConnectionTable,
) -> tuple[App, str]:
    """Returns the app around a policy, and the name of its model: the name of its folder, or its size."""
    from evolvent.engine.fitting import engine_for
    from evolvent.serve.openai.face import PolicyDialect, build_policy_app
    from evolvent.serve.openai.generator import Generator

    policy_name = config.policy or ""
    served_policy = resolve_policy(
        policy_name,
        list(load_worlds(config.worlds).values()) if policy_name in POLICIES else (),
        placement=config.placement,
        history=config.agent.history,
    )
    fill_history(config, served_policy, console)
    name = Path(policy_name).resolve().name if policy_name not in POLICIES else policy_name

    def build_generator(policy: Policy) -> Generator:
        engine = engine_for(policy, slots=config.slots)
        return Generator(policy, engine, slots=getattr(engine, "slots", config.slots))

    dialect = PolicyDialect(
        build_generator(served_policy),
        name,
        reload=config.reload,
        recorder=recorder,
        build_generator=build_generator,
    )
    return build_policy_app(dialect, access=access, connections=connections), name


def _make_connections(config: ServeConfig) -> ConnectionTable:
    """Returns the table of the server's connections, with limits that this process has descriptors for."""
    limits = ConnectionLimits(
        max_connections=config.max_connections or 2 * config.capacity,
        max_per_address=config.max_per_address or config.capacity + _SPARE_CONNECTIONS,
        body_s=config.body_timeout_s,
    )
    return ConnectionTable(fit_descriptors(limits))


def _make_server_config(config: ServeConfig, app: App, access: Access, connections: ConnectionTable) -> LimitedConfig:
    encode_refusal: EncodeRefusal | None = None
    if config.policy is not None:
        from evolvent.serve.openai.reply import encode_refusal
    return make_server_config(
        app,
        connections,
        log_requests=config.log_requests,
        encode_refusal=encode_refusal,
        lifespan="on",
        ws_max_size=access.body_bytes,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
    )


class _SignalServer(LimitedServer):
    """A server with its own signal handling: however it ends, the host is closed properly first."""

    def __init__(self, config: LimitedConfig) -> None:
        super().__init__(config)
        self.told: Callable[[], None] = lambda: None
        self.left_by: signal.Signals | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Lets `_run_server` handle the signals."""
        yield

    def request_stop(self, number: signal.Signals) -> None:
        """Stops serving; a second call stops without waiting for connections."""
        self.force_exit = self.should_exit
        self.should_exit, self.left_by = True, number

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen, then prints the addresses."""
        await super().startup(sockets)
        self.told()


async def _run_server(server: _SignalServer, host: Any, *, bound: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.request_stop, number)
    async with host:
        if not server.should_exit:
            await server.serve(sockets=[bound])


def _print_policy_address(
    console: Console, name: str, *, bound: socket.socket, reload: Path | None, record: Path | None
) -> None:
    url = listening_url(bound)
    console.print(
        f"serving the policy {show_hidden(name)} at {url}/v1 (chat and completions as OpenAI has them)", soft_wrap=True
    )
    example = f"evolvent bench agent-eval --agent endpoint --endpoint {url}/v1 --model {name} --worlds lookup"
    console.print(show_hidden(f"  try {example}"), soft_wrap=True)
    if reload is not None:
        reload_text = f"  POST {url}/update_weights_from_disk takes weights from {reload}"
        console.print(show_hidden(reload_text), soft_wrap=True)
    if record is not None:
        record_text = f"  sessions are recorded in {record}; POST {url}/sessions/ID/reward scores one"
        console.print(show_hidden(record_text), soft_wrap=True)
    console.file.flush()


def _print_addresses(
    console: Console,
    config: ServeConfig,
    *,
    bound: socket.socket,
    world_names: Sequence[str],
    dialect_names: Sequence[str],
) -> None:
    """Prints the served worlds and how to connect: one line for each dialect."""
    url = listening_url(bound)
    process_text = f"worker processes: {config.workers}" if config.workers else "this process"
    lines = [f"serving {', '.join(world_names)} at {url} ({process_text}, {config.capacity} sessions)"]
    lines += [f"  {name:9} {DIALECTS[name][1].format(url=url, world=world_names[0])}" for name in dialect_names]
    if config.token_file is not None or os.environ.get(TOKEN_VARIABLE):
        lines.append("every request must bear the token: Authorization: Bearer TOKEN")
    for line in lines:
        console.print(line, soft_wrap=True)
    console.file.flush()
