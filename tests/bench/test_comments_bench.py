"""`benchmarks.comments`, training: problems and their tests, tokens, thinned notes, what is counted as a gain."""

import json
from dataclasses import replace

import pytest

from benchmarks.comments.cell import MAIN, MODELS, Cell, panel, run_cell, thinned, tokenizer
from benchmarks.comments.suites import (
    FORMS,
    OPERATIONS,
    SPLITS,
    Problem,
    low_value,
    problems,
    reply,
    source,
    split_of,
    write_suite,
)
from benchmarks.comments.training import QUICK, report
from evolvent.curate.commenting import CommentResult
from evolvent.curate.comments import code_tokens, density
from evolvent.curate.notes import extract_comments, find_source_faults
from evolvent.grade.base import Grade
from evolvent.models.dialects import dialect_for
from evolvent.worlds.code.world import Code

BY_HAND = Problem((("above", 3), ("sum", 0)), "elm", ("keep those above 3", "add them up"), ([1, 5, 4], [0], [9]))


def test_a_problem_by_hand():
    assert BY_HAND.program == "def elm(xs):\n    first = [x for x in xs if x > 3]\n    return sum(first)\n"
    assert [BY_HAND.value(one) for one in BY_HAND.arguments] == [9, 0, 9]
    row = BY_HAND.row("humaneval", 0)
    assert row["prompt"] == 'def elm(xs):\n    """Take a list of numbers, keep those above 3, then add them up."""'
    assert row["test"].splitlines()[1] == "    assert candidate([1, 5, 4]) == 9"
    assert BY_HAND.row("mbpp", 0)["test_list"][2] == "assert elm([9]) == 9"
    noted = source(BY_HAND, "one", noted=True)
    assert noted.text.splitlines()[:3] == [
        "# keep those above 3, then add them up",
        "def elm(xs):",
        "    # keep those above 3",
    ]
    assert extract_comments(noted.text, "python").source == BY_HAND.program


def test_splits_share_no_composition():
    made = {split: problems(split, 60, seed=3) for split in SPLITS}
    kinds = {split: {tuple(sorted(one.kind.split())) for one in each} for split, each in made.items()}
    assert not kinds["train"] & kinds["test"] and not kinds["train"] & kinds["dev"] and not kinds["dev"] & kinds["test"]
    assert split_of((("sum", 0), ("even", 0))) == split_of((("even", 0), ("sum", 0)))
    assert problems("dev", 20, seed=3) == made["dev"][:20] and problems("dev", 20, seed=4) != made["dev"][:20]


def test_what_is_computed_here_is_what_python_computes(tmp_path):
    """Problems with every operation pass tests that the operations' functions made, in a box; others do not."""
    made, missing = [], {one.name for one in OPERATIONS}
    for one in problems("train", 400, seed=5):
        if missing & set(one.kind.split()):
            missing -= set(one.kind.split())
            made.append(one)
    assert not missing
    for form in FORMS:
        world = Code(write_suite(tmp_path, form, "test", made))
        tasks = world.tasks("test", "all")
        assert not world.problems and len(tasks) == len(made)
        try:
            for task, one in zip(
                tasks[:: 1 if form == "mbpp" else 6], made[:: 1 if form == "mbpp" else 6], strict=True
            ):
                row = world.row(task)
                assert world.judge(reply(one, form), row).correct, one.program
                other = made[0] if one is not made[0] else made[1]
                wrong: Grade = world.judge(reply(replace(other, name=one.name), form), row)
                assert not wrong.correct
        finally:
            world.close()


def test_tests_tell_a_problem_from_others():
    made = problems("test", 40, seed=0)
    assert all(len({repr(arg) for arg in one.arguments}) == 2 for one in made)
    for one in made:
        for other in made:
            if one.taken == other.taken and one.chain != other.chain:
                same = [one.value(arg) == other.value(arg) for arg in one.arguments]
                assert not all(same) or one.kind != other.kind


def test_prompt_and_reply_are_the_tokens_of_the_text():
    words = tokenizer(320)
    dialect = dialect_for(words, "chat")
    for one in problems("dev", 10, seed=1):
        prompt, said = one.row("humaneval", 0)["prompt"], reply(one, "humaneval")
        ids = [*dialect.open("", prompt), *dialect.action(said)]
        whole = f"{prompt}\n{said}"
        assert ids == [*words.encode(whole), words.eos_token_id]
        assert words.decode(ids[1:-1]) == whole and dialect.text(dialect.action(said)) == said
    assert words.decode(words.encode("größer\tx", add_special_tokens=False)) == "größer\tx"


def test_what_the_generator_is_shown_is_worth_comments():
    """A function that a rule finds faulty would be a lesson to say SKIP; and numbers are copied token by token."""
    made = problems("train", 60, seed=4)
    assert {len(one.chain) for one in made} == {1, 2, 3}
    for one in made:
        noted = source(one, "", noted=True).text
        assert find_source_faults(noted, "python") == ()
        assert len(extract_comments(noted, "python").notes) == len(one.chain) + (len(one.chain) > 1)
    words = tokenizer(320)
    three = words.convert_tokens_to_ids("3")
    assert all(three in words.encode(text) for text in ("xs[:3]", "x > 3", "keep the first 3", "[3, 4]"))


def test_low_value_is_found_by_rules_but_for_tables_of_names():
    found = [find_source_faults(one.text, "python") for one in low_value(12, seed=0)]
    assert found[1] == ("generated",) and "repeated lines" in found[0] and "few letters" in found[2]
    assert found[5] == () and sum(not each for each in found) == 2


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.3])
def test_thinned_notes_have_the_density_that_is_asked_for(share):
    every = []
    for number, one in enumerate(problems("train", 40, seed=2)):
        pair = extract_comments(source(one, "", noted=True).text, "python")
        every.append(CommentResult(source(one, f"{number}", noted=False), "", pair.notes, 0, "commented"))
    texts = thinned(every, share, seed=0)
    counts = [density(text, "python") for text in texts]
    got = sum(one.comment_chars for one in counts) / sum(one.chars for one in counts)
    assert share - 0.02 < got <= share
    assert all(
        code_tokens(text, "python") == code_tokens(one.source.text, "python")
        for text, one in zip(texts, every, strict=True)
    )
    full = thinned(every, 1.0, seed=0)
    assert [text.count("#") for text in full] == [len(one.notes) for one in every]


def row(right):
    return {"right": dict.fromkeys(FORMS, right), "cpu_s": 1.0, "corpus": {}}


def test_gains_are_over_the_same_seeds_and_problems():
    protocol = replace(QUICK, seeds=(0, 1))
    first, second, _ = MODELS
    rows = {Cell(model, arm, seed): row([0, 0, 0, 1]) for model in (first, second) for arm in MAIN for seed in (0, 1)}
    rows |= {Cell(first, "commented + filtered", seed): row([1, 1, 0, 1]) for seed in (0, 1)}
    rows[Cell(second, "density 0.1", 0)] = row([1, 1, 1, 1])  # of one seed only: not shown
    found = report(rows, protocol)
    assert found["pass_at_1"][first]["commented + filtered"][0] == 0.75
    assert found["gain"][first]["raw"][0] == 0.5 and found["gain"][second]["raw"] == [0.0, 0.0, 0.0]
    assert found["effect_ci"]["generator"][0] == 0.25 and set(found["effect_ci"]) == set(MAIN) - {MAIN[-1]}
    assert found["density"][second] == {
        "0": [0.25, *found["density"][second]["0"][1:]],
        "full": found["density"][second]["full"],
    }
    del rows[Cell(second, "raw", 1)]
    assert report(rows, protocol)["seeds"] == {first: [0, 1], second: [0]}
    assert report({}, protocol)["effect_ci"] == {}


def test_a_protocol_has_a_digest_and_a_panel_of_its_own():
    assert replace(QUICK, tokens=501).digest != QUICK.digest
    assert {split_of(one.chain) for one in panel(QUICK)} == {"test"} and len(panel(QUICK)) == QUICK.panel


@pytest.mark.isolation
def test_a_cell_learns_its_arm_and_is_found_again(tmp_path):
    """The machinery with hardly any training: every arm begins with one generator and learns from one corpus."""
    model, protocol = next(iter(MODELS)), replace(QUICK, corpus=6, low=3, pairs=8, panel=2)
    rows = {arm: run_cell(protocol, tmp_path, Cell(model, arm, 0)) for arm in ("generator", "raw", "density 0.2")}
    assert rows["raw"]["corpus"]["kept"] == 9 and rows["density 0.2"]["corpus"]["kept"] <= 9
    assert rows["density 0.2"]["corpus"]["density"] <= 0.2 and rows["generator"]["learned_tokens"] == 0
    assert all(
        {form: len(each) for form, each in row["right"].items()} == dict.fromkeys(FORMS, 2) for row in rows.values()
    )
    (ledger,) = tmp_path.glob("runs/*/generator/stages.jsonl")
    fits = [json.loads(line)["verb"] for line in ledger.read_text(encoding="utf-8").splitlines()]
    assert fits == ["fit"]  # one generator for all arms
    again = run_cell(protocol, tmp_path, Cell(model, "raw", 0))
    assert again["right"] == rows["raw"]["right"] and again["corpus"] == rows["raw"]["corpus"]
