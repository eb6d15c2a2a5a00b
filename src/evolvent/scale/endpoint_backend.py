"""A run that learns here and plays on an endpoint: weights go there before they play, tokens come back.

    trainer (this process)                                   endpoint (`evolvent serve --policy`, SGLang)
    practice.advance() -> a model folder  --- hand_over -->  takes the weights
    practice.play()    -> ChatAgent       --- messages -->   tokenises, writes
    practice.look()                       <-- token ids, log-probabilities, fingerprint

What the endpoint tokenised and sampled is what is learned; nothing is tokenised here. The log-probabilities are the
sampler's, so what sampler and learner disagree about is measured (`mismatch`) and can be corrected (`rl.correct`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.chat import ChatAgent
from evolvent.agents.language import LanguageAgent
from evolvent.backend import Stage, StageSettings
from evolvent.engine.endpoint import Endpoint, EndpointUsage
from evolvent.engine.replies import FINGERPRINT
from evolvent.errors import ConfigError, ErrorRecord, Problem, VocabularyMismatch, WeightsChanged
from evolvent.models.policy import Policy
from evolvent.models.snapshots import publish_snapshot
from evolvent.models.tuned import plain_model
from evolvent.rollout.branches import Branching
from evolvent.rollout.collect import collect
from evolvent.scale.local_backend import LocalVerbs
from evolvent.trajectory import Start, Trajectory, trajectory_name, unscored

__all__ = ["RemoteVerbs", "check_tokenizer", "write_plain"]

_PROBED = 256  # tokens of the vocabulary, evenly spaced, that both sides must read alike
_KEPT = 2  # handed-over folders: the one that plays, and the one before


@dataclass(kw_only=True)
class RemoteVerbs(LocalVerbs):
    """`LocalVerbs` that play on an endpoint: practice, collecting and measuring. Learning stays in this process.

    Where the endpoint is ours, each episode must be written by the version that was handed over: another's is kept as
    an error (WeightsChanged) without a score, and the weights are handed over anew. Other endpoints tell no version;
    their episodes bear the one that was handed over.

    Args:
        endpoint: gives tokens (`tokens=True`); `processed` where its log-probabilities are of the distribution sampled
            from, which other settings than temperature 1 need. The caller closes it.
        handover: the folder that weights are written to; the endpoint sees it under the same path.
        handover_s: how long the endpoint may take to serve other weights, all tries together.
        hint: see `ChatAgent`; "": it says what `LanguageAgent` says, so that a run over HTTP is the one in process.
    Raises:
        ConfigError: an endpoint that is not asked for tokens, or policies that choose among listed actions.
    """

    endpoint: Endpoint
    handover: Path
    handover_s: float = 600.0
    hint: str | None = ""
    _spent: EndpointUsage = field(default_factory=EndpointUsage, init=False)
    _handed: Policy | None = field(default=None, init=False)
    _ours: bool = field(default=False, init=False)
    _checked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = []
        if not self.endpoint.tokens:
            problems.append(Problem("endpoint", "it is not asked for token ids", "Endpoint(..., tokens=True)"))
        if self.deciding:
            problems.append(Problem("deciding", "an endpoint does not score listed actions", "play in process"))
        if problems:
            raise ConfigError(problems)

    def settings(self) -> dict[str, StageSettings]:
        """Returns those of playing in process: the place does not change an episode, unless a hint is added there."""
        settings = super().settings()
        if self.hint == "":
            return settings
        return {
            verb: known
            if verb == "fit"
            else StageSettings((*known.values, self.hint), f"{known.version_1} hint {self.hint!r}")
            for verb, known in settings.items()
        }

    def _playing(
        self,
        agent: LanguageAgent | CandidateAgent,
        starts: Sequence[Start] | Branching,
        stage: Stage,
        *,
        horizon: int | None,
    ) -> Generator[Trajectory, None, None]:
        """Play on the endpoint what the agent would play in process."""
        policy, chat = agent.policy, self._chat(agent)
        limits = self.limits if horizon is None else replace(self.limits, horizon=horizon)
        with self._one, ExitStack() as open_:  # weights and episodes of one version at a time
            self._hand_over(policy)
            playing = collect(
                self.worlds,
                starts,
                chat,
                engine=None,
                seed=stage.seed,
                slots=self.slots,
                limits=limits,
                name=lambda start: trajectory_name(start, stage.name),
            )
            for played in open_.enter_context(closing(playing)):
                trajectory = self._of_version(played, policy.version)
                stage.store.append(trajectory)
                self._count()
                yield trajectory

    def _count(self) -> None:
        """Count what the endpoint did since the last time. What its prefix cache saved, it does not tell."""
        before, self._spent = self._spent, self.endpoint.usage
        written = self._spent.completion - before.completion
        self._usage.generated += written
        self._usage.computed += written + self._spent.prompt - before.prompt

    def _chat(self, agent: LanguageAgent | CandidateAgent) -> ChatAgent:
        if not isinstance(agent, LanguageAgent) or agent.choose:
            raise ConfigError(
                [Problem("choose", "an endpoint does not choose among listed actions", "play in process")]
            )
        return ChatAgent(
            self.endpoint, agent.sampling, max_tokens=agent.max_tokens, history=agent.history, hint=self.hint
        )

    def _hand_over(self, policy: Policy) -> None:
        """Have the endpoint serve this policy, unless it does.

        Raises:
            VocabularyMismatch: it reads text otherwise. WeightsChanged: it serves another version afterwards.
            EndpointError: it does not answer, or takes no weights. CheckpointError, StoreError: as they are written.
        """
        if self._handed is policy:
            return
        if not self._checked:
            check_tokenizer(self.endpoint, policy)
            self._checked = True
        self._handed = None
        folder = publish_snapshot(self.handover, policy.version, lambda folder: write_plain(policy, folder), keep=_KEPT)
        told = self.endpoint.hand_over(folder.resolve(), wait_s=self.handover_s)
        ours = FINGERPRINT.fullmatch(told)
        if ours is not None and int(ours[1]) != policy.version:
            raise WeightsChanged(
                "the endpoint serves another version than was handed over",
                value=told,
                expected=f"version {policy.version}",
                hint="let one run alone use it",
            )
        self._handed, self._ours = policy, ours is not None

    def _of_version(self, played: Trajectory, version: int) -> Trajectory:
        """The episode if this version wrote it; else it is an error that nobody scores."""
        if not self._ours:
            steps = tuple(
                replace(step, generations=tuple(replace(one, policy_version=version) for one in step.generations))
                for step in played.steps
            )
            return replace(played, steps=steps)
        others = {one.policy_version for one in played.generations} - {version}
        if played.error is not None or not others:
            return played
        self._handed = None  # somebody else gave it weights, or it began anew: hand over again before the next play
        error = WeightsChanged(
            "an episode was written by other weights than were handed over",
            value=sorted(others),
            expected=version,
            hint="let one run alone use it",
        )
        record = ErrorRecord.of(error, at_step=len(played.steps))
        return replace(played, ended_by="error", error=record, score=unscored())


def write_plain(policy: Policy, folder: Path) -> None:
    """Write a policy as any server reads it: an adapter is merged into the weights, a value head is left out."""
    replace(policy, model=plain_model(policy.model), value_head=None, base=None).save(folder)


def check_tokenizer(endpoint: Endpoint, policy: Policy) -> None:
    """Refuse an endpoint whose tokenizer is not the policy's, before anything is played.

    Both read a text that has tokens from all over the vocabulary.

    Raises:
        VocabularyMismatch: they read it otherwise. EndpointError, TokensMissing: it did not answer, or without ids.
    """
    tokenizer = policy.tokenizer
    special = set(tokenizer.all_special_ids)
    plain = [index for index in range(len(tokenizer)) if index not in special]
    count = min(_PROBED, len(plain), max(1, policy.context // 4))
    text = tokenizer.decode([plain[int(at)] for at in np.linspace(0, len(plain) - 1, count)])
    here = [int(index) for index in tokenizer.encode(text)]
    there = endpoint.tokens_of(text).tolist()
    if here != there:
        at = next(
            (at for at, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there))
        )
        raise VocabularyMismatch(
            "the endpoint has another tokenizer than the policy",
            value=f"ids {there[at : at + 8]} at {at}",
            expected=here[at : at + 8],
            hint="serve the model that is trained",
        )
