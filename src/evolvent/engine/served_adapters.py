"""LoRA adapters that a server loads over the base that it serves: their names, and the answers of the servers.

A server that has loaded an adapter answers requests that name it, beside those for its base. The name of an adapter is
the label of its weights (`labels.weights_label`), so a request is answered by the weights that it names or by none.

    vLLM     POST /v1/load_lora_adapter {"lora_name", "lora_path"}    200 and a text; `model` of a request names it
             POST /v1/unload_lora_adapter {"lora_name"}               404 for an unknown one
    SGLang   POST /load_lora_adapter {"lora_name", "lora_path"}       {"success": true, "loaded_adapters"};
             POST /unload_lora_adapter {"lora_name"}                  `lora_path` of a request names it

vLLM has the routes with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, and loads adapters with `--enable-lora`; SGLang needs
`--enable-lora`. Written from the sources of vLLM (`entrypoints/openai/models/serving.py`) and SGLang
(`managers/tokenizer_control_mixin.py`). `evolvent serve --policy MODEL --reload FOLDER` answers all four routes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from evolvent.errors import EndpointError

__all__ = ["ServedAdapter", "is_already_loaded", "is_unknown_adapter"]

_LOADED = re.compile(r"already (been )?loaded", re.I)
_UNKNOWN = re.compile(r"never been loaded|not loaded|cannot be found|does not exist|unknown (model|adapter)", re.I)


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter that a server loads.

    Args:
        name: what requests call it: the label of its weights.
        folder: its files as peft writes them, where the server finds them.
    """

    name: str
    folder: Path


def is_already_loaded(error: EndpointError) -> bool:
    """Returns whether a server refused an adapter because it has loaded one of that name.

    >>> is_already_loaded(EndpointError("POST", value=400, hint="The lora adapter 'a' has already been loaded."))
    True
    >>> is_already_loaded(EndpointError("POST", value=400, hint="Both 'lora_name' and 'lora_path' must be provided."))
    False
    """
    return error.value == 400 and _LOADED.search(error.hint or "") is not None


def is_unknown_adapter(error: EndpointError) -> bool:
    """Returns whether a server does not know the adapter that a request names, because it began anew or dropped it.

    >>> is_unknown_adapter(EndpointError("POST", value=404, hint="The model `evolvent-v1-ab` does not exist."))
    True
    >>> is_unknown_adapter(EndpointError("POST", value=400, hint="Got LoRA adapter that has never been loaded: a"))
    True
    >>> is_unknown_adapter(EndpointError("POST", value=400, hint="temperature must be positive"))
    False
    """
    return error.value == 404 or (error.value == 400 and _UNKNOWN.search(error.hint or "") is not None)
