"""Keeps the weights that were read from a file while transformers initializes the rest of a model."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["keep_loaded_weights"]


class _Turns:
    """Lets one thread load at a time, because transformers replaces functions of torch while it initializes."""

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)  # a thread that was loading does not exist in the child

    def _renew(self) -> None:
        self.lock = threading.RLock()


_TURNS = _Turns()


@contextmanager
def keep_loaded_weights() -> Iterator[None]:
    """Keeps initialization from writing to weights that were read from a file, in the models loaded inside the context.

    When `from_pretrained` has read the weights, it initializes the rest, module by module. Its initializers skip a
    tensor that is marked as read, but a slice or the data of that tensor has no mark. In transformers 5.23, Youtu sets
    the padding row of its embeddings to zero, and ZAYA the last bias of each router to -1
    (`findings/transformers_reset_after_loading.sh`).
    """
    import transformers

    base = transformers.PreTrainedModel
    with _TURNS.lock:
        initialize = base.initialize_weights

        def initialize_others(model: PreTrainedModel) -> None:
            with _SkippedWrites(_read_addresses(model)):
                initialize(model)

        base.initialize_weights = initialize_others
        try:
            yield
        finally:
            base.initialize_weights = initialize


def _read_addresses(model: PreTrainedModel) -> set[int]:
    """Returns where the weights and buffers lie that transformers has marked as read."""
    tensors = model.state_dict(keep_vars=True).values()
    marked = [tensor for tensor in tensors if getattr(tensor, "_is_hf_initialized", False)]
    return {_address(tensor) for tensor in marked} - {0}


def _address(tensor: Tensor) -> int:
    """Returns where the storage of a tensor begins, which it shares with its slices; 0 if it has no storage itself."""
    return 0 if is_traceable_wrapper_subclass(tensor) else tensor.untyped_storage().data_ptr()


class _SkippedWrites(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Skips operations inside the context that write to one of some storages."""

    def __init__(self, addresses: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.addresses = addresses

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        arguments = func._schema.arguments
        values = {**{argument.name: value for argument, value in zip(arguments, args, strict=False)}, **(kwargs or {})}
        for argument in arguments:
            target = values.get(argument.name)
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and isinstance(target, Tensor) and _address(target) in self.addresses:
                return target
        return func(*args, **(kwargs or {}))
