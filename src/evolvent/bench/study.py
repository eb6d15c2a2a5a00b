"""Running of a controlled study: every arm with every seed, on the same tasks, each result written as soon as
it exists.

Arms with a result are not played again, and a `Run` inside an arm resumes by itself: after an interruption,
call `run_study` again. `bench.plan` defines a study, `bench.verdict` evaluates its results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from evolvent.bench.plan import Arm, ArmRun, FinishedArm, Gate, PrimaryComparison, Study, freeze_study, read_study
from evolvent.bench.results import (
    ArmFailure,
    ArmResult,
    Key,
    Result,
    StudyResults,
    collect_outcomes,
    hold_lock,
    read_costs,
)
from evolvent.errors import ConfigError, EvolventError, LimitExceeded, Locked, Problem, unknown_name_problem
from evolvent.files import disk_errors, safe_join

__all__ = [
    "Arm",
    "ArmFailure",
    "ArmResult",
    "ArmRun",
    "FinishedArm",
    "Gate",
    "PrimaryComparison",
    "Study",
    "StudyEvent",
    "collect_outcomes",
    "freeze_study",
    "read_costs",
    "read_results",
    "read_study",
    "run_study",
]


def read_results(study: Study, folder: Path) -> dict[Key, Result]:
    """Reads every result of the study in its folder, by (arm, seed). See `StudyResults.get` for errors."""
    stored = StudyResults(folder, study.digest())
    results = {(arm, seed): stored.get(arm, seed) for seed in study.seeds for arm in study.arm_names}
    return {key: result for key, result in results.items() if result is not None}


@dataclass(frozen=True)
class StudyEvent:
    """An event of an arm and seed while a study runs.

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
    observe: Callable[[StudyEvent], None] | None = None,
) -> dict[Key, Result]:
    """Plays all arms without a result, seed by seed, each after those of its `after`, and returns all results.

    An arm that raises an error of the library is recorded as failed, and so are those that depend on it; the study
    goes on, and the next call tries failed arms again. Every other exception propagates, including an interrupt.

    Several processes may run one study in one folder at the same time: each plays arms that no other process holds,
    and repeats as long as there is progress.

    Args:
        study: The study.
        folder: Folder of the study; it is frozen there.
        only: These arms, and those they depend on; None: all.
        seeds: These seeds; None: all.
        observe: Called with every event.
    Raises:
        ConfigError: the folder holds another study, an unknown arm or seed, an arm that cannot be played.
    """
    pairs = _select_pairs(study, only, seeds)
    study_run = _StudyRun(
        study, folder, StudyResults(folder, freeze_study(study, folder)), observe or (lambda event: None)
    )
    while True:
        remaining = [(arm, seed) for arm, seed in pairs if not study_run.settle(arm, seed)]
        if len(remaining) in (0, len(pairs)):
            return read_results(study, folder)
        pairs = remaining


def _select_pairs(study: Study, only: Collection[str] | None, seeds: Collection[int] | None) -> list[tuple[Arm, int]]:
    selected_arms = set(study.arm_names if only is None else only)
    problems = [
        unknown_name_problem("arm", name, study.arm_names, location="only")
        for name in sorted(selected_arms - set(study.arm_names))
    ]
    unknown_seeds = [seed for seed in seeds or () if seed not in study.seeds]
    if unknown_seeds:
        problems.append(Problem("seeds", f"unknown seeds {unknown_seeds}", f"the study has {list(study.seeds)}"))
    for arm in reversed(study.sort_arms()):
        selected_arms |= set(arm.after) if arm.name in selected_arms else set()
    arms = [arm for arm in study.sort_arms() if arm.name in selected_arms]
    problems += [Problem(f"arms.{arm.name}", "has no `play`", "set `play`") for arm in arms if arm.play is None]
    if problems:
        raise ConfigError(problems)
    return [(arm, seed) for seed in study.seeds if seeds is None or seed in seeds for arm in arms]


@dataclass(frozen=True)
class _StudyRun:
    """One call of `run_study`: the results so far in `ended`, and the reported waiting events."""

    study: Study
    folder: Path
    stored: StudyResults
    observe: Callable[[StudyEvent], None]
    ended: dict[Key, Result] = field(default_factory=dict)
    reported: set[StudyEvent] = field(default_factory=set)

    def settle(self, arm: Arm, seed: int) -> bool:
        """Plays an arm with a seed; returns False where that must wait for another process."""
        stored_result = self.stored.get(arm.name, seed)
        if isinstance(stored_result, ArmResult):
            return self._finish(arm, seed, result=stored_result, state="known")
        unfinished = [name for name in arm.after if (name, seed) not in self.ended]
        if unfinished:
            return self._report_wait(StudyEvent(arm.name, seed, "waits", f"for {', '.join(unfinished)}"))
        try:
            with hold_lock(self.folder / "locks" / arm.name / str(seed), wait_s=0):
                stored_result = self.stored.get(arm.name, seed)  # another process may have ended it in between
                if isinstance(stored_result, ArmResult):
                    return self._finish(arm, seed, result=stored_result, state="known")
                self.observe(StudyEvent(arm.name, seed, "begins"))
                result = self._play(arm, seed)
                self.stored.write(arm.name, seed, result=result)
        except Locked as error:
            return self._report_wait(StudyEvent(arm.name, seed, "held", f"by process {error.pid} on {error.host}"))
        return self._finish(arm, seed, result=result, state="played" if isinstance(result, ArmResult) else "failed")

    def _report_wait(self, event: StudyEvent) -> bool:
        """Reports an event once, although every round tries the arm again, and returns False."""
        if event not in self.reported:
            self.reported.add(event)
            self.observe(event)
        return False

    def _finish(self, arm: Arm, seed: int, *, result: Result, state: Literal["known", "played", "failed"]) -> bool:
        self.ended[arm.name, seed] = result
        self.observe(StudyEvent(arm.name, seed, state, result.message if isinstance(result, ArmFailure) else ""))
        return True

    def _play(self, arm: Arm, seed: int) -> Result:
        """Runs the arm and returns its result or its failure. A run held by another process is not a failure."""
        earlier_results = {name: self.ended[name, seed] for name in arm.after}
        failed = [name for name, result in earlier_results.items() if isinstance(result, ArmFailure)]
        if failed or arm.play is None:
            return ArmFailure("NotPlayed", f"because {' and '.join(failed)} failed")
        try:
            previous = {
                name: FinishedArm(self._run_folder(name, seed), earlier_result)
                for name, earlier_result in earlier_results.items()
                if isinstance(earlier_result, ArmResult)
            }
            arm_run = ArmRun(arm.name, seed, self._run_folder(arm.name, seed), previous, self.study.budget)
            with disk_errors(arm_run.folder):
                arm_run.folder.mkdir(parents=True, exist_ok=True)
            return self.stored.accept(_check_budget(arm.play(arm_run), self.study.budget))
        except Locked:
            raise
        except EvolventError as error:
            return ArmFailure(type(error).__name__, str(error))

    def _run_folder(self, arm: str, seed: int) -> Path:
        return safe_join(self.folder, f"runs/{arm}/{seed}")


def _check_budget(result: ArmResult, budget: int | None) -> ArmResult:
    """Returns the result; raises LimitExceeded where it exceeds the budget."""
    computed_tokens = result.tokens.get("computed")
    if budget is not None and computed_tokens is None:
        raise ConfigError(
            "the arm does not report its computed tokens",
            expected=f"at most {budget}",
            hint='return Played(tokens={"computed": ...}), with 0 if no model computed',
        )
    if budget is not None and computed_tokens is not None and computed_tokens > budget:
        raise LimitExceeded(
            f"computed tokens exceed the budget: got {computed_tokens}, expected at most {budget}",
            hint="freeze a new study to raise the budget",
        )
    return result
