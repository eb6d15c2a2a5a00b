"""The back office: its expert on every kind, what counts as success, its panels, and any text as an action."""

from __future__ import annotations

from itertools import pairwise, permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.backoffice.applications import APPLICATIONS, Cell, Row
from evolvent.worlds.backoffice.draw import canonical_key, draw_task, kinds_of_tiers
from evolvent.worlds.backoffice.jobs import ADDITIONS, Job
from evolvent.worlds.backoffice.office import Office, State
from evolvent.worlds.backoffice.rules import check_row
from evolvent.worlds.backoffice.world import Backoffice, BackofficeEnv, Scene, solve
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes

WORLD = Backoffice(sizes=Sizes(train=40, dev=20, test=20), penalty=-0.1)
KINDS = [(tier, kind) for tier, kinds in kinds_of_tiers().items() for kind in kinds]
DATA = {word for one in APPLICATIONS.values() for field in one.fields for word in field.choices if field.named}


def task_of(kind: tuple[str, ...], seed: int) -> Task:
    return Task(WORLD.name, WORLD.version, {"kind": list(kind), "seed": seed}, " ".join(kind))


def state_of(env: BackofficeEnv) -> State:
    return env.snapshot().state  # type: ignore[attr-defined, no-any-return]


def data(text: str) -> set[str]:
    """The numbers and names in a text."""
    return {word for word in words_of(text) if word.isdecimal() or word in DATA}


@pytest.mark.parametrize("tier", WORLD.tiers)
def test_the_expert_does_every_kind_of_work(tier: str) -> None:
    """It wins within the horizon by listed actions, and neither says nor types anything that it has not seen."""
    known = set(WORLD.vocabulary())
    for kind in kinds_of_tiers()[tier]:
        for seed in (0, 1):
            task = task_of(kind, seed)
            env = WORLD.make(task)
            observation, info = env.reset()
            seen, rewards = str(observation), []
            plan = WORLD.explain(task)
            assert len(plan) <= WORLD.horizon
            for step in plan:
                assert step.action in info["admissible"]
                assert data(step.action) | data(str(step.thought)) <= data(seen)
                assert known.issuperset(words_of(f"{step.action} {step.thought} {' '.join(info['admissible'])}"))
                observation, reward, ended, _, info = env.step(step.action)
                rewards.append(reward)
                assert known.issuperset(words_of(str(observation)))
                seen += f" {observation}"
            assert (ended, rewards[-1], sum(rewards), info["won"]) == (True, 1.0, 1.0, True)
            assert WORLD.score(rewards, info).success is True


def test_thoughts_go_with_the_actions() -> None:
    task = WORLD.tasks("dev", "seen")[0]
    assert WORLD.expert(task) == [step.action for step in WORLD.explain(task)]
    assert all(step.thought for step in WORLD.explain(task))
    assert "next i have to" in str(WORLD.explain(task)[0].thought)


def test_the_order_of_the_jobs_does_not_matter() -> None:
    """What is wanted is one thing, so an agent may do the jobs of a task in any order."""
    tried = 0
    entangled = (
        ("staff", "of", "copy", "customers", "largest", "copy"),
        ("orders", "of", "limit", "customers", "largest", "copy"),
        ("orders", "by", "copy", "invoices", "both", "copy"),
        ("invoices", "both", "copy", "orders", "smallest", "set"),
    )  # their first draws hold jobs that read what the other writes
    for kind, seed in [*((kind, 5) for _, kind in KINDS), *((kind, seed) for kind in entangled for seed in range(8))]:
        office, jobs = draw_task(kind, seed)
        wanted = Scene.of(office, jobs).target_contents
        for order in permutations(jobs):
            assert Scene.of(office, order).target_contents == wanted
            tried += len(jobs) > 1
    assert tried > 300


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nothing_but_the_right_tables_is_a_success(seed: int) -> None:
    """Experts' plans with actions left out, put in or exchanged: won exactly where the tables are those of the plan."""
    rng = Random(seed)
    task = task_of(rng.choice(KINDS)[1], seed % 50)
    right = WORLD.make(task)
    right.reset()
    plan = list(WORLD.expert(task))
    for action in plan[:-1]:
        right.step(action)
    wanted = saved_rows(state_of(right))
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(plan))
        plan[at : at + 1] = rng.choice([[], [plan[at]] * 2, ["save"], ["back"], [rng.choice(plan)]])
    env = WORLD.make(task)
    _, info = env.reset()
    reward = 0.0
    for action in [*plan, *(["done"] if "done" not in plan else [])]:
        if rng.random() < 0.05 and action != "done":
            env.step(rng.choice([one for one in info["admissible"] if one != "done"]))
        rows = saved_rows(state_of(env))
        _, reward, ended, truncated, info = env.step(action)
        assert (reward == 1.0) <= ended
        assert not truncated
        if ended:
            break
    assert reward == float(rows == wanted)
    with pytest.raises(SessionGone):
        env.step("done")


def saved_rows(state: State) -> list[set[Row]]:
    return [set(table) for table in state.tables]


@pytest.mark.parametrize("name", list(APPLICATIONS))
def test_one_more_change_anywhere_is_no_success(name: str) -> None:
    """The plan of the expert and a changed field, a deleted or a new record in any application."""
    extras = {
        "customers": ["set level basic", "set level gold"],
        "orders": ["set item sofa", "set item vase"],
        "invoices": ["set day 3", "set day 4"],
        "staff": ["set team sales", "set team finance"],
        "tickets": ["set topic noise", "set topic parts"],
    }
    wrong = 0
    for _, kind in KINDS[::9]:
        task = task_of(kind, 1)
        for extra in (*extras[name], "delete"):
            env = WORLD.make(task)
            env.reset()
            for action in WORLD.expert(task)[:-1]:
                env.step(action)
            right = saved_rows(state_of(env))
            _, _, _, _, info = env.step(f"open {name}")
            if "back" in info["admissible"]:
                _, _, _, _, info = env.step("back")
            last = max(action for action in info["admissible"] if action.startswith("show"))
            for action in (last, extra, "save"):
                env.step(action)
            same = saved_rows(state_of(env)) == right
            assert env.step("done")[1] == float(same)
            wrong += not same
    assert wrong > 20


def test_wandering_never_wins_and_leaves_sound_tables() -> None:
    """300 legal actions at random: every record could be saved again, but for what its own rules ask of others."""
    for at in range(6):
        rng, task = Random(at), WORLD.tasks("dev", WORLD.tiers[at % 4])[at]
        env = WORLD.make(task)
        _, info = env.reset()
        for _ in range(300):
            legal = [action for action in info["admissible"] if action != "done"]
            busy = [action for action in legal if action in ("save", "delete")]
            _, reward, _, _, info = env.step(rng.choice(busy if busy and rng.random() < 0.3 else legal))
            assert reward == 0.0
            assert "invalid" not in info
        office, tables = WORLD.scene(task).office, state_of(env).tables
        for name, table in zip(office.names, tables, strict=True):
            assert len({row[0] for row in table}) == len(table)
            for row in table:
                refusal = check_row(office, tables, name, form=row, new=False)
                assert refusal is None or refusal.reason == "need"
        assert env.step("done")[1] == 0.0


@pytest.mark.parametrize("tier", WORLD.tiers)
def test_environments_keep_their_promises(tier: str) -> None:
    for task in WORLD.tasks("dev", tier)[:2]:
        assert check_env(lambda task=task: WORLD.make(task), steps=30, walks=3, forkable=True) == []


def test_a_snapshot_in_the_middle_of_a_form() -> None:
    """Every step of a plan may be gone back to, in another Env, and is won from there."""
    task = WORLD.tasks("test", "longer")[0]
    env, other = WORLD.make(task), WORLD.make(task)
    env.reset()
    plan, moments = WORLD.expert(task), []
    for action in plan:
        moments.append(env.snapshot())
        env.step(action)
    for at in Random(0).sample(range(len(plan)), 8):
        other.restore(moments[at])
        assert other.snapshot() == moments[at]
        assert [other.step(action)[1] for action in plan[at:]][-1] == 1.0
    with pytest.raises(ConfigError, match="snapshot"):
        other.restore(WORLD.make(WORLD.tasks("dev", "seen")[0]).snapshot())


HOSTILE = [
    "",
    " ",
    "\x00",
    "set",
    "set amount",
    "set amount 7 8",
    "set amount -1",
    "set amount 1e3",
    "set amount 99999999999",
    "set amount \u0663",
    "show 51; delete",
    "save\nsave",
    "open",
    "open open",
    "find",
    "done now",
    "delete all",
    "' ; DROP TABLE orders ; --",
    "set state " + "x" * 10**5,
    "open orders " * 10**4,
    "\U0001f600 save",
    "none",
]


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 99), texts=st.lists(st.sampled_from(HOSTILE) | st.text(max_size=30), max_size=6))
def test_any_text_is_answered_by_one_sentence(seed: int, texts: list[str]) -> None:
    known, rng = set(WORLD.vocabulary()), Random(seed)
    env = WORLD.make(rng.choice(WORLD.tasks("dev", "seen")))
    _, info = env.reset()
    for text in texts:
        _, _, _, _, info = env.step(rng.choice([action for action in info["admissible"] if action != "done"]))
        before, legal = state_of(env), {*info["admissible"]}
        observation, reward, ended, _, info = env.step(text)
        if " ".join(text.lower().split()) in legal:
            continue
        assert (reward, ended, info["invalid"], state_of(env)) == (-0.1, False, True, before)
        assert 0 < len(words_of(str(observation))) <= 16
        assert known.issuperset(words_of(str(observation)))


def test_every_kind_of_every_tier() -> None:
    """Trained kinds have at most two jobs; `evo` has pairs of parts that `seen` has not, the others only those."""
    tiers = kinds_of_tiers()
    shown = {pair for kind in tiers["seen"] for pair in pairwise(kind)}
    assert not [kind for kind in tiers["evo"] if shown.issuperset(pairwise(kind))]
    assert not [kind for tier in ("combo", "longer") for kind in tiers[tier] if not shown.issuperset(pairwise(kind))]
    assert {len(kind) for kind in tiers["longer"]} == {9}
    assert {len(kind) for tier in ("seen", "evo", "combo") for kind in tiers[tier]} == {3, 6}
    assert {part for kind in tiers["seen"] for part in kind} == {part for _, kind in KINDS for part in kind}
    assert len({kind for _, kind in KINDS}) == len(KINDS)
    assert min(len(kinds) for kinds in tiers.values()) >= 30


def test_panels_are_sound() -> None:
    found = audit(WORLD, limit=4)
    small = ("tasks", "kinds")  # these panels are smaller than held-out ones must be
    assert not [problem for problem in found.problems if not any(word in problem.what for word in small)]
    assert all((tier.expert, tier.random, tier.duplicates) == (1.0, 0.0, 0.0) for tier in found.tiers.values())


def renamed(office: Office, jobs: tuple[Job, ...], rng: Random) -> tuple[Office, tuple[Job, ...]]:
    """Other names for people, cities, things and teams, and other numbers of records in the same order."""
    new: dict[tuple[str, Cell], Cell] = {}
    for one in office.applications.values():
        for field in one.fields:
            if field.choices and field.named:
                pool = one.name if field is one.fields[0] else field.name
                mixed = rng.sample(field.choices, len(field.choices))
                new |= {(pool, old): to for old, to in zip(field.choices, mixed, strict=True) if (pool, old) not in new}
        if one.numbered:
            new |= {(one.name, number): number + 1 for number in range(50, 99)}

    def cell(name: str, field: str, value: Cell) -> Cell:
        found = office.applications[name].field(field)
        key = found is office.applications[name].fields[0]
        return new.get((found.link or (name if key else field), value), value)

    def row_of(name: str, row: Row) -> Row:
        fields = office.applications[name].fields
        return tuple(cell(name, field.name, value) for field, value in zip(fields, row, strict=True))

    tables = tuple(
        tuple(row_of(name, row) for row in table) for name, table in zip(office.names, office.tables, strict=True)
    )
    told = []
    for name, pick, change in jobs:
        key = office.applications[name].fields[0].name
        pick = pick._replace(value=cell(name, pick.field or key, pick.value) if pick.kind != "of" else None)
        if pick.kind == "of":
            pick = pick._replace(
                second_value=cell(
                    pick.second_name, office.applications[pick.second_name].fields[0].name, pick.second_value
                )
            )
        elif pick.second_name:
            pick = pick._replace(second_value=cell(name, pick.second_name, pick.second_value))
        to = ADDITIONS[change.kind][0] if change.kind in ADDITIONS else name
        source, record, field = change.source
        if source:
            record = cell(source, office.applications[source].fields[0].name, record)
        fields = tuple((field, cell(to, field, value)) for field, value in change.fields)
        told.append(Job(name, pick, change._replace(fields=fields, source=(source, record, field))))
    return Office(tables, office.bounds, office.applications), tuple(told)


def test_the_canonical_form_knows_no_names() -> None:
    """Equal under other names, with plans of equal length; other where a number or a bound is."""
    rng = Random(3)
    for _, kind in KINDS[::5]:
        office, jobs = draw_task(kind, 2)
        other, told = renamed(office, jobs, rng)
        assert other.tables != office.tables
        key = canonical_key(kind, office, jobs)
        assert canonical_key(kind, other, told) == key
        assert len(solve(office, jobs)) == len(solve(other, told))
        people = office.tables[0]
        changed = ((*people[0][:3], int(str(people[0][3])) + 1, people[0][4]), *people[1:])
        assert canonical_key(kind, Office((changed, *office.tables[1:]), office.bounds), jobs) != key
        bounds = {**office.bounds, ("staff", "room"): (1, 40)}
        assert canonical_key(kind, Office(office.tables, bounds), jobs) != key


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (
            {"kind": ["orders", "named", "ticket"], "seed": 0},
            "expected one to three jobs, for example: orders named set",
        ),
        ({"kind": "orders", "seed": 0}, "expected one to three jobs, for example: orders named set"),
        ({"kind": ["orders", "named"], "seed": 0}, "expected one to three jobs, for example: orders named set"),
        ({"kind": [], "seed": 0}, "expected one to three jobs, for example: orders named set"),
        (
            {"kind": [["orders"], "named", "set"], "seed": 0},
            "expected one to three jobs, for example: orders named set",
        ),
        ({"kind": ["staff", "of", "drop"], "seed": 0}, "expected one to three jobs, for example: orders named set"),
        ({}, ", expected a whole number"),
        ({"kind": ["orders", "named", "set"], "seed": True}, ", expected a whole number"),
        (
            {"kind": ["orders", "named", "set"] * 2, "seed": 0},
            "expected one to three jobs, for example: orders named set",
        ),
    ],
)
def test_specs_are_checked(spec: dict[str, object], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        WORLD.make(Task("backoffice", "1", spec))


def test_foreign_tasks_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        WORLD.make(Task("kitchen", "1", {}))
    with pytest.raises(VersionMismatch):
        WORLD.make(Task("backoffice", "0", {}))
    with pytest.raises(ConfigError) as error:
        Backoffice(penalty=0.5, horizon=0)
    assert len(error.value.problems) == 2
