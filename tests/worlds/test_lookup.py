"""Lookup: every panel played by its expert against the tables, the tiers' definitions, bad input, and leaks."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import ConfigError, EnvLost, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.base import SPLITS, TIERS, Forkable
from evolvent.worlds.facts import NAMES
from evolvent.worlds.lookup import RELATIONS, FactsDatabase, Lookup, LookupEnv, chains, draw_facts, tiers_of_chains
from evolvent.worlds.panel import Sizes, digest

WORLD = Lookup()
HELD_OUT = ("evo", "combo", "longer")
# SHA-256 over split, tier, question and expert plan of every task: what a task id means never changes unnoticed.
CONTENT = "37e280de7a2656e250a0ec58d365334023b9d2e3693ca8c549a720f553be2f75"
WORDS = frozenset(WORLD.vocabulary())
EXPECTED = "expected relation of name or answer name"


def panel(split: str, tier: str) -> Sequence[Task]:
    return WORLD.tasks(split, tier)


def task_of(*chain: str, seed: int = 0) -> Task:
    return Task(WORLD.name, WORLD.version, {"chain": list(chain), "seed": seed})


def begin(*chain: str, seed: int = 0, world: Lookup = WORLD) -> LookupEnv:
    env = world.make(task_of(*chain, seed=seed))
    env.reset()
    return env


def all_tasks() -> list[Task]:
    return [task for split in SPLITS for tier in TIERS for task in panel(split, tier)]


@pytest.fixture(scope="module")
def played() -> list[tuple[Task, list[str], list[str], float]]:
    """Every task of every panel, played by its expert: task, observations, actions, last reward."""
    episodes = []
    for task in all_tasks():
        env = WORLD.make(task)
        observation, _ = env.reset()
        seen, actions, reward = [str(observation)], list(WORLD.expert(task)), 0.0
        for at, action in enumerate(actions):
            observation, reward, terminated, truncated, _ = env.step(action)
            assert (terminated, truncated) == (at == len(actions) - 1, False)
            seen.append(str(observation))
        episodes.append((task, seen, actions, reward))
    return episodes


class TestEpisodes:
    def test_a_whole_episode(self) -> None:
        env = WORLD.make(task_of("boss", "home"))
        facts = draw_facts(("boss", "home"), 0)
        start, boss, home = (NAMES[entity] for entity in facts.walk())
        observation, info = env.reset()
        assert observation == f"find home of boss of {start}"
        assert len(info["admissible"]) == 6 * 40 + 3 * 32 + 3 * 24 + 96
        assert env.step(f"boss of {start}")[:4] == (boss, 0.0, False, False)
        assert env.step(f"home of {boss}")[:4] == (home, 0.0, False, False)
        assert env.step(f"answer {home}")[:4] == ("right", 1.0, True, False)

    def test_experts_win_every_task_and_sql_tells_what_the_tables_hold(
        self, played: list[tuple[Task, list[str], list[str], float]]
    ) -> None:
        for task, seen, actions, reward in played:
            facts = draw_facts(tuple(task.spec["chain"]), task.spec["seed"])
            entity, told = facts.start, []
            for name in facts.chain:
                relation = RELATIONS[name]
                entity = facts.values[relation.base + entity - relation.subjects.start]
                told.append(NAMES[entity])
            assert seen[1:] == [*told, "right"]
            assert reward == 1.0
            assert len(actions) == len(facts.chain) + 1 <= WORLD.horizon

    def test_a_wrong_answer_ends_the_episode_without_reward(self) -> None:
        facts = draw_facts(("boss", "home"), 0)
        for wrong in (facts.walk()[1], 40 + (facts.walk()[-1] - 39) % 32):
            env = begin("boss", "home")
            assert env.step(f"answer {NAMES[wrong]}")[:4] == ("wrong", 0.0, True, False)

    def test_the_right_answer_wins_unasked(self) -> None:
        answer = NAMES[draw_facts(("boss", "home"), 0).walk()[-1]]
        assert begin("boss", "home").step(f"answer {answer}")[1:3] == (1.0, True)

    def test_spaces_and_capitals_do_not_matter(self) -> None:
        env = begin("boss", "home")
        assert env.step("  Boss   of ANNA\n")[0] == env.step("boss of anna")[0] in NAMES

    @pytest.mark.parametrize(
        ("action", "told"),
        [
            ("capital of anna", "anna has no capital"),
            ("boss of belmor", "belmor has no boss"),
            ("country of avaria", "avaria has no country"),
            ("boss of nobody", EXPECTED),
            ("enemy of anna", EXPECTED),
            ("answer", EXPECTED),
            ("answer 7", EXPECTED),
            ("", EXPECTED),
            ("boss of anna'; DROP TABLE person; --", EXPECTED),
        ],
    )
    def test_what_is_no_action_is_told_so_and_changes_nothing(self, action: str, told: str) -> None:
        env = begin("boss", "home", world=Lookup(penalty=-0.05))
        observation, reward, terminated, truncated, info = env.step(action)
        assert (observation, reward, terminated, truncated, info["invalid"]) == (told, -0.05, False, False, True)
        answer = NAMES[draw_facts(("boss", "home"), 0).walk()[-1]]
        observation, reward, terminated, _, info = env.step(f"answer {answer}")
        assert (observation, reward, terminated) == ("right", 1.0, True)
        assert "invalid" not in info

    @given(st.text(max_size=60))
    def test_no_text_raises(self, text: str) -> None:
        env = begin("friend", seed=3)
        observation, reward, *_ = env.step(text)
        assert set(str(observation).split()) <= WORDS
        assert reward in (0.0, 1.0)

    def test_no_step_outside_an_episode(self) -> None:
        env = WORLD.make(task_of("boss"))
        with pytest.raises(SessionGone, match="boss of anna"):
            env.step("boss of anna")
        env.reset()
        env.step("answer anna")
        with pytest.raises(SessionGone, match="reset"):
            env.step("boss of anna")
        env.reset()
        env.close()
        env.close()
        with pytest.raises(SessionGone, match="reset"):
            env.step("boss of anna")

    def test_reset_begins_again(self) -> None:
        env = WORLD.make(task_of("boss", "home"))
        first = env.reset()[0], env.step("boss of anna")[0]
        assert (env.reset(seed=9)[0], env.step("boss of anna")[0]) == first

    def test_a_snapshot_brings_back_the_moment_also_in_another_env(self) -> None:
        env, other = begin("boss", "home"), WORLD.make(task_of("boss", "home"))
        assert isinstance(env, Forkable)
        moment = env.snapshot()
        told = env.step("boss of anna")[0]
        env.step("answer anna")
        ended = env.snapshot()
        for forked in (env, other):
            forked.restore(moment)
            assert forked.step("boss of anna")[0] == told
            forked.restore(ended)
            with pytest.raises(SessionGone, match="reset"):
                forked.step("boss of anna")

    @pytest.mark.parametrize("value", [b"state", None, begin("boss", seed=1).snapshot()])
    def test_a_foreign_snapshot_is_refused(self, value: object) -> None:
        with pytest.raises(ConfigError, match="the snapshot does not belong to this task"):
            begin("boss", seed=0).restore(value)

    def test_an_episode_may_move_to_another_thread(self) -> None:
        env, told = begin("boss"), []
        env.step("boss of anna")
        thread = threading.Thread(target=lambda: told.append(env.step("boss of anna")[0]))
        thread.start()
        thread.join()
        assert told == [env.step("boss of anna")[0]]

    def test_a_thousand_episodes_leave_nothing_open(self) -> None:
        """Without the cycle collector: databases go with their episodes, also where nobody closed them."""
        gc.collect()
        before, kept = self.open_databases(), []
        gc.disable()
        try:
            for seed in range(1000):
                env = begin("boss", seed=seed)
                moment = env.snapshot()
                env.step("boss of anna")
                if seed % 4 == 0:
                    env.close()
                elif seed % 4 == 1:
                    env.step("answer anna")
                elif seed % 4 == 2:
                    other = begin("boss", seed=seed)
                    other.step("answer anna")
                    env.restore(other.snapshot())
                    kept.append(moment)
                else:
                    continue
                kept.append(env)
            del env
            assert self.open_databases() == before
        finally:
            gc.enable()
        assert len(kept) == 1000

    def test_the_end_of_an_episode_closes_its_database(self) -> None:
        for end in ("close", "reset", "answer anna"):
            env = begin("boss")
            env.step("boss of anna")
            database = env._database
            assert database is not None
            env.step(end) if " " in end else getattr(env, end)()
            with pytest.raises(EnvLost, match="closed"):
                database.ask("boss", 1)

    def open_databases(self) -> int:
        return sum(type(thing) is FactsDatabase for thing in gc.get_objects())  # asks nothing of other packages


class TestTiers:
    def test_tiers_are_what_they_are_called(self) -> None:
        tiers = tiers_of_chains(3)
        shown = {pair for chain in tiers["seen"] for pair in pairwise(chain)}
        assert len(shown) == 36  # of 54
        assert not shown & {chain for chain in tiers["evo"] if len(chain) == 2}
        assert all(not shown.issuperset(pairwise(chain)) for chain in tiers["evo"])
        assert all(shown.issuperset(pairwise(chain)) and len(chain) == 3 for chain in tiers["combo"])
        assert all(shown.issuperset(pairwise(chain)) and len(chain) == 4 for chain in tiers["longer"])
        trained = Counter(chain for tier in ("seen", "evo", "combo") for chain in tiers[tier])
        assert set(trained) == {chain for length in (1, 2, 3) for chain in chains(length)}
        assert set(trained.values()) == {1}

    def test_every_relation_is_demonstrated_in_every_place_and_beside_others(self) -> None:
        seen = tiers_of_chains(3)["seen"]
        assert {(at, name) for chain in seen for at, name in enumerate(chain)} == {
            (at, name) for at in range(3) for name in RELATIONS
        }
        before = Counter(pair[1] for pair in {p for chain in seen for p in pairwise(chain)})
        assert min(before.values()) >= 1 and set(before) == set(RELATIONS)

    @pytest.mark.parametrize("tier", TIERS)
    def test_sizes_and_kinds(self, tier: str) -> None:
        assert len(panel("train", tier)) == (1200 if tier in ("seen", "evo") else 0)
        for split, size in (("dev", 100), ("test", 200)):
            kinds = Counter(task.kind for task in panel(split, tier))
            assert sum(kinds.values()) == size
            assert len(kinds) >= 30
            assert max(kinds.values()) <= 10

    def test_no_task_occurs_twice_up_to_names(self) -> None:
        keys = Counter(WORLD.key(task) for task in all_tasks())
        assert len(keys) == len(all_tasks()) == 2 * 1500 + 2 * 300

    def test_kinds_belong_to_one_tier(self) -> None:
        tiers = defaultdict(set)
        for task in all_tasks():
            tiers[task.kind].add(task.tier)
        assert all(len(found) == 1 for found in tiers.values())

    def test_more_hops_make_a_harder_world(self) -> None:
        world = Lookup(hops=4, sizes=Sizes(train=40, dev=10, test=20))
        assert {len(task.spec["chain"]) for task in world.tasks("test", "longer")} == {5}
        assert {len(task.spec["chain"]) for task in world.tasks("test", "combo")} == {3, 4}
        assert world.horizon == 10

    def test_content_of_all_panels(self, played: list[tuple[Task, list[str], list[str], float]]) -> None:
        lines = [f"{task.split} {task.tier} {seen[0]} > {' > '.join(actions)}" for task, seen, actions, _ in played]
        assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == CONTENT

    @pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
    def test_panels_are_the_same_in_every_process(self, hash_seed: str) -> None:
        script = (
            "from evolvent.worlds.lookup import Lookup; from evolvent.worlds.panel import digest; import sys\n"
            "sys.stdout.write(digest(Lookup().tasks('test', 'longer')))"
        )
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        told = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert told.stdout == digest(panel("test", "longer"))


class TestDifficulty:
    @pytest.mark.parametrize("split", ["dev", "test"])
    def test_the_audit_finds_no_fault(self, split: str) -> None:
        found = audit(WORLD, split)
        assert found.problems == ()
        for tier in TIERS:
            assert found.tiers[tier].expert == 1.0
            assert found.tiers[tier].random is not None and found.tiers[tier].random <= 0.05
            assert found.tiers[tier].replay is not None and found.tiers[tier].replay <= 0.05

    def test_the_commonest_answer_of_training_rarely_wins(self) -> None:
        """The best blind guess: of each type of entity, the answer that training saw most."""
        answers: dict[str, Counter[str]] = defaultdict(Counter)
        for task in (*panel("train", "seen"), *panel("train", "evo")):
            answers[RELATIONS[task.spec["chain"][-1]].value_type][WORLD.expert(task)[-1]] += 1
        guesses = {kind: counter.most_common(1)[0][0] for kind, counter in answers.items()}
        asked = [task for tier in HELD_OUT for task in panel("test", tier)]
        won = [guesses[RELATIONS[task.spec["chain"][-1]].value_type] == WORLD.expert(task)[-1] for task in asked]
        assert sum(won) / len(won) <= 0.05


class TestWords:
    def test_every_word_of_every_episode_is_in_the_vocabulary(
        self, played: list[tuple[Task, list[str], list[str], float]]
    ) -> None:
        for _, seen, actions, _ in played:
            assert WORDS.issuperset(word for text in (*seen, *actions) for word in text.split())

    def test_refusals_and_random_play_stay_in_the_vocabulary(self) -> None:
        rng = random.Random(1)
        for task in panel("dev", "longer"):
            env = WORLD.make(task)
            observation, info = env.reset()
            for _ in range(WORLD.horizon):
                action = (
                    " ".join(rng.choices(sorted(WORDS), k=3)) if rng.random() < 0.5 else rng.choice(info["admissible"])
                )
                observation, _, terminated, _, info = env.step(action)
                assert WORDS.issuperset(f"{observation} {action}".split())
                if terminated:
                    break
            env.close()

    def test_every_word_can_occur(self) -> None:
        texts = [*begin("boss").reset()[1]["admissible"], "find", EXPECTED, "right", "wrong"]
        texts += [f"{name} has no {relation}" for name in NAMES for relation in RELATIONS]
        assert {word for text in texts for word in text.split()} == WORDS
        assert len(WORLD.vocabulary()) == 119

    def test_texts_are_short(self, played: list[tuple[Task, list[str], list[str], float]]) -> None:
        for _, seen, actions, _ in played:
            assert len(seen[0].split()) <= 12
            assert max(len(text.split()) for text in seen[1:]) == 1
            assert max(len(text.split()) for text in actions) == 3


class TestWorld:
    def test_score(self) -> None:
        assert WORLD.score([0.0, 1.0], {}).success is True
        assert WORLD.score([0.0, 0.0], {}).success is False
        late = WORLD.score([-0.05, -0.05, 1.0], {})
        assert (late.success, late.raw, late.unit) == (True, pytest.approx(0.9), 1.0)
        assert WORLD.score([-0.05, 0.0], {}).unit == 0.0
        assert WORLD.score([], {}).success is False
        unknown = WORLD.score([0.0, None], {})
        assert (unknown.raw, unknown.unit, unknown.success) == (None, None, None)

    def test_tasks_of_unknown_panels(self) -> None:
        with pytest.raises(ConfigError, match=r"'tset'.*did you mean 'test'.*\n.*'combos'.*did you mean 'combo'"):
            WORLD.tasks("tset", "combos")

    @pytest.mark.parametrize(
        ("spec", "told"),
        [
            ({"chain": [], "seed": 0}, "unknown chain of relations"),
            ({"chain": "boss", "seed": 0}, "unknown chain of relations"),
            ({"chain": ["enemy"], "seed": 0}, "enemy"),
            ({"chain": [1], "seed": 0}, "unknown chain of relations"),
            ({"chain": ["home", "boss"], "seed": 0}, "unknown chain of relations"),
            ({"chain": ["boss"], "seed": "0"}, ", expected a whole number"),
            ({"chain": ["boss"], "seed": True}, ", expected a whole number"),
            ({}, "(?s)unknown chain of relations.*expected a whole number"),
        ],
    )
    def test_a_bad_spec_is_refused(self, spec: dict[str, object], told: str) -> None:
        for use in (WORLD.make, WORLD.expert):
            with pytest.raises(ConfigError, match=told):
                use(Task("lookup", WORLD.version, spec))

    def test_a_task_of_another_world_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="'lookup': got maze"):
            WORLD.make(Task("maze", "1", {}))
        with pytest.raises(VersionMismatch, match="99"):
            WORLD.make(Task("lookup", "99", {"chain": ["boss"], "seed": 0}))

    def test_bad_settings_are_told_together(self) -> None:
        with pytest.raises(ConfigError, match=r"(?s)hops: got 2 .*penalty: got 0\.5"):
            Lookup(hops=2, penalty=0.5)
        for penalty in (float("nan"), float("-inf")):
            with pytest.raises(ConfigError, match=f"penalty: got {penalty}"):
                Lookup(penalty=penalty)
