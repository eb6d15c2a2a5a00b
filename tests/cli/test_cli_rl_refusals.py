"""What `evolvent train rl` refuses before anything is made, each in one sentence, and resuming with another method."""

import pytest

from evolvent.cli.main import main


def refused(capsys, *words):
    assert main(["train", "rl", *map(str, words)]) == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: ") and "\n" not in told
    return told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--method", "twosome", "--worlds", "problems"),
            "twosome chooses among listed actions, but world 'problems' does not list actions",
        ),
        (
            ("--method", "ppo", "--worlds", "problems", "--rl.practice.restrict_to_admissible", "true"),
            "rl.practice.restrict_to_admissible chooses",
        ),
        (("--method", "twosome", "--rl.level", "token"), "rl.level: got 'token', expected 'listed'"),
        (("--method", "token_ppo", "--rl.level", "action"), "rl.level: got 'action', expected 'token'"),
        (("--method", "grpo", "--rl.practice.group_size", "1"), "grpo compares episodes of a task; take 2 or more"),
    ],
)
def test_what_cannot_work_is_refused_at_once(capsys, tmp_path, words, said):
    assert said in refused(capsys, *words, "--to", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_another_method_is_told_by_its_method_alone(capsys, tmp_path):
    (tmp_path / "config.toml").write_text('method = "ppo"\n[rl]\nvalue = 0.5\n', encoding="utf-8")
    for words in (("--method", "grpo", "--resume", tmp_path), ("--resume", tmp_path, "--method", "grpo")):
        assert f"--method: got grpo, but {tmp_path} is a run of ppo" in refused(capsys, *words)


def test_to_serve_a_policy_has_a_name_of_its_own(capsys, tmp_path):
    assert main(["serve-policy", str(tmp_path / "missing")]) == 2
    assert "policy: unknown policy" in capsys.readouterr().err
    for words in ([], ["--port", "0"]):  # it would serve worlds
        assert main(["serve-policy", *words]) == 2
        assert "evolvent serve-policy: no policy given" in capsys.readouterr().err


BROKEN_GAME = """
import evolvent as ev


class Broken(ev.TextWorld):
    name = "broken"

    def specs(self):
        return [{"seed": seed} for seed in range(40)]

    def vocabulary(self):
        return ["go", "left", "right"]

    def play(self, spec):
        yield "go", 0.0, {"admissible": ["left", "right"]}
        yield {}["gone"]
"""


def test_random_episodes_that_all_fail_are_refused_with_the_line_of_the_world(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty_game.py").write_text(BROKEN_GAME, encoding="utf-8")
    settings = ["--policy", "xs", "--random", "3", "--demonstrations", "0", "--rl.practice.iterations", "1"]
    assert main(["train", "grpo", "--worlds", "faulty_game.py:Broken", "--to", "run", *settings]) == 1
    problem = capsys.readouterr().err.splitlines()[-1]
    assert problem.startswith("error: no episode can be imitated: 3 of 3 episodes could not be scored: 3 x")
    assert "faulty_game.py:16: KeyError: 'gone'" in problem and "flatten" not in problem
