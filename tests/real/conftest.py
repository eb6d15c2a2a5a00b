"""The pretrained model of these tests: SmolLM2-135M-Instruct, as `evolvent models get smollm2` fetched it."""

from __future__ import annotations

from pathlib import Path

import pytest

from evolvent.models.catalog import models_folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Returns the model's folder; without it the test is skipped."""
    folder = models_folder() / "smollm2"
    if not (folder / "model.safetensors").is_file():
        pytest.skip("needs SmolLM2 (make test fetches it where there is a network: evolvent models get smollm2)")
    return folder
