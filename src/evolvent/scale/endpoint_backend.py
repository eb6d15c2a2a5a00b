"""A backend that trains here and plays on an endpoint: weights are sent there before episodes, tokens come
back.

    trainer (this process)                                   endpoint (`evolvent serve --policy`, SGLang)
    next policy version -> a model folder --- hand_over -->  takes the weights, or an adapter over its base
    rollout             -> ChatAgent      --- messages -->   tokenizes, writes
    scoring                               <-- token ids, log-probabilities, fingerprint

The tokens of the endpoint are learned as they are; nothing is tokenized here. The log-probabilities are the
sampler's, so the difference between sampler and learner is measured (`mismatch`) and can be corrected
(setting `importance_correction`).
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.chat import ChatAgent
from evolvent.agents.language import LanguageAgent
from evolvent.backend import RunStage, StageSettings
from evolvent.engine.endpoint import Endpoint, EndpointUsage
from evolvent.engine.replies import FINGERPRINT
from evolvent.engine.served_adapters import ServedAdapter
from evolvent.errors import (
    ConfigError,
    EndpointError,
    ErrorRecord,
    Problem,
    TokensMissing,
    VocabularyMismatch,
    WeightsChanged,
)
from evolvent.models.policy import Policy
from evolvent.models.snapshots import publish_snapshot
from evolvent.models.tuned import plain_model
from evolvent.rl.trainer import PolicyTrainer, RLSpec
from evolvent.rollout.episode import BranchedStarts, FailureCounts, collect
from evolvent.scale.adapter_handover import (
    AdapterPublisher,
    check_fallback,
    check_hand_over_routes,
    check_served_adapter,
    count_folder_bytes,
    uses_adapter,
)
from evolvent.scale.local_backend import LocalBackend
from evolvent.trajectory import Start, Trajectory, trajectory_name, unscored

__all__ = [
    "EndpointBackend",
    "check_endpoint",
    "check_tokenizer",
    "choose_hand_over",
    "hand_over_weights",
    "load_published_weights",
    "publish_weights",
    "write_plain",
]

_log = logging.getLogger(__name__)
_NUM_PROBED_TOKENS = 256  # tokens of the vocabulary, evenly spaced, that both sides must read alike
_REFUSALS = (400, 404, 422)  # statuses of servers that do not know a field or a route
_NUM_SNAPSHOTS = 2  # handed-over folders: the one that plays, and the one before


@dataclass(kw_only=True)
class EndpointBackend(LocalBackend):
    """A `LocalBackend` that plays on an endpoint: RL training, collection and evaluation. Learning stays in this
    process.

    Where the endpoint is an evolvent server, each episode must be written by the version that was handed over: an
    episode of another version becomes an error (WeightsChanged) without a score, and the weights are handed over
    again. Other endpoints report no version; their episodes get the version that was handed over.

    Where the policy is a LoRA adapter over the base that the endpoint serves, its adapter alone is handed over.
    Requests name it, so no other version answers them. The last `num_versions` adapters stay loaded there.

    Args:
        endpoint: Returns tokens (`tokens=True`); `processed` where its log-probabilities are of the distribution
            sampled from, which other settings than temperature 1 need. The caller closes it.
        handover: Folder of the weights; the endpoint sees it under the same path.
        handover_s: Maximum seconds until the endpoint serves other weights, including all retries.
        hint: See `ChatAgent`; "": the prompts equal those of `LanguageAgent`, so that a run over HTTP equals a run
            in process.
        sends_adapters: Whether adapters alone are handed over; None: where the policy is one and the endpoint loads it.
        num_versions: Number of adapters that stay loaded at the endpoint; `train_rl` sets it.
    Raises:
        ConfigError: an endpoint that does not return tokens, or policies that choose among listed actions.
    """

    endpoint: Endpoint
    handover: Path
    handover_s: float = 600.0
    hint: str | None = ""
    sends_adapters: bool | None = None
    num_versions: int = _NUM_SNAPSHOTS
    _adapters: list[ServedAdapter] = field(default_factory=list, init=False)
    _publisher: AdapterPublisher = field(init=False)
    _player: Endpoint = field(init=False)
    _handover_bytes: int = field(default=0, init=False)
    _spent: EndpointUsage = field(default_factory=EndpointUsage, init=False)
    _served_policy: Policy | None = field(default=None, init=False)
    _has_version: bool = field(default=False, init=False)
    _checked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = []
        if not self.endpoint.tokens:
            problems.append(Problem("endpoint", "token ids are not requested", "set Endpoint(..., tokens=True)"))
        if self.action_level:
            problems.append(Problem("deciding", "an endpoint cannot score listed actions", "use a local policy"))
        if problems:
            raise ConfigError(problems)
        self._player, self._publisher = self.endpoint, AdapterPublisher(self.handover)

    def train_rl(self, policy: Policy, stage: RunStage, *, spec: RLSpec) -> PolicyTrainer:
        """Returns a trainer whose metrics tell the bytes of each version's weights; see `LocalBackend.train_rl`."""
        self.num_versions = spec.config.max_policy_lag + 1

        def log(row: Mapping[str, object]) -> None:
            stage.log({**row, "handover_bytes": self._handover_bytes} if row.get("kind") == "practise" else row)

        return super().train_rl(policy, replace(stage, log=log), spec=spec)

    def settings(self) -> dict[str, StageSettings]:
        """Returns the settings of playing in process: the endpoint does not change an episode, unless a hint is
        added.
        """
        settings = super().settings()
        if self.hint == "":
            return settings
        return {
            verb: verb_settings
            if verb == "fit"
            else StageSettings((*verb_settings.values, self.hint), f"{verb_settings.version_1} hint {self.hint!r}")
            for verb, verb_settings in settings.items()
        }

    def _play_episodes(
        self,
        agent: LanguageAgent | CandidateAgent,
        starts: Sequence[Start] | BranchedStarts,
        stage: RunStage,
        *,
        horizon: int | None,
        failures: FailureCounts | None,
    ) -> Generator[Trajectory, None, None]:
        """Plays on the endpoint the episodes that the agent would play in process; stores nothing."""
        policy, chat_agent = agent.policy, self._make_chat_agent(agent)
        limits = self.limits if horizon is None else replace(self.limits, horizon=horizon)
        with self._lock, ExitStack() as open_:  # weights and episodes of one version at a time
            self._hand_over(policy)
            chat_agent = replace(chat_agent, endpoint=self._player)
            playing = collect(
                self.worlds,
                starts,
                chat_agent,
                engine=None,
                seed=stage.seed,
                slots=self.slots,
                limits=limits,
                name=lambda start: trajectory_name(start, stage.name),
                failures=failures,
            )
            for episode in open_.enter_context(closing(playing)):
                trajectory = self._check_version(episode, policy.version)
                self._count_usage()
                yield trajectory

    def _count_usage(self) -> None:
        """Counts the endpoint's tokens since the last call. The savings of its prefix cache are unknown."""
        usage_before, self._spent = self._spent, self.endpoint.usage
        num_written = self._spent.completion - usage_before.completion
        self._usage.generated += num_written
        self._usage.computed += num_written + self._spent.prompt - usage_before.prompt

    def _make_chat_agent(self, agent: LanguageAgent | CandidateAgent) -> ChatAgent:
        if not isinstance(agent, LanguageAgent) or agent.restrict_to_admissible:
            raise ConfigError(
                [Problem("choose", "an endpoint cannot choose among listed actions", "use a local policy")]
            )
        return ChatAgent(
            self.endpoint, agent.sampling, max_tokens=agent.max_tokens, history=agent.history, hint=self.hint
        )

    def _hand_over(self, policy: Policy) -> None:
        """Sends this policy's weights to the endpoint, unless it serves them already.

        Raises:
            VocabularyMismatch: it reads text otherwise. WeightsChanged: it serves another version afterwards.
            EndpointError: it does not answer, or takes no weights. CheckpointError, StoreError: as they are written.
        """
        if self._served_policy is policy:
            return
        if not self._checked:
            check_tokenizer(self.endpoint, policy)
            self._checked = True
        self._served_policy = None
        if self.sends_adapters is None:
            self.sends_adapters = uses_adapter(policy) and choose_hand_over(
                self.endpoint, policy, self._publisher, sends_adapters=None, wait_s=self.handover_s
            )
        if self._plays_adapter(policy):
            adapter = self._publish_adapter(policy)
            self._load_adapter(self.endpoint, adapter)
            self._player = self.endpoint.using(adapter)
        else:
            snapshot = self._publish_whole(policy)
            self._has_version = load_published_weights(
                self.endpoint, snapshot, version=policy.version, wait_s=self.handover_s
            )
            self._player = self.endpoint
        self._served_policy = policy

    def _plays_adapter(self, policy: Policy) -> bool:
        """Returns whether the adapter of a policy is handed over alone. Whole weights end that: the base goes."""
        if self.sends_adapters and not uses_adapter(policy):
            _log.warning("a policy without an adapter is played: whole weights are handed over from now on")
            self.sends_adapters = False
        return bool(self.sends_adapters)

    def _publish_adapter(self, policy: Policy) -> ServedAdapter:
        """Writes the adapter of a policy where the endpoint finds it, and returns it."""
        self._publisher.keep = self.num_versions + 1
        adapter = self._publisher.publish(policy)
        self._handover_bytes = count_folder_bytes(adapter.folder)
        return adapter

    def _publish_whole(self, policy: Policy) -> Path:
        """Writes the whole weights of a policy where the endpoint finds them, and returns their folder."""
        snapshot = publish_weights(policy, self.handover)
        self._handover_bytes = count_folder_bytes(snapshot)
        return snapshot

    def _load_adapter(self, endpoint: Endpoint, adapter: ServedAdapter) -> None:
        """Lets an endpoint load an adapter, and drop those that are too old."""
        endpoint.load_adapter(adapter, wait_s=self.handover_s)
        for name in self._note_adapter(adapter):
            endpoint.unload_adapter(name, wait_s=self.handover_s)

    def _note_adapter(self, adapter: ServedAdapter) -> list[str]:
        """Records that an adapter is played now, and returns the names of those that are not played any more."""
        self._has_version = True
        adapters = [*(loaded for loaded in self._adapters if loaded.name != adapter.name), adapter]
        self._adapters = adapters[-self.num_versions :]
        return [old.name for old in adapters[: -self.num_versions]]

    def _check_version(self, episode: Trajectory, version: int) -> Trajectory:
        """Returns the episode if this version wrote it; otherwise the episode as an error without a score."""
        if not self._has_version:
            steps = tuple(
                replace(
                    step,
                    generations=tuple(replace(generation, policy_version=version) for generation in step.generations),
                )
                for step in episode.steps
            )
            return replace(episode, steps=steps)
        other_versions = {generation.policy_version for generation in episode.generations} - {version}
        if episode.error is not None or not other_versions:
            return episode
        self._served_policy = (
            None  # somebody else gave it weights, or it began anew: hand over again before the next play
        )
        error = WeightsChanged(
            "an episode was generated by other weights than the endpoint received",
            value=sorted(other_versions),
            expected=version,
            hint="use the endpoint for one run at a time",
        )
        record = ErrorRecord.of(error, at_step=len(episode.steps))
        return replace(episode, ended_by="error", error=record, score=unscored())


def hand_over_weights(policy: Policy, endpoint: Endpoint, folder: Path, *, wait_s: float) -> bool:
    """Writes the weights of a policy into a folder and lets the endpoint take them.

    Args:
        folder: the folder that both sides see.
        wait_s: seconds until the endpoint serves the weights, including all retries.
    Returns:
        whether the endpoint tells which version it serves.
    Raises:
        WeightsChanged: it serves another version afterwards. EndpointError: it does not answer, or takes no weights.
        CheckpointError, StoreError: as they are written.
    """
    snapshot = publish_weights(policy, folder)
    return load_published_weights(endpoint, snapshot, version=policy.version, wait_s=wait_s)


def publish_weights(policy: Policy, folder: Path) -> Path:
    """Writes the weights of a policy as a snapshot of a folder, and returns the folder of the snapshot."""
    path = publish_snapshot(folder, policy.version, lambda target: write_plain(policy, target), keep=_NUM_SNAPSHOTS)
    return path.resolve()


def load_published_weights(endpoint: Endpoint, snapshot: Path, *, version: int, wait_s: float) -> bool:
    """Lets an endpoint take the weights of a snapshot; returns whether it tells which version it serves.

    Raises:
        WeightsChanged: it serves another version afterwards. EndpointError: it does not answer, or takes no weights.
    """
    fingerprint = endpoint.load_weights(snapshot, wait_s=wait_s)
    version_match = FINGERPRINT.fullmatch(fingerprint)
    if version_match is not None and int(version_match[1]) != version:
        raise WeightsChanged(
            "the endpoint serves a different version than it received",
            value=fingerprint,
            expected=f"version {version}",
            hint="use the endpoint for one run at a time",
        )
    return version_match is not None


def choose_hand_over(
    endpoint: Endpoint,
    policy: Policy,
    publisher: AdapterPublisher,
    *,
    sends_adapters: bool | None,
    wait_s: float,
) -> bool:
    """Returns whether adapters alone are handed over to an endpoint, which loads the first one to find that out.

    Args:
        publisher: writes the adapter where the endpoint finds it.
        sends_adapters: True: adapters alone; False: whole weights; None: adapters where both sides can.
        wait_s: seconds until the endpoint has loaded the adapter, including all retries.
    Raises:
        ConfigError: it takes neither, or not what was asked for; names what works. EndpointError: no answer.
    """
    if not check_hand_over_routes(endpoint, policy, sends_adapters=sends_adapters):
        return False
    try:
        check_served_adapter(endpoint, publisher.publish(policy), policy, wait_s=wait_s)
    except ConfigError as error:
        if sends_adapters:
            raise
        check_fallback(endpoint, error)
        _log.warning("whole weights are handed over: %s", error)
        return False
    return True


def check_endpoint(endpoint: Endpoint, policy: Policy, *, sends_adapters: bool | None = False) -> bool:
    """Checks that an endpoint can play for a training: it serves the model, takes weights, and returns token ids.

    Args:
        sends_adapters: True: it is to load adapters; False: whole weights; None: adapters where both sides can.
    Returns:
        whether it has the routes that load adapters, and these are to be used.
    Raises:
        ConfigError: it cannot; names what can. VocabularyMismatch: it has another tokenizer. EndpointError: no answer.
    """
    endpoint.check()
    loads_adapters = check_hand_over_routes(endpoint, policy, sends_adapters=sends_adapters)
    try:
        check_tokenizer(endpoint, policy)
    except (TokensMissing, EndpointError) as error:
        if isinstance(error, EndpointError) and error.value not in _REFUSALS:
            raise
        hint = "serve the model with evolvent serve --policy, vLLM or SGLang (--dialect), or leave out --endpoint"
        message = f"{endpoint.base_url} returns no token ids, which training needs"
        raise ConfigError([Problem("endpoint", message, hint)]) from error
    return loads_adapters


def write_plain(policy: Policy, folder: Path) -> None:
    """Writes a policy for any server: adapters are merged into the weights, a value head is left out."""
    replace(policy, model=plain_model(policy.model), value_head=None, base=None).save(folder)


def check_tokenizer(endpoint: Endpoint, policy: Policy) -> None:
    """Raises an error for an endpoint whose tokenizer is not the policy's, before anything is played.

    Both tokenize a text with tokens from all over the vocabulary.

    Raises:
        VocabularyMismatch: the token ids differ. EndpointError, TokensMissing: it did not answer, or without ids.
    """
    tokenizer = policy.tokenizer
    special = set(tokenizer.all_special_ids)
    ordinary_ids = [index for index in range(len(tokenizer)) if index not in special]
    count = min(_NUM_PROBED_TOKENS, len(ordinary_ids), max(1, policy.context // 4))
    text = tokenizer.decode([ordinary_ids[int(position)] for position in np.linspace(0, len(ordinary_ids) - 1, count)])
    local_ids = [int(index) for index in tokenizer.encode(text)]
    endpoint_ids = endpoint.tokenize(text).tolist()
    if local_ids != endpoint_ids:
        position = next(
            (position for position, (a, b) in enumerate(zip(local_ids, endpoint_ids, strict=False)) if a != b),
            min(len(local_ids), len(endpoint_ids)),
        )
        raise VocabularyMismatch(
            "the endpoint has another tokenizer than the policy",
            value=f"ids {endpoint_ids[position : position + 8]} at {position}",
            expected=local_ids[position : position + 8],
            hint="serve the model in training",
        )
