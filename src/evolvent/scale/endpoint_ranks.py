"""A backend over several ranks that play on endpoints: vLLM, SGLang or `evolvent serve --policy`.

    first rank          -> a model folder or an adapter, once per version, which all ranks and servers see
    a rank per endpoint -> tells its endpoint to take the folder
    every rank          -> plays its share of the episodes on its endpoint; then as `scale.ranks_backend`

Rank r plays on endpoint r modulo their number. An endpoint that is lost costs time: its episodes are played again on
the others, or on itself once it is back.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.language import LanguageAgent
from evolvent.backend import RunStage
from evolvent.deadline import Deadline
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.served_adapters import ServedAdapter
from evolvent.errors import EndpointError
from evolvent.models.policy import Policy
from evolvent.rollout.episode import BranchedStarts
from evolvent.scale.endpoint_backend import EndpointBackend, check_tokenizer, load_published_weights
from evolvent.scale.ranks_backend import RanksBackend
from evolvent.trajectory import Trajectory, trajectory_name

__all__ = ["EndpointRanksBackend"]

_log = logging.getLogger(__name__)
_LOST = ("EndpointError", "WeightsChanged")  # errors of episodes that other weights or no server answered
_MAX_REPLAYS = 2  # of lost episodes, before their errors stand
_PROBE_S = 5.0  # how long an endpoint may take to say that it is there


@dataclass(kw_only=True)
class EndpointRanksBackend(RanksBackend, EndpointBackend):
    """A `RanksBackend` whose ranks play their shares on endpoints.

    All ranks hold clients of all endpoints. Weights are written once per version, by the first rank. Episodes of a lost
    endpoint are played again; where none is left, the training ends and can be resumed.

    Args:
        endpoints: Clients of the endpoints, in the same order on all ranks; `endpoint` is the one of this rank.
    """

    endpoints: Sequence[Endpoint]
    _checked_urls: set[str] = field(default_factory=set, init=False)

    def _play_in_shares(
        self,
        agent: LanguageAgent | CandidateAgent,
        branched: BranchedStarts,
        stage: RunStage,
        *,
        horizon: int | None,
    ) -> dict[str, Trajectory]:
        """Plays the starts; those that an endpoint lost are played again."""
        trajectories = super()._play_in_shares(agent, branched, stage, horizon=horizon)
        for _ in range(_MAX_REPLAYS):
            lost_starts = [
                start
                for start in branched.starts
                if (error := trajectories[trajectory_name(start, stage.name)].error) is not None and error.kind in _LOST
            ]
            if not lost_starts:
                break
            if self.ranks.is_leader:
                _log.warning("%d episodes were lost with their endpoint and are played again", len(lost_starts))
            self._served_policy = None  # on all ranks, which see the same episodes
            replays = BranchedStarts(lost_starts, branched.origins)
            trajectories |= super()._play_in_shares(agent, replays, stage, horizon=horizon)
        return trajectories

    def _hand_over(self, policy: Policy) -> None:
        """Sends this policy's weights to all endpoints that answer, unless they serve them already.

        Raises:
            VocabularyMismatch: an endpoint reads text otherwise. WeightsChanged: it serves another version afterwards.
            EndpointError: none answers. CheckpointError, StoreError: as the weights are written.
        """
        if not any(self._exchange(self._served_policy is not policy)):
            return
        self._served_policy = None
        published = self._publish(policy)
        deadline = Deadline(self.handover_s)
        while not (serving := self._load_everywhere(published, policy)):
            if any(self._exchange(deadline.expired)):
                message = f"the weights reached no endpoint within {self.handover_s:g} s"
                raise EndpointError(message, hint="start the servers again, then resume")
        number, self._has_version = serving[self.ranks.rank % len(serving)]
        if self.endpoint is not self.endpoints[number]:
            self.endpoint = self.endpoints[number]
            self._spent = self.endpoint.usage
        self._player = self.endpoint
        if isinstance(published, ServedAdapter):
            self._player = self.endpoint.using(published)
            self._drop_adapters(self._note_adapter(published), numbers=[number for number, _ in serving])
        self._served_policy = policy

    def _publish(self, policy: Policy) -> ServedAdapter | Path:
        """Lets the first rank write the weights of a policy; returns what it wrote, on all ranks."""
        if not self._plays_adapter(policy):
            path = self._publish_whole(policy) if self.ranks.is_leader else None
            return Path(str(self._exchange(None if path is None else str(path))[0]))
        adapter = self._publish_adapter(policy) if self.ranks.is_leader else None
        row = None if adapter is None else json.dumps([adapter.name, str(adapter.folder)])
        name, folder = json.loads(str(self._exchange(row)[0]))
        return ServedAdapter(name, Path(folder))

    def _drop_adapters(self, names: Sequence[str], *, numbers: Sequence[int]) -> None:
        """Lets the endpoints that serve drop adapters, each told by one rank; a lost endpoint drops them by itself."""
        if self.ranks.rank >= len(numbers):
            return
        for name in names:
            try:
                self.endpoints[numbers[self.ranks.rank]].unload_adapter(name, wait_s=_PROBE_S)
            except EndpointError as error:
                _log.warning("%s", error)

    def _exchange(self, value: str | bool | None) -> list[str | bool | None]:
        """Returns the values of all ranks, in their order."""
        return [json.loads(payload) for payload in self._gather(json.dumps(value).encode())]

    def _list_answering(self, policy: Policy) -> list[int]:
        """Returns the numbers of the endpoints that answer; each is asked by one rank."""
        rank = self.ranks.rank
        does_answer = rank < len(self.endpoints) and self._is_answering(self.endpoints[rank], policy)
        return [number for number, answers in enumerate(self._exchange(does_answer)) if answers]

    def _is_answering(self, endpoint: Endpoint, policy: Policy) -> bool:
        try:
            endpoint.models(wait_s=_PROBE_S)
            if endpoint.base_url not in self._checked_urls:
                check_tokenizer(endpoint, policy)
                self._checked_urls.add(endpoint.base_url)
        except EndpointError as error:
            _log.warning("%s", error)
            return False
        return True

    def _load_everywhere(self, published: ServedAdapter | Path, policy: Policy) -> list[tuple[int, bool]]:
        """Lets every endpoint that answers take the weights, each told by one rank.

        Returns:
            the numbers of the endpoints that serve the weights, and whether each tells its version; the same on all
            ranks.
        """
        answering = self._list_answering(policy)
        is_caller = self.ranks.rank < len(answering)
        outcome = self._load_on(answering[self.ranks.rank], published, policy) if is_caller else None
        outcomes = self._exchange(outcome)[: len(answering)]
        return [
            (number, bool(has_version))
            for number, has_version in zip(answering, outcomes, strict=True)
            if has_version is not None
        ]

    def _load_on(self, number: int, published: ServedAdapter | Path, policy: Policy) -> bool | None:
        """Lets an endpoint take the weights; returns whether it tells its version, None where it was lost meanwhile."""
        try:
            if isinstance(published, ServedAdapter):
                self.endpoints[number].load_adapter(published, wait_s=self.handover_s)
                return True
            return load_published_weights(
                self.endpoints[number], published, version=policy.version, wait_s=self.handover_s
            )
        except EndpointError as error:
            if isinstance(error.value, int):  # it answered, and refused them
                raise
            _log.warning("%s", error)
            return None
