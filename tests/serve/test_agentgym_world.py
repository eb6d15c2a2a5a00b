"""AgentGym's servers as worlds: our client plays whole episodes on our mounts, and copes with foreign servers."""

from __future__ import annotations

import threading

import pytest

import evolvent as ev
from evolvent.agents.plain import Random, Script
from evolvent.errors import AtCapacity, ConfigError, EnvLost, LimitExceeded, SessionGone, StepTimeout, WorldError
from evolvent.rollout.episode import collect
from evolvent.serve.agentgym.client import AgentGymWorld, LinkLimits
from evolvent.serve.agentgym.face import task_by_number
from evolvent.trajectory import Score, Start
from evolvent.worlds.base import SPLITS
from tests.serve.agentgym_support import serving, worlds
from tests.serve.foreign_server import Answer, foreign

QUICK = LinkLimits(step_s=5.0, reset_s=5.0, retry_s=0.5)


@pytest.fixture(scope="module")
def server():
    with serving(step_s=0.5) as served:
        yield served


def begin(world, index=0):
    """An Env of the task with this number."""
    tasks = [task for split in SPLITS for task in world.tasks(split, "seen")]
    return world.make(next(task for task in tasks if task.spec["index"] == index))


def catalogue(world):
    return [task for split in SPLITS for tier in world.tiers for task in world.tasks(split, tier)]


def plans(local, count=8):
    """The expert's actions for the first tasks of a local world, by AgentGym's number."""
    task = task_by_number(local)
    tasks = [task(index) for index in range(count)] if task else catalogue(local)[:count]
    return [list(local.expert(task)) for task in tasks]


def play(world, actions, indices, **options):
    """Play the actions of each index, all at once."""
    tasks = {task.spec["index"]: task for split in SPLITS for task in world.tasks(split, "seen")}
    agent = Script(lambda world, task: actions[task.spec["index"]])
    starts = [Start(tasks[index]) for index in indices]
    played = collect({world.name: world}, starts, agent, engine=None, **options)
    return sorted(played, key=lambda trajectory: trajectory.task.spec["index"])


@pytest.mark.parametrize(
    "mount, name, horizon",
    [
        ("textcraft", "crafting", 20),
        ("babyai", "babyai", 60),
        ("maze", "double_t", 15),
        ("wordle", "wordle", 8),
        ("alfworld", "crafting", 30),
        ("mazes", "maze", 30),
    ],
)
def test_experts_play_whole_episodes_on_our_own_mounts(server, mount, name, horizon):
    dialect = {"mazes": "maze"}.get(mount, mount)
    actions = plans(worlds()[name])
    with AgentGymWorld(server.mount(mount), dialect, range(8), horizon=horizon) as world:
        played = play(world, actions, range(8), slots=8)
        assert [trajectory.success for trajectory in played] == [True] * 8
        assert [trajectory.ended_by for trajectory in played] == ["world"] * 8
        assert [[step.action for step in trajectory.steps] for trajectory in played] == actions
    assert server.host.status().sessions[name] == 0


def test_one_at_a_time_or_all_at_once_is_the_same(server):
    actions = plans(worlds()["crafting"])
    with AgentGymWorld(server.mount("textcraft"), "textcraft", range(8)) as world:
        one, all_of_them = (play(world, actions, range(8), slots=slots) for slots in (1, 8))
    seen = [[(step.observation, step.action, step.reward) for step in trajectory.steps] for trajectory in one]
    assert seen == [[(s.observation, s.action, s.reward) for s in trajectory.steps] for trajectory in all_of_them]


def test_the_random_agent_finds_what_it_may_do(server):
    for mount, dialect in (("alfworld", "alfworld"), ("babyai", "babyai"), ("wordle", "wordle")):
        with AgentGymWorld(server.mount(mount), dialect, {"test": [0]}) as world:
            (trajectory,) = collect({world.name: world}, [Start(world.tasks("test", "seen")[0])], Random(), engine=None)
        assert trajectory.error is None and len(trajectory.steps) >= 1


def test_a_model_text_goes_through_the_grammar_of_the_dialect(server):
    with AgentGymWorld(server.mount("weather"), "weather", [0]) as world:
        parsed = world.grammar.parse('Thought: I add\n\nAction: add with Action Input: {"by": 1}')
        assert parsed.action == 'add with Action Input: {"by": 1}' and parsed.thought == "I add"
        env = begin(world, 0)
        env.reset()
        observation, reward, terminated, _, _ = env.step(parsed.action)
        assert observation.startswith('Observation: did add {"by": 1}') and reward == 1.0 and not terminated
        assert env.step("nonsense") == (env.step("nonsense")[0], 0.0, False, False, {"invalid": True})
        observation, reward, terminated, _, _ = env.step("Action: finish with Action Input: {}")
        assert (terminated, reward) == (True, 0.0)  # any reward has long counted as 1 there
        env.close()


def test_two_actions_in_one_text_are_refused_here(server):
    with AgentGymWorld(server.mount("textcraft"), "textcraft", [0]) as world:
        env = begin(world, 0)
        env.reset()
        steps = server.host.status().steps
        observation, reward, terminated, truncated, info = env.step("Action: inventory\nAction: inventory")
        assert "One action" in observation and (reward, terminated, truncated) == (0.0, False, False)
        assert info == {"invalid": True} and server.host.status().steps == steps
        env.close()


def test_scores_of_scienceworld_are_percent(server):
    with AgentGymWorld(server.mount("sciworld"), "sciworld", [0, 1, 2]) as world:
        actions = [["give .5", "end .5"], ["give .25", "end -.5"], ["give .5", "end .25"]]
        full, negative, part = play(world, actions, range(3))
        assert [step.reward for step in full.steps] == [50.0, 50.0] and full.score == Score(100.0, 1.0, True)
        assert negative.score == Score(-25.0, 0.0, False)
        assert part.score == Score(75.0, 0.75, False)
        assert full.steps[0].observation.startswith("task ")


def test_the_reward_of_a_shop_is_its_last_one(server):
    wanted = [task.spec["want"] for task in catalogue(worlds()["webshop"])]
    with AgentGymWorld(server.mount("webshop"), "webshop", range(2)) as world:
        right, half = play(world, [[f"click[buy {wanted[0]}]"], ["search[x]", "click[buy thing]"]], range(2))
        assert right.score == Score(1.0, 1.0, True) and half.score == Score(0.5, 0.5, False)


def test_webarena_counts_a_reward_only_at_the_end(server):
    with AgentGymWorld(server.mount("webarena"), "webarena", range(2)) as world:
        end, cut = play(world, [["give .5", "end 1"], ["give .5"]], range(2))
        assert [step.reward for step in end.steps] == [0.0, 1.0] and end.success
        assert cut.score == Score(0.0, 0.0, False)


def test_splits_are_the_callers_or_dealt_by_hash():
    dealt = AgentGymWorld("http://127.0.0.1:9", "textcraft", range(200))
    panels = [{task.spec["index"] for task in dealt.tasks(split, "seen")} for split in SPLITS]
    assert set.union(*panels) == set(range(200)) and sum(map(len, panels)) == 200 and all(panels)
    given = AgentGymWorld("http://127.0.0.1:9", "babyai", {"train": range(2), "test": [41]}, name="far")
    assert [task.spec["index"] for task in given.tasks("train", "seen")] == [0, 1] and not given.tasks("dev", "seen")
    (task,) = given.tasks("test", "seen")
    assert (task.world, task.kind, task.split) == ("far", "level 2", "test")
    assert (given.horizon, dealt.name, given.run_in_thread) == (20, "agentgym_textcraft", True)
    with pytest.raises(ConfigError, match="unknown split"):
        given.tasks("tests", "seen")
    with pytest.raises(ConfigError, match="does not belong to world"):
        given.make(dealt.tasks("train", "seen")[0])


def test_every_mistake_is_told_at_once():
    with pytest.raises(ConfigError) as caught:
        AgentGymWorld("ftp://u:secret@x/y", "textcrat", {"trian": [1], "test": [1, -1]}, horizon=0)
    text = str(caught.value)
    assert [
        part
        for part in (
            "textcrat",
            "trian",
            "got -1, expected whole numbers",
            "a task number occurs twice",
            "horizon",
            "ftp",
        )
        if part not in text
    ] == []
    assert "secret" not in text
    with pytest.raises(ConfigError, match="step_s"):
        LinkLimits(step_s=0)


def test_late_success_in_babyai_ends_the_episode():
    """The original un-finishes an episode that ends with a reward of at most one half."""

    def answer(method, path, body):
        if path == "/create":
            return {"id": 0}
        if path == "/close":
            return Answer({"detail": "Not Found"}, 404)
        seen = {"observation": 'Go\nAvailable actions: ["turn left"]', "reward": 0, "score": 0, "done": False}
        return {**seen, "deleted": False} if path == "/reset" else {**seen, "reward": 0.4, "score": 0.4}

    with foreign(answer) as (url, heard), AgentGymWorld(url, "babyai", [7]) as world:
        (trajectory,) = play(world, {7: ["turn left", "turn left"]}, [7])
    assert trajectory.ended_by == "world" and len(trajectory.steps) == 1
    assert trajectory.score == Score(0.4, 0.4, True)
    assert heard == [
        ("POST", "/create", {}),
        ("POST", "/reset", {"id": 0, "data_idx": 7}),
        ("POST", "/step", {"id": 0, "action": "turn left"}),
        ("POST", "/close", {"id": 0}),
    ]


def test_the_requests_are_those_of_the_released_clients(server):
    told = {
        "/create": 5,
        "/reset": ["x", None],
        "/observation?env_idx=5": "page",
        "/close": True,
        "/step": {"state": "after", "reward": 1.0, "done": True, "info": None},
    }
    with foreign(lambda method, path, body: told[path]) as (url, heard):
        with AgentGymWorld(f"{url}/", "sqlgym", [3]) as world:
            play(world, {3: ["SELECT 1"]}, [3])
    assert heard == [
        ("POST", "/create", {}),
        ("POST", "/reset", {"env_idx": 5, "item_id": 3}),
        ("GET", "/observation?env_idx=5", None),
        ("POST", "/step", {"env_idx": 5, "action": "SELECT 1"}),
        ("POST", "/close", {"env_idx": 5}),
    ]


def test_a_step_is_sent_once_whatever_happens():
    steps = []

    def answer(method, path, body):
        if path == "/step":
            steps.append(body)
            return None  # the connection is cut
        return {"/create": {"id": 1}, "/reset": {"observation": "go"}}.get(path, True)

    with foreign(answer) as (url, _), AgentGymWorld(url, "maze", [0], limits=QUICK) as world:
        (trajectory,) = play(world, {0: ["move up", "move up"]}, [0])
        assert (trajectory.ended_by, trajectory.error.kind, trajectory.score) == ("error", "EnvLost", Score())
        assert len(steps) == 1
        env = world.make(trajectory.task)
        env.reset()
        with pytest.raises(EnvLost):
            env.step("move up")
        with pytest.raises(EnvLost, match="the episode is lost"):
            env.step("move up")
        env.reset()  # a new session
        env.close()
        env.close()


def test_what_is_safe_is_asked_again_and_fullness_is_waited_for():
    tries = {"/create": 0, "/reset": 0}

    def answer(method, path, body):
        if path in tries:
            tries[path] += 1
        if path == "/create":
            return Answer({}, 503, headers={"retry-after": "0"}) if tries[path] < 3 else {"id": 1}
        if path == "/reset":
            return None if tries[path] < 3 else {"observation": "go"}
        return {"observation": "Success\n", "reward": 1, "done": True} if path == "/step" else True

    with foreign(answer) as (url, _), AgentGymWorld(url, "maze", [0], limits=LinkLimits(reset_s=20)) as world:
        (trajectory,) = play(world, {0: ["move up"]}, [0])
    assert trajectory.success and tries == {"/create": 3, "/reset": 3}


def test_a_server_that_stays_full_or_away_is_an_error_in_time():
    limits = LinkLimits(step_s=1, reset_s=2, retry_s=0.3)
    with foreign(lambda *request: Answer({}, 503)) as (url, _), AgentGymWorld(url, "maze", [0], limits=limits) as world:
        with pytest.raises(AtCapacity, match="the server is full"):
            begin(world, 0).reset()
    with (
        AgentGymWorld(url, "maze", [0], limits=limits) as world,
        pytest.raises(EnvLost, match="Check that the server is running"),
    ):
        begin(world, 0).reset()


def test_a_full_server_whose_last_try_runs_out_of_time_is_still_told_to_be_full():
    """A busy machine may not answer the last try; what is known by then is that the server is full."""
    let_go, tries = threading.Event(), []

    def answer(method, path, body):
        tries.append(path)
        if len(tries) > 1:
            let_go.wait(20)
        return Answer({}, 503)

    try:
        with foreign(answer) as (url, _):
            limits = LinkLimits(step_s=20, reset_s=3, retry_s=0.3)
            with AgentGymWorld(url, "maze", [0], limits=limits) as world, pytest.raises(AtCapacity, match="is full"):
                begin(world, 0).reset()
            let_go.set()
    finally:
        let_go.set()
    assert len(tries) > 1


def test_a_server_that_hangs_or_drips_meets_the_deadline():
    let_go = threading.Event()

    def drip():
        while not let_go.wait(0.05):
            yield b" "

    def answer(method, path, body):
        if path == "/step" and body["action"] == "hang":
            let_go.wait(20)
            return None
        if path == "/step":
            return Answer(parts=drip())
        return {"/create": {"id": 1}, "/reset": {"observation": "go"}}.get(path, True)

    try:
        with foreign(answer) as (url, _):
            with AgentGymWorld(url, "alfworld", [0], limits=LinkLimits(step_s=0.4, reset_s=5)) as world:
                for action in ("hang", "drip"):
                    env = begin(world, 0)
                    env.reset()
                    with pytest.raises(StepTimeout, match="before the deadline"):
                        env.step(action)
                    env.close()
            let_go.set()
    finally:
        let_go.set()


def test_an_endless_answer_is_read_up_to_the_limit():
    sent = []

    def flood():
        for _ in range(10_000):
            sent.append(1)
            yield b"x" * 65536

    def answer(method, path, body):
        return Answer(parts=flood()) if path == "/create" else True

    with foreign(answer) as (url, _), AgentGymWorld(url, "maze", [0], limits=LinkLimits(max_bytes=2**20)) as world:
        with pytest.raises(LimitExceeded, match="the answer is too large"):
            begin(world, 0).reset()
    assert len(sent) < 1000


@pytest.mark.parametrize("value", ["1", 10**400, [1], {}])
def test_a_reward_that_is_none_is_a_typed_error(value):
    def answer(method, path, body):
        step = {"observation": "on", "reward": value, "done": False}
        return {"/create": {"id": 1}, "/reset": {"observation": "go"}, "/step": step}.get(path, True)

    with foreign(answer) as (url, _), AgentGymWorld(url, "maze", [0], limits=QUICK) as world:
        env = begin(world, 0)
        env.reset()
        with pytest.raises(WorldError, match="number"):
            env.step("move up")


def test_redirections_are_not_followed_and_proxies_not_used(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with foreign(lambda *request: True) as (other, reached):
        moved = Answer({}, 307, headers={"location": other})
        with foreign(lambda *request: moved) as (url, heard), AgentGymWorld(url, "maze", [0], limits=QUICK) as world:
            with pytest.raises(WorldError, match="redirection"):
                begin(world, 0).reset()
    assert heard and not reached


def test_steps_before_reset_and_after_the_end(server):
    with AgentGymWorld(server.mount("echo"), "textcraft", [0], limits=QUICK) as world:
        env = begin(world, 0)
        with pytest.raises(SessionGone):
            env.step("x")
        env.reset()
        assert env.step("end 1")[1:3] == (1.0, True)
        with pytest.raises(SessionGone):
            env.step("x")
        assert env.reset()[0] == env.reset()[0]  # begins anew in the same session
        assert env.step("give 1")[1] == 1.0
        env.close()


def test_a_world_that_breaks_or_hangs_is_a_typed_error_and_no_reward(server):
    made = worlds()["echo"]
    with serving({"echo": type(made)(blocking=True)}, {"echo": ("echo", "textcraft")}, step_s=0.3) as slow:
        for mounted, action, kind in ((server, "break", "EnvLost"), (slow, "sleep 3", "StepTimeout")):
            with AgentGymWorld(mounted.mount("echo"), "textcraft", [0], limits=QUICK) as world:
                (trajectory,) = play(world, {0: ["give 1", action, "give 1"]}, [0])
            assert (trajectory.error.kind, len(trajectory.steps)) == (kind, 1)
            assert trajectory.score == Score(None, None, None)
            assert mounted.host.status().sessions["echo"] == 0


def test_a_lost_server_is_data(server):
    with serving() as lost:
        world = AgentGymWorld(lost.mount("textcraft"), "textcraft", range(4), limits=QUICK)
        env = begin(world, 0)
        env.reset()
    with pytest.raises(EnvLost):
        env.step("inventory")
    played = play(world, [["inventory"]] * 4, range(4), slots=4)
    assert {trajectory.error.kind for trajectory in played} == {"EnvLost"}
    assert all(trajectory.success is None for trajectory in played)
    world.close()


def test_it_is_a_world_for_every_verb(server):
    with AgentGymWorld(server.mount("maze"), "maze", {"test": range(3)}) as world:
        found: ev.World = world
        assert found.expert(world.tasks("test", "seen")[0]) is None and found.vocabulary() is None
        assert found.score([None, 1.0], {}) == Score(None, None, None)
        assert found.reward_range == (-1.0, 1.0) and found.tiers == ("seen",)
