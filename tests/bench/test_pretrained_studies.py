"""The studies on SmolLM2: what is frozen, what their figures are made of, and the gates that they have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tokenizers

from benchmarks import comments_real, hammer_real, p3_real, r3_real, trad_real
from benchmarks.pretrained import describe_plan, plan_digest
from benchmarks.rates import RateGrid
from benchmarks.trad_agents.lessons import CODE_WORDS
from evolvent.bench.study import ArmResult, ArmRun, Study, run_study
from evolvent.bench.verdict import read_summary
from evolvent.errors import ConfigError
from evolvent.files import plain_json
from tests.learn.byte_policy import byte_policy

STUDIES = [hammer_real, p3_real, comments_real, trad_real, r3_real]


@pytest.mark.parametrize("module", STUDIES)
def test_a_plan_is_described_whole(module):
    """Another rank, rate or number of tokens is another study, and its rates are tried anew."""
    real = module.STUDY
    rates = dict.fromkeys(real.grid.arms, real.grid.rates[1])
    study = real.build(module.PLAN, rates, real.seeds)
    wider = replace(module.PLAN, pretrained=replace(module.PLAN.pretrained, rank=64))
    assert plan_digest(wider) != plan_digest(module.PLAN) == real.grid.digest
    assert study.digest() != module.build(wider, rates, real.seeds).digest()
    assert study.digest() != real.build(module.PLAN, {**rates, real.tuned[0]: 1e-2}, real.seeds).digest()
    assert study.gates and len(study.seeds) >= 3 and len(real.grid.rates) >= 3
    assert plain_json(describe_plan(module.PLAN)) and plan_digest(module.QUICK) != real.grid.digest


def test_a_rate_inside_the_grid_is_chosen_and_an_end_is_refused(tmp_path):
    grid = RateGrid(("a", "b"), (1e-4, 1e-3, 1e-2), "0" * 16)
    success = {("a", 1e-3): 0.5, ("b", 1e-3): 0.4, ("b", 1e-4): 0.5}
    with pytest.raises(ConfigError, match="0 of 3 rates of 'a' were tried"):
        grid.choose(tmp_path)
    lines = list(grid.tune(tmp_path, lambda arm, rate: success.get((arm, rate), 0.0)))
    assert len(lines) == 6 and lines[1] == "tuning-a-0.001 0.500"
    assert list(grid.tune(tmp_path, lambda arm, rate: 1.0)) == [], "what was tried is kept"
    with pytest.raises(ConfigError, match="best rate of 'b' is at an end of the grid"):
        grid.choose(tmp_path)
    assert RateGrid(("a",), grid.rates, grid.digest).choose(tmp_path) == {"a": 1e-3}


@pytest.mark.parametrize(("equals", "chosen"), [((1e-4, 1e-3), 1e-3), ((1e-4, 3e-4, 1e-3, 1e-2), 3e-4)])
def test_of_equal_rates_the_lowest_inside_the_grid_is_chosen(tmp_path, equals, chosen):
    """An arm that learns nothing that is asked, as bare code, has no best rate; its end says nothing."""
    grid = RateGrid(("a",), (1e-4, 3e-4, 1e-3, 1e-2), "0" * 16)
    list(grid.tune(tmp_path, lambda arm, rate: 0.4 if rate in equals else 0.1))
    assert grid.choose(tmp_path) == {"a": chosen}


def _keep(study: Study, folder, results) -> None:
    """Plays a study whose arms have these results: (arm, seed) to panel to how many of ten tasks succeed, and notes."""

    def play(arm_run: ArmRun) -> ArmResult:
        panels, notes = results[arm_run.arm, arm_run.seed]
        outcomes = {
            panel: tuple((f"{panel}-{number}", f"kind{number % 5}", number < right) for number in range(10))
            for panel, right in panels.items()
        }
        return ArmResult(outcomes, {"trained": 1}, 36.0, notes)

    run_study(replace(study, arms=tuple(replace(arm, play=play) for arm in study.arms)), folder)


def test_hammer_saves_a_share_of_what_plain_loses(tmp_path):
    study = hammer_real.build(hammer_real.QUICK, {"plain": 1e-3, "masked": 1e-3}, (0, 1, 2))
    shares = {"base": (0, 0), "plain": (8, 3), "irrelevance": (8, 3), "masked_third": (8, 6), "masked": (7, 7)}
    _keep(
        study,
        tmp_path,
        {
            (arm, seed): (
                {"functions/plain": plain, "functions/renamed": renamed, "functions/irrelevant": 5},
                {"plain": plain / 10, "drop": (plain - renamed) / 10},
            )
            for arm, (plain, renamed) in shares.items()
            for seed in (0, 1, 2)
        },
    )
    summary = read_summary(tmp_path)
    found = hammer_real.figures(summary, tmp_path)
    assert summary.gate_passed
    assert found["drop"] == pytest.approx({"plain": 0.5, "irrelevance": 0.5, "masked_third": 0.2, "masked": 0.0})
    assert found["drop_saved"] == pytest.approx(1.0) and found["plain_loss"] == pytest.approx(0.1)
    assert found["masked_minus_plain_renamed_ci"][0] == pytest.approx(0.4)


def test_requests_are_drawn_again_by_their_function():
    """Plain and renamed requests are the same ones; names of requests that no tool answers are no others'."""
    panels = hammer_real._panels("test", 60)
    ids = {name: [sample.id for sample in panel] for name, panel in panels.items()}
    assert ids["plain"] == ids["renamed"] and not set(ids["plain"]) & set(ids["irrelevant"])
    kinds = {hammer_real._kind(sample) for sample in panels["plain"]}
    assert len(kinds) > 10 and kinds == {sample.calls[0].name for sample in panels["plain"]}


def test_p3_is_not_judged_where_its_score_cannot_tell_wrong_answers(tmp_path):
    study = p3_real.build(p3_real.QUICK, {"random": 1e-3, "p3": 1e-3}, (0, 1, 2))
    panels = [f"programs/{tier}" for tier in ("seen", "evo", "longer")]
    results = {
        (arm, seed): (dict.fromkeys(panels, right), {"auc": 0.6, "success": 0.2} if arm == "base" else {})
        for arm, right in {"base": 2, "p3": 6, "random": 4, "pool": 4, "clean": 8}.items()
        for seed in (0, 1, 2)
    }
    _keep(study, tmp_path, results)
    summary = read_summary(tmp_path)
    assert summary.gate_passed is False and summary.verdict.startswith("no verdict: gate AUC of the base's score")
    found = p3_real.figures(summary, tmp_path)
    assert found["p3_minus_random_ci"][0] == pytest.approx(0.2) and found["share_of_clean"] == pytest.approx(0.5)


def test_trad_is_compared_within_sizes_of_prompts(tmp_path):
    study = trad_real.build(trad_real.PLAN, {"reader": 1e-3}, (0, 1, 2))
    right = {"trad": (8, 8, 8), "synapse": (2, 5, 8), "rap": (1, 1, 1), "react": (1, 1, 1), "unshown": (0, 0, 0)}
    results = {
        (arm, seed): ({f"backoffice/{size}": count for size, count in zip((500, 1000, 2000), by_size, strict=True)}, {})
        for arm, by_size in right.items()
        for seed in (0, 1, 2)
    }
    _keep(
        study,
        tmp_path,
        results | {("reader", seed): ({"backoffice/steps": 9}, {"followed": 0.95}) for seed in range(3)},
    )
    summary = read_summary(tmp_path)
    found = trad_real.figures(summary, tmp_path)
    assert summary.gate_passed and found["trad_minus_synapse_ci"][0] == pytest.approx(0.3)
    assert found["success"]["synapse"]["1000"][0] == pytest.approx(0.5) and found["success"].keys() == right.keys()


def test_the_reader_learns_answers_alone_each_in_its_code():
    """What is learned of a prompt is the expert's answer; a command stands in it as in the demonstrations."""
    plan = replace(trad_real.QUICK, lessons=10, lesson_tokens=4000)
    policy = byte_policy(context=4096)
    drawn = trad_real._draw_lessons(plan, policy, seed=0)
    assert len(drawn) == len({sequence.trajectory for sequence in drawn}) == 10
    first_words = []
    for sequence in drawn:
        prompt = policy.tokenizer.decode(sequence.ids[~sequence.written]).partition("<|im_start|>assistant")[0]
        answer = policy.dialect.read_reply(sequence.ids[sequence.written].tolist()).text
        assert np.array_equal(sequence.weight > 0, sequence.written) and answer
        if prompt.removesuffix("<|im_end|>\n").rstrip().endswith("act:"):
            first_words.append(answer.split()[0])
    assert len(set(first_words)) > 1 and set(first_words) <= set(CODE_WORDS), "a command in clear tells what it means"


def test_one_seed_gives_figures_without_intervals(tmp_path):
    study = p3_real.build(p3_real.QUICK, {"random": 1e-3, "p3": 1e-3}, (0,))
    panels = [f"programs/{tier}" for tier in ("seen", "evo", "longer")]
    rights = {"base": 2, "p3": 6, "random": 4, "pool": 4, "clean": 8}
    notes = {"auc": 0.9, "success": 0.2}
    _keep(study, tmp_path, {(arm, 0): (dict.fromkeys(panels, right), notes) for arm, right in rights.items()})
    found = p3_real.figures(read_summary(tmp_path), tmp_path)
    assert found["p3_minus_random_ci"] == [pytest.approx(0.2), None, None] and plain_json(found)


def test_the_auc_counts_pairs():
    assert p3_real.measure_auc([0.9, 0.4, 0.5, 0.1], [True, True, False, False]) == 0.75
    assert p3_real.measure_auc([1.0, 1.0], [True, False]) == 0.5


def test_the_question_begins_as_the_learned_text_in_tokens():
    """Byte-level tokenizers make one token of a line break and the spaces after it; a question may not cut it."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    corpus = [comments_real.write_function(number, ["torka", "osket"], commented=True) for number in range(40)]
    tokenizer.train_from_iterator(corpus, vocab_size=400, min_frequency=2)
    learned = tokenizer.encode(comments_real.write_function(7, ["torka", "osket"], commented=True)).ids
    opening = comments_real.write_opening(7, ["torka", "osket"])
    asked = tokenizer.encode(opening).ids
    assert learned[: len(asked)] == asked and tokenizer.decode(learned[len(asked) :]).startswith("\n    xs = vel.torka")
    cut = tokenizer.encode(opening + "\n").ids
    assert learned[: len(cut)] != cut, "the tokenizer of this test joins them, too"


def test_the_corpus_of_an_invented_library(tmp_path):
    """The pairs of functions that are asked are in no corpus; comments say what the manual says of the calls below."""
    splits = [set(comments_real._compositions(split)) for split in ("train", "dev", "test")]
    assert [len(split) for split in splits] == [228, 38, 114] and not splits[0] & (splits[1] | splits[2])
    assert {name for pair in splits[0] for name in pair} == set(comments_real.MANUAL)
    plan = replace(comments_real.PLAN, sources=40, low=10)
    corpus = comments_real.build_corpus(plan, 0)
    assert sum(source.id.startswith("table") for source in corpus) == 10
    assert corpus != comments_real.build_corpus(plan, 1)
    for source in corpus:
        names = comments_real.read_calls(source.text)
        answer = comments_real.comment_source(source.text, 0.0, np.random.default_rng(0))
        expected = [f"1: {comments_real.MANUAL[name]}" for name in names]
        assert answer.splitlines() == (expected or ["SKIP"])
        wrong = comments_real.comment_source(source.text, 1.0, np.random.default_rng(0)).splitlines()
        assert not names or all(said != right for said, right in zip(wrong, expected, strict=True))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("y = vel.torka(vel.osket(x))", ["osket", "torka"]),
        ("a = vel.torka(x)\nb = vel.osket(a)", ["torka", "osket"]),
        ("numpy.torka(x)\nvel.osket", []),
        ("def f(:", []),
    ],
)
def test_calls_are_read_in_their_order_and_never_run(text, names):
    assert comments_real.read_calls(text) == names


def test_comments_are_compared_with_bare_code(tmp_path):
    rights = {"base": 0, "raw": 1, "commented": 5, "filtered": 6, "commented_tokens": 4, "filtered_tokens": 5}
    rights["right_tokens"] = 8
    study = comments_real.build(comments_real.QUICK, {"raw": 1e-3, "filtered": 1e-3}, (0, 1, 2))
    results = {
        (arm, seed): ({"library/combo": right}, {"success": right / 10})
        for arm, right in rights.items()
        for seed in (0, 1, 2)
    }
    _keep(study, tmp_path, results)
    found = comments_real.figures(read_summary(tmp_path), tmp_path)
    assert found["comments_minus_raw_ci"][0] == pytest.approx(0.5)
    assert found["minus_raw"]["commented_tokens"][0] == pytest.approx(0.3)
    assert read_summary(tmp_path).gate_passed


def test_long_problems_are_longer_than_those_that_the_base_imitates():
    """As many of each length, in another order for each seed; the panel is the same for all seeds."""

    def count_lines(task):
        return r3_real._world().expert(task)[0].count(" ; ")  # statements before the return

    known = r3_real.list_tasks("train", (1, 2), 40, seed=0)
    long = r3_real.list_tasks("train", (4, 6), 60, seed=0)
    assert {count_lines(task) for task in known} == {2, 3} and {count_lines(task) for task in long} == {5, 6, 7}
    assert [sum(count_lines(task) == lines for task in long) for lines in (5, 6, 7)] == [20, 20, 20]
    assert long != r3_real.list_tasks("train", (4, 6), 60, seed=1)
    panel = r3_real.list_tasks("test", (4, 6), 100)
    assert len(panel) == 100 and not {task.id for task in panel} & {task.id for task in long}


def test_r3_is_compared_with_outcomes_alone(tmp_path):
    study = r3_real.build(r3_real.QUICK, dict.fromkeys(r3_real.TUNED, 1e-4), (0, 1, 2))
    right = {"base": 1, "outcome": 2, "mixed": 5, "staged": 3, "sft": 6}
    notes = {"sampled_success": 0.02, "explained_variance": 0.3, "learned": 10}
    results = {(arm, seed): ({"problems/long": right[arm] + seed}, notes) for arm in right for seed in range(3)}
    _keep(study, tmp_path, results)
    summary = read_summary(tmp_path)
    figures = r3_real.figures(summary, tmp_path)
    assert figures["r3_minus_outcome_ci"][0] == pytest.approx(0.3) and summary.gate_passed
    assert figures["success"]["sft"] == pytest.approx(0.7)
