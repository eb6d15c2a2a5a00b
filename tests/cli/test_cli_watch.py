"""`evolvent watch` as users run it: every kind of evaluation on a snapshot, and every mistake at once."""

from __future__ import annotations

import io
import json

import pytest

from evolvent.cli import watch
from evolvent.cli.main import main
from evolvent.cli.terminal.console import make_console
from evolvent.errors import ConfigError
from evolvent.models.policy import tiny_policy
from evolvent.models.snapshots import publish_snapshot
from evolvent.worlds.lookup import Lookup
from tests.bench.small_policies import publish, state


def mistakes(*words):
    with pytest.raises(ConfigError) as caught:
        watch.run(words, make_console(io.StringIO(), {}))
    return [str(problem) for problem in caught.value.problems]


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def evolvent(capsys):
    """`evolvent watch` in this process, without lowering its priority; returns the exit code and what was printed."""

    def run(*words):
        code = main(["watch", *map(str, words), "--nice", "0"])
        return code, capsys.readouterr().out

    return run


def test_every_kind_of_evaluation(evolvent, tmp_path):
    run = tmp_path / "run"
    policy = tiny_policy(sorted(Lookup().vocabulary()))
    words = [word for word in policy.tokenizer.get_vocab() if word.isalpha()][:4]
    publish_snapshot(run, 7, policy.save)
    state(run, "finished")
    texts = written(tmp_path / "texts.jsonl", {"text": " ".join(words)}, {"text": " ".join(words[:2])})
    choices = written(tmp_path / "choices.jsonl", {"prompt": words[0], "choices": words[1:3], "answer": words[1]})
    questions = written(tmp_path / "questions.jsonl", {"prompt": words[0], "reference": words[1]})
    options = (
        "--perplexity.data",
        texts,
        "--classification.data",
        choices,
        "--generation.data",
        questions,
        "--generation.max_tokens",
        "3",
        "--worlds",
        "lookup",
        "--success.limit",
        "2",
        "--success.tiers",
        "seen",
        "--success.max_tokens",
        "3",
    )
    code, said = evolvent(run, *options)
    assert code == 0
    lines = said.splitlines()
    assert lines[0] == f"watching {run}: perplexity, classification, generation, success"
    assert lines[-1] == "snapshots: 1 evaluated, 0 passed over, 0 broken; evaluations that failed: 0"
    for head in (
        "perplexity  ",
        "classification accuracy  ",
        "classification macro_f1  ",
        "generation exact_match  ",
        "generation token_f1  ",
        "success lookup/seen  ",
    ):
        assert [line for line in lines if line.startswith(f"step 7  {head}")], f"{head}: {said}"
    rows = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [(row["step"], row["stage"]) for row in rows] == [
        (7, "perplexity"),
        (7, "classification"),
        (7, "generation"),
        (7, "success"),
    ]
    assert rows[3]["measures"][0]["metric"] == "success/lookup/seen" and rows[3]["measures"][0]["n"] == 2
    code, said = evolvent(run, *options, "--once", "true")
    assert code == 0 and "0 evaluated" in said, "what was measured is not measured again"
    written(texts, {"text": words[0]}, {"text": " ".join(words)})
    code, said = evolvent(run, *options, "--once")
    assert "1 evaluated" in said and said.count("step 7  ") == 1, "other data are another measurement"


def test_trouble_is_counted_in_the_exit_code(evolvent, tmp_path):
    run = tmp_path / "run"
    publish(run, 1)
    texts = written(tmp_path / "texts.jsonl", {"text": "an unknown zebra"})
    code, said = evolvent(run, "--perplexity.data", texts, "--once")
    assert code == 1 and "step 1  perplexity  VocabularyMismatch: " in said and "evaluations that failed: 1" in said
    code, said = evolvent(tmp_path, "--perplexity.data", texts, "--once")
    assert code == 0 and f"{tmp_path} has no snapshot" in said


def test_every_mistake_at_once(tmp_path):
    bad = written(tmp_path / "bad.jsonl", {"txt": "x"})
    found = mistakes(
        str(tmp_path),
        "--perplexity.data",
        str(bad),
        "--generation.data",
        str(tmp_path / "none"),
        "--worlds",
        "lookup",
        "--success.tiers",
        "evoo",
    )
    assert found[0].startswith(f"{bad}:1: unknown key 'txt'") and "No such file" in found[1] and "evoo" in found[2]
    assert "got no evaluator, expected at least one" in mistakes(str(tmp_path))[0]
    assert "run folder not found" in mistakes(str(tmp_path / "run"), "--worlds", "lookup")[0]
    assert "did you mean 'perplexity.data'?" in mistakes(str(tmp_path), "--perplexity.dta", "x")[0]
    assert "unknown world 'lokup'" in mistakes(str(tmp_path), "--worlds", "lokup")[0]
