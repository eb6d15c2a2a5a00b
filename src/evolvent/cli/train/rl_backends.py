"""The backends of `evolvent train rl`: play here, in players or on endpoints, or take recorded sessions."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from evolvent.cli.setup.backends import open_cluster_players
from evolvent.cli.setup.prompting import Prompt
from evolvent.cli.setup.run_setup import open_backend
from evolvent.cli.train.rl_settings import TrainRLConfig
from evolvent.engine.served_adapters import ServedAdapter
from evolvent.engine.servers import endpoint_type, share_endpoints
from evolvent.errors import ConfigError, Problem
from evolvent.learn.settings import Parallelism
from evolvent.models.policy import Policy
from evolvent.worlds.base import World

if TYPE_CHECKING:  # a mistake in the settings is reported before torch is imported
    from evolvent.engine.endpoint import Endpoint
    from evolvent.learn.parallel.ranks import Ranks
    from evolvent.scale.adapter_handover import AdapterPublisher
    from evolvent.scale.local_backend import LocalBackend
    from evolvent.scale.recorded_backend import RecordedBackend, RecordedSessions

__all__ = ["KEY_VARIABLE", "open_recorded_backend", "open_rl_backend"]

KEY_VARIABLE = "OPENAI_API_KEY"
"""The environment variable that holds an endpoint's key."""
_log = logging.getLogger(__name__)
_LOAD_S = 600.0  # how long an endpoint may take to load the first adapter


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
    from evolvent.scale.adapter_handover import AdapterPublisher
    from evolvent.scale.endpoint_backend import EndpointBackend, check_endpoint, choose_hand_over
    from evolvent.scale.endpoint_ranks import EndpointRanksBackend

    if config.hand_over is None:
        raise ConfigError([Problem("hand_over", "missing folder of the weights", "set --hand_over FOLDER")])
    sends_adapters = {"auto": None, "adapter": True, "whole": False}[config.hand_over_as]
    publisher = AdapterPublisher(config.hand_over)
    if ranks is None:
        if check_endpoint(endpoints[0], initial, sends_adapters=sends_adapters):
            sends_adapters = choose_hand_over(
                endpoints[0], initial, publisher, sends_adapters=sends_adapters, wait_s=_LOAD_S
            )
        else:
            sends_adapters = False
        return partial(EndpointBackend, endpoint=endpoints[0], handover=config.hand_over, sends_adapters=sends_adapters)
    number = ranks.rank % len(endpoints)
    loads_adapters = True
    if ranks.rank < len(endpoints):  # one rank asks each
        loads_adapters = check_endpoint(endpoints[number], initial, sends_adapters=sends_adapters)
    if all(_exchange(ranks, loads_adapters)):  # none begins before all endpoints have answered
        loads_adapters = _try_adapters(endpoints, initial, publisher, ranks=ranks, sends_adapters=sends_adapters)
    else:
        loads_adapters = False
    return partial(
        EndpointRanksBackend,
        endpoints=endpoints,
        endpoint=endpoints[number],
        handover=config.hand_over,
        sends_adapters=loads_adapters,
        ranks=ranks,
        parallelism=parallelism,
    )


def _exchange(ranks: Ranks, value: str | bool) -> list[str | bool]:
    """Returns the values of all ranks, in their order."""
    return [json.loads(payload) for payload in ranks.gather(json.dumps(value).encode())]


def _try_adapters(
    endpoints: Sequence[Endpoint],
    initial: Policy,
    publisher: AdapterPublisher,
    *,
    ranks: Ranks,
    sends_adapters: bool | None,
) -> bool:
    """Lets every endpoint load the first adapter, which the first rank writes; returns whether all can.

    Raises:
        ConfigError: an endpoint cannot, and adapters were asked for or it takes no whole weights either.
    """
    from evolvent.scale.adapter_handover import check_fallback, check_served_adapter

    adapter = publisher.publish(initial) if ranks.is_leader else None
    row = "" if adapter is None else json.dumps([adapter.name, str(adapter.folder)])
    name, folder = json.loads(str(_exchange(ranks, row)[0]))
    refusal = None
    if ranks.rank < len(endpoints):
        try:
            check_served_adapter(endpoints[ranks.rank], ServedAdapter(name, Path(folder)), initial, wait_s=_LOAD_S)
        except ConfigError as error:
            refusal = error
            if sends_adapters:
                raise
            check_fallback(endpoints[ranks.rank], error)
    refusals = [text for text in _exchange(ranks, "" if refusal is None else str(refusal)) if text]
    if refusals and ranks.is_leader:
        _log.warning("whole weights are handed over: %s", refusals[0])
    return not refusals


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
