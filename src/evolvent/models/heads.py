"""Heads on a causal LM's hidden states. The value head: `d -> d, GELU, -> 1`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

try:
    import torch
    from torch import Tensor, nn
except ImportError as error:
    from evolvent.errors import MissingExtra

    raise MissingExtra("train", "a language model") from error

from evolvent.errors import Incomplete, ShapeMismatch
from evolvent.models.tuned import HEAD_FILE

__all__ = ["ValueHead", "fresh_head", "load_head", "save_head"]


class ValueHead(nn.Module):
    """State values from hidden states: `hidden [..., H] -> values [...]`. It starts at value 0 everywhere."""

    FILE = HEAD_FILE

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden)
        self.outer = nn.Linear(hidden, 1)
        nn.init.zeros_(self.outer.weight)
        nn.init.zeros_(self.outer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.outer(nn.functional.gelu(self.inner(hidden))).squeeze(-1)
        return values


def fresh_head(hidden: int, *, seed: int) -> ValueHead:
    """Builds an untrained head; the same seed gives the same head, and torch's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ValueHead(hidden)


def save_head(head: nn.Module, folder: Path) -> None:
    """Write a head's weights beside the model's, as safetensors."""
    from safetensors.torch import save_file

    save_file({name: weight.contiguous() for name, weight in head.state_dict().items()}, folder / ValueHead.FILE)


def load_head(folder: Path, model: PreTrainedModel) -> ValueHead | None:
    """Loads the value head of a folder, or returns None where there is none.

    Raises:
        Incomplete: a file that cannot be read. ShapeMismatch: a head made for another hidden size.
    """
    path = folder / ValueHead.FILE
    if not path.exists():
        return None
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    head = ValueHead(int(model.config.hidden_size)).to(dtype=torch.float32)
    try:
        head.load_state_dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise Incomplete(f"{path} cannot be read", value=str(error)) from error
    except RuntimeError as error:
        raise ShapeMismatch(f"{path} does not fit the model", value=str(error)) from error
    return head
