"""Policies of teams: made, written as safetensors and JSON, and read back for teams of the same or another size."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

try:
    import torch
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a policy of a team") from error

from evolvent.errors import ConfigError, CorruptRecord, Incomplete, ShapeMismatch
from evolvent.files import write_atomic
from evolvent.models.mat import MultiAgentTransformer
from evolvent.models.team_actions import TeamModel, TeamShape
from evolvent.models.team_actors import TeamActors

__all__ = ["load_team", "make_team", "save_team"]

_WEIGHTS, _SHAPE = "team.safetensors", "team.json"
_FORMAT = 1


def make_team(shape: TeamShape, *, seed: int) -> TeamModel:
    """A policy that was never trained; the same seed gives the same one, and torch's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = MultiAgentTransformer(shape) if shape.kind.startswith("mat") and shape.kind != "mat_dec" else None
        return TeamActors(shape) if made is None else made


def save_team(model: TeamModel, folder: Path) -> None:
    """Write the weights as safetensors and the shape as JSON; NoSpace or StoreUnavailable where that fails."""
    from safetensors.torch import save

    tensors = {name: value.detach().contiguous().clone() for name, value in model.state_dict().items()}
    write_atomic(folder / _WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_atomic(folder / _SHAPE, json.dumps({"format": _FORMAT, **asdict(model.shape)}, indent=1, sort_keys=True))


def load_team(folder: Path, *, expected: TeamShape | None = None) -> TeamModel:
    """Read what `save_team` wrote.

    Args:
        expected: the team that it shall play, with other numbers of agents or not (few-shot transfer). Weights of
            single agents (HAPPO, MAT-Dec) are handed on in turn: agent i begins as agent `i mod n` of the saved team.
    Raises:
        Incomplete: no such folder, or one whose files say nothing. CorruptRecord: weights that cannot be read.
        ShapeMismatch: weights of another shape, or spaces that are not the expected ones, all differences at once.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    shape = _read_shape(folder)
    if expected is not None:
        names = [name for name in asdict(shape) if name != "agents"]
        wrong = [
            f"{name}: saved with {getattr(shape, name)}, here {getattr(expected, name)}"
            for name in names
            if getattr(shape, name) != getattr(expected, name)
        ]
        if wrong:
            raise ShapeMismatch(f"{folder} is no policy of this team ({'; '.join(wrong)})")
    try:
        tensors = load((folder / _WEIGHTS).read_bytes())
    except FileNotFoundError as error:
        raise Incomplete(f"{folder / _WEIGHTS} is missing") from error
    except SafetensorError as error:
        raise CorruptRecord(f"{folder / _WEIGHTS} cannot be read: {error}", offset=0) from error
    agents = shape.agents if expected is None else expected.agents
    model = make_team(replace(shape, agents=agents), seed=0)
    tensors = _dealt(tensors, model)
    own = model.state_dict()
    odd = sorted(
        name
        for name in {*tensors, *own}
        if name not in tensors or name not in own or tensors[name].shape != own[name].shape
    )
    if odd:
        raise ShapeMismatch(f"{folder / _WEIGHTS} holds weights of another shape", value=odd[:5])
    model.load_state_dict(tensors)
    return model.eval()


def _read_shape(folder: Path) -> TeamShape:
    path = folder / _SHAPE
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row.pop("format") != _FORMAT:
            raise Incomplete(f"{path} is of another format", expected=_FORMAT)
        return TeamShape(**{**row, "sizes": tuple(row["sizes"])})
    except FileNotFoundError as error:
        raise Incomplete(f"{folder} holds no policy of a team", expected=_SHAPE) from error
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise Incomplete(f"{path} describes no policy of a team", value=str(error)) from error


def _dealt(tensors: dict[str, torch.Tensor], model: TeamModel) -> dict[str, torch.Tensor]:
    """Weights of single agents, for as many agents as the model has."""
    found = {}
    own = [name for name in tensors if name.startswith(("actors.", "deviations."))]
    saved = {
        kind: 1 + max((int(name.split(".")[1]) for name in own if name.startswith(kind)), default=-1)
        for kind in ("actors.", "deviations.")
    }
    for name in model.state_dict():
        parts = name.split(".")
        if name.startswith(("actors.", "deviations.")) and saved[f"{parts[0]}."]:
            parts[1] = str(int(parts[1]) % saved[f"{parts[0]}."])
        source = ".".join(parts)
        if source in tensors:
            found[name] = tensors[source]
    extra = {name: value for name, value in tensors.items() if name not in own and name not in found}
    return found | extra
