"""The place where episodes are played: this process, others of this machine, or a Ray cluster (`--backend`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from evolvent.config import Config
from evolvent.errors import ConfigError, Problem
from evolvent.scale.ray_cluster import parse_cluster
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.cli.setup.prompting import Prompt
    from evolvent.scale.ray_players import PlayerPool

__all__ = ["HERE", "BackendConfig", "open_cluster_players", "share_players"]

HERE = "here"


class BackendConfig(Config):
    """The backend setting of every command that can play on a cluster. A run may resume on another backend."""

    backend: str = Field(
        default=HERE,
        description="where episodes are played: here, here?players=N (processes), ray, HOST:PORT",
    )

    @field_validator("backend")
    @classmethod
    def _check_backend(cls, backend: str) -> str:
        try:
            if backend != HERE:
                parse_cluster(backend)
        except ConfigError as error:
            texts = [str(problem).removeprefix("backend").lstrip(":, ") for problem in error.problems]
            raise ValueError("; ".join(texts)) from error
        return backend


def _locate_file(name: str) -> str:
    """Returns the name of a file's world with its absolute path: players run in other folders."""
    from evolvent.cli.setup.registry import is_world_file

    return str(Path(name).resolve()) if is_world_file(name) else name


def share_players(backend: str, *, num_ranks: int, rank: int) -> str:
    """Returns the backend with the share of its players that one of several ranks has.

    >>> [share_players("here?players=3", num_ranks=2, rank=rank) for rank in range(2)]
    ['here?players=2', 'here?players=1']
    >>> share_players("here", num_ranks=2, rank=0)
    'here'

    Raises:
        ConfigError: a cluster, which plays for one process; fewer players than ranks.
    """
    if backend == HERE or num_ranks == 1:
        return backend
    cluster = parse_cluster(backend)
    nearest = f"--on '{HERE}?players={num_ranks}'"
    if not cluster.is_here:
        message = f"ranks play themselves, or in processes of this machine, not on a cluster: got {num_ranks} ranks"
        raise ConfigError([Problem("backend", message, f"set {nearest}, or start it without torchrun")])
    num_players = cluster.placement.players or 1
    if num_players < num_ranks:
        message = f"each rank needs a player: got {num_players} for {num_ranks} ranks"
        raise ConfigError([Problem("backend", message, f"set {nearest}")])
    return f"{HERE}?players={num_players // num_ranks + (rank < num_players % num_ranks)}"


@contextmanager
def open_cluster_players(
    backend: str,
    world_names: Sequence[str],
    worlds: Mapping[str, World],
    *,
    threads: int,
    prompt: Prompt | None = None,
) -> Iterator[PlayerPool | None]:
    """Yields the players of a cluster and releases them at the end; yields None where episodes are played in this
    process.

    Args:
        backend: "here", "here?players=N", "ray", or the address HOST:PORT of a cluster.
        world_names: the names of the worlds as given; each player builds its own worlds from them.
        worlds: the same worlds, built in this process.
        threads: threads of torch in each player.
        prompt: the prompt that the worlds were given; None: none.
    Raises:
        MissingExtra: Ray or torch is not installed.
        EndpointError: no cluster answers at the address.
        ConfigError: no node of the cluster has room.
        EngineError, VersionMismatch: a process of this machine cannot create the same worlds.
    """
    if backend == HERE:
        yield None
        return
    from evolvent.cli.setup.registry import require_train_extra

    require_train_extra("playing on a cluster")
    world_names = [_locate_file(name) for name in world_names]
    from evolvent.scale.ray_players import WorldFactory, open_players

    world_factory = (
        WorldFactory("evolvent.cli.setup.registry:load_worlds", (list(world_names),))
        if prompt is None
        else WorldFactory("evolvent.cli.setup.prompting:load_prompted_worlds", (list(world_names), list(prompt)))
    )
    with open_players(parse_cluster(backend), world_factory, worlds, threads=threads) as player_pool:
        yield player_pool
