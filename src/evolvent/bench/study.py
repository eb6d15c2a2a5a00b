"""Running a controlled study: every arm with every seed, on the same tasks, each result kept as soon as it is there.

What has a result is not played again, and a `Run` inside an arm resumes by itself: going on after an interruption is
calling `run_study` again. `bench.plan` says what a study is, `bench.verdict` what its results show.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from evolvent.bench.plan import Arm, Done, Primary, Seat, Study, freeze, read_study
from evolvent.bench.results import Failed, Key, Played, Result, Results, claimed, outcomes, spent
from evolvent.errors import ConfigError, EvolventError, LimitExceeded, Locked, Problem, unknown
from evolvent.files import disk_errors, safe_join

__all__ = [
    "Arm",
    "Done",
    "Event",
    "Failed",
    "Played",
    "Primary",
    "Seat",
    "Study",
    "freeze",
    "outcomes",
    "read_results",
    "read_study",
    "run_study",
    "spent",
]


def read_results(study: Study, folder: Path) -> dict[Key, Result]:
    """Every result of the study in its folder, by (arm, seed). See `Results.get` for what is refused."""
    kept = Results(folder, study.digest())
    found = {(arm, seed): kept.get(arm, seed) for seed in study.seeds for arm in study.names}
    return {key: result for key, result in found.items() if result is not None}


@dataclass(frozen=True)
class Event:
    """Something that happened to an arm and seed while a study ran.

    `state` is "begins", then "played" or "failed"; "known" where there was a result before; "held" where another
    process plays it; "waits" where an arm before it is still being played elsewhere. `why` says more.
    """

    arm: str
    seed: int
    state: Literal["begins", "played", "failed", "known", "held", "waits"]
    why: str = ""


def run_study(
    study: Study,
    folder: Path,
    *,
    only: Collection[str] | None = None,
    seeds: Collection[int] | None = None,
    observe: Callable[[Event], None] | None = None,
) -> dict[Key, Result]:
    """Play what has no result yet: seed by seed, every arm after those it comes after. Returns all results there are.

    An arm that raises an error of the library is recorded as failed, and so are those that come after it; the study
    goes on, and what failed is tried again by the next call. Every other exception passes, an interrupt too.

    Several processes may run one study in one folder at the same time: each plays what no other one holds, and goes
    round again as long as that brings anything new.

    Args:
        folder: of the study; `freeze`s it.
        only: these arms, and those they come after; None: all.
        seeds: these seeds; None: all.
        observe: told of everything that happens.
    Raises:
        ConfigError: the folder holds another study, an unknown arm or seed, an arm that cannot be played.
    """
    pairs = _wanted(study, only, seeds)
    at = _Running(study, folder, Results(folder, freeze(study, folder)), observe or (lambda event: None))
    while True:
        left = [(arm, seed) for arm, seed in pairs if not at.settled(arm, seed)]
        if len(left) in (0, len(pairs)):
            return read_results(study, folder)
        pairs = left


def _wanted(study: Study, only: Collection[str] | None, seeds: Collection[int] | None) -> list[tuple[Arm, int]]:
    chosen = set(study.names if only is None else only)
    problems = [unknown("arm", name, study.names, where="only") for name in sorted(chosen - set(study.names))]
    strange = [seed for seed in seeds or () if seed not in study.seeds]
    if strange:
        problems.append(Problem("seeds", f"{strange} are not of this study", f"it has {list(study.seeds)}"))
    for arm in reversed(study.ordered()):
        chosen |= set(arm.after) if arm.name in chosen else set()
    arms = [arm for arm in study.ordered() if arm.name in chosen]
    problems += [
        Problem(f"arms.{arm.name}", "cannot be played", "give it a `play`") for arm in arms if arm.play is None
    ]
    if problems:
        raise ConfigError(problems)
    return [(arm, seed) for seed in study.seeds if seeds is None or seed in seeds for arm in arms]


@dataclass(frozen=True)
class _Running:
    """One call of `run_study` at work: what has `ended`, found or played, and what was `told` of waiting."""

    study: Study
    folder: Path
    kept: Results
    observe: Callable[[Event], None]
    ended: dict[Key, Result] = field(default_factory=dict)
    told: set[Event] = field(default_factory=set)

    def settled(self, arm: Arm, seed: int) -> bool:
        """Play an arm with a seed; False where that must wait for another process."""
        known = self.kept.get(arm.name, seed)
        if isinstance(known, Played):
            return self._end(arm, seed, result=known, state="known")
        waiting = [name for name in arm.after if (name, seed) not in self.ended]
        if waiting:
            return self._wait(Event(arm.name, seed, "waits", f"for {', '.join(waiting)}"))
        try:
            with claimed(self.folder / "locks" / arm.name / str(seed), wait_s=0):
                known = self.kept.get(arm.name, seed)  # another process may have ended it in between
                if isinstance(known, Played):
                    return self._end(arm, seed, result=known, state="known")
                self.observe(Event(arm.name, seed, "begins"))
                result = self._played(arm, seed)
                self.kept.put(arm.name, seed, result=result)
        except Locked as error:
            return self._wait(Event(arm.name, seed, "held", f"by process {error.pid} on {error.host}"))
        return self._end(arm, seed, result=result, state="played" if isinstance(result, Played) else "failed")

    def _wait(self, event: Event) -> bool:
        """Tell it once, though it is tried again in every round."""
        if event not in self.told:
            self.told.add(event)
            self.observe(event)
        return False

    def _end(self, arm: Arm, seed: int, *, result: Result, state: Literal["known", "played", "failed"]) -> bool:
        self.ended[arm.name, seed] = result
        self.observe(Event(arm.name, seed, state, result.message if isinstance(result, Failed) else ""))
        return True

    def _played(self, arm: Arm, seed: int) -> Result:
        """What the arm did, or how it failed. That its run is held by another process is no failure."""
        before = {name: self.ended[name, seed] for name in arm.after}
        failed = [name for name, result in before.items() if isinstance(result, Failed)]
        if failed or arm.play is None:
            return Failed("NotPlayed", f"because {' and '.join(failed)} failed")
        try:
            others = {
                name: Done(self._seat(name, seed), one) for name, one in before.items() if isinstance(one, Played)
            }
            seat = Seat(arm.name, seed, self._seat(arm.name, seed), others, self.study.budget)
            with disk_errors(seat.folder):
                seat.folder.mkdir(parents=True, exist_ok=True)
            return self.kept.accept(_within(arm.play(seat), self.study.budget))
        except Locked:
            raise
        except EvolventError as error:
            return Failed(type(error).__name__, str(error))

    def _seat(self, arm: str, seed: int) -> Path:
        return safe_join(self.folder, f"runs/{arm}/{seed}")


def _within(played: Played, budget: int | None) -> Played:
    """What was played, if it kept to the budget."""
    spent = played.tokens.get("computed")
    if budget is not None and spent is None:
        raise ConfigError(
            "the arm does not say how many tokens it computed",
            expected=f"at most {budget}",
            hint='give Played(tokens={"computed": ...}), 0 where no model computed',
        )
    if budget is not None and spent is not None and spent > budget:
        raise LimitExceeded(f"{spent} tokens computed, the budget is {budget}", hint="raising it is a new study")
    return played
