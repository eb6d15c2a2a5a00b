"""Messages between a run and its players on Ray: bytes of JSON and lines of the store, and files of weights.

    message = one line of JSON, and the lines that belong to it

Nothing here is pickled by us, and data written by a model or a world is never unpickled: Ray sees plain bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
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
from evolvent.models.policy import BaseFolder, Policy, load_policy
from evolvent.models.tuned import base_digest, kind_of
from evolvent.store.log import encode_line
from evolvent.store.schema import decode_trajectory, encode_episode_start, encode_trajectory
from evolvent.trajectory import Branch, JsonObject, Start, Task, Trajectory

__all__ = [
    "PolicyFiles",
    "PolicyPacker",
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

_BASE_PREFIX = "base/"  # where `Policy.save` writes the base of an adapter


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

    @property
    def base_digest(self) -> str:
        """Returns a digest that identifies the base of an adapter among these files; "" for a whole policy."""
        names = sorted(item for item in self.names.items() if item[0].startswith(_BASE_PREFIX))
        return hashlib.sha256(json.dumps([names, self.limit]).encode()).hexdigest()[:24] if names else ""

    def list_digests(self, *, without_base: bool) -> list[str]:
        """Returns the SHA-256 of the files, or of those beside the base of an adapter."""
        return [digest for name, digest in self.names.items() if not (without_base and name.startswith(_BASE_PREFIX))]


class PolicyPacker:
    """Packs policies as files, one version after another. The base of an adapter is written and read once."""

    def __init__(self) -> None:
        self._folder: TemporaryDirectory[str] | None = None
        self._base, self._names = "", dict[str, str]()
        self.written_bytes = 0

    def pack(self, policy: Policy, *, held_digests: Container[str]) -> tuple[PolicyFiles, dict[str, NDArray[np.uint8]]]:
        """Returns a policy as files, and the contents that are not known, by SHA-256.

        Args:
            held_digests: digests of files whose contents are not needed.
        Raises:
            StoreUnavailable, NoSpace: there is no room for the folder that it is written into first.
        """
        digest = base_digest(policy.model) if kind_of(policy.model) is not None else ""
        if not digest or digest != self._base:
            self.close()
            self._folder, self._base = TemporaryDirectory(prefix="evolvent-"), digest
        folder = Path(self._folder.name) if self._folder is not None else Path()
        base = BaseFolder(folder / _BASE_PREFIX, digest) if self._names else None
        replace(policy, base=base).save(folder)  # an adapter's base travels with it, whatever disk it lies on
        contents: dict[str, NDArray[np.uint8]] = {}
        names = {**self._names}
        for path in sorted(path_below for path_below in folder.rglob("*") if path_below.is_file()):
            name = path.relative_to(folder).as_posix()
            if name in self._names and self._names[name] in held_digests:
                continue
            raw = path.read_bytes()
            self.written_bytes += 0 if name in self._names else len(raw)
            names[name] = hashlib.sha256(raw).hexdigest()
            if names[name] not in held_digests:
                contents[names[name]] = np.frombuffer(raw, np.uint8)
        if digest:
            self._names = {name: names[name] for name in names if name.startswith(_BASE_PREFIX)}
        else:
            self.close()
        return PolicyFiles(names, policy.limit), contents

    def close(self) -> None:
        """Removes the folder of the base."""
        if self._folder is not None:
            self._folder.cleanup()
        self._folder, self._base, self._names = None, "", {}


def read_policy_files(policy: Policy) -> tuple[PolicyFiles, dict[str, NDArray[np.uint8]]]:
    """Returns a policy as files, and their contents by SHA-256; only safetensors and JSON, as `Policy.save` writes
    them.

    Raises:
        StoreUnavailable, NoSpace: there is no room for the folder that it is written into first.
    """
    packer = PolicyPacker()
    try:
        return packer.pack(policy, held_digests=())
    finally:
        packer.close()


def load_policy_files(
    folder: Path,
    files: PolicyFiles,
    contents: Mapping[str, NDArray[np.uint8]],
    *,
    bases: dict[str, Policy] | None = None,
) -> Policy:
    """Writes the files to a folder and loads their policy.

    Args:
        bases: loaded bases of adapters by `base_digest`; that of this policy is read if it is missing, and added.
            Adapters on one base share its weights.
    Raises:
        UnsafePath: a name that leaves the folder. CheckpointError, SafetyError: see `load_policy`.
    """
    base_name = files.base_digest
    base = None if bases is None else bases.get(base_name)
    for name, digest in files.names.items():
        path = safe_join(folder, name)
        if base is not None and name.startswith(_BASE_PREFIX):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        contents[digest].tofile(path)
    if base_name and base is None and bases is not None:
        base = bases[base_name] = load_policy(folder / _BASE_PREFIX, context=files.limit)
    return load_policy(folder, context=files.limit, base=base)
