"""The error tree: each message reads `<thing> <problem>: got <value>, expected <range>. <Action>.`

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
import re
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
    "find_location",
    "find_nearest",
    "shorten_path",
    "unknown_name_problem",
    "user_boundary",
]


class EvolventError(Exception):
    """Base class of the errors that this library raises on purpose."""

    def __init__(self, message: str, *, value: object = None, expected: object = None, hint: str | None = None) -> None:
        self.what, self.value, self.expected, self.hint = message, value, expected, hint
        super().__init__(message)

    def __str__(self) -> str:
        """Returns `<thing> <problem>: got <value>, expected <range>. <Action>.`, without the parts that are not set."""
        text, clauses = self.what, ", ".join(self._clauses())
        if clauses and text.endswith("."):
            text += f" {clauses[0].upper()}{clauses[1:]}"
        elif clauses:
            text += (", " if self.value is None and ": got " in text else ": ") + clauses
        return f"{text}{'' if text.endswith(('.', '?', '!')) else '.'} {_as_sentence(self.hint)}" if self.hint else text

    def _clauses(self) -> Iterator[str]:
        if self.value is not None:
            yield f"got {_abbreviate(self.value)}"
        if self.expected is not None:
            yield f"expected {_abbreviate(self.expected)}"


def _as_sentence(hint: str) -> str:
    """Capitalizes a hint that begins with a plain word and ends it with a period, except after a command or address."""
    if re.match(r"[a-z]+(?=[ ,:]|$)(?<!evolvent)", hint):
        hint = hint[0].upper() + hint[1:]
    return hint if ":" in hint or hint.endswith((".", "?", "!")) else f"{hint}."


def _abbreviate(value: object, limit: int = 200) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration: its location, a message, and a hint."""

    where: str
    what: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.describe()}"

    def describe(self) -> str:
        """Returns the problem with its hint, if it has one, without its place."""
        return self.what + (f" ({self.hint})" if self.hint else "")


class ConfigError(EvolventError):
    """Bad input found before any work began; it holds every problem found, not only the first."""

    def __init__(
        self,
        problems: Sequence[Problem] | str,
        *,
        value: object = None,
        expected: object = None,
        hint: str | None = None,
    ) -> None:
        message = problems if isinstance(problems, str) else "\n".join(map(str, problems))
        super().__init__(message, value=value, expected=expected, hint=hint)
        self.problems = [Problem("input", str(self))] if isinstance(problems, str) else list(problems)


class MissingExtra(EvolventError):
    """A feature needs packages that are not installed; the message names the command that installs them."""

    def __init__(self, extra: str, feature: str) -> None:
        self.extra, self.feature = extra, feature
        super().__init__(f"{feature} needs an extra", hint=f"run: pip install 'evolvent[{extra}]'")


class WorldError(EvolventError):
    """An error of a world or of one of its environments."""


class InvalidAction(WorldError):
    """The text is not an action of the world's grammar; inside an episode the message becomes an observation."""

    def __str__(self) -> str:
        # Recorded episodes hold this text as observations, so its form is part of the worlds' versions.
        return "; ".join([self.what, *self._clauses(), *([self.hint] if self.hint else [])])


class EnvLost(WorldError):
    """The environment is gone: its server died, or the world raised an exception."""


class StepTimeout(WorldError):
    """An environment did not answer before its deadline."""


class SessionGone(WorldError):
    """A step was sent after the end of the episode, or to an unknown session."""


class WrongStep(WorldError):
    """A step number does not follow the last one; `expected` holds the right number."""


class AtCapacity(WorldError):
    """The server is full; `retry_after_s` is the number of seconds after which to try again."""

    def __init__(self, message: str, *, retry_after_s: float, value: object = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message, value=value, hint=f"retry after {retry_after_s:g} s")


class VersionMismatch(WorldError):
    """Client and server use different versions."""


class EngineError(EvolventError):
    """An error while tokens are generated or scored."""


class EndpointError(EngineError):
    """A remote endpoint failed."""


class TokensMissing(EngineError):
    """An endpoint returned text without token ids or log-probabilities."""


class ContextOverflow(EngineError):
    """There are more tokens than the model's context or the engine's arena holds."""


class NoLegalAction(EngineError):
    """A search has no action to choose from."""


class StaleNode(EngineError):
    """A node belongs to an older policy version or to another engine."""


class VocabularyMismatch(EngineError):
    """The policy's tokenizer lacks a word or token id."""


class WeightsChanged(EngineError):
    """The weights of an endpoint changed in the middle of a rollout."""


class StoreError(EvolventError):
    """An error of stored trajectories."""


class CorruptRecord(StoreError):
    """The checksum of a stored record does not match; the message names file and byte offset."""

    def __init__(self, message: str, *, offset: int, value: object = None, hint: str | None = None) -> None:
        self.offset = offset
        super().__init__(message, value=value, hint=hint)


class Locked(StoreError):
    """Another process writes this run; `pid` and `host` identify it."""

    def __init__(self, message: str, *, pid: int, host: str) -> None:
        self.pid, self.host = pid, host
        super().__init__(message, hint=f"process {pid} on {host} holds it: wait for it, stop it, or use another folder")


class NoSpace(StoreError):
    """The disk is full; complete records stay readable."""


class StoreUnavailable(StoreError):
    """The folder cannot be read or written."""


class UnknownSchema(StoreError):
    """A newer version wrote the record."""


class SampleInvalid(StoreError):
    """One record or data row breaks its format; the others are still processed."""


class CheckpointError(EvolventError):
    """An error of saved training state or saved models."""


class Incomplete(CheckpointError):
    """A part of a checkpoint or model folder is missing."""


class HashMismatch(CheckpointError):
    """The content of a file does not match its manifest."""


class ShapeMismatch(CheckpointError):
    """The shape of a tensor differs from the model's."""


class StateMissing(CheckpointError):
    """The checkpoint lacks the optimizer state."""


class TrainingError(EvolventError):
    """An error of training."""


class NonFinite(TrainingError):
    """A loss or a gradient norm is NaN or infinite."""


class BatchMismatch(TrainingError):
    """Arrays of a batch do not fit each other or the model."""


class NothingToLearn(TrainingError):
    """No token has a learning weight."""


class RankFailed(TrainingError):
    """Another process of the same training job failed; `is_reported`: that process has reported the error itself."""

    is_reported = False


class DeviceMemory(TrainingError):
    """The device ran out of memory."""


class ScoringError(EvolventError):
    """An error of rewards or graders."""


class GraderTimeout(ScoringError):
    """A grader did not finish in time."""


class JudgeUnavailable(ScoringError):
    """A judge or reward service cannot be reached."""


class VerdictUnreadable(ScoringError):
    """The answer of a judge contains no verdict."""


class SafetyError(EvolventError):
    """The operation was refused because it is not safe."""


class UnsafePath(SafetyError):
    """A name would leave its folder."""


class UnsafeFile(SafetyError):
    """A file format can run code when it is read."""


class IsolationUnavailable(SafetyError):
    """The host offers no isolation; nothing was run."""


class LimitExceeded(SafetyError):
    """An input is larger than its limit."""


class AccessDenied(SafetyError):
    """Access was denied: a token is missing, a host is foreign, or a license was not accepted."""


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

    @property
    def summary(self) -> str:
        """The class and the message up to the value, equal for equal problems; older records have a semicolon there."""
        return f"{self.kind}: {re.split('[:;] got ', self.message, maxsplit=1)[0]}"


@contextmanager
def boundary(kind: type[EvolventError], activity: str, **context: object) -> Iterator[None]:
    """Raises any exception of the block as `kind`, with its cause; this is the only place for a broad `except`.

    Errors of the library pass unchanged; interrupts, exits and cancellations pass too. An exit in a thread of its own,
    such as `exit()` in a text that a reward runs, ends nothing but that thread: it is raised as `kind`.
    """
    try:
        yield
    except EvolventError:
        raise
    except SystemExit as error:
        if threading.current_thread() is threading.main_thread():
            raise
        raise kind(_describe_failure(activity, context, error)) from error
    except Exception as error:
        raise kind(_describe_failure(activity, context, error)) from error


def _describe_failure(activity: str, context: Mapping[str, object], error: BaseException) -> str:
    details = ", ".join(f"{key} {value}" for key, value in context.items())
    return f"{activity}{f' ({details})' if details else ''}: {type(error).__name__}: {error}"


@contextmanager
def user_boundary(kind: type[EvolventError], activity: str, **context: object) -> Iterator[None]:
    """Raises any exception of the block as `kind`, as `boundary` does; one of the user's code with its place."""
    try:
        with boundary(kind, activity, **context):
            yield
    except EvolventError as error:
        cause = error.__cause__
        is_wrapped = type(error) is kind and cause is not None and error.what.startswith(activity)
        place = find_location(cause) if is_wrapped and cause is not None else ""
        if not place:
            raise
        raise kind(f"{activity} at {place}: {type(cause).__name__}: {cause}") from cause


def find_location(error: BaseException) -> str:
    """Returns `FILE:LINE` of the user's code that raised an error: the innermost frame outside of packages.

    It is the place where the user's function called something that failed, or failed itself. It is empty where only
    packages were running.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_package_file(frame.filename)]
    own = [frame for frame in own if not frame.filename.startswith("<")] or own  # the line that runs a text, if any
    return f"{shorten_path(own[-1].filename)}:{own[-1].lineno}" if own else ""


def shorten_path(path: str) -> str:
    """Returns a path relative to the working folder where it lies below that, and else the file's name alone."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except (OSError, ValueError):
        return Path(path).name


def _is_package_file(filename: str) -> bool:
    folders = (str(Path(__file__).parent), str(Path(traceback.__file__).parent))
    is_installed = "site-packages" in filename or "dist-packages" in filename or Path(filename).name == "evolvent"
    return is_installed or filename.startswith((*folders, "<frozen"))


def find_nearest(name: str, choices: Iterable[str]) -> str | None:
    """Returns the choice that is most like `name`, or None where no choice is close.

    >>> find_nearest("GRPO", ["ppo", "grpo"]), find_nearest("grppo", ["ppo", "grpo"]), find_nearest("x", ["ppo"])
    ('grpo', 'grpo', None)
    """
    names = list(choices)
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    same_letters = [choice for choice in names if choice.casefold() == name.casefold()]
    return next(iter(same_letters or matches), None)


_MAX_LISTED = 60  # names in one sentence


def unknown_name_problem(
    kind: Literal["world", "method", "key", "split", "tier", "task"] | str,
    name: str,
    choices: Iterable[str],
    *,
    location: str | None = None,
) -> Problem:
    """Returns the problem for a name that does not exist, with the nearest choice or all of them."""
    names = sorted(filter(None, choices))  # an empty name stands for a default, and nobody types it
    suggestion = find_nearest(name, names)
    omitted = f", and {len(names) - _MAX_LISTED} others" if len(names) > _MAX_LISTED else ""
    hint = f"did you mean {suggestion!r}?" if suggestion else f"known: {', '.join(names[:_MAX_LISTED])}{omitted}"
    return Problem(location or kind, f"unknown {kind} {name!r}", hint)
