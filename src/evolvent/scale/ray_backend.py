"""A run whose episodes, searches and labellings happen on a cluster, and whose learning happens in this process.

    this process                                         players (`ray_player`), wherever Ray has room
    policy -> files, each put once  --- object store --> weights of a version, an engine, worlds
    starts (task, sample)           --- slices -------->
    the store                       <-- its lines ------ episodes, as they end

Episodes, their names and their random streams are those of `LocalVerbs`, and so are the keys of stages: a run may begin
here and go on there. Only what engines count beside what they write (`computed`, `shared`, `padded`) depends on who
shares an engine with whom.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from evolvent.agents.base import Agent
from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.language import LanguageAgent
from evolvent.backend import Stage
from evolvent.errors import ConfigError, ErrorRecord, Problem
from evolvent.models.policy import Policy
from evolvent.reward.labelling import Labelling
from evolvent.rollout.branches import Branching, Origins
from evolvent.rollout.episode import Limits
from evolvent.rollout.search import Searched
from evolvent.scale.local_backend import LocalVerbs, keep_search
from evolvent.scale.ray_players import Done, Players
from evolvent.scale.ray_wire import agent_row, line_of, start_row, trajectory_of
from evolvent.scale.ray_work import Item, Job
from evolvent.search.records import Spent
from evolvent.search.settings import ForestConfig, SearchConfig
from evolvent.trajectory import Start, Trajectory, trajectory_name

__all__ = ["RayVerbs", "collect_on"]

_log = logging.getLogger(__name__)
_SEARCHES, _TREES = 64, 4  # as in `scale.local`


def collect_on(
    players: Players,
    starts: Sequence[Start] | Branching,
    agent: Agent,
    *,
    seed: int = 0,
    slots: int = 192,
    limits: Limits | None = None,
    prefix: str = "",
    usage: Counter[str] | None = None,
) -> Generator[Trajectory, None, None]:
    """Play every start on a cluster; yields trajectories in order of completion, the same that `collect` does.

    An episode that kills whoever plays it ends in an error, not scored; the others go on.

    Args:
        slots: how many episodes a player has open at once.
        prefix: of the ids, `prefix/task/sample`.
        usage: what engines count is added here.
    Raises:
        ConfigError: an agent that does not travel; two starts of one id. EndpointError: the cluster is gone; see
            `Players.work`.
    """
    starts, origins = (starts.starts, starts.origins) if isinstance(starts, Branching) else (starts, Origins())
    named = {trajectory_name(start, prefix): start for start in starts}
    if len(named) < len(starts):
        raise ConfigError(
            "two starts would become trajectories of one id",
            value=f"{len(starts)} starts",
            expected=f"{len(named)} ids",
            hint="give samples of one task different numbers",
        )
    items = [
        Item(name, start_row(start), parent=start.branch.parent if start.branch else None)
        for name, start in named.items()
    ]
    policy = getattr(agent, "policy", None)
    head = {"do": "play", "agent": agent_row(agent), "seed": seed, "name": prefix, "limits": asdict(limits or Limits())}
    job = Job(
        head,
        items,
        {} if policy is None else {"policy": policy},
        slots,
        lambda parent: line_of(origins.parents[parent]),
    )
    with closing(players.work(job, usage=usage)) as work:
        for done in work:
            origins.replayed += int(done.told.get("replayed", 0))
            yield _trajectory(done, named[done.item.key])


def _trajectory(done: Done, start: Start) -> Trajectory:
    """What became of a start; an error where every player that had it was lost."""
    if done.line:
        return trajectory_of(done.line, start)
    error = ErrorRecord("EnvLost", "every process that played it was lost", 0, True)
    return Trajectory(
        done.item.key,
        start.task,
        (),
        ended_by="error",
        error=error,
        sample=start.sample,
        branch=start.branch,
        group=start.task.id,
    )


@dataclass(kw_only=True)
class RayVerbs(LocalVerbs):
    """`LocalVerbs` whose episodes, searches and labellings happen on a cluster; learning stays in this process.

    Args:
        players: whoever plays (`ray_players.players`). The caller lets them go.
        slots: how many episodes each player has open at once.
    """

    players: Players

    def _playing(
        self,
        agent: LanguageAgent | CandidateAgent,
        starts: Sequence[Start] | Branching,
        stage: Stage,
        *,
        horizon: int | None,
    ) -> Generator[Trajectory, None, None]:
        """Play there what the agent would play here."""
        limits = self.limits if horizon is None else replace(self.limits, horizon=horizon)
        spent: Counter[str] = Counter()
        with self._one:
            playing = collect_on(
                self.players,
                starts,
                agent,
                seed=stage.seed,
                slots=self.slots,
                limits=limits,
                prefix=stage.name,
                usage=spent,
            )
            with closing(playing) as played:
                for trajectory in played:
                    self._count(spent)
                    stage.store.append(trajectory)
                    yield trajectory
            self._count(spent)

    def search(
        self, policy: Policy, starts: Sequence[Start], stage: Stage, *, how: SearchConfig, judge: Policy | None = None
    ) -> Iterator[Trajectory]:
        """Search from the starts there; each result is stored before it is yielded."""
        _plain(how, SearchConfig, ForestConfig)
        named = {trajectory_name(start, stage.name): start for start in starts}
        items = [
            Item(name, {**start_row(start), "tree": at < _TREES}) for at, (name, start) in enumerate(named.items())
        ]
        policies = {"policy": policy} if judge is None or judge is policy else {"policy": policy, "judge": judge}
        head = {
            "do": "search",
            "how": how.model_dump(mode="json"),
            "forest": isinstance(how, ForestConfig),
            "seed": stage.seed,
            "name": stage.name,
        }
        job = Job(head, items, policies, min(self.slots, _SEARCHES))
        with self._one:
            for count, done in enumerate(self._worked(job), 1):
                found = _searched(done, named[done.item.key])
                stage.store.append(found.trajectory)
                keep_search(stage.folder, found)
                if count % 20 == 0 or count == len(starts):
                    stage.log({"step": count, "of": len(starts), "episodes": count})
                yield found.trajectory

    def label(
        self, policy: Policy, data: Sequence[Trajectory], stage: Stage, *, how: Labelling
    ) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Label trajectories there; in order of completion."""
        _plain(how, Labelling)
        items = [Item(one.id, {}, line_of(one)) for one in data]
        job = Job(
            {"do": "label", "how": how.model_dump(mode="json"), "seed": stage.seed},
            items,
            {"policy": policy},
            min(self.slots, _SEARCHES),
        )
        with self._one:
            for count, done in enumerate(self._worked(job), 1):
                problem = "every process that labelled it was lost" if "lost" in done.told else done.told.get("error")
                if problem is not None:
                    _log.warning("not labelled: %s: %s", done.item.key, problem)
                if count % 20 == 0 or count == len(data):
                    stage.log({"step": count, "of": len(data), "episodes": count})
                yield done.item.key, list(done.told.get("rows", ()))

    def _worked(self, job: Job) -> Iterator[Done]:
        spent: Counter[str] = Counter()
        with closing(self.players.work(job, usage=spent)) as work:
            for done in work:
                self._count(spent)
                yield done
        self._count(spent)

    def _count(self, spent: Counter[str]) -> None:
        """Add what engines there have counted to what is counted here."""
        for name, count in spent.items():
            if hasattr(self._usage, name):
                setattr(self._usage, name, getattr(self._usage, name) + count)
        spent.clear()


def _plain(how: object, *kinds: type) -> None:
    """Refuse settings that another process would read as others."""
    if type(how) not in kinds:
        wanted = " or ".join(f"a {kind.__name__}" for kind in kinds)
        raise ConfigError([Problem("how", f"{type(how).__name__} does not travel to Ray", wanted)])


def _searched(done: Done, start: Start) -> Searched:
    told: Mapping[str, Any] = done.told
    if "lost" in told:
        return Searched(start, _trajectory(done, start))
    return Searched(
        start,
        trajectory_of(done.line, start),
        Spent(**told["spent"]),
        told["ended_by"],
        told["dropped"],
        tuple(told["answers"]),
        told["passed"],
        told["stopped"],
        told["spared"],
        told["tree"],
        tuple(told["forest"]),
    )
