"""Definition of a study (arms that differ in one factor, seeds, a budget, the number that decides, gates), and its
freezing.

A study is frozen before it runs: everything that its result depends on is written down and has one digest. A
study with another digest is another study.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path

from evolvent.bench.results import FORMAT, ArmResult, hold_lock, read_json
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.files import write_atomic
from evolvent.trajectory import Json, JsonObject, canonical_json

__all__ = [
    "Arm",
    "ArmRun",
    "FinishedArm",
    "Gate",
    "PrimaryComparison",
    "Study",
    "freeze_study",
    "list_changes",
    "read_study",
]

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_+.-]{0,62}[A-Za-z0-9_+-])?")
_MAX_CHANGES = 10


@dataclass(frozen=True)
class FinishedArm:
    """An arm that was played before with the same seed: its folder and its result."""

    folder: Path
    result: ArmResult


@dataclass(frozen=True)
class ArmRun:
    """One run of an arm with one seed.

    Attributes:
        arm, seed: Name of the arm, and the seed.
        folder: Its own existing folder, with the files of an interrupted attempt.
        previous: Finished arms of its `after` with this seed, by name.
        budget: Maximum computed tokens; None: unlimited.
    """

    arm: str
    seed: int
    folder: Path
    previous: Mapping[str, FinishedArm]
    budget: int | None = None


@dataclass(frozen=True)
class Arm:
    """One condition of a study.

    Args:
        name: Name, also of its folder: letters, digits, `_`, `+`, `-`, `.`.
        question: The question that its comparison answers.
        play: Runs the arm in `seat.folder` and returns its result; None in a study read from a file, which can be
            viewed but not run.
        after: Arms of the same seed that must be played first.
    """

    name: str
    question: str
    play: Callable[[ArmRun], ArmResult] | None = field(default=None, compare=False)
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class PrimaryComparison:
    """The one number that decides: `arm` minus `control`, the mean over worlds of these tiers.

    `base` (where both started) and `upper` (what could be reached at best) name arms for reference, where there are
    such arms.
    """

    arm: str
    control: str
    tiers: tuple[str, ...] = ("evo", "combo")
    base: str = "base"
    upper: str = "upper"


@dataclass(frozen=True)
class Gate:
    """A precondition of the verdict: a figure that must lie within bounds, or the study cannot show its mechanism.

    A judge that cannot tell states apart says nothing about search, and a critic that explains nothing says nothing
    about credit. A study whose gates fail has no verdict.

    Args:
        name: Name in reports, such as "AUC of the judge within tasks".
        arm: The arm that reports the figure.
        figure: Key of a number in the `notes` of the arm's results; "success": the arm's primary number.
        minimum: Lower bound of the mean over seeds, inclusive; None: no lower bound.
        maximum: Upper bound of the mean over seeds, inclusive; None: no upper bound.
    """

    name: str
    arm: str
    figure: str
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True)
class Study:
    """A study, to be frozen and run.

    Args:
        name: Name of the study.
        arms: Arms in display order; each is played after those it names.
        seeds: Every arm is played with each of them.
        budget: Maximum computed tokens of an arm with one seed; None: no limit.
        primary: The comparison that decides.
        threshold: Minimum mean difference (a share: 0.05 are 5 points) that is called an improvement.
        facts: Everything else that the result depends on, as JSON values: worlds, digests of panels,
            configurations, demonstrations, versions.
        gates: Preconditions of the verdict. A study without gates has the digest that it had before there were gates.
    Raises:
        ConfigError: lists every mistake.
    """

    name: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    budget: int | None
    primary: PrimaryComparison
    threshold: float = 0.05
    facts: Mapping[str, Json] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "arms", tuple(self.arms))
        object.__setattr__(self, "seeds", tuple(self.seeds))
        object.__setattr__(self, "gates", tuple(self.gates))
        problems = [
            *_arm_problems(self.arms),
            *_primary_problems(self),
            *_number_problems(self),
            *_gate_problems(self),
        ]
        if problems:
            raise ConfigError(problems)

    @property
    def arm_names(self) -> tuple[str, ...]:
        """Returns the names of the arms, in order."""
        return tuple(arm.name for arm in self.arms)

    def describe(self) -> JsonObject:
        """Returns everything that the digest covers, as JSON values."""
        primary = self.primary
        arms = [{"name": arm.name, "question": arm.question, "after": list(arm.after)} for arm in self.arms]
        gates = [asdict(gate) for gate in self.gates]
        return {
            "name": self.name,
            "arms": arms,
            "seeds": list(self.seeds),
            "budget": self.budget,
            "primary": {
                "arm": primary.arm,
                "control": primary.control,
                "tiers": list(primary.tiers),
                "base": primary.base,
                "upper": primary.upper,
            },
            "threshold": self.threshold,
            "facts": json.loads(canonical_json(self.facts)),
            **({"gates": gates} if gates else {}),
        }

    def digest(self) -> str:
        """Returns SHA-256 of the description as canonical JSON, 32 hex digits."""
        return hashlib.sha256(canonical_json(self.describe()).encode()).hexdigest()[:32]

    def sort_arms(self) -> tuple[Arm, ...]:
        """Returns the arms in their order, but each after those of its `after`."""
        sorted_arms: dict[str, Arm] = {}
        remaining = list(self.arms)
        while remaining:
            ready = next(arm for arm in remaining if set(arm.after) <= sorted_arms.keys())
            sorted_arms[ready.name] = ready
            remaining.remove(ready)
        return tuple(sorted_arms.values())


def _arm_problems(arms: Sequence[Arm]) -> Iterator[Problem]:
    names = [arm.name for arm in arms]
    if not arms:
        yield Problem("arms", "the list is empty", "add at least an arm and a control")
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield Problem("arms", f"invalid arm name {name!r}", "use at most 64 letters, digits, _ + - .")
    if len({str(name).lower() for name in names}) < len(names):
        yield Problem(
            "arms", f"two arms share a name: {', '.join(map(str, names))}", "upper and lower case count as equal"
        )
    for arm in arms:
        yield from (
            unknown_name_problem("arm", earlier_arm, names, location=f"arms.{arm.name}.after")
            for earlier_arm in arm.after
            if earlier_arm not in names
        )
    reachable: set[str] = set()
    while new := {a.name for a in arms if a.name not in reachable and set(a.after) & set(names) <= reachable}:
        reachable |= new
    if cycle := [name for name in names if name not in reachable]:
        yield Problem("arms", f"{', '.join(cycle)} depend on each other in a cycle", "remove one `after`")


def _primary_problems(study: Study) -> Iterator[Problem]:
    primary, names = study.primary, [arm.name for arm in study.arms]
    named_arms = {"arm": primary.arm, "control": primary.control}
    named_arms |= {key: name for key, name in (("base", primary.base), ("upper", primary.upper)) if name != key}
    yield from (
        unknown_name_problem("arm", name, names, location=f"primary.{key}")
        for key, name in named_arms.items()
        if name not in names
    )
    if primary.arm == primary.control:
        yield Problem("primary", "arm and control are the same", "name two arms")
    if not primary.tiers or len(set(primary.tiers)) < len(primary.tiers):
        yield Problem("primary.tiers", f"got {list(primary.tiers)}", "expected at least one tier, each once")


def _number_problems(study: Study) -> Iterator[Problem]:
    is_valid = [isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in study.seeds]
    if not all(is_valid) or not study.seeds or len(set(study.seeds)) < len(study.seeds):
        yield Problem("seeds", f"got {list(study.seeds)}", "expected different whole numbers of 0 or more")
    if study.budget is not None and study.budget < 1:
        yield Problem("budget", f"got {study.budget}", "expected 1 or more computed tokens, or None")
    if not isfinite(study.threshold) or not 0 <= study.threshold <= 1:
        yield Problem("threshold", f"got {study.threshold}", "expected a ratio from 0 to 1; 0.05 means 5 points")
    try:
        canonical_json(study.facts)
    except (TypeError, ValueError, RecursionError) as error:
        yield Problem("facts", f"are not JSON values: {error}", "use finite numbers, text, lists and tables")


def _gate_problems(study: Study) -> Iterator[Problem]:
    gate_names = [gate.name for gate in study.gates]
    for gate in study.gates:
        location = f"gates.{gate.name}"
        if gate.arm not in study.arm_names:
            yield unknown_name_problem("arm", gate.arm, study.arm_names, location=f"{location}.arm")
        if not gate.name or not gate.figure or gate_names.count(gate.name) > 1:
            yield Problem(location, f"got figure {gate.figure!r}", "give every gate its own name, and a figure")
        bounds = [bound for bound in (gate.minimum, gate.maximum) if bound is not None]
        if not bounds or not all(map(isfinite, bounds)) or bounds != sorted(bounds):
            yield Problem(
                location,
                f"got minimum {gate.minimum} and maximum {gate.maximum}",
                "give one finite bound, or a minimum that is not above the maximum",
            )


# ---------------------------------------------------------------- freezing


def freeze_study(study: Study, folder: Path) -> str:
    """Writes the study to `folder/study.json`, once; returns its digest. The same study may be frozen again.

    Raises:
        ConfigError: another study is frozen there; the text names both digests and what differs.
    """
    path, digest, description = folder / "study.json", study.digest(), study.describe()
    with hold_lock(folder / "locks" / ".study"):
        row = read_json(path)
        if row is None:
            text = json.dumps({"format": FORMAT, "digest": digest, "study": description}, indent=1, ensure_ascii=True)
            write_atomic(path, text + "\n")
        elif row.get("digest") != digest or row.get("study") != description:
            differences = list(list_changes(row.get("study"), description)) or [
                "only the digest, so the file was edited by hand"
            ]
            more = f" and {len(differences) - _MAX_CHANGES} more" if len(differences) > _MAX_CHANGES else ""
            raise ConfigError(
                f"{path} holds the frozen study {row.get('digest')}, but this study is {digest}. "
                f"Changed: {'; '.join(differences[:_MAX_CHANGES])}{more}",
                hint="use another folder for the changed study",
            )
    return digest


def list_changes(before: object, after: object) -> Iterator[str]:
    """Yields the differences between two descriptions, as `key: old -> new`; arms are matched by name."""
    old, new = dict(_flatten(before)), dict(_flatten(after))
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield f"{key}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}"


def _flatten(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key in sorted(value):
            yield from _flatten(value[key], f"{path}.{key}" if path else str(key))
    elif path == "arms" and isinstance(value, list) and all(isinstance(arm, Mapping) for arm in value):
        yield "order of the arms", ", ".join(str(arm.get("name")) for arm in value)
        for arm in value:
            yield from _flatten({key: arm[key] for key in arm if key != "name"}, f"arms.{arm.get('name')}")
    else:
        text = json.dumps(value, sort_keys=True, default=str)
        yield path, text if len(text) <= 80 else f"{text[:60]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def read_study(folder: Path) -> Study:
    """Reads the study frozen in a folder; its arms cannot be played.

    Raises:
        ConfigError: there is none, or its file was changed after freezing (both digests are named).
    """
    path = folder / "study.json"
    row = read_json(path)
    if row is None:
        raise ConfigError(f"{folder} does not hold a frozen study", expected="a folder with a study.json")
    try:
        description = row["study"]
        arms = tuple(
            Arm(arm_row["name"], str(arm_row["question"]), after=tuple(arm_row["after"]))
            for arm_row in description["arms"]
        )
        tiers = tuple(map(str, description["primary"]["tiers"]))
        study = Study(
            str(description["name"]),
            arms,
            tuple(description["seeds"]),
            description["budget"],
            PrimaryComparison(**{**description["primary"], "tiers": tiers}),
            threshold=description["threshold"],
            facts=description["facts"],
            gates=tuple(Gate(**gate_row) for gate_row in description.get("gates", ())),
        )
        digest = study.digest()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path} is not a frozen study: {type(error).__name__}: {error}") from error
    if row.get("digest") != digest:
        raise ConfigError(
            f"{path} was changed after freezing: recorded digest {row.get('digest')}, actual digest {digest}",
            hint="restore the file, or freeze the changed study in another folder",
        )
    return study
