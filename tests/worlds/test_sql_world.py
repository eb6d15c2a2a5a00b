"""The SQL world played: rewards, rounds, what is told, bad tasks, the closed vocabulary, the same panels everywhere."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import ConfigError, InvalidAction, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.base import SPLITS, TIERS, Forkable, Parsed, SupportsRenaming, World
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes, digest
from evolvent.worlds.sql.database import Answer
from evolvent.worlds.sql.episode import DONE, render_answer, render_closed
from evolvent.worlds.sql.grammar import Fenced
from evolvent.worlds.sql.world import SqlWorld

WORLD = SqlWorld()
SMALL = Sizes(train=30, dev=20, test=20)
ROUNDS = SqlWorld(rounds=3, sizes=SMALL, penalty=-0.1)
# SHA-256 over split, tier, first observation and gold of the first tasks: what a task id means never changes unnoticed.
CONTENT = "980e4a0ef290d7fddb7edd3173cf0eb1f9b869fa1b6e1697f799ac167d4ffb48"
PROGRAM = """
import json
from evolvent.worlds.sql.world import SqlWorld
from evolvent.worlds.panel import Sizes, digest
world = SqlWorld(sizes=Sizes(train=30, dev=20, test=20))
order = [(split, tier) for tier in reversed(world.tiers) for split in ("test", "dev", "train")]
panels = {(split, tier): world.tasks(split, tier) for split, tier in order}
tasks = [task for split in ("train", "dev", "test") for tier in world.tiers for task in panels[split, tier]]
told = [(world.make(task).reset(), world.expert(task), world.key(task)) for task in tasks]
print(json.dumps([digest(tasks), told]))
"""


def task_of(kind: str = "count equal own league", **spec: object) -> Task:
    return Task("sql", "1", {"kind": kind, "seed": 0, "names": 0, **spec})


def begin(world: SqlWorld = WORLD, n: int = 0):
    task = world.tasks("dev", "seen")[n]
    env = world.make(task)
    env.reset()
    return env, world.expert(task)[0], task


def wrong_in(env, world: SqlWorld, task: Task) -> str:
    """A legal query that is not the answer."""
    gold = world.expert(task)[0]
    for query in env.reset()[1]["admissible"]:
        env.reset()
        if query != gold and query != DONE and env.step(query)[1] == 0.0:
            env.reset()
            return query
    raise AssertionError("every query is right")


def test_it_is_a_world_that_forks_and_renames():
    world: World = WORLD
    assert isinstance(world, SupportsRenaming)
    assert isinstance(begin()[0], Forkable)
    assert (world.name, world.horizon, world.tiers, world.run_in_thread) == ("sql", 1, TIERS, False)


def test_every_expert_wins_in_short_episodes_of_known_words():
    known, lengths, content = set(WORLD.vocabulary() or ()), [], hashlib.sha256()
    for tier in TIERS:
        for split in SPLITS:
            for task in WORLD.tasks(split, tier)[:150]:
                env = WORLD.make(task)
                first, info = env.reset()
                (gold,) = WORLD.expert(task)
                last, reward, terminated, truncated, _ = env.step(gold)
                assert (reward, terminated, truncated) == (1.0, True, False)
                words = words_of(f"{first} {gold} {last}")
                lengths.append(len(words))
                assert {*words, *words_of(" ".join(info["admissible"]))} <= known
                content.update(f"{split} {tier} {first} {gold}\n".encode())
    assert max(lengths) <= 160
    assert len(known) < 600
    assert set(words_of(WORLD.instructions)) <= known
    assert content.hexdigest() == CONTENT


def test_the_audit_finds_nothing():
    found = audit(WORLD, "test")
    assert found.problems == ()
    assert all(tier.expert == 1.0 and tier.duplicates == 0 for tier in found.tiers.values())


def test_the_same_everywhere():
    """Another process, another hash seed, panels asked for in another order."""
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    found = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    world = SqlWorld(sizes=SMALL)
    tasks = [task for split in SPLITS for tier in world.tiers for task in world.tasks(split, tier)]
    told = [(world.make(task).reset(), world.expert(task), world.key(task)) for task in tasks]
    assert json.loads(found.stdout) == json.loads(json.dumps([digest(tasks), told]))


def test_the_first_answer_ends_an_episode_of_one_round():
    env, gold, task = begin()
    wrong = wrong_in(env, WORLD, task)
    told, reward, terminated, truncated, info = env.step(wrong)
    assert (reward, terminated, truncated, "invalid" in info) == (0.0, True, False, False)
    assert told
    assert WORLD.score([reward], info).success is False
    with pytest.raises(SessionGone):
        env.step(gold)
    env.reset()
    assert env.step(f"Thought: easy\n\nAction: ```sql\n{gold};\n```")[1:3] == (1.0, True)
    env.reset()
    assert env.step(f"  {gold} ; -- done\n")[1:3] == (1.0, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "get 1 apple",
        "SELECT nothing FROM nowhere",
        "DROP TABLE player",
        "done",
        "\x00",
        "SELECT 1; SELECT 2",
        "select zeroblob(9)",
        "ATTACH 'x' AS y",
        "\udc80",
        "SELECT '",
        "```sql\n```",
        "```sql\nPRAGMA x\n```",
        "x" * 100_000,
    ],
)
def test_what_is_no_query_costs_the_penalty_and_can_be_tried_again(text):
    known = set(ROUNDS.vocabulary() or ())
    for world in (ROUNDS, SqlWorld(sizes=SMALL, penalty=-0.1)):
        env, gold, _ = begin(world)
        told, reward, terminated, truncated, info = env.step(text)
        assert (reward, terminated, truncated, info["invalid"]) == (-0.1, False, False, True)
        assert 0 < len(words_of(told)) <= 16
        assert set(words_of(told)) <= known
        assert info["admissible"]
        env.step(gold)
        env.close()


def test_several_rounds_show_results_until_done():
    env, gold, task = begin(ROUNDS)
    wrong = wrong_in(env, ROUNDS, task)
    told, reward, terminated, _, info = env.step(wrong)
    assert (reward, terminated) == (0.0, False)
    assert told
    assert info["admissible"][-1] == DONE
    assert env.step(gold)[1:3] == (0.0, False)
    assert env.step(DONE)[1:3] == (1.0, True)
    with pytest.raises(SessionGone):
        env.step(DONE)
    assert ROUNDS.expert(task) == [gold, DONE]
    assert ROUNDS.horizon == 3
    assert DONE in ROUNDS.instructions


def test_the_last_answered_query_counts():
    env, gold, task = begin(ROUNDS)
    wrong = wrong_in(env, ROUNDS, task)
    assert [env.step(query)[1:3] for query in (gold, wrong, DONE)] == [(0.0, False), (0.0, False), (0.0, True)]
    env.reset()
    assert [env.step(query)[1:3] for query in (wrong, wrong, gold)] == [(0.0, False), (0.0, False), (1.0, True)]
    env.reset()
    assert [env.step(query)[1:3] for query in (gold, "oops", DONE)] == [(0.0, False), (-0.1, False), (1.0, True)]
    env.reset()
    assert DONE not in env.reset()[1]["admissible"]
    assert env.step(DONE)[4]["invalid"]  # nothing was answered yet
    assert ROUNDS.score([0.0, -0.1, 1.0], {}).success is True
    assert ROUNDS.reward_range == (-0.1, 1.0)


def test_snapshots_hold_what_was_answered():
    env, gold, task = begin(ROUNDS)
    env.step(gold)
    moment = env.snapshot()
    other = ROUNDS.make(task)
    other.restore(moment)
    assert other.step(DONE)[1:3] == (1.0, True)
    wrong = wrong_in(other, ROUNDS, task)
    other.restore(moment)
    assert [other.step(query)[1:3] for query in (wrong, DONE)] == [(0.0, False), (0.0, True)]
    env.close()
    env.restore(moment)  # also after the end
    assert env.step(DONE)[1] == 1.0


def test_a_word_tokenizers_text_is_understood():
    for tier in TIERS:
        for task in WORLD.tasks("dev", tier)[:25]:
            (gold,) = WORLD.expert(task)
            env = WORLD.make(task)
            env.reset()
            assert env.step(" ".join(words_of(gold)))[1:3] == (1.0, True), gold


def test_results_are_told_in_known_words():
    words = frozenset(["anna", "1", "5", "NULL", ".", ",", ";", "?", "no", "such", "column", ":", "0"])
    assert render_closed(Answer([("anna", 1), (None, 5)]), words) == "anna, 1; NULL, 5"
    assert render_closed(Answer([("O'Neil", 1.52, -1.0, b"x")]), words) == "???, 1.5, ?, ????"
    assert render_closed(Answer([]), words) == "no rows"
    assert render_closed(Answer(error="no such column: goals"), words) == "no such column: ?"
    assert len(words_of(render_closed(Answer([("anna",)] * 500), words))) == 24


def test_results_are_told_as_agentgym_tells_them():
    assert render_answer(Answer([("anna", 1), (None, 2.5)])) == "[('anna', 1), (None, 2.5)]"
    assert render_answer(Answer([])) == "[]"
    assert render_answer(Answer([(n,) for n in range(10_000)])) == str([(n,) for n in range(10_000)])[:100] + "..."
    assert render_answer(Answer(error="no such table: x")) == "no such table: x"
    world = SqlWorld(text="agentgym", sizes=SMALL)
    env, gold, _ = begin(world)
    assert world.vocabulary() is None
    assert re.fullmatch(r"\[\(.*\)\]|\[.{99}\.\.\.", env.step(gold)[0])


def test_three_ways_to_tell_a_schema():
    task = task_of("total both parent shop")
    short, sentences, create = (SqlWorld(text=text).make(task).reset()[0] for text in ("short", "agentgym", "create"))
    assert short.splitlines()[0].count("; ") == 2
    assert short.splitlines()[1].count(" = ") == 2
    assert sentences.startswith("shop contains tables such as maker, product, sale. Table maker has columns such as ")
    assert " is the foreign key of " in sentences
    assert create.count("CREATE TABLE ") == 3
    question = short.splitlines()[2]
    assert sentences.endswith(f"\n\n{question}")
    assert create.endswith(f"\n\n-- Question: {question}")
    hinted = task_of("list hint own shop")
    for text in ("short", "agentgym", "create"):
        assert "are those whose" in SqlWorld(text=text).make(hinted).reset()[0]


def test_the_rule_of_bird_forgives_repetition():
    task = next(task for task in WORLD.tasks("train", "seen") if task.kind.startswith("distinct"))
    query = WORLD.expert(task)[0].replace("DISTINCT ", "")
    rewards = []
    for compare in ("rows", "set"):
        env = SqlWorld(compare=compare).make(task)
        env.reset()
        rewards.append(env.step(query)[1])
    assert rewards == [0.0, 1.0]


def test_renamed_tasks_are_other_tasks_of_the_same_key():
    rng = random.Random(0)
    for task in WORLD.tasks("train", "seen")[:20]:
        other = WORLD.rename(task, rng)
        assert other.id != task.id
        assert WORLD.key(other) == WORLD.key(task)
        assert (other.kind, other.tier, other.split) == (task.kind, task.tier, task.split)
        env = WORLD.make(other)
        env.reset()
        assert env.step(WORLD.expert(other)[0])[1] == 1.0
        assert WORLD.make(other).reset()[0] != WORLD.make(task).reset()[0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "count equal own legue"}, "did you mean 'count equal own league'"),
        ({"kind": None}, "unknown kind"),
        ({"kind": ["count"]}, "unknown kind"),
        ({"seed": "1"}, ", expected a whole number"),
        ({"seed": True}, "seed: got True"),
        ({"seed": -1}, "seed: got -1"),
        ({"names": 1.5}, "names: got 1.5"),
        ({"names": 10**30}, "names: "),
        ({"kind": "x", "seed": None, "names": []}, r"(?s)kind.*seed.*names"),
    ],
)
def test_broken_specs_say_what_is_wrong(spec, message):
    for use in (WORLD.make, WORLD.expert, WORLD.key):
        with pytest.raises(ConfigError, match=message):
            use(task_of(**spec))


def test_foreign_tasks_are_refused():
    good = task_of()
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        WORLD.make(Task("lookup", "1", good.spec))
    with pytest.raises(VersionMismatch):
        WORLD.make(Task("sql", "0", good.spec))
    with pytest.raises(ConfigError, match="from_bird"):
        WORLD.task_at_index(3)


def test_all_mistakes_of_a_world_at_once():
    with pytest.raises(ConfigError) as caught:
        SqlWorld(rounds=0, text="shrot", compare="row", penalty=0.5)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 4
    assert "did you mean 'short'" in str(caught.value)
    assert "did you mean 'rows'" in str(caught.value)
    with pytest.raises(ConfigError, match="penalty"):
        SqlWorld(penalty=float("nan"))


@pytest.mark.parametrize(
    ("text", "action", "thought"),
    [
        ("SELECT 1", "SELECT 1", None),
        ("```sql\nSELECT 1\n```", "SELECT 1", None),
        ("Thought:\nhm\n\nAction:\n```sql\nSELECT 1\n```", "SELECT 1", "hm"),
        ("Thought: hm\nAction: ```SQL SELECT 1```", "SELECT 1", "hm"),
        ("a ```sql SELECT 1``` b ```sql SELECT 2```", "SELECT 2", "a ```sql SELECT 1``` b"),
        ("```sqlite\nSELECT 1", "SELECT 1", None),
        ("SELECT 1 ``` rest", "SELECT 1", None),
        ("```sql\nSELECT '```' AS x```", "SELECT '", None),
    ],
)
def test_queries_in_texts(text, action, thought):
    assert Fenced().parse(text) == Parsed(action, thought)


@pytest.mark.parametrize("text", ["", "  \n", "```sql\n```", "``````", "```python\nx\n```"])
def test_texts_without_a_query(text):
    with pytest.raises(InvalidAction, match="no query"):
        Fenced().parse(text)


@given(
    st.text(min_size=1).map(str.strip).filter(lambda text: text and "`" not in text),
    st.none() | st.text(alphabet="ab .\n", min_size=1).map(str.strip).filter(bool),
)
def test_a_query_written_is_the_query_read(action, thought):
    parsed = Parsed(action, thought)
    assert Fenced().parse(Fenced().render(parsed)) == parsed


def test_episodes_leave_nothing_open():
    world = SqlWorld(sizes=SMALL)
    before = sum(type(found).__name__ == "Connection" for found in gc.get_objects())
    for n in range(20):
        env, gold, _ = begin(world, n)
        env.step("SELECT 1" if n % 2 else gold)
        if n % 3 == 0:
            env.close()
            env.close()
    del env
    gc.collect()
    assert sum(type(found).__name__ == "Connection" for found in gc.get_objects()) <= before


def test_episodes_of_one_task_in_many_threads():
    world, found = SqlWorld(sizes=SMALL), []
    task = world.tasks("dev", "longer")[0]
    queries = [*world.make(task).reset()[1]["admissible"], "SELECT 1", "oops"]

    def play(seed: int) -> None:
        rng = random.Random(seed)
        for query in rng.sample(queries, len(queries)):
            env = world.make(task)
            env.reset()
            found.append((query, env.step(query)[:3]))
            env.close()

    threads = [threading.Thread(target=play, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 * len(queries)
    assert len(set(found)) == len(queries)
