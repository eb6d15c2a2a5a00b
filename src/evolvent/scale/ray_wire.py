"""What travels between a run and its players on Ray: bytes of JSON and lines of the store, and files of weights.

    message = one line of JSON, and the lines that belong to it

Nothing here is pickled by us, and nothing that a model or a world wrote is ever unpickled: Ray sees plain bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.agents.base import Agent
from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.history import History, Refuse, Summarise, Window, digest_turns
from evolvent.agents.language import LanguageAgent
from evolvent.agents.plain import Expert, Random
from evolvent.engine.asks import Sampling
from evolvent.errors import ConfigError, Problem
from evolvent.files import safe_join
from evolvent.models.policy import Policy, load_policy
from evolvent.store.frame import to_line
from evolvent.store.schema import begin_fields, decode, encode
from evolvent.trajectory import Branch, Start, Task, Trajectory

__all__ = [
    "Files",
    "agent_of",
    "agent_row",
    "files_of",
    "line_of",
    "message",
    "parts_of",
    "policy_in",
    "start_of",
    "start_row",
    "trajectory_of",
]


def message(head: Mapping[str, Any], lines: Sequence[bytes] = ()) -> bytes:
    """A message: JSON values (NaN and infinities as Python spells them), and lines that end with a newline each."""
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + b"".join(lines)


def parts_of(told: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The JSON values and the lines of a message."""
    first, *lines = told.splitlines(keepends=True)
    head: dict[str, Any] = json.loads(first)
    return head, lines


def line_of(trajectory: Trajectory) -> bytes:
    """A trajectory as the line that a store has of it.

    Raises:
        SampleInvalid: it holds NaN or values that are not JSON.
    """
    return to_line(encode(trajectory), run="", traj=trajectory.id)


def trajectory_of(line: bytes, start: Start | None = None) -> Trajectory:
    """The trajectory of a line; with its start, its task is that of the start.

    Raises:
        SampleInvalid: the line is none of a trajectory.
    """
    found = decode(json.loads(line))
    return found if start is None else replace(found, task=start.task)


def start_row(start: Start) -> dict[str, Any]:
    """A start as JSON values."""
    row = begin_fields(start.task, sample=start.sample, branch=start.branch, group=None, meta={})
    del row["task"]["id"]
    return row


def start_of(row: Mapping[str, Any]) -> Start:
    """The start of a row; its task has the id that the same task has everywhere."""
    branch = row.get("branch")
    return Start(Task(**row["task"]), row["sample"], Branch(*branch) if branch else None)


# ------------------------------------------------------------------ who plays


def agent_row(agent: Agent) -> dict[str, Any]:
    """An agent as JSON values; its policy, where it has one, travels as files.

    Raises:
        ConfigError: an agent, a constraint or a history that cannot be told so.
    """
    if isinstance(agent, LanguageAgent) and agent.constrain is None:
        return {
            "kind": "language",
            "sampling": asdict(agent.sampling),
            "max_tokens": agent.max_tokens,
            "choose": agent.choose,
            "history": _history_row(agent.history),
        }
    if isinstance(agent, CandidateAgent):
        return {
            "kind": "candidates",
            "temperature": agent.temperature,
            "per": agent.per,
            "history": _history_row(agent.history),
        }
    if isinstance(agent, (Expert, Random)):
        return {"kind": "expert" if isinstance(agent, Expert) else "random"}
    raise ConfigError([Problem("agent", f"{type(agent).__name__} does not play on Ray", "play in this process")])


def agent_of(row: Mapping[str, Any], policy: Policy | None) -> Agent:
    """The agent of a row; one with a policy needs it."""
    if row["kind"] in ("expert", "random"):
        return Expert() if row["kind"] == "expert" else Random()
    if policy is None:
        raise ConfigError("an agent without its policy", value=row["kind"])
    history = _history_of(row["history"])
    if row["kind"] == "candidates":
        return CandidateAgent(policy, row["temperature"], row["per"], history)
    return LanguageAgent(policy, Sampling(**row["sampling"]), row["max_tokens"], row["choose"], history)


def _history_row(history: History) -> dict[str, Any]:
    if isinstance(history, Refuse):
        return {"name": "refuse"}
    if isinstance(history, Window):
        return {"name": "window", "share": history.share}
    if isinstance(history, Summarise) and history.summary is digest_turns:
        return {"name": "summarise"}
    raise ConfigError([Problem("history", f"{history.name!r} does not travel to Ray", "refuse, window or summarise")])


def _history_of(row: Mapping[str, Any]) -> History:
    if row["name"] == "window":
        return Window(row["share"])
    return Refuse() if row["name"] == "refuse" else Summarise()


# ------------------------------------------------------------------ weights


@dataclass(frozen=True)
class Files:
    """A policy as files: name in its folder -> SHA-256; and what its folder does not say.

    Attributes:
        names: the base of an adapter, its tokenizer and its weights are files like any other.
        limit: see `Policy.limit`.
    """

    names: Mapping[str, str]
    limit: int | None

    @property
    def digest(self) -> str:
        """What tells these files from others."""
        told = json.dumps([sorted(self.names.items()), self.limit])
        return hashlib.sha256(told.encode()).hexdigest()[:24]


def files_of(policy: Policy) -> tuple[Files, dict[str, NDArray[np.uint8]]]:
    """A policy as files, and their contents by SHA-256; safetensors and JSON alone, as `Policy.save` writes them.

    Raises:
        StoreUnavailable, NoSpace: there is no room for the folder that it is written into first.
    """
    names: dict[str, str] = {}
    contents: dict[str, NDArray[np.uint8]] = {}
    with TemporaryDirectory(prefix="evolvent-") as made:
        folder = Path(made)
        replace(policy, base=None).save(folder)  # an adapter's base travels with it, whatever disk it lies on
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            raw = path.read_bytes()
            digest = hashlib.sha256(raw).hexdigest()
            names[path.relative_to(folder).as_posix()] = digest
            contents[digest] = np.frombuffer(raw, np.uint8)
    return Files(names, policy.limit), contents


def policy_in(folder: Path, files: Files, contents: Mapping[str, NDArray[np.uint8]]) -> Policy:
    """Write the files into a folder and load the policy that they are.

    Raises:
        UnsafePath: a name that leaves the folder. CheckpointError, SafetyError: see `load_policy`.
    """
    for name, digest in files.names.items():
        path = safe_join(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        contents[digest].tofile(path)
    return load_policy(folder, context=files.limit)
