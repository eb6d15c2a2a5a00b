"""Where episodes are played: here, or on a Ray cluster (`--on`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from evolvent.config import Config
from evolvent.errors import ConfigError
from evolvent.scale.ray_cluster import where
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.scale.ray_players import Players

__all__ = ["HERE", "Placed", "placed"]

HERE = "here"


class Placed(Config):
    """The setting of every verb that can play on a cluster. A run may go on elsewhere than it began."""

    on: str = Field(
        default=HERE, description="where episodes are played: here, ray (a cluster of its own), HOST:PORT of one"
    )

    @field_validator("on")
    @classmethod
    def _a_place(cls, on: str) -> str:
        try:
            if on != HERE:
                where(on)
        except ConfigError as error:
            raise ValueError("; ".join(f"{problem.what} ({problem.hint})" for problem in error.problems)) from error
        return on


@contextmanager
def placed(on: str, names: Sequence[str], worlds: Mapping[str, World], *, threads: int) -> Iterator[Players | None]:
    """The players of a cluster, let go at the end; None where it is here.

    Args:
        names: of the worlds, as they were given; each player makes its own of them. worlds: the same, made here.
    Raises:
        MissingExtra: Ray or torch is not installed. EndpointError: no cluster answers there. ConfigError: no node of
            it has room.
    """
    if on == HERE:
        yield None
        return
    from evolvent.cli.registry import needs_train

    needs_train("playing on a cluster")
    from evolvent.scale.ray_players import Making, players

    making = Making("evolvent.cli.registry:worlds", (list(names),))
    with players(where(on), making, worlds, threads=threads) as crew:
        yield crew
