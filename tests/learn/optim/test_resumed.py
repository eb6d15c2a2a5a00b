"""Whatever an optimizer keeps, a stopped training equals one that was not; or it is refused before it begins."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from small_training import small_config, small_parts, small_policy

import evolvent.learn.progress as trained
from evolvent.errors import ConfigError
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.learner import FitReport, Learner
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim.make import _CLASSES, _UNSUPPORTED, OptimizerConfig

OURS = ("adamw", "lion", "adan", "sophiag", "lomo", "adalomo", "adafactor")
OTHERS = ("schedulefreeadamw", "schedulefreeradam", "schedulefreesgd", "prodigy", "dadaptadan", "ademamix", "adopt")
# They count in their groups, or have an average that is not what learns.


def fit(folder: Path | None, name: str, *, stop: int = 99) -> tuple[FitReport, Learner]:
    config = OptimizerConfig(name=name, hessian_every=2 if name == "sophiag" else None)
    train = small_config(epochs=2, lr=1e-2)
    learner = Learner(small_policy(dropout=0.1), weighted_nll, train, seed=5, optimizer=config)
    keeper = None if folder is None else Checkpointer(folder, every=50)
    parts = small_parts(learner.policy, 20)
    return learner.fit(parts, checkpoint=keeper, should_stop=lambda: learner.updates >= stop), learner


@pytest.mark.parametrize("name", [*OURS, *OTHERS])
def test_a_stopped_training_equals_the_whole_one(tmp_path: Path, name: str) -> None:
    if name in OTHERS:
        pytest.importorskip("pytorch_optimizer")
    whole, straight = fit(None, name)
    assert not fit(tmp_path, name, stop=3)[0].finished
    resumed, again = fit(tmp_path, name)
    assert whole == resumed and whole.updates > 6
    mine, theirs = straight.trained, again.trained
    for one, other in ((mine.named_weights(), theirs.named_weights()), (mine.moments(), theirs.moments())):
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    assert mine.optimizer_numbers() == theirs.optimizer_numbers()


@pytest.mark.parametrize("name", sorted(_CLASSES.keys() - {"muon"}))
def test_what_is_taken_for_known_comes_back(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Muon takes matrices alone, and is refused with any policy here."""
    monkeypatch.setattr(trained, "is_builtin", lambda name: False)
    trained.check_resumes(OptimizerConfig(name=name, fused=False))


@pytest.mark.parametrize("name", ["laprop", "madgrad", "soap", "gravity"])
def test_what_does_not_come_back_is_refused_before_the_first_update(tmp_path: Path, name: str) -> None:
    """Numbers beside the tensors of a weight; state of no weight; lists; a step of length 0 that divides by it."""
    pytest.importorskip("pytorch_optimizer")
    with pytest.raises(ConfigError, match=f"{name}.*(state that a checkpoint does not hold|stopped and resumed)"):
        fit(tmp_path, name)
    assert fit(None, name)[0].finished, "without a checkpoint nobody asks it to come back"


def told_refused() -> set[str]:
    """The names in the table of docs/training.md."""
    text = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
    table = text.partition("| refused | because |\n|---|---|\n")[2].partition("\n\n")[0]
    return {name for row in table.splitlines() for name in re.findall("`([a-z0-9]+)`", row.split("|")[1])}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_docs_name_every_optimizer_that_is_refused() -> None:
    peers = pytest.importorskip("pytorch_optimizer")
    refused = set()
    for name in {*peers.get_supported_optimizers(), *_CLASSES} - _UNSUPPORTED:
        try:
            trained.check_resumes(OptimizerConfig(name=name))
            trained._build_rehearsal(OptimizerConfig(name=name, fused=False))
        except ConfigError:
            refused.add(name)
    unsure = {"demo"}  # whether its own package is here
    assert refused - unsure == told_refused() - unsure and len(refused) > 30


def test_what_is_refused_is_named_in_one_sentence() -> None:
    pytest.importorskip("pytorch_optimizer")
    assert {"soap", "splus", "muon"} < told_refused() and not told_refused() & {"adamw", "prodigy", *OTHERS}
    with pytest.raises(ConfigError, match="soap has state that a checkpoint does not hold") as found:
        trained.check_resumes(OptimizerConfig(name="soap"))
    assert len(str(found.value).splitlines()) == 1
