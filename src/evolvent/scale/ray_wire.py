"""Messages between a run and its players on Ray: bytes of JSON and lines of the store, and files of weights.

    message = one line of JSON, and the lines that belong to it

Nothing here is pickled by us, and data written by a model or a world is never unpickled: Ray sees plain bytes.
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
from evolvent.store.log import encode_line
from evolvent.store.schema import decode_trajectory, encode_episode_start, encode_trajectory
from evolvent.trajectory import Branch, JsonObject, Start, Task, Trajectory

__all__ = [
    "PolicyFiles",
    "agent_from_row",
    "agent_to_row",
    "build_message",
    "load_policy_files",
    "parse_message",
    "read_policy_files",
    "start_from_row",
    "start_to_row",
    "trajectory_from_line",
    "trajectory_to_line",
]


def build_message(head: Mapping[str, object], lines: Sequence[bytes] = ()) -> bytes:
    """Builds a message: JSON values (NaN and infinities as in Python), and lines that end with a newline each."""
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + b"".join(lines)


def parse_message(raw_message: bytes) -> tuple[JsonObject, list[bytes]]:
    """Parses a message into its JSON values and its lines."""
    first, *lines = raw_message.splitlines(keepends=True)
    head: dict[str, Any] = json.loads(first)
    return head, lines


def trajectory_to_line(trajectory: Trajectory) -> bytes:
    """Serializes a trajectory as its line in a store.

    Raises:
        SampleInvalid: it holds NaN or values that are not JSON.
    """
    return encode_line(encode_trajectory(trajectory), run="", traj=trajectory.id)


def trajectory_from_line(line: bytes, start: Start | None = None) -> Trajectory:
    """Parses the trajectory of a line; with a start, its task is that of the start.

    Raises:
        SampleInvalid: the line is none of a trajectory.
    """
    trajectory = decode_trajectory(json.loads(line))
    return trajectory if start is None else replace(trajectory, task=start.task)


def start_to_row(start: Start) -> JsonObject:
    """Converts a start to JSON values."""
    row = encode_episode_start(start.task, sample=start.sample, branch=start.branch, group=None, meta={})
    del row["task"]["id"]
    return row


def start_from_row(row: JsonObject) -> Start:
    """Parses the start of a row; its task gets the usual id of that task."""
    branch = row.get("branch")
    return Start(Task(**row["task"]), row["sample"], Branch(*branch) if branch else None)


# ------------------------------------------------------------------ who plays


def agent_to_row(agent: Agent) -> JsonObject:
    """Converts an agent to JSON values; its policy, where it has one, is sent as files.

    Raises:
        ConfigError: an agent, a constraint or a history that cannot be told so.
    """
    if isinstance(agent, LanguageAgent) and agent.constrain is None:
        return {
            "kind": "language",
            "sampling": asdict(agent.sampling),
            "max_tokens": agent.max_tokens,
            "choose": agent.restrict_to_admissible,
            "history": _history_to_row(agent.history),
        }
    if isinstance(agent, CandidateAgent):
        return {
            "kind": "candidates",
            "temperature": agent.temperature,
            "per": agent.per,
            "history": _history_to_row(agent.history),
        }
    if isinstance(agent, (Expert, Random)):
        return {"kind": "expert" if isinstance(agent, Expert) else "random"}
    raise ConfigError([Problem("agent", f"{type(agent).__name__} cannot run on Ray", "run it in this process")])


def agent_from_row(row: JsonObject, policy: Policy | None) -> Agent:
    """Creates the agent of a row; an agent with a policy needs it."""
    if row["kind"] in ("expert", "random"):
        return Expert() if row["kind"] == "expert" else Random()
    if policy is None:
        raise ConfigError("the agent has no policy", value=row["kind"])
    history = _history_from_row(row["history"])
    if row["kind"] == "candidates":
        return CandidateAgent(policy, row["temperature"], row["per"], history)
    return LanguageAgent(policy, Sampling(**row["sampling"]), row["max_tokens"], row["choose"], history)


def _history_to_row(history: History) -> dict[str, Any]:
    if isinstance(history, Refuse):
        return {"name": "refuse"}
    if isinstance(history, Window):
        return {"name": "window", "share": history.share}
    if isinstance(history, Summarise) and history.summary is digest_turns:
        return {"name": "summarise"}
    raise ConfigError(
        [Problem("history", f"{history.name!r} cannot be sent to Ray", "use refuse, window or summarise")]
    )


def _history_from_row(row: Mapping[str, Any]) -> History:
    if row["name"] == "window":
        return Window(row["share"])
    return Refuse() if row["name"] == "refuse" else Summarise()


# ------------------------------------------------------------------ weights


@dataclass(frozen=True)
class PolicyFiles:
    """A policy as files: name in its folder -> SHA-256; and settings outside its folder.

    Attributes:
        names: The base of an adapter, its tokenizer and its weights are ordinary files.
        limit: See `Policy.limit`.
    """

    names: Mapping[str, str]
    limit: int | None

    @property
    def digest(self) -> str:
        """Returns a digest that identifies these files."""
        content = json.dumps([sorted(self.names.items()), self.limit])
        return hashlib.sha256(content.encode()).hexdigest()[:24]


def read_policy_files(policy: Policy) -> tuple[PolicyFiles, dict[str, NDArray[np.uint8]]]:
    """Returns a policy as files, and their contents by SHA-256; only safetensors and JSON, as `Policy.save` writes
    them.

    Raises:
        StoreUnavailable, NoSpace: there is no room for the folder that it is written into first.
    """
    names: dict[str, str] = {}
    contents: dict[str, NDArray[np.uint8]] = {}
    with TemporaryDirectory(prefix="evolvent-") as temporary:
        folder = Path(temporary)
        replace(policy, base=None).save(folder)  # an adapter's base travels with it, whatever disk it lies on
        for path in sorted(path_below for path_below in folder.rglob("*") if path_below.is_file()):
            raw = path.read_bytes()
            digest = hashlib.sha256(raw).hexdigest()
            names[path.relative_to(folder).as_posix()] = digest
            contents[digest] = np.frombuffer(raw, np.uint8)
    return PolicyFiles(names, policy.limit), contents


def load_policy_files(folder: Path, files: PolicyFiles, contents: Mapping[str, NDArray[np.uint8]]) -> Policy:
    """Writes the files to a folder and loads their policy.

    Raises:
        UnsafePath: a name that leaves the folder. CheckpointError, SafetyError: see `load_policy`.
    """
    for name, digest in files.names.items():
        path = safe_join(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        contents[digest].tofile(path)
    return load_policy(folder, context=files.limit)
