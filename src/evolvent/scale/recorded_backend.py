"""A backend that learns from the sessions of agents that a server recorded, instead of playing episodes.

    agents  <-- messages -->  `evolvent serve --policy MODEL --record RUN`  --> trajectories of RUN
                                     ^ weights                                        |
                                     +------- trainer (this process) <----------------+

An iteration takes the sessions of the next tasks of which enough are recorded. With an endpoint, each new policy is
handed over before its sessions are waited for; without one, the sessions that are there are learned.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from evolvent.backend import RunStage
from evolvent.engine.endpoint import Endpoint
from evolvent.engine.replies import RECORDED_WORLD
from evolvent.errors import NothingToLearn, StoreUnavailable
from evolvent.models.policy import Policy
from evolvent.rl.trainer import PlayFunction, RLConfig, RLSpec
from evolvent.rollout.episode import BranchOrigins
from evolvent.run import Evaluation
from evolvent.scale.endpoint_backend import check_tokenizer, hand_over_weights
from evolvent.scale.local_backend import LocalBackend
from evolvent.search.settings import SearchConfig
from evolvent.store.log import log_folder
from evolvent.store.store import Store
from evolvent.trajectory import JsonObject, Start, Task, Trajectory, trajectory_name

__all__ = ["RecordedBackend", "RecordedSessions", "find_fault", "recorded_task", "select_groups"]

_log = logging.getLogger(__name__)
_POLL_S = 0.5  # seconds between two looks at the store


def recorded_task(folder: Path) -> Task:
    """Returns the task that stands for the sessions of a run where a method asks for tasks."""
    return Task(RECORDED_WORLD, "1", {"run": folder.name})


def find_fault(session: Trajectory, practice: RLConfig, *, min_version: int = 0) -> str:
    """Returns why a session cannot be learned by comparing rewards; an empty text: it can be.

    Args:
        practice: the distribution with which log-probabilities are computed again.
        min_version: sessions with a reply of an older policy are not learned.
    """
    if session.error is not None:
        return "were interrupted"
    if session.score.raw is None:
        return "have no score"
    generations = [generation for generation in session.generations if generation.acted]
    if not generations:
        return "have no finished reply"
    if min(generation.policy_version for generation in generations) < min_version:
        return "are of too old a policy"
    if any(step.info.get("constrained") for step in session.steps):
        return "were sampled under a constraint (a required call, a response format)"
    expected = {"temperature": practice.temperature, "top_k": practice.top_k, "top_p": 1.0}
    for step in session.steps:
        sampling = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **step.info.get("sampling", {})}
        differing = next((name for name, value in sampling.items() if value != expected.get(name)), None)
        if differing is not None:
            hint = f"; set --rl.practice.{differing}" if differing != "top_p" and sampling[differing] else ""
            return f"were sampled with {differing} {sampling[differing]:g}{hint}"
    return ""


def select_groups(sessions: Sequence[Trajectory], size: int) -> list[list[Trajectory]]:
    """Returns groups of `size` sessions of one task, in the order in which they became complete.

    Later sessions never change an earlier group.
    """
    waiting: dict[str, list[Trajectory]] = {}
    groups = []
    for session in sessions:
        members = waiting.setdefault(session.group or session.task.id, [])
        members.append(session)
        if len(members) == size:
            groups.append(waiting.pop(session.group or session.task.id))
    return groups


class RecordedSessions:
    """The sessions that a server recorded into a run, also while it goes on.

    Args:
        folder: folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "trajectories"
        self._state: object = None
        self._sessions: list[Trajectory] = []

    def read(self) -> Sequence[Trajectory]:
        """Returns the finished sessions so far, in the order in which they ended; reads only what has changed.

        Raises:
            StoreUnavailable: the folder holds no run.
        """
        state = self._read_state()
        if state != self._state:
            stored = Store.open(self._path).trajectories(prefix=f"{RECORDED_WORLD}/")
            self._sessions, self._state = list(stored), state
        return self._sessions

    def _read_state(self) -> object:
        if not self._path.is_dir():
            hint = "record sessions with evolvent serve --policy MODEL --record RUN"
            raise StoreUnavailable(f"{self.folder} holds no recorded sessions", hint=hint)
        folder = log_folder(self._path)
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        sealed = sorted(path.name for path in self._path.glob("parquet/*/*"))
        return [(path.name, path.stat().st_size) for path in files], sealed

    def count_usable(self, practice: RLConfig) -> tuple[int, Counter[str]]:
        """Returns the number of complete groups, and the numbers of sessions that are left out by reason."""
        sessions = self.read()  # once: agents play on, and a second reading may hold more
        faults = [find_fault(session, practice) for session in sessions]
        usable = [session for session, fault in zip(sessions, faults, strict=True) if not fault]
        groups = select_groups(usable, practice.group_size)
        left_out = Counter(fault for fault in faults if fault)
        num_rest = len(usable) - practice.group_size * len(groups)
        if num_rest:
            left_out[f"are of tasks with fewer than {practice.group_size} further sessions"] = num_rest
        return len(groups), left_out


@dataclass(kw_only=True)
class RecordedBackend(LocalBackend):
    """A `LocalBackend` whose episodes of RL training are recorded sessions.

    Args:
        sessions: the sessions.
        endpoint: the server that records them and takes each new policy; None: only what is recorded is learned.
        handover: folder of the weights, which the endpoint sees under the same path.
        handover_s: seconds until the endpoint serves other weights, including all retries.
        wait_s: seconds to wait for the next session before the training ends.
    """

    sessions: RecordedSessions
    endpoint: Endpoint | None = None
    handover: Path | None = None
    handover_s: float = 600.0
    wait_s: float = 600.0
    _taken: dict[str, str] = field(default_factory=dict, init=False)
    _handed_policy: Policy | None = field(default=None, init=False)

    def evaluate(
        self,
        policy: Policy,
        stage: RunStage,
        *,
        split: str | None = None,
        search: SearchConfig | None = None,
        value_model: Policy | None = None,
    ) -> tuple[list[Evaluation], list[JsonObject]]:
        """Returns no measurement: the tasks of agents are not known here."""
        return [], []

    def _make_player(self, stage: RunStage, spec: RLSpec, origins: BranchOrigins) -> PlayFunction:
        """Returns what takes the sessions of an iteration; they are stored in the run under the names of its starts."""
        self._taken = {name: str(episode.meta.get("session")) for name, episode in stage.finished.items()}

        def play(
            playing: Policy,
            starts: Sequence[Start],
            iteration: int,
            *,
            parents: Mapping[str, Trajectory],
            horizon: int | None,
        ) -> Iterator[Trajectory]:
            names = [trajectory_name(start, f"{stage.name}/{iteration}") for start in starts]
            if all(name in stage.finished for name in names):
                yield from (stage.finished[name] for name in names)
                return
            self._hand_over(playing)
            for name, session in zip(names, self._await_sessions(playing, names, spec.config), strict=True):
                episode = replace(session, id=name, branch=None, meta={**session.meta, "session": session.id})
                self._taken[name] = session.id
                if name not in stage.finished:
                    stage.store.append(episode)
                yield episode

        return play

    def _await_sessions(self, policy: Policy, names: Sequence[str], practice: RLConfig) -> list[Trajectory]:
        """Waits until enough groups of sessions are recorded.

        Raises:
            NothingToLearn: no session came for too long, or without an endpoint there are too few.
        """
        num_groups = len(names) // practice.group_size
        taken_before = {session for name, session in self._taken.items() if name not in set(names)}
        min_version = policy.version - practice.max_policy_lag
        num_read, deadline = -1, 0.0
        while True:
            sessions = self.sessions.read()
            usable = [
                session
                for session in sessions
                if session.id not in taken_before and not find_fault(session, practice, min_version=min_version)
            ]
            groups = select_groups(usable, practice.group_size)
            if len(groups) >= num_groups:
                return [session for group in groups[:num_groups] for session in group]
            if len(sessions) != num_read:
                num_read, deadline = len(sessions), time.monotonic() + self.wait_s
            if self.endpoint is None or time.monotonic() > deadline:
                raise NothingToLearn(
                    f"too few scored sessions of version {policy.version} in {self.sessions.folder}",
                    value=f"{len(groups)} groups of {practice.group_size} sessions of one task",
                    expected=num_groups,
                    hint="let the agents play on, and resume this run",
                )
            time.sleep(_POLL_S)

    def _hand_over(self, policy: Policy) -> None:
        """Sends this policy's weights to the endpoint, unless it serves them already."""
        if self.endpoint is None or self.handover is None or self._handed_policy is policy:
            return
        if self._handed_policy is None:
            check_tokenizer(self.endpoint, policy)
        hand_over_weights(policy, self.endpoint, self.handover, wait_s=self.handover_s)
        self._handed_policy = policy
