"""The backends of `evolvent train rl`: play here, in players or on endpoints, or take recorded sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from pydantic import SecretStr

from evolvent.cli.setup.backends import open_cluster_players
from evolvent.cli.setup.prompting import Prompt
from evolvent.cli.setup.run_setup import open_backend
from evolvent.cli.train.rl_settings import TrainRLConfig
from evolvent.engine.servers import endpoint_type, share_endpoints
from evolvent.errors import ConfigError, Problem
from evolvent.learn.settings import Parallelism
from evolvent.models.policy import Policy
from evolvent.worlds.base import World

if TYPE_CHECKING:  # a mistake in the settings is reported before torch is imported
    from evolvent.engine.endpoint import Endpoint
    from evolvent.learn.parallel.ranks import Ranks
    from evolvent.scale.local_backend import LocalBackend
    from evolvent.scale.recorded_backend import RecordedBackend, RecordedSessions

__all__ = ["KEY_VARIABLE", "open_recorded_backend", "open_rl_backend"]

KEY_VARIABLE = "OPENAI_API_KEY"
"""The environment variable that holds an endpoint's key."""


@contextmanager
def open_rl_backend(
    config: TrainRLConfig,
    worlds_by_name: Mapping[str, World],
    prompt: Prompt,
    *,
    initial: Policy,
    ranks: Ranks | None,
    parallelism: Parallelism,
) -> Iterator[Callable[..., LocalBackend]]:
    """Yields the factory of the backend, which plays in this process, in players, or on the configured endpoint.

    Raises:
        ConfigError, VocabularyMismatch, EndpointError: see `_check_endpoints` and `open_cluster_players`.
    """
    if config.endpoint:
        with ExitStack() as stack:
            urls = share_endpoints(config.endpoint, num_ranks=parallelism.mesh.size)
            endpoints = [stack.enter_context(_make_endpoint(config, url, tokens=True)) for url in urls]
            yield _check_endpoints(endpoints, config, initial, ranks=ranks, parallelism=parallelism)
        return
    if ranks is not None:
        from evolvent.scale.ranks_backend import PlayerRanksBackend, RanksBackend

        with open_cluster_players(
            config.backend, config.worlds, worlds_by_name, threads=config.threads, prompt=prompt
        ) as players:
            ranks_factory = RanksBackend if players is None else partial(PlayerRanksBackend, players=players)
            yield partial(ranks_factory, ranks=ranks, parallelism=parallelism)
        return
    with open_backend(
        config.backend, config.worlds, worlds_by_name, threads=config.threads, prompt=prompt
    ) as backend_factory:
        yield backend_factory


def _make_endpoint(config: TrainRLConfig, url: str, *, tokens: bool) -> Endpoint:
    """Returns the client of an endpoint, with the key of the environment; `tokens`: whether it plays."""
    key = os.environ.get(KEY_VARIABLE)
    secret = SecretStr(key) if key else None
    return endpoint_type(config.dialect)(url, config.model, key=secret, tokens=tokens, processed=tokens)


def _check_endpoints(
    endpoints: Sequence[Endpoint],
    config: TrainRLConfig,
    initial: Policy,
    *,
    ranks: Ranks | None,
    parallelism: Parallelism,
) -> Callable[..., LocalBackend]:
    """Returns the factory of a backend that plays on endpoints, after they were asked whether they can.

    Raises:
        ConfigError: an endpoint without that model, that takes no weights, or that returns no token ids.
        VocabularyMismatch: an endpoint with another tokenizer. EndpointError: an endpoint that does not answer.
    """
    from evolvent.scale.endpoint_backend import EndpointBackend, check_endpoint
    from evolvent.scale.endpoint_ranks import EndpointRanksBackend

    if config.hand_over is None:
        raise ConfigError([Problem("hand_over", "missing folder of the weights", "set --hand_over FOLDER")])
    number = 0 if ranks is None else ranks.rank % len(endpoints)
    if ranks is None or ranks.rank < len(endpoints):  # one rank asks each
        check_endpoint(endpoints[number], initial)
    if ranks is None:
        return partial(EndpointBackend, endpoint=endpoints[0], handover=config.hand_over)
    ranks.wait()  # none begins before all endpoints have answered
    return partial(
        EndpointRanksBackend,
        endpoints=endpoints,
        endpoint=endpoints[number],
        handover=config.hand_over,
        ranks=ranks,
        parallelism=parallelism,
    )


@contextmanager
def open_recorded_backend(
    config: TrainRLConfig, sessions: RecordedSessions
) -> Iterator[Callable[..., RecordedBackend]]:
    """Yields the factory of the backend, with the endpoint that takes the weights, where there is one."""
    from evolvent.scale.recorded_backend import RecordedBackend

    if not config.endpoint:
        yield partial(RecordedBackend, sessions=sessions)
        return
    with _make_endpoint(config, config.endpoint, tokens=False) as endpoint:
        endpoint.check()
        yield partial(RecordedBackend, sessions=sessions, endpoint=endpoint, handover=config.hand_over)
