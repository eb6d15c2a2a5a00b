"""Does masking make a pretrained model read descriptions? The controlled study of Hammer on SmolLM2-135M-Instruct.

    evolvent models get smollm2                      first, once
    python -m benchmarks.hammer_real --tune          learning rates, on a development seed; resumes
    python -m benchmarks.hammer_real                 freezes the study with the chosen rates, and plays it; resumes
    python -m benchmarks.hammer_real --report        prints what was played
    python -m benchmarks.hammer_real --bfcl DIR      asks the trained policies BFCL's irrelevant requests as well

All arms of a seed begin with one new LoRA adapter and learn as many tokens of the same generated requests: as they are
(`plain`), with requests that no tool answers (`irrelevance`), and with names masked in a third or two thirds of the
rows beside these. The panels hold tools of domains that nobody learned: their requests as they are, the same under
meaningless names, and requests that no offered tool answers. Tools stand in the prompt one a line (`Compact`).

Prediction, before any run: two thirds save at least .8 of what plain loses under new names, and lose at most .02 where
names are as they were. The study judges only where plain answers half of the plain panel and loses a tenth of it or
more under new names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from time import process_time

from benchmarks.pretrained import Pretrained, RealStudy, list_interval, play_command, study_facts
from benchmarks.study import play_once, read_rows
from evolvent.bench.calls import CallAnswer, answer_samples, mask_panel
from evolvent.bench.study import Arm, ArmResult, ArmRun, Gate, PrimaryComparison, Study, read_costs
from evolvent.bench.verdict import StudySummary
from evolvent.curate.masking import MaskSpec
from evolvent.engine.local import LocalEngine
from evolvent.messages import CallSample
from evolvent.methods.hammer import HammerConfig, hammer
from evolvent.models.policy import Policy, load_policy
from evolvent.models.toolprompt import Compact
from evolvent.stats import wilson_interval
from evolvent.trajectory import Json
from evolvent.worlds.bfcl.items import CallItem
from evolvent.worlds.bfcl.world import read_items
from evolvent.worlds.functions.world import Functions, call_samples

ARMS: Mapping[str, tuple[float, float]] = {
    "plain": (0.0, 0.0),
    "irrelevance": (0.0, 1 / 9),
    "masked_third": (1 / 3, 1 / 9),
    "masked": (2 / 3, 1 / 9),
}
"""Share of masked rows, and share of requests that no tool answers."""
TUNED = ("plain", "masked")
_RATE_OF = {"plain": "plain", "irrelevance": "plain", "masked_third": "masked", "masked": "masked"}
KINDS = ("simple", "multiple")
GATES = (
    Gate("plain answers plain requests", "plain", "plain", minimum=0.5),
    Gate("plain loses under new names", "plain", "drop", minimum=0.1),
)


@dataclass(frozen=True)
class Plan:
    """What the study fixes before it runs.

    Args:
        rows: requests that may be learned, each at most once. tokens: learned tokens of every arm.
        tuned_tokens: of a rate that is tried. panel: requests of each panel.
        development: seed of the tuning.
    """

    pretrained: Pretrained = field(default_factory=lambda: Pretrained(rank=32, context=1024))
    rows: int = 1000
    tokens: int = 24_000
    tuned_tokens: int = 6_000
    panel: int = 100
    tuned_panel: int = 30
    max_tokens: int = 48
    rates: tuple[float, ...] = (6e-4, 2e-3, 6e-3)
    development: int = 100


PLAN = Plan()
QUICK = Plan(rows=24, tokens=120, tuned_tokens=60, panel=4, tuned_panel=4, max_tokens=16)
SEEDS = (0, 1, 2)


@cache
def _panels(split: str, count: int) -> Mapping[str, Sequence[CallSample]]:
    """Returns the three panels; the same for all arms and seeds."""
    asked = call_samples(split, "seen", count, kinds=KINDS)
    renamed = tuple(mask_panel(asked, MaskSpec(1.0, style="snake"), seed=1))
    return {"plain": asked, "renamed": renamed, "irrelevant": call_samples(split, "seen", count, kinds=("irrelevant",))}


def _train(plan: Plan, folder: Path, arm: str, *, seed: int, rate: float, tokens: int) -> Policy:
    ratio, share = ARMS[arm]
    start = plan.pretrained.start([Functions()], seed)
    samples = call_samples("train", "seen", plan.rows, kinds=KINDS, seed=seed)
    config = HammerConfig(copies=1, ratio=ratio, share=share, tokens=tokens)
    with plan.pretrained.open_run(folder, {"functions": Functions()}, rate=rate, seed=seed) as run:
        return hammer(start, samples, config=config, run=run, prompt=Compact(), dialect=start.dialect)


def _ask(
    plan: Plan, policy: Policy, panels: Mapping[str, Sequence[CallSample]]
) -> tuple[dict[str, list[CallAnswer]], Mapping[str, int]]:
    """Returns the answers of every panel, and the tokens of all."""
    engine = LocalEngine(policy, slots=32)
    answers = {
        name: answer_samples(panel, Compact(), policy.dialect, engine=engine, max_tokens=plan.max_tokens)
        for name, panel in panels.items()
    }
    return answers, {"generated": engine.usage.generated, "computed": engine.usage.computed}


def _share(answers: Iterable[CallAnswer]) -> float:
    valid = [answer.grade.valid for answer in answers]
    return sum(valid) / len(valid)


def _try_rate(plan: Plan, folder: Path, arm: str, rate: float) -> float:
    run_folder = folder / "runs" / "tuning" / f"{arm}-{rate:g}"
    policy = _train(plan, run_folder, arm, seed=plan.development, rate=rate, tokens=plan.tuned_tokens)
    asked, _ = _ask(plan, policy, _panels("dev", plan.tuned_panel))
    return sum(map(_share, asked.values())) / len(asked)


def _kind(sample: CallSample) -> str:
    """Returns the kind of a request, by which tasks are drawn again for intervals: its function."""
    return sample.calls[0].name if sample.calls else sample.tools[0].name


def _play(plan: Plan, arm_run: ArmRun, *, rate: float | None) -> ArmResult:
    """Trains an arm and asks it the panels; without a rate it is the pretrained model."""
    started = process_time()
    if rate is None:
        policy = plan.pretrained.start([Functions()], arm_run.seed)
    else:
        policy = _train(plan, arm_run.folder, arm_run.arm, seed=arm_run.seed, rate=rate, tokens=plan.tokens)
        policy.save(arm_run.folder / "policy")  # for `--bfcl`
    panels = _panels("test", plan.panel)
    kinds = {sample.id: _kind(sample) for name in ("plain", "irrelevant") for sample in panels[name]}
    asked, usage = _ask(plan, policy, panels)
    shares = {name: _share(answers) for name, answers in asked.items()}
    outcomes = {  # a renamed request has the id of the plain one, and so its kind
        f"functions/{name}": tuple(
            (answer.sample.id, kinds[answer.sample.id], answer.grade.valid) for answer in answers
        )
        for name, answers in asked.items()
    }
    tokens = Counter(read_costs(arm_run.folder, verbs=("fit",))[0])
    tokens.update(usage)
    notes: dict[str, Json] = {**shares, "drop": shares["plain"] - shares["renamed"]}
    return ArmResult(outcomes, dict(tokens), process_time() - started, notes)


def build(plan: Plan, rates: Mapping[str, float], seeds: Sequence[int]) -> Study:
    """Builds the study with its gates and all that its result depends on."""
    questions = {
        "plain": "what do new names cost a model that learned requests as they are?",
        "irrelevance": "is it only the requests that no tool answers?",
        "masked_third": "does a third of masked rows do as well?",
        "masked": "the claim: two thirds of masked rows make the names irrelevant",
    }
    arms = [Arm("base", "the model as it was published", partial(_play, plan, rate=None))]
    arms += [Arm(arm, questions[arm], partial(_play, plan, rate=rates[_RATE_OF[arm]])) for arm in ARMS]
    primary = PrimaryComparison("masked", "plain", tiers=("renamed",))
    return Study("hammer_real", tuple(arms), tuple(seeds), None, primary, 0.05, study_facts(plan, rates), GATES)


def figures(summary: StudySummary, folder: Path) -> dict[str, Json]:
    """Returns the figures of Hammer: what masking saves of plain's drop, and what it costs where names are plain."""
    means = {(rate.arm, rate.tier): rate.interval.mean for rate in summary.rates}
    if not {("plain", "renamed"), ("masked", "renamed")} <= means.keys():
        return {"drop_saved": None, "plain_loss": None}
    drops = {arm: means[arm, "plain"] - means[arm, "renamed"] for arm in ARMS if (arm, "renamed") in means}
    difference = summary.difference
    asked = {key.removeprefix("cell-bfcl-"): row for key, row in read_rows(folder, "cell-bfcl-*").items()}
    return {
        "drop": dict(drops),
        "drop_saved": (drops["plain"] - drops["masked"]) / drops["plain"] if drops["plain"] > 0 else None,
        "plain_loss": means["plain", "plain"] - means["masked", "plain"],
        "masked_minus_plain_renamed_ci": list_interval(difference.interval if difference else None),
        "irrelevant": {arm: means[arm, "irrelevant"] for arm in ("base", *ARMS) if (arm, "irrelevant") in means},
        "bfcl_irrelevant": {key: [row["mean"], row["low"], row["high"]] for key, row in asked.items()},
    }


def ask_bfcl(plan: Plan, folder: Path, data: Path, digest: str) -> None:
    """Asks every trained policy BFCL's irrelevant requests, a cell each; nothing is right but no call."""
    items = [item for item in read_items(data, ["irrelevance"]).calls if isinstance(item, CallItem)]
    for arm in ARMS:
        for path in sorted((folder / "runs" / arm).glob("*/policy")):
            key = f"bfcl-{arm}-{path.parent.name}"
            play_once(folder, key, digest, partial(_ask_irrelevant, plan, path, items, digest))


def _ask_irrelevant(plan: Plan, path: Path, items: Sequence[CallItem], digest: str) -> dict[str, Json]:
    asked, usage = _ask(plan, load_policy(path), {"bfcl": [item.sample for item in items]})
    answers = asked["bfcl"]
    interval = wilson_interval(sum(answer.grade.valid for answer in answers), len(answers))
    return {"digest": digest, "mean": interval.mean, "low": interval.low, "high": interval.high, **usage}


STUDY = RealStudy(
    "hammer_real",
    __doc__ or "",
    PLAN,
    QUICK,
    SEEDS,
    TUNED,
    _try_rate,
    build,
    figures,
    ("bfcl", "a folder of BFCL: ask the trained policies its irrelevant requests", ask_bfcl),
)


def main(arguments: Sequence[str] | None = None) -> None:
    play_command(STUDY, arguments)


if __name__ == "__main__":
    main()
