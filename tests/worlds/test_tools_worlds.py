"""What the five tool worlds have in common: names of tools, tiers, closed vocabularies, rewards, both styles."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, VersionMismatch
from evolvent.messages import Call
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.tools.academia import Academia
from evolvent.worlds.tools.movie import Movie
from evolvent.worlds.tools.sheet import Sheet
from evolvent.worlds.tools.todo import Todo
from evolvent.worlds.tools.weather import Weather

SMALL = Sizes(train=30, dev=20, test=20)
CLASSES = {"weather": Weather, "movie": Movie, "academia": Academia, "todo": Todo, "sheet": Sheet}
WORLDS = {name: make(sizes=SMALL, penalty=-0.05) for name, make in CLASSES.items()}
JSON = {name: make(sizes=SMALL, style="json") for name, make in CLASSES.items()}

SPAN = "start_position, end_position"
POINT, DATES = "latitude, longitude", "start_date, end_date"
NAMES = {  # the tools of the originals
    "weather": [
        "get_user_current_date()",
        "get_user_current_location()",
        "get_latitude_longitude(name)",
        *(f"get_historical_{what}({POINT}, {DATES})" for what in ("temp", "rain", "snow", "air_quality_index")),
        *(f"get_{what}_forecast({POINT}, {DATES})" for what in ("temp", "rain", "snow")),
        *(f"get_current_{what}({POINT}, current_date)" for what in ("temp", "rain", "snow", "air_quality_index")),
        f"get_elevation({POINT})",
        "get_distance(latitude1, longitude1, latitude2, longitude2)",
        "get_air_quality_level(air_quality_index)",
        "check_valid_actions()",
        "finish(answer)",
    ],
    "movie": [
        "get_search_movie(movie_name)",
        "get_search_person(person_name)",
        *(
            f"get_movie_{what}(movie_id)"
            for what in (
                "details",
                "production_companies",
                "production_countries",
                "cast",
                "crew",
                "keywords",
                "alternative_titles",
                "translation",
            )
        ),
        *(f"get_person_{what}(person_id)" for what in ("details", "cast", "crew", "external_ids")),
        "check_valid_actions()",
        "finish(answer)",
    ],
    "academia": [
        "loadPaperNet()",
        "loadAuthorNet()",
        "neighbourCheck(graph, node)",
        "paperNodeCheck(node)",
        "authorNodeCheck(node)",
        "paperEdgeCheck(node1, node2)",
        "authorEdgeCheck(node1, node2)",
        "check_valid_actions()",
        "finish(answer)",
    ],
    "todo": [
        "get_user_current_date()",
        "get_user_current_location()",
        "get_projects()",
        "update_project(project_id, is_favorite)",
        "get_tasks(project_id)",
        "get_task_description(task_id)",
        "get_task_duration(task_id)",
        "complete_task(task_id)",
        "delete_task(task_id)",
        "update_task(task_id, due_date)",
        "check_valid_actions()",
        "finish(answer)",
    ],
    "sheet": [
        "open_sheet(name)",
        "del_sheet(name)",
        "freeze_data(dimension, num)",
        "get_A1_annotation(row, col)",
        "insert_cols(values_list, col_idx)",
        "insert_rows(values_list, row_idx)",
        "delete_batch_data(dimension, index_list)",
        "update_cell(position, value)",
        f"get_value_by_formula({SPAN}, position_list, operator)",
        f"update_cell_by_formula({SPAN}, position_list, result_position, operator)",
        f"update_range({SPAN}, values_list)",
        "sort_sheet_by_col(col_num, order)",
        f"merge_cells({SPAN})",
        f"get_range_values({SPAN})",
        "update_note(position, content)",
        "get_cell_value(position)",
        "get_note(position)",
        "get_all_values()",
        "filter_cells(query, in_row, in_column)",
        "finish()",
    ],
}
HORIZONS = {"weather": 10, "movie": 12, "academia": 12, "todo": 15, "sheet": 15}


@pytest.fixture(params=list(WORLDS))
def world(request):
    return WORLDS[request.param]


def play(world, task, actions):
    """All that the actions give: observations, rewards, last info."""
    env = world.make(task)
    env.reset()
    steps = [env.step(action) for action in actions]
    return [step[0] for step in steps], [step[1] for step in steps], steps[-1][4]


def test_tools_and_horizons_are_the_originals(world):
    box = world.toolbox(world.tasks("dev", "seen")[0])
    assert sorted(spec.signature for spec in box.specs.values()) == sorted(NAMES[world.name])
    assert [tool.name for tool in box.tools] == list(box.specs)
    assert all(tool.description and tool.parameters["type"] == "object" for tool in box.tools)
    assert world.horizon == HORIZONS[world.name]
    assert all(spec.signature in world.instructions for spec in box.specs.values())


@pytest.mark.parametrize("name", list(CLASSES))
def test_tiers_compose_what_seen_shows(name):
    world = CLASSES[name](sizes=Sizes(train=400, dev=0, test=80))
    kinds = {tier: [tuple(task.kind.split()) for task in world.tasks("test", tier)] for tier in world.tiers}
    seen = {tuple(task.kind.split()) for task in world.tasks("train", "seen")}
    shown = {pair for kind in seen for pair in pairwise(kind)}
    parts = {part for kind in seen for part in kind}
    assert all(len(set(of)) >= 30 for of in kinds.values())
    for kind in kinds["combo"]:
        assert shown.issuperset(pairwise(kind))
        assert kind not in seen
    for kind in kinds["longer"]:
        assert shown.issuperset(pairwise(kind))
        assert len(kind) > max(map(len, seen))
    for kind in kinds["evo"]:
        assert not shown.issuperset(pairwise(kind))
        assert parts.issuperset(kind)


def test_a_sample_of_the_panels_is_sound():
    """Small panels of each world; the whole audit is part of the benchmark of worlds."""
    for name, make in CLASSES.items():
        tiers = audit(make(sizes=Sizes(train=60, dev=0, test=25)), "test").tiers.values()
        assert all((tier.expert, tier.duplicates) == (1.0, 0.0) for tier in tiers), name
        assert sum(tier.random for tier in tiers) / 4 <= 0.2, name
        assert sum(tier.replay for tier in tiers) / 4 <= 0.08, name


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(list(CLASSES)), seed=st.integers(0, 10**6))
def test_whatever_can_be_said_is_answered_in_known_words(name, seed):
    """Calls of known words with any values, after some steps of the plan: no answer leaves the vocabulary."""
    world, rng = WORLDS[name], Random(seed)
    words = world.vocabulary()
    known = set(words)
    task = rng.choice(world.tasks("dev", rng.choice(world.tiers)))
    env = world.make(task)
    observation, info = env.reset()
    specs = list(world.toolbox(task).specs.values())
    texts = list(world.expert(task))[: rng.randrange(6)]
    for _ in range(12):
        spec = rng.choice(specs)
        said = [rng.choice(words) for _ in range(rng.randrange(5))]
        texts.append(
            rng.choice([" ".join([spec.name, *said]), rng.choice(info["admissible"]), _any_call(world, spec, rng)])
        )
    for text in texts:
        assert known.issuperset(words_of(observation)), text
        observation, reward, terminated, _, info = env.step(text)
        if info.get("invalid"):
            assert (reward, terminated) == (-0.05, False)
            assert 0 < len(words_of(observation)) <= 16
        if terminated:
            break
    assert known.issuperset(words_of(observation))


def _any_call(world, spec, rng):
    words = world.vocabulary()
    values = {
        "string": lambda: rng.choice([rng.choice(words), "Z99", "elsewhere"]),
        "integer": lambda: rng.randrange(-2, 120),
        "number": lambda: rng.choice([rng.randrange(-5, 200), rng.random() * 90]),
        "boolean": lambda: rng.random() < 0.5,
        "array": lambda: [[rng.choice(words), rng.randrange(99), rng.random()]],
        "any": lambda: rng.choice([5, 1.2345, "elsewhere", rng.choice(words)]),
    }
    return world.format_call(Call(spec.name, {one.name: values[one.type]() for one in spec.arguments}))


def test_plans_and_questions_are_in_the_vocabulary_and_short(world):
    known = set(world.vocabulary())
    assert len(known) < 600
    assert world.vocabulary() == sorted(known)
    assert JSON[world.name].vocabulary() is None
    assert known.issuperset(words_of(world.instructions))
    for tier in world.tiers:
        lengths = []
        for task in world.tasks("dev", tier):
            env = world.make(task)
            texts = [env.reset()[0]]
            plan = world.expert(task)
            assert set(plan) <= set(env.reset()[1]["admissible"])
            assert len(plan) <= world.horizon
            texts += [text for action in plan for text in (action, env.step(action)[0])]
            words = [word for text in texts for word in words_of(text)]
            assert known.issuperset(words)
            lengths.append(len(words))
        assert sum(lengths) / len(lengths) <= 200


def test_both_styles_are_understood_everywhere(world):
    """Tasks, rewards and ends do not depend on the style; what is seen and written does."""
    other = JSON[world.name]
    for task in world.tasks("dev", "seen")[:4]:
        plain, written = world.expert(task), other.expert(task)
        assert all(" with Action Input: {" in action for action in written)
        assert task.id in {one.id for one in other.tasks("dev", "seen")}
        seen, rewards, info = play(world, task, written)
        assert (seen, rewards, info) == play(world, task, plain)
        full = [f"Thought: I call a tool.\n\nAction: {action}" for action in written]
        again, others, _ = play(other, task, full)
        assert others == rewards
        assert again[-1] == "right"


def test_rewards_add_up_to_one_exactly_where_the_task_is_solved(world):
    for tier in world.tiers:
        for task in world.tasks("dev", tier)[:5]:
            plan = world.expert(task)
            _, rewards, info = play(world, task, plan)
            assert sum(rewards) == 1.0 == info["score"]
            assert world.score(rewards, info).success is True
            _, rewards, info = play(world, task, [*plan[:-1], "fly away", *plan[:-1]])
            score = world.score(rewards, info)
            assert score.success is False and 0 <= score.unit < 1
            assert score.raw == pytest.approx(score.unit - 0.05 * sum(reward < 0 for reward in rewards))


@pytest.mark.parametrize("name", ["movie", "academia"])
def test_expected_results_count_once_each(name):
    world = WORLDS[name]
    task = world.tasks("dev", "longer")[0]
    plan = world.expert(task)
    _, rewards, info = play(world, task, [*plan[:2], *plan[:2], plan[1]])
    first = int(1024 / len(plan)) / 1024
    assert rewards == [first, int(2 * 1024 / len(plan)) / 1024 - first, 0, 0, 0]
    assert info["score"] == sum(rewards)
    _, rewards, info = play(world, task, [plan[0], "finish nobody"])
    assert sum(rewards) == first
    assert world.score(rewards, info).success is False


def test_the_toolbox_needs_no_text(world):
    """The calls of the plan, made without any text, give what the episode gives; errors change nothing."""
    task = world.tasks("dev", "combo")[1]
    box = world.toolbox(task)
    state = box.start
    for action in JSON[world.name].expert(task):
        call = world.grammar.parse_call(action)
        assert box.call(state, Call("fly"))[0] is state
        assert box.call(state, Call(call.name, {**call.arguments, "more": 1}))[0] is state
        state, result = box.call(state, call)
        assert not result.failed
    assert world.toolbox(task).start == box.start


def test_wrong_specs_are_told(world):
    task = world.tasks("dev", "seen")[0]
    for spec, words in (
        ({}, ["expected a list of matching parts", "expected a whole number"]),
        ({"kind": ["fly"], "seed": 1}, ["fly"]),
        ({**task.spec, "seed": "1"}, ["expected a whole number"]),
        ({**task.spec, "seed": True}, ["expected a whole number"]),
        ({**task.spec, "kind": task.kind}, ["expected a list of matching parts"]),
        ({**task.spec, "kind": [["a"]]}, ["expected a list of matching parts"]),
    ):
        with pytest.raises(ConfigError) as caught:
            world.make(Task(world.name, world.version, spec))
        assert all(word in str(caught.value) for word in words)
    with pytest.raises(VersionMismatch):
        world.make(Task(world.name, "0", task.spec))
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        world.make(Task("other", "1", task.spec))


def test_options_are_checked_all_at_once():
    with pytest.raises(ConfigError) as caught:
        Weather(style="jsom", penalty=0.5)
    assert len(caught.value.problems) == 2
    assert "did you mean 'json'?" in str(caught.value)
    for penalty in (float("nan"), float("-inf")):
        with pytest.raises(ConfigError):
            Sheet(penalty=penalty)


def test_check_valid_actions_lists_the_tools():
    for name in ("weather", "movie", "academia", "todo"):
        world = WORLDS[name]
        (seen,), (reward,), info = play(world, world.tasks("dev", "seen")[0], ["check_valid_actions"])
        assert seen.split(" , ") == [*world.toolbox(world.tasks("dev", "seen")[0]).specs]
        assert reward == 0 and "invalid" not in info


def _of_list(world, task, name):
    """The arguments of the calls of a tool that are listed at the start."""
    listed = map(world.grammar.parse_call, world.make(task).reset()[1]["admissible"])
    return [dict(call.arguments) for call in listed if call.name == name]


def test_the_place_of_the_right_answer_among_the_listed_ones_says_nothing():
    """Who sorts the numbers listed for `finish` finds the right one anywhere."""
    world, places = WORLDS["weather"], []
    for task in (task for tier in world.tiers for task in world.tasks("test", tier)):
        right = world.grammar.parse_call(world.expert(task)[-1]).arguments["answer"]
        if isinstance(right, int):
            listed = sorted(given["answer"] for given in _of_list(world, task, "finish"))
            places.append(listed.index(right) / (len(listed) - 1))
    assert len(places) > 40
    assert max(sum(fifth <= 5 * place < fifth + 1 for place in places) for fifth in range(5)) < 0.4 * len(places)


def test_readings_and_dates_are_listed_alike_for_all_that_could_be_meant():
    world = WORLDS["weather"]
    for task in world.tasks("test", "evo"):
        for call in map(world.grammar.parse_call, world.expert(task)):
            if {"latitude", "longitude"} <= call.arguments.keys():
                when = {name: value for name, value in call.arguments.items() if "tude" not in name}
                same = [given for given in _of_list(world, task, call.name) if when.items() <= given.items()]
                assert len(same) == len(world.toolbox(task).start.cities)
    world = WORLDS["todo"]
    for task in world.tasks("test", "evo"):
        listed = _of_list(world, task, "update_task")
        items = len(world.toolbox(task).start.items)
        assert len(listed) == items * len({given["due_date"] for given in listed})


def test_a_sheet_knows_its_kinds_without_listing_them():
    world = WORLDS["sheet"]
    kinds = set(world.kinds())
    parts = sorted({part for kind in kinds for part in kind})
    rng = Random(0)
    others = {tuple(rng.choices(parts, k=rng.randint(0, 6))) for _ in range(2000)}
    others |= {kind[:-1] for kind in kinds} | {(*kind, kind[-1]) for kind in kinds} | {kind[1:] for kind in kinds}
    assert all(map(world.has_kind, kinds)) and len(kinds) > 10_000
    assert [kind for kind in others - kinds if world.has_kind(kind)] == []


@pytest.mark.parametrize("name", list(WORLDS))
def test_the_experts_calls_are_played_as_any_others(name):
    """The expert has executed them when it solved the task; a world without its records shows the same."""
    world, other = CLASSES[name](sizes=SMALL, penalty=-0.05), CLASSES[name](sizes=SMALL, penalty=-0.05)
    for task in world.tasks("train", "seen")[:3]:
        other._get_scene(task)._expert_calls = {}
        envs = world.make(task), other.make(task)
        assert envs[0].reset() == envs[1].reset()
        for action in world.expert(task):
            assert envs[0].step(action) == envs[1].step(action)
