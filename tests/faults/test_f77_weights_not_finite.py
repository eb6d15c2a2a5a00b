"""Fault 77: a model folder has weights that are NaN or infinite.

It is refused with the name of the weight, before anything is played or learned with it.
"""

from __future__ import annotations

import re

import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file

import evolvent as ev
from evolvent.errors import Incomplete
from evolvent.models import inspection
from evolvent.models.policy import load_policy


@pytest.fixture
def folder(tmp_path):
    ev.tiny_policy(["go", "left"], context=32).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(folder, value):
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = sorted(weights)[-1]
    weights[name].view(-1)[-1] = value
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(Incomplete, match=rf"are not all numbers: got NaN or infinity in {re.escape(name)}"):
        load_policy(folder)


def test_weights_whose_sum_overflows_are_finite(folder):
    model = torch.nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.fill_(3e38)
    inspection.check_finite(model, folder)
