"""One cell of `benchmarks.masking`: a variant of Hammer on a seed, taught and measured on three panels.

All variants learn from one pool of generated requests to training tools, for as many learned tokens, from one base that
reads random words back (`benchmarks.recall`) and knows no tool: a model that was pretrained copies names that it never
saw, and one that was not would fail under new names whatever it is taught. The pool holds no request that nothing
answers: only augmentation can teach that. The panels are of tools that nobody learned: their requests as they are, the
same requests with every tool and parameter renamed, and requests that no offered tool answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.looking_back import look_back
from benchmarks.recall import recalled
from benchmarks.search_heads import look_alike
from evolvent.bench.calls import answer_samples, mask_panel
from evolvent.curate.masking import SYLLABLES, MaskSpec
from evolvent.engine.local import LocalEngine
from evolvent.identity import version_1_values
from evolvent.learn.learner import TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.messages import CallSample
from evolvent.methods.hammer import PLAIN, HammerConfig, hammer
from evolvent.models.policy import Policy, tiny_policy
from evolvent.models.toolprompt import Compact
from evolvent.run import Run
from evolvent.scale.local_backend import LocalBackend
from evolvent.trajectory import canonical_json, sample_seed
from evolvent.worlds.functions.world import Functions, call_samples

__all__ = ["MAIN", "PANELS", "VARIANTS", "Cell", "Protocol", "panels", "run_cell"]

WORDS, PIECES = SYLLABLES[::5], (1, 1)
"""196 syllables; a masked name is one of them, as a name is one word or two to a model over words."""
RATES = {"xs": 1.0, "s": 0.5}
"""Learning rates by size, in those of the protocol: the best of 3e-3, 1.5e-3 and 8e-4 for the base's first tokens."""
PANELS = ("plain", "renamed", "irrelevant")
MAIN = ("plain", "irrelevance", "masking", "both")
_MARKS = (
    "user",
    "assistant",
    "tool",
    "string",
    "integer",
    "number",
    "boolean",
    "array",
    "object",
    "of",
    "any",
    "?",
    *"|[](){}:,='.-\"",
    "True",
    "False",
    "None",
)


@dataclass(frozen=True)
class Variant:
    """A way of teaching.

    Args:
        settings: of Hammer, beside the paper's (ratio 2/3 and share 1/9).
        size: of the model. times: learned tokens, in those of the protocol.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    size: str = "xs"
    times: int = 1


VARIANTS: Mapping[str, Variant] = {
    "plain": Variant(PLAIN),
    "irrelevance": Variant({"ratio": 0.0}),
    "masking": Variant({"share": 0.0}),
    "both": Variant(),
    "ratio 1/3": Variant({"ratio": 1 / 3}),
    "ratio 1": Variant({"ratio": 1.0}),
    "share 1/4": Variant({"share": 0.25}),
    "share 2/5": Variant({"share": 0.4}),
    "plain, 4x": Variant(PLAIN, "s"),
    "plain, 3x tokens": Variant(PLAIN, times=3),
    "both, 3x tokens": Variant(times=3),
}


@dataclass(frozen=True)
class Protocol:
    """All that the benchmark fixes before it runs.

    Args:
        seeds: of the start, the pool's order, names and irrelevance.
        base: learned tokens of the base. pool: requests that are learned. tokens: learned tokens of every variant.
        panel: requests of each panel. train: how all learn.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    base: int = 1_000_000
    pool: int = 4000
    tokens: int = 600_000
    panel: int = 200
    context: int = 384
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(
            lr=3e-3, betas=(0.9, 0.95), batch_tokens=512, weight_decay=0.01, warmup_steps=50
        )
    )

    def verbs(self, size: str) -> LocalBackend:
        """What a model of a size learns with."""
        train = self.train.model_copy(update={"lr": self.train.lr * RATES[size]})
        return LocalBackend({"functions": Functions()}, train)

    @property
    def digest(self) -> str:
        """16 hex digits: cells of another protocol are not mixed with these."""
        own = asdict(replace(self, train=None)) | {"train": version_1_values(self.train)}  # type: ignore[arg-type]
        own["rates"], own["names"] = RATES, [len(WORDS), *PIECES]
        own["variants"] = {name: [dict(one.settings), one.size] for name, one in VARIANTS.items() if one.times == 1}
        return f"{sample_seed(canonical_json(own)):016x}"


@dataclass(frozen=True, order=True)
class Cell:
    """A variant on a seed."""

    variant: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.variant.replace(' ', '-').replace('/', 'of').replace(',', '')}-{self.seed}"


def panels(protocol: Protocol) -> Mapping[str, Sequence[CallSample]]:
    """The three panels; the same for all variants and seeds."""
    asked = call_samples("test", "seen", protocol.panel, kinds=("simple", "multiple"))
    nothing = call_samples("test", "seen", protocol.panel, kinds=("irrelevant",), seed=1)
    renamed = tuple(mask_panel(asked, MaskSpec(1.0, style="snake", words=WORDS, pieces=PIECES), seed=1))
    return {"plain": asked, "renamed": renamed, "irrelevant": nothing}


def start(protocol: Protocol, folder: Path, size: str, seed: int) -> Policy:
    """The base of a seed, learned once: heads that look back and alike to begin with, then words read back."""
    plain = sorted({*(Functions().vocabulary() or ()), *WORDS} - {*_MARKS})
    policy = tiny_policy(
        sorted({*plain, *_MARKS}), size=size, context=protocol.context, seed=sample_seed("masking", seed) % 2**31
    )
    look_back(policy)
    look_alike(policy)
    data = list(recalled(plain, protocol.base // 12, dialect=policy.dialect, seed=seed))
    verbs = protocol.verbs(size)
    with Run(
        folder / "runs" / f"{protocol.digest}-base-{size}-{seed}", verbs, seed=seed, settings=verbs.settings()
    ) as run:
        return run.fit(policy, data, weighted_nll, tokens=protocol.base)


def run_cell(protocol: Protocol, folder: Path, cell: Cell) -> dict[str, Any]:
    """Teach one variant and measure it; a cell that was stopped goes on with what its run has finished."""
    taught = VARIANTS[cell.variant]
    began = time.process_time()
    policy, prompt = start(protocol, folder, taught.size, cell.seed), Compact()
    samples = call_samples("train", "seen", protocol.pool, kinds=("simple", "multiple"), seed=cell.seed)
    config = HammerConfig.model_validate(
        {
            "copies": 16 * taught.times,
            "tokens": protocol.tokens * taught.times,
            "style": "snake",
            "words": WORDS,
            "pieces": PIECES,
            **taught.settings,
        }
    )
    verbs = protocol.verbs(taught.size)
    place = folder / "runs" / f"{protocol.digest}-{cell.key}"
    with Run(place, verbs, seed=cell.seed, settings=verbs.settings()) as run:
        learned = hammer(policy, samples, config=config, run=run, prompt=prompt, dialect=policy.dialect)
    engine = LocalEngine(learned, slots=64)
    row: dict[str, Any] = {"digest": protocol.digest, "variant": cell.variant, "seed": cell.seed, "panels": {}}
    for name, panel in panels(protocol).items():
        found = answer_samples(panel, prompt, learned.dialect, engine=engine, max_tokens=48)
        row["panels"][name] = {
            "right": [int(one.grade.valid) for one in found],
            "generated": sum(one.num_generated for one in found),
            "unreadable": sum(one.calls is None for one in found),
            "named": sum(
                bool(one.calls) and [c.name for c in one.calls or ()] == [c.name for c in one.sample.calls]
                for one in found
            ),
        }
    parameters = sum(one.numel() for one in learned.model.parameters())
    return {
        **row,
        "computed": engine.usage.computed,
        "parameters": parameters,
        "cpu_s": round(time.process_time() - began, 1),
    }
