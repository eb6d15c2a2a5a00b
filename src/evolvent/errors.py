"""The error tree: one sentence each, saying what happened, the value seen, what was expected and what to do next.

EvolventError
  ConfigError            bad input of any kind, all problems at once; exit code 2
  MissingExtra           a feature whose optional packages are not installed
  WorldError             InvalidAction EnvLost StepTimeout SessionGone WrongStep AtCapacity VersionMismatch
  EngineError            EndpointError TokensMissing ContextOverflow NoLegalAction StaleNode
                         VocabularyMismatch WeightsChanged
  StoreError             CorruptRecord Locked NoSpace StoreUnavailable UnknownSchema SampleInvalid
  CheckpointError        Incomplete HashMismatch ShapeMismatch StateMissing
  TrainingError          NonFinite BatchMismatch NothingToLearn RankFailed DeviceMemory
  ScoringError           GraderTimeout JudgeUnavailable VerdictUnreadable
  SafetyError            UnsafePath UnsafeFile IsolationUnavailable LimitExceeded AccessDenied
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "AccessDenied",
    "AtCapacity",
    "BatchMismatch",
    "CheckpointError",
    "ConfigError",
    "ContextOverflow",
    "CorruptRecord",
    "DeviceMemory",
    "EndpointError",
    "EngineError",
    "EnvLost",
    "ErrorRecord",
    "EvolventError",
    "GraderTimeout",
    "HashMismatch",
    "Incomplete",
    "InvalidAction",
    "IsolationUnavailable",
    "JudgeUnavailable",
    "LimitExceeded",
    "Locked",
    "MissingExtra",
    "NoLegalAction",
    "NoSpace",
    "NonFinite",
    "NothingToLearn",
    "Problem",
    "RankFailed",
    "SafetyError",
    "SampleInvalid",
    "ScoringError",
    "SessionGone",
    "ShapeMismatch",
    "StaleNode",
    "StateMissing",
    "StepTimeout",
    "StoreError",
    "StoreUnavailable",
    "TokensMissing",
    "TrainingError",
    "UnknownSchema",
    "UnsafeFile",
    "UnsafePath",
    "VerdictUnreadable",
    "VersionMismatch",
    "VocabularyMismatch",
    "WeightsChanged",
    "WorldError",
    "WrongStep",
    "boundary",
    "nearest",
    "unknown",
]


class EvolventError(Exception):
    """Base of everything this library raises on purpose."""

    def __init__(self, what: str, *, value: object = None, expected: object = None, hint: str | None = None) -> None:
        self.what, self.value, self.expected, self.hint = what, value, expected, hint
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what]
        if self.value is not None:
            parts.append(f"got {_short(self.value)}")
        if self.expected is not None:
            parts.append(f"expected {_short(self.expected)}")
        if self.hint:
            parts.append(self.hint)
        return "; ".join(parts)


def _short(value: object, limit: int = 200) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration: where it is, what is wrong, what to do."""

    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" + (f" ({self.hint})" if self.hint else "")


class ConfigError(EvolventError):
    """Bad input found before any work began. Holds every problem found, not only the first."""

    def __init__(
        self,
        problems: Sequence[Problem] | str,
        *,
        value: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        what = problems if isinstance(problems, str) else "\n".join(map(str, problems))
        super().__init__(what, value=value, expected=expected, hint=hint)
        self.problems = [Problem("input", str(self))] if isinstance(problems, str) else list(problems)


class MissingExtra(EvolventError):
    """A feature needs packages that are not installed; the text names the command that installs them."""

    def __init__(self, extra: str, feature: str) -> None:
        self.extra, self.feature = extra, feature
        super().__init__(f"{feature} needs an extra", hint=f"run: pip install 'evolvent[{extra}]'")


class WorldError(EvolventError):
    """Something about a world or one of its environments."""


class InvalidAction(WorldError):
    """The text is no action of the world's grammar. Inside an episode it becomes an observation."""


class EnvLost(WorldError):
    """The environment is gone (server died, exception inside the world)."""


class StepTimeout(WorldError):
    """An environment did not answer before its deadline."""


class SessionGone(WorldError):
    """A step after the end of the episode, or on an unknown session."""


class WrongStep(WorldError):
    """A step number that does not follow the last one; `expected` holds the right one."""


class AtCapacity(WorldError):
    """The server is full; `retry_after_s` says when to come back."""

    def __init__(self, what: str, *, retry_after_s: float, value: object = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(what, value=value, hint=f"retry after {retry_after_s:g} s")


class VersionMismatch(WorldError):
    """Two sides speak different versions."""


class EngineError(EvolventError):
    """Something about generating or scoring tokens."""


class EndpointError(EngineError):
    """A remote endpoint failed."""


class TokensMissing(EngineError):
    """An endpoint that returns text without token ids or log-probabilities."""


class ContextOverflow(EngineError):
    """More tokens than the model's context or the engine's arena holds."""


class NoLegalAction(EngineError):
    """A search has nothing to choose among."""


class StaleNode(EngineError):
    """A node of an older policy version or of another engine."""


class VocabularyMismatch(EngineError):
    """A word or token id that the policy's tokenizer does not have."""


class WeightsChanged(EngineError):
    """An endpoint's weights changed in the middle of a rollout."""


class StoreError(EvolventError):
    """Something about stored trajectories."""


class CorruptRecord(StoreError):
    """A stored record whose checksum does not fit; file and byte offset are in the text."""

    def __init__(self, what: str, *, offset: int, value: object = None, hint: str | None = None) -> None:
        self.offset = offset
        super().__init__(what, value=value, hint=hint)


class Locked(StoreError):
    """Another process writes this run; `pid` and `host` say which."""

    def __init__(self, what: str, *, pid: int, host: str) -> None:
        self.pid, self.host = pid, host
        super().__init__(what, hint=f"process {pid} on {host} holds it: wait for it, stop it, or use another folder")


class NoSpace(StoreError):
    """The disk is full; whole records stay readable."""


class StoreUnavailable(StoreError):
    """The folder cannot be read or written."""


class UnknownSchema(StoreError):
    """A record written by a newer version."""


class SampleInvalid(StoreError):
    """One record or data row that breaks its format; others go on."""


class CheckpointError(EvolventError):
    """Something about saved training state or saved models."""


class Incomplete(CheckpointError):
    """A checkpoint or model folder with a part missing."""


class HashMismatch(CheckpointError):
    """A file whose content is not what its manifest says."""


class ShapeMismatch(CheckpointError):
    """A tensor of another shape than the model's."""


class StateMissing(CheckpointError):
    """Optimizer state that the checkpoint does not hold."""


class TrainingError(EvolventError):
    """Something about learning."""


class NonFinite(TrainingError):
    """NaN or infinity in a loss or a gradient norm."""


class BatchMismatch(TrainingError):
    """Arrays of a batch that do not fit each other or the model."""


class NothingToLearn(TrainingError):
    """No token with a learning weight."""


class RankFailed(TrainingError):
    """Another process of the same training job failed; `told`: that one has said itself what happened."""

    told = False


class DeviceMemory(TrainingError):
    """The device ran out of memory."""


class ScoringError(EvolventError):
    """Something about rewards and graders."""


class GraderTimeout(ScoringError):
    """A grader did not finish in time."""


class JudgeUnavailable(ScoringError):
    """A judge or reward service cannot be reached."""


class VerdictUnreadable(ScoringError):
    """A judge answered without a verdict."""


class SafetyError(EvolventError):
    """Refused because it is not safe."""


class UnsafePath(SafetyError):
    """A name that would leave its folder."""


class UnsafeFile(SafetyError):
    """A file format that can run code when read."""


class IsolationUnavailable(SafetyError):
    """The host offers no isolation; nothing was run."""


class LimitExceeded(SafetyError):
    """An input larger than its limit."""


class AccessDenied(SafetyError):
    """Not allowed: a missing token, a foreign host, a licence not accepted."""


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """The stored form of an error that ended an episode.

    `kind` is the class name, `at_step` the index of the environment step at which it happened.
    """

    kind: str
    message: str
    at_step: int = 0
    retryable: bool = False

    @classmethod
    def of(cls, error: BaseException, *, at_step: int = 0, retryable: bool = False) -> ErrorRecord:
        return cls(type(error).__name__, str(error), at_step, retryable)


@contextmanager
def boundary(kind: type[EvolventError], what: str, **context: object) -> Iterator[None]:
    """The one place for a broad `except`: whatever happens inside leaves as `kind`, with its cause kept.

    Errors of the library pass unchanged; interrupts, exits and cancellations pass too.
    """
    try:
        yield
    except EvolventError:
        raise
    except Exception as error:
        where = ", ".join(f"{key} {value}" for key, value in context.items())
        raise kind(f"{what}{' (' + where + ')' if where else ''}: {type(error).__name__}: {error}") from error


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, or None where nothing is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def unknown(
    what: Literal["world", "method", "key", "split", "tier", "task"] | str,
    name: str,
    known: Iterable[str],
    *,
    where: str | None = None,
) -> Problem:
    """The one wording for a name that does not exist, with the nearest one or all of them."""
    names = sorted(known)
    near = nearest(name, names)
    hint = f"did you mean {near!r}?" if near else f"known: {', '.join(names)}"
    return Problem(where or what, f"unknown {what} {name!r}", hint)
