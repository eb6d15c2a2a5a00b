"""Team policies: building them, writing them as safetensors and JSON, and reading them for teams of any size."""

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
from evolvent.models.team_actors import ControlModel, TeamActors

__all__ = ["load_team", "make_team", "save_team"]

_WEIGHTS, _SHAPE = "team.safetensors", "team.json"
_FORMAT = 1


def make_team(shape: TeamShape, *, seed: int) -> TeamModel:
    """Builds an untrained policy; the same seed gives the same policy, and torch's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if shape.kind == "mlp":
            return ControlModel(shape)
        transformer = MultiAgentTransformer(shape) if shape.kind.startswith("mat") and shape.kind != "mat_dec" else None
        return TeamActors(shape) if transformer is None else transformer


def save_team(model: TeamModel, folder: Path) -> None:
    """Writes the weights as safetensors and the shape as JSON; raises NoSpace or StoreUnavailable where that fails."""
    from safetensors.torch import save

    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()}
    write_atomic(folder / _WEIGHTS, save(tensors, metadata={"format": "pt"}))
    write_atomic(folder / _SHAPE, json.dumps({"format": _FORMAT, **asdict(model.shape)}, indent=1, sort_keys=True))


def load_team(folder: Path, *, expected: TeamShape | None = None) -> TeamModel:
    """Reads a policy that `save_team` wrote.

    Args:
        expected: the team that it will play, possibly with other numbers of agents (few-shot transfer). Weights of
            single agents (HAPPO, MAT-Dec) are reused in turn: agent i begins as agent `i mod n` of the saved team.
    Raises:
        Incomplete: no such folder, or one whose files say nothing. CorruptRecord: weights that cannot be read.
        ShapeMismatch: weights of another shape, or spaces that are not the expected ones, all differences at once.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    shape = _read_shape(folder)
    if expected is not None:
        names = [name for name in asdict(shape) if name != "agents"]
        differences = [
            f"{name}: saved with {getattr(shape, name)}, expected {getattr(expected, name)}"
            for name in names
            if getattr(shape, name) != getattr(expected, name)
        ]
        if differences:
            raise ShapeMismatch(f"{folder} does not hold a policy of this team ({'; '.join(differences)})")
    try:
        tensors = load((folder / _WEIGHTS).read_bytes())
    except FileNotFoundError as error:
        raise Incomplete(f"{folder / _WEIGHTS} is missing") from error
    except SafetensorError as error:
        raise CorruptRecord(f"{folder / _WEIGHTS} cannot be read: {error}", offset=0) from error
    agents = shape.agents if expected is None else expected.agents
    model = make_team(replace(shape, agents=agents), seed=0)
    tensors = _assign_actor_weights(tensors, model)
    expected_tensors = model.state_dict()
    mismatched = sorted(
        name
        for name in {*tensors, *expected_tensors}
        if name not in tensors or name not in expected_tensors or tensors[name].shape != expected_tensors[name].shape
    )
    if mismatched:
        raise ShapeMismatch(f"weights in {folder / _WEIGHTS} have the wrong shape", value=mismatched[:5])
    model.load_state_dict(tensors)
    return model.eval()


def _read_shape(folder: Path) -> TeamShape:
    path = folder / _SHAPE
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if row.pop("format") != _FORMAT:
            raise Incomplete(f"{path} has another format", expected=_FORMAT)
        return TeamShape(**{**row, "sizes": tuple(row["sizes"])})
    except FileNotFoundError as error:
        raise Incomplete(f"{folder} does not hold a team policy", expected=_SHAPE) from error
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise Incomplete(f"{path} does not describe a team policy", value=str(error)) from error


def _assign_actor_weights(tensors: dict[str, torch.Tensor], model: TeamModel) -> dict[str, torch.Tensor]:
    """Assigns weights of single agents to as many agents as the model has."""
    assigned = {}
    actor_names = [name for name in tensors if name.startswith(("actors.", "deviations."))]
    saved_counts = {
        kind: 1 + max((int(name.split(".")[1]) for name in actor_names if name.startswith(kind)), default=-1)
        for kind in ("actors.", "deviations.")
    }
    for name in model.state_dict():
        parts = name.split(".")
        if name.startswith(("actors.", "deviations.")) and saved_counts[f"{parts[0]}."]:
            parts[1] = str(int(parts[1]) % saved_counts[f"{parts[0]}."])
        source = ".".join(parts)
        if source in tensors:
            assigned[name] = tensors[source]
    extra = {name: value for name, value in tensors.items() if name not in actor_names and name not in assigned}
    return assigned | extra
