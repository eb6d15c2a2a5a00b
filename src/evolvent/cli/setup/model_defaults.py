"""Defaults of commands that follow from their model: filled in where nobody set a value, and told."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from evolvent.cli.setup.registry import POLICIES, resolve_model_folder
from evolvent.cli.setup.settings import ModelConfig
from evolvent.config import Config
from evolvent.errors import EvolventError, Incomplete
from evolvent.models.catalog import count_parameters
from evolvent.models.defaults import ADAM_EPS, ModelFacts, fill_settings, reply_length, rl_settings, train_settings
from evolvent.models.placement import available_bytes, find_device
from evolvent.view.escape import show_hidden

if TYPE_CHECKING:
    from evolvent.learn.learner import TrainConfig

__all__ = ["fill_model_defaults", "find_train_defaults", "print_budget", "read_model_facts"]

C = TypeVar("C", bound=Config)
_ADAPTER_FILE, _NOTE = "adapter_config.json", "evolvent.json"


def read_model_facts(name: str, *, adapter: str = "none") -> ModelFacts:
    """Reads the facts of a model from the headers of its files; no weights are read.

    A model that cannot be found has no facts: loading it explains why, beside all other problems.

    Args:
        name: a size, a model or a run, see `resolve_policy`.
        adapter: kind of the adapter that it is to learn; "none": its own weights, or the adapter that it has.
    """
    if name in POLICIES:
        return ModelFacts(0, is_pretrained=False)
    try:
        folder = resolve_model_folder(name)
    except EvolventError:
        return ModelFacts(0, is_pretrained=False)
    note = _read_json(folder / _NOTE) if folder.is_dir() else {}
    has_adapter = folder.is_dir() and (folder / _ADAPTER_FILE).is_file()
    weights = folder
    if has_adapter:
        base_note = note.get("base")
        location = base_note.get("folder") if isinstance(base_note, dict) else None
        location = location or _read_json(folder / _ADAPTER_FILE).get("base_model_name_or_path") or "base"
        weights = next((path for path in (folder / str(location), Path(str(location))) if path.is_dir()), folder)
    num_parameters = 0
    with suppress(OSError, ValueError, KeyError, Incomplete):  # a damaged file is for the loader to explain
        num_parameters = count_parameters(weights) or 0
    return ModelFacts.of_model(num_parameters, note.get("dialect"), has_adapter=has_adapter or adapter != "none")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def find_train_defaults(facts: ModelFacts, default: TrainConfig) -> TrainConfig:
    """Returns settings of imitation that fit a model: the given ones for small models."""
    settings = train_settings(facts)
    return type(default).model_validate(settings) if settings else default


def fill_model_defaults(config: C, facts: ModelFacts, console: Console | None, *, policy: str) -> C:
    """Returns the settings of a command with the defaults that fit its model, and prints what was filled in.

    Args:
        config: has `train` (of imitation or of reinforcement learning) and `max_tokens`, or one of them.
        facts: of the model.
        console: None: nothing is printed.
        policy: the model's name, for the message.
    """
    if not facts.is_pretrained:
        return config
    filled: dict[str, object] = {}
    update: dict[str, object] = {}
    train = getattr(config, "train", None)
    if isinstance(train, Config):
        is_imitation = "epochs" in type(train).model_fields
        settings = train_settings(facts) if is_imitation else _as_update_settings(rl_settings(facts))
        update["train"] = fill_settings(train, settings)
        filled |= {f"train.{name}": value for name, value in settings.items() if name not in train.model_fields_set}
    if "max_tokens" in type(config).model_fields and "max_tokens" not in config.model_fields_set:
        update["max_tokens"] = filled["max_tokens"] = reply_length(facts)
    if filled and console is not None:
        size = f"{facts.num_parameters / 1e6:,.0f} million pretrained weights"
        if isinstance(train, Config):
            size += ", of which an adapter is learned" if facts.has_adapter else ", all of them learned"
        values = ", ".join(
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in filled.items()
        )
        console.print(show_hidden(f"defaults for {policy} ({size}): {values}"), soft_wrap=True)
    if console is not None and isinstance(config, ModelConfig):
        print_budget(console, facts, config.device)
    return config.model_copy(update=update)


def print_budget(console: Console, facts: ModelFacts, device: str) -> None:
    """Prints the memory that an engine takes at most (`engine.local`), where the model is large enough to matter."""
    if facts.is_pretrained:
        budget = available_bytes(find_device(device)) // 2
        text = f"keys and values take at most {budget / 1e9:.1f} GB, half of what is free on {device}"
        console.print(show_hidden(text), soft_wrap=True)


def _as_update_settings(settings: dict[str, object]) -> dict[str, object]:
    """Renames the learner's settings to those of a command's updates (`UpdateConfig`), and adds the optimizer's."""
    names = {"batch_tokens": "max_tokens_per_forward"}
    return {**{names.get(name, name): value for name, value in settings.items()}, "adam_eps": ADAM_EPS}
