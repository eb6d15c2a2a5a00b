"""AgentGym's protocol over real sockets: the bodies of all fifteen rows, written down by hand from the specification.

The client side is plain httpx2 and JSON; it imports nothing of `serve/`.
"""

from __future__ import annotations

import json

import httpx2
import pytest

from evolvent.worlds.base import SPLITS
from evolvent.worlds.crafting import Crafting
from tests.serve.agentgym_support import MOUNTS, Shop, serving, worlds

OBJECTS = ("textcraft", "babyai", "sciworld", "alfworld", "maze", "wordle")
TOOLS = ("weather", "movie", "academia", "todo", "sheet")
BARE = ("webshop", "sqlgym", "searchqa", *TOOLS)


@pytest.fixture(scope="module")
def server():
    with serving() as served:
        yield served


@pytest.fixture
def http():
    with httpx2.Client(trust_env=False, timeout=60) as client:
        yield client


class Talk:
    """One session at a mount: `post` and `get` add its key, and want status 200."""

    def __init__(self, http, server, mount):
        self.http, self.base = http, server.mount(mount)
        self.key = "id" if mount in (*OBJECTS, "mazes", "echo") else "env_idx"
        body = {"id": 0} if mount in (*TOOLS, "searchqa") else {"commands": None, "goal": None, "minecraft_dir": "x"}
        send = {"json": body} if mount in (*TOOLS, "searchqa", "textcraft", "echo") else {}
        self.created = self.want(http.post(f"{self.base}/create", **send))
        self.id = self.created[self.key] if isinstance(self.created, dict) else self.created

    def want(self, reply, status=200):
        assert reply.status_code == status, reply.text
        assert reply.headers["content-type"] == "application/json"
        return reply.json()

    def post(self, path, status=200, **body):
        return self.want(self.http.post(f"{self.base}/{path}", json={self.key: self.id, **body}), status)

    def get(self, path, status=200):
        return self.want(self.http.get(f"{self.base}/{path}?{self.key}={self.id}"), status)


def told(world, index):
    """The first text of a world's task: train, then dev, then test."""
    tasks = [task for split in SPLITS for tier in world.tiers for task in world.tasks(split, tier)]
    return world.make(tasks[index]).reset()[0]


@pytest.mark.parametrize("mount", sorted({*OBJECTS, *BARE, "webarena"}))
def test_a_creation_is_answered_in_the_shape_of_its_dialect(server, http, mount):
    talk = Talk(http, server, mount)
    assert type(talk.id) is int and 0 < talk.id < 2**31
    if mount in BARE:
        assert type(talk.created) is int
    elif mount == "textcraft":
        assert set(talk.created) == {"id", "observation", "done", "reward"}
        assert talk.created["observation"].startswith("Crafting commands:\n") and talk.created["done"] is False
    else:
        assert talk.created == {talk.key: talk.id}


def test_textcraft(server, http):
    talk, world = Talk(http, server, "textcraft"), worlds()["crafting"]
    first = "Crafting commands:\n" + told(world, 3)
    assert talk.post("reset", data_idx=3) == {"id": talk.id, "observation": first, "done": False, "reward": 0}
    assert talk.get("goal") == first.rpartition("Goal: craft ")[2].rstrip(".")
    assert talk.get("commands") == first.removeprefix("Crafting commands:\n").partition("\n\nGoal:")[0]
    assert talk.post("step", action="inventory") == {"observation": "Inventory: nothing", "reward": 0.0, "done": False}
    assert talk.get("observation") == "Inventory: nothing"
    plan = world.expert([task for tier in world.tiers for task in world.tasks("train", tier)][3])
    *_, last = [talk.post("step", action=action) for action in plan]
    assert last["reward"] == 1.0 and last["done"] is True and set(last) == {"observation", "reward", "done"}
    assert talk.get("detail") == {
        "observation": last["observation"],
        "reward": 1.0,
        "score": 1.0,
        "deleted": False,
        "done": True,
    }


def test_recipes_and_a_goal_of_the_caller_are_refused(server, http):
    """Tasks are those of the world: a request that another task would answer is not answered silently."""
    for body in ({"goal": "stick"}, {"commands": "craft 1 a using 1 b", "goal": "a"}):
        answer = http.post(f"{server.mount('textcraft')}/create", json=body)
        assert answer.status_code == 422 and "POST /reset with data_idx" in answer.text, answer.text
    assert http.post(f"{server.mount('textcraft')}/create", json={"commands": None, "goal": ""}).status_code == 200


def test_a_folder_of_recipes_speaks_exactly_as_textcraft(http, tmp_path):
    recipes = {
        "oak_planks": {
            "type": "minecraft:crafting_shapeless",
            "ingredients": [{"item": "minecraft:oak_log"}],
            "result": {"item": "minecraft:oak_planks", "count": 4},
        },
        "stick": {
            "type": "minecraft:crafting_shaped",
            "pattern": ["#", "#"],
            "key": {"#": {"item": "minecraft:oak_planks"}},
            "result": {"item": "minecraft:stick", "count": 4},
        },
    }
    (tmp_path / "recipes").mkdir()
    for name, recipe in recipes.items():
        (tmp_path / "recipes" / f"{name}.json").write_text(json.dumps(recipe))
    world = Crafting.from_folder(tmp_path)
    goals = [task.spec["goal"] for split in SPLITS for tier in world.tiers for task in world.tasks(split, tier)]
    with serving({"textcraft": world}, {"textcraft": ("textcraft", "textcraft")}) as server:
        talk = Talk(http, server, "textcraft")
        first = talk.post("reset", data_idx=goals.index("stick"))["observation"]
        lines = ["craft 4 oak planks using 1 oak log", "craft 4 stick using 2 oak planks"]
        head, goal = first.split("\n\n")
        assert goal == "Goal: craft stick." and head.startswith("Crafting commands:\n")
        assert sorted(head.splitlines()[1:]) == lines
        said = [
            ("inventory", "Inventory: You are not carrying anything."),
            ("get 1 oak planks", "Could not find oak planks"),
            ("get 1 grass block", "Could not find grass block"),
            ("fly home", "Could not execute fly home"),
            ("craft 4 stick using 2 oak planks", "Could not find enough items to craft minecraft:stick"),
            ("get 1 oak log", "Got 1 oak log"),
            ("get 2 oak log", "Got 2 oak log"),
            ("craft 4 oak planks using 1 oak log", "Crafted 4 minecraft:oak_planks"),
            ("inventory", "Inventory: [oak log] (2) [oak planks] (4) "),
            (
                "craft 1 oak log using 1 stick",
                "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag("
                "tag=None, item_id='minecraft:oak_log'), count=1)",
            ),
            ("craft 4 stick using 2 oak planks", "Crafted 4 minecraft:stick"),
        ]
        answers = [talk.post("step", action=action) for action, _ in said]
        assert [answer["observation"] for answer in answers] == [text for _, text in said]
        assert [answer["reward"] for answer in answers] == [0.0] * 10 + [1.0]
        assert [answer["done"] for answer in answers] == [False] * 10 + [True]


def test_babyai(server, http):
    talk, world = Talk(http, server, "babyai"), worlds()["babyai"]
    reset = talk.post("reset", data_idx=42)  # level 3, seed 1
    task = world.task_at_index(42)
    assert task.spec == {"level": "BabyAI-GoToRedBallNoDists-v0", "seed": 1}
    assert reset.pop("observation") == world.make(task).reset()[0]
    assert reset == {"reward": 0, "score": 0, "deleted": False, "done": False}
    *_, last = answers = [talk.post("step", action=action) for action in world.expert(task)]
    assert last["done"] and 0 < last["reward"] < 1 and last["score"] == pytest.approx(last["reward"])
    assert set(last) == {"observation", "reward", "score", "done"}
    assert all('\nAvailable actions: ["' in answer["observation"] for answer in answers)
    seen = talk.get("observation")
    assert seen == {**last, "deleted": False}
    assert "this server does not render images" in talk.post("render", status=404)["message"]


def test_babyai_takes_both_spellings_of_picking_up(server, http):
    talk, world = Talk(http, server, "babyai"), worlds()["babyai"]
    found = next(index for index in range(16, 900, 40) if "pickup" in str(world.expert(world.task_at_index(index))))
    for spelling in ("pickup", "pick up"):
        talk.post("reset", data_idx=found)
        plan = [action.replace("pickup", spelling) for action in world.expert(world.task_at_index(found))]
        assert [talk.post("step", action=action) for action in plan][-1]["reward"] > 0


def test_sciworld(server, http):
    talk, text = Talk(http, server, "sciworld"), told(worlds()["echo"], 2)
    assert talk.post("reset", data_idx=2) == {
        "task_name": "echo",
        "var_num": 2,
        "task_description": text,
        "observation": "",
        "reward": 0,
        "score": 0.0,
        "deleted": False,
        "done": False,
    }
    number = text.removeprefix("task ")
    assert talk.post("step", action="give .25") == {
        "observation": f"heard give .25 of {number}",
        "reward": 0.25,
        "score": 25.0,
        "done": False,
    }
    assert talk.post("step_visual", action="end -.5")["score"] == -25.0
    assert talk.get("task_description") == {"task_description": text}
    assert talk.get("action_hint") == {"possible_actions": [], "possible_objects": []}
    assert talk.get("goals") == {"goals": ""} and talk.get("object_tree") == {"object_tree": ""}
    assert talk.get("state")["done"] is True


def test_alfworld(server, http):
    talk, world = Talk(http, server, "alfworld"), worlds()["crafting"]
    reset = talk.post("reset", game=1, world_type="Text")
    assert set(reset) == {"id", "observation", "available_actions", "task_type"}
    assert reset["id"] == talk.id and reset["observation"] == told(world, 1)
    assert reset["available_actions"] == talk.get("available_actions") and "inventory" in reset["available_actions"]
    step = talk.post("step", action="inventory")
    assert set(step) == {"observation", "reward", "available_actions", "done"} and step["reward"] == 0.0
    wrong = talk.post("reset", 422, game=1, world_type="Visual")
    assert wrong["kind"] == "SampleInvalid" and "Text, Embody, Hybrid" in wrong["expected"]


def test_maze(server, http):
    talk = Talk(http, server, "maze")
    here = "The goal is at position 8, 6. Your current position is at position "
    assert talk.post("reset", game=18) == {"observation": f"{here}7, 6. There are walls to your right, to your left."}
    assert talk.post("step", action="move left") == {
        "observation": f"{here}7, 6. There are walls to your right, to your left.",
        "reward": 0.0,
        "done": False,
    }
    assert talk.get("available_actions") == ["move up", "move down", "move left", "move right"]
    assert talk.post("step", action="move down") == {"observation": "Success\n", "reward": 1.0, "done": True}
    assert talk.post("reset", 404, game=25)["kind"] == "ConfigError"  # the goal itself
    assert talk.post("reset", game=16)["observation"] == f"{here}5, 6. There is a wall above you."
    for _ in range(49):
        assert talk.post("step", action="move up")["done"] is False
    assert talk.post("step", action="move up") == {"observation": "Failure\n", "reward": 0.0, "done": True}


def test_wordle(server, http):
    talk, world = Talk(http, server, "wordle"), worlds()["wordle"]
    words = talk.get("filtered_vocab")
    assert sorted(words) == sorted(set(world.words.words)) and "crane" in words
    assert talk.post("step", 409, action="c r a n e")["kind"] == "SessionGone"
    assert talk.post("reset", seed=4)["id"] == talk.id
    tasks = [task for split in SPLITS for task in world.tasks(split, "seen")]
    hidden = tasks[4].spec["word"]
    other = next(word for word in words if word != hidden)
    step = talk.post("step", action=" ".join(other))
    assert len(step["observation"].split()) == 5 and step["reward"] == 0.0 and step["done"] is False
    assert talk.post("step", action=" ".join(hidden)) == {"observation": "g g g g g", "reward": 1.0, "done": True}
    same = talk.post("reset", seed=4 + len(tasks))  # a seed goes round
    assert same["observation"] == talk.post("reset", seed=4)["observation"]
    assert talk.post("step", action="zzzzz")["observation"] == "invalid word"


def test_webshop(server, http):
    talk = Talk(http, server, "webshop")
    world = worlds()["webshop"]
    page = told(world, 1)
    want = page.partition("Find me ")[2].split(" ")[0]
    assert talk.post("reset", session_id=1) == [page, None]
    assert talk.get("observation") == page
    assert talk.get("instruction_text") == f"Find me {want}"
    assert talk.get("state") == {"url": "", "html": "", "instruction_text": f"Find me {want}"}
    assert talk.get("available_actions") == {"has_search_bar": False, "clickables": []}
    assert talk.post("step", action="search[x]") == {
        "state": f"Results [SEP] buy {want}",
        "reward": 0.0,
        "done": False,
        "info": None,
    }
    assert talk.post("step", action="click[buy thing]")["reward"] == 0.5
    assert talk.id in talk.get("list_envs")
    assert talk.post("reset", session_id=None) == [page, None]  # the same once more
    assert talk.post("close") is True and talk.post("close") is False


def test_webshop_tells_what_can_be_clicked(http):
    class Listed(Shop):
        def make(self, task):
            env, reset = super().make(task), None
            reset = env.reset
            env.reset = lambda **given: (reset(**given)[0], {"admissible": ("search[x]", "click[back]"), "url": "u"})
            return env

    with serving({"webshop": Listed()}, {"webshop": ("webshop", "webshop")}) as server:
        talk = Talk(http, server, "webshop")
        talk.post("reset", session_id=0)
        assert talk.get("available_actions") == {"has_search_bar": True, "clickables": ["back", "search"]}
        assert talk.get("state")["url"] == "u"


def test_sqlgym(server, http):
    talk, text = Talk(http, server, "sqlgym"), told(worlds()["sql"], 0)
    assert talk.post("reset", item_id=0) == [text, None]
    number = text.removeprefix("task ")
    rows = "x" * 200
    assert talk.post("step", action=rows) == {
        "state": f"heard {'x' * 94}...",
        "reward": 0.0,
        "done": True,
        "info": None,
    }
    assert talk.post("step", action="end 1")["ended"], "one turn is all"
    talk.post("reset", item_id=0)
    assert talk.post("step", action="short")["state"] == f"heard short of {number}"
    talk.post("reset", item_id=0)
    assert talk.post("step", action="end 1") == {"state": "", "reward": 1.0, "done": True, "info": None}
    assert talk.post("reset", 404, item_id=10**6)["kind"] == "ConfigError"


@pytest.mark.parametrize("mount", TOOLS)
def test_tools(server, http, mount):
    talk = Talk(http, server, mount)
    goal = told(worlds()[mount], 5)
    first = f"Now new trial starts.\nYou should perform actions to accomplish the goal: {goal}\nGive me one action."
    assert talk.post("reset", id=5) == first == talk.get("observation")
    assert talk.post("reset", id=None) == first
    bad = talk.post("step", action="Thought: hm\nAction: add with Action Input: {}\nand more")
    assert (bad["reward"], bad["done"], bad["invalid"]) == (0.0, False, True) and "last line" in bad["observation"]
    call = 'Thought: first I add.\n\nAction: add with Action Input: {"by": 1}'
    done = 'Observation: did add {"by": 1}\nGive me one action.'
    half = 1.0 if mount == "weather" else 0.5
    assert talk.post("step", action=call) == {"observation": done, "reward": half, "done": False}
    assert talk.get("observation") == 'Observation: did add {"by": 1}'
    assert talk.post("step", action="no call")["reward"] == half  # the reward so far
    last = talk.post("step", action='Action: finish with Action Input: {"answer": 3}')
    assert last == {"observation": "Observation: \nGive me one action.", "reward": 1.0, "done": True}
    assert type(last["reward"]) is (bool if mount == "todo" else float)


def test_todo_that_is_half_done_is_false(server, http):
    talk = Talk(http, server, "todo")
    talk.post("reset", id=0)
    last = talk.post("step", action="Action: finish with Action Input: {}")
    assert last["done"] is True and last["reward"] is False


def test_searchqa(server, http):
    talk, text = Talk(http, server, "searchqa"), told(worlds()["searchqa"], 0)
    assert talk.post("reset", id=0) == text == talk.get("observation")
    number = text.removeprefix("task ")
    answer = talk.post("step", action="<think>hm</think><search> who  is it</search><answer>x</answer>")
    assert answer == {
        "observation": f"heard <search>who is it</search> of {number}",
        "reward": 0.0,
        "done": False,
        "info": None,
    }
    assert talk.post("close") is True and talk.post("close") is False


def test_webarena(server, http):
    talk, text = Talk(http, server, "webarena"), told(worlds()["echo"], 1)
    assert talk.post("reset", seed=0, idx=1) == {"observation": text, "sites": [], "object": None}
    number = text.removeprefix("task ")
    bad = talk.post("step", action="I click")
    assert (bad["reward"], bad["terminated"], bad["truncated"], bad["info"]) == (0, False, False, None)
    assert talk.post("step", action="In summary, ```click [3]``` and ```stop```") == {
        "observation": f"heard click [3] of {number}",
        "reward": 0.0,
        "terminated": False,
        "truncated": False,
        "info": {},
    }
    assert talk.post("step", action="```end 1```")["terminated"] is True
    assert talk.get("observation") == "" and talk.get("observation_metadata") == {}
    assert talk.post("close") == {"closed": "closed"} and talk.post("close") == {"closed": "not open"}


@pytest.mark.parametrize("mount", sorted(MOUNTS))
def test_every_mount_says_who_it_is_closes_and_knows_no_strangers(server, http, mount):
    talk = Talk(http, server, mount)
    hello = talk.get("")
    assert hello == "ok" or hello.startswith("This is environment ")
    other = Talk(http, server, "webshop" if mount != "webshop" else "sqlgym")
    strange = http.post(f"{talk.base}/step", json={talk.key: other.id, "action": "x"})
    assert strange.status_code == 404 and strange.json()["kind"] == "SessionGone"
    talk.post("close")
    assert talk.post("step", 404, action="x")["kind"] == "SessionGone"
    assert talk.get("observation", 404)["kind"] == "SessionGone"


def test_after_the_end_the_last_answer_is_told_again(server, http):
    talk = Talk(http, server, "echo")
    talk.post("reset", data_idx=0)
    last = talk.post("step", action="end .5")
    assert talk.post("step", action="give 1") == {**last, "ended": True}
    assert talk.post("step", action="end 1") == {**last, "ended": True}
    talk.post("reset", data_idx=0)
    assert talk.post("step", action="give 1")["reward"] == 1.0


@pytest.mark.parametrize(
    "body, kind",
    [
        ({"id": "x", "action": "a"}, "SampleInvalid"),
        ({"id": True, "action": "a"}, "SampleInvalid"),
        ({"action": "a"}, "SampleInvalid"),
        ({"id": 1.5, "action": "a"}, "SampleInvalid"),
        ([1], "SampleInvalid"),
    ],
)
def test_wrong_types_are_typed_errors(server, http, body, kind):
    reply = http.post(f"{server.mount('echo')}/step", json=body)
    assert reply.status_code == 422 and reply.json()["kind"] == kind
    assert set(reply.json()) >= {"kind", "message", "expected"}


def test_hostile_bodies_and_actions(server, http):
    talk = Talk(http, server, "echo")
    for data in (b"{", b'{"id": NaN}', b"\xff", b'{"id": 1e400}'):
        assert http.post(f"{talk.base}/step", content=data).status_code == 422, data
    assert http.post(f"{talk.base}/step", content=b"[" * 10_000).status_code == 413
    talk.post("reset", data_idx=0)
    assert talk.post("step", 422, action=["x"])["kind"] == "SampleInvalid"
    assert talk.post("step", 422, action=None)["kind"] == "SampleInvalid"
    for odd in ("a\0b", "\ud800", "x" * 200_000):  # an agent's mistake is an observation
        reply = http.post(f"{talk.base}/step", content=json.dumps({"id": talk.id, "action": odd}).encode())
        assert reply.status_code == 200 and reply.json()["invalid"] is True and reply.json()["done"] is False
    assert talk.post("step", action="give 1")["reward"] == 1.0


def test_paths_and_methods_that_are_not_there(server, http):
    lost = http.post(f"{server.url}/agentgym/textcrat/step", json={})
    assert lost.status_code == 404 and "Did you mean /textcraft/step?" in lost.json()["message"]
    listed = http.get(f"{server.url}/agentgym").json()["mounts"]
    assert listed == {mount: {"world": world, "dialect": dialect} for mount, (world, dialect) in MOUNTS.items()}
    assert "lists the mounts" in http.get(f"{server.url}/agentgym/zzz").json()["message"]
    wrong = http.get(f"{server.mount('textcraft')}/step")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
