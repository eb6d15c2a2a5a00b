"""What a study is: arms that differ in one thing, seeds, a budget, the number that decides; and its freezing.

A study is frozen before it runs: everything that its result depends on is written down and has one digest. Another
digest is another study.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from evolvent.bench.results import FORMAT, Played, claimed, read_json
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.files import write_atomic
from evolvent.trajectory import Json, canonical_json

__all__ = ["Arm", "Done", "Primary", "Seat", "Study", "changes", "freeze", "read_study"]

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_+.-]{0,62}[A-Za-z0-9_+-])?")
_MOST_CHANGES = 10


@dataclass(frozen=True)
class Done:
    """An arm that was played before with the same seed: the folder it worked in, and what came out."""

    folder: Path
    played: Played


@dataclass(frozen=True)
class Seat:
    """Where an arm plays.

    Attributes:
        arm, seed: which.
        folder: its own; it is there, and holds what an interrupted try left.
        others: what the arms that it comes `after` left with this seed, by name.
        budget: computed tokens it may spend; None: as many as it wants.
    """

    arm: str
    seed: int
    folder: Path
    others: Mapping[str, Done]
    budget: int | None = None


@dataclass(frozen=True)
class Arm:
    """One condition of a study.

    Args:
        name: also of its folder: letters, digits, `_`, `+`, `-`, `.`.
        question: what comparing it answers, in words.
        play: does the work in `seat.folder` and says what came out; None in a study that was read from a file, which
            can be looked at, but not run.
        after: arms of the same seed that must have been played before.
    """

    name: str
    question: str
    play: Callable[[Seat], Played] | None = field(default=None, compare=False)
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Primary:
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
class Study:
    """A study, to be frozen and run.

    Args:
        name: of the study.
        arms: in the order in which they are shown; each is played after those it names.
        seeds: every arm is played with each of them.
        budget: computed tokens that an arm may spend with one seed; None: no limit.
        primary: the comparison that decides.
        threshold: the least mean difference (a share: 0.05 are 5 points) that is called an improvement.
        facts: all else that the result depends on, as JSON values: worlds, digests of panels, configurations,
            demonstrations, versions.
    Raises:
        ConfigError: every mistake at once.
    """

    name: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    budget: int | None
    primary: Primary
    threshold: float = 0.05
    facts: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arms", tuple(self.arms))
        object.__setattr__(self, "seeds", tuple(self.seeds))
        problems = [*_arm_problems(self.arms), *_primary_problems(self), *_number_problems(self)]
        if problems:
            raise ConfigError(problems)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the arms, in order."""
        return tuple(arm.name for arm in self.arms)

    def described(self) -> dict[str, Any]:
        """All that the digest is of, as JSON values."""
        primary = self.primary
        arms = [{"name": arm.name, "question": arm.question, "after": list(arm.after)} for arm in self.arms]
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
        }

    def digest(self) -> str:
        """SHA-256 of the description as canonical JSON, 32 hex digits."""
        return hashlib.sha256(canonical_json(self.described()).encode()).hexdigest()[:32]

    def ordered(self) -> tuple[Arm, ...]:
        """The arms in their order, but each after those it comes after."""
        found: dict[str, Arm] = {}
        waiting = list(self.arms)
        while waiting:
            ready = next(arm for arm in waiting if set(arm.after) <= found.keys())
            found[ready.name] = ready
            waiting.remove(ready)
        return tuple(found.values())


def _arm_problems(arms: Sequence[Arm]) -> Iterator[Problem]:
    names = [arm.name for arm in arms]
    if not arms:
        yield Problem("arms", "there are none", "a study has at least an arm and a control")
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield Problem("arms", f"{name!r} is no name of an arm", "letters, digits, _ + - . and at most 64 of them")
    if len({str(name).lower() for name in names}) < len(names):
        yield Problem("arms", f"two arms share a name: {', '.join(map(str, names))}", "capital letters do not count")
    for arm in arms:
        yield from (unknown("arm", one, names, where=f"arms.{arm.name}.after") for one in arm.after if one not in names)
    reached: set[str] = set()
    while new := {a.name for a in arms if a.name not in reached and set(a.after) & set(names) <= reached}:
        reached |= new
    if circle := [name for name in names if name not in reached]:
        yield Problem("arms", f"{', '.join(circle)} come after one another in a circle", "take one `after` away")


def _primary_problems(study: Study) -> Iterator[Problem]:
    primary, names = study.primary, [arm.name for arm in study.arms]
    chosen = {"arm": primary.arm, "control": primary.control}
    chosen |= {key: name for key, name in (("base", primary.base), ("upper", primary.upper)) if name != key}
    yield from (
        unknown("arm", name, names, where=f"primary.{key}") for key, name in chosen.items() if name not in names
    )
    if primary.arm == primary.control:
        yield Problem("primary", "arm and control are the same", "name two arms")
    if not primary.tiers or len(set(primary.tiers)) < len(primary.tiers):
        yield Problem("primary.tiers", f"got {list(primary.tiers)}", "at least one tier, each once")


def _number_problems(study: Study) -> Iterator[Problem]:
    whole = [isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0 for seed in study.seeds]
    if not all(whole) or not study.seeds or len(set(study.seeds)) < len(study.seeds):
        yield Problem("seeds", f"got {list(study.seeds)}", "at least one, whole numbers of 0 or more, each once")
    if study.budget is not None and study.budget < 1:
        yield Problem("budget", f"got {study.budget}", "computed tokens of 1 or more, or None")
    if not isfinite(study.threshold) or not 0 <= study.threshold <= 1:
        yield Problem("threshold", f"got {study.threshold}", "a share from 0 to 1: 0.05 are 5 points")
    try:
        canonical_json(study.facts)
    except (TypeError, ValueError, RecursionError) as error:
        yield Problem("facts", f"are no JSON values: {error}", "keep finite numbers, text, lists and tables")


# ---------------------------------------------------------------- freezing


def freeze(study: Study, folder: Path) -> str:
    """Write the study down in `folder/study.json`, once; returns its digest. The same study may be frozen again.

    Raises:
        ConfigError: another study is frozen there; the text names both digests and what differs.
    """
    path, digest, described = folder / "study.json", study.digest(), study.described()
    with claimed(folder / "locks" / ".study"):
        row = read_json(path)
        if row is None:
            text = json.dumps({"format": FORMAT, "digest": digest, "study": described}, indent=1, ensure_ascii=True)
            write_atomic(path, text + "\n")
        elif row.get("digest") != digest or row.get("study") != described:
            found = list(changes(row.get("study"), described)) or ["only the digest: the file was edited by hand"]
            more = f" and {len(found) - _MOST_CHANGES} more" if len(found) > _MOST_CHANGES else ""
            raise ConfigError(
                f"{path} holds the frozen study {row.get('digest')}, this one is {digest}. "
                f"Changed: {'; '.join(found[:_MOST_CHANGES])}{more}",
                hint="a change is a new study: give it another folder",
            )
    return digest


def changes(before: object, after: object) -> Iterator[str]:
    """What differs between two described studies, as `key: old -> new`; arms are told apart by name."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield f"{key}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}"


def _leaves(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key in sorted(value):
            yield from _leaves(value[key], f"{path}.{key}" if path else str(key))
    elif path == "arms" and isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
        yield "order of the arms", ", ".join(str(one.get("name")) for one in value)
        for one in value:
            yield from _leaves({key: one[key] for key in one if key != "name"}, f"arms.{one.get('name')}")
    else:
        text = json.dumps(value, sort_keys=True, default=str)
        yield path, text if len(text) <= 80 else f"{text[:60]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def read_study(folder: Path) -> Study:
    """The study frozen in a folder; its arms cannot be played.

    Raises:
        ConfigError: there is none, or its file was changed after freezing (both digests are named).
    """
    path = folder / "study.json"
    row = read_json(path)
    if row is None:
        raise ConfigError(f"{folder} holds no frozen study", expected="a folder with a study.json")
    try:
        said = row["study"]
        arms = tuple(Arm(one["name"], str(one["question"]), after=tuple(one["after"])) for one in said["arms"])
        tiers = tuple(map(str, said["primary"]["tiers"]))
        study = Study(
            str(said["name"]),
            arms,
            tuple(said["seeds"]),
            said["budget"],
            Primary(**{**said["primary"], "tiers": tiers}),
            threshold=said["threshold"],
            facts=said["facts"],
        )
        digest = study.digest()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"{path} is no frozen study: {type(error).__name__}: {error}") from error
    if row.get("digest") != digest:
        raise ConfigError(
            f"{path} was changed after freezing: it says {row.get('digest')}, its content is {digest}",
            hint="restore it; a change is a new study with another folder",
        )
    return study
