"""Worlds of a user's prompts: rewards, splits, tools, and every mistake in one sentence with its place."""

from __future__ import annotations

import enum
import json
import re
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Literal, TypedDict

import pytest

from evolvent.errors import ConfigError
from evolvent.identity import code_fingerprint
from evolvent.messages import Tool
from evolvent.worlds.prompts.rewards import Completion, Reward, make_rewards
from evolvent.worlds.prompts.tools import FunctionTool, read_calls
from evolvent.worlds.prompts.world import PromptWorld

ROWS = [{"prompt": f"what is {n} + {n}?", "answer": 2 * n} for n in range(40)]


def right(completion, answer):
    return float(str(answer) in completion)


def play(world, *replies, number=0):
    env = world.make(world.tasks("train", "seen")[number])
    observation, info = env.reset()
    steps = [(observation, 0.0, False, False, info)]
    return steps + [env.step(reply) for reply in replies]


# ---------------------------------------------------------------------- rewards


@pytest.mark.parametrize(
    "function",
    [
        lambda completion, answer: len(completion) + answer,
        lambda text, answer: len(text) + answer,
        lambda answer, completion: len(completion) + answer,
        lambda text, **row: len(text) + row["answer"],
        lambda completion, row: len(completion) + row["answer"],
        lambda completion, *, answer, missing=0: len(completion) + answer + missing,
        lambda completions, answer, **row: [len(completions[0]) + answer[0]],
        lambda prompts, completions, answer: [len(completions[0]) + answer[0] + 0 * len(prompts[0])],
        lambda messages, answer, completion: len(messages[-1]["content"]) + answer,
        lambda messages, answer: len(messages[-1]["content"]) + answer,
        lambda row, messages: len(messages[-1]["content"]) + row["answer"],
        lambda prompt, **row: len(row["completion"]) + row["answer"] + 0 * prompt.index("what is"),
    ],
)
def test_reward_gets_what_it_names(function):
    world = PromptWorld(ROWS, function, success_at=100)
    task = world.tasks("train", "seen")[0]
    assert play(world, "four")[-1][1] == 4 + task.spec["row"]["answer"]


def test_async_rewards_and_weights_add_up():
    async def length(completion):
        return len(completion)

    world = PromptWorld(ROWS, [(length, 0.5), right], weights=None)
    answer = str(world.tasks("train", "seen")[0].spec["row"]["answer"])
    _, reward, terminated, _, info = play(world, answer)[-1]
    assert terminated and reward == 0.5 * len(answer) + 1.0
    assert info["rewards"] == {"length": len(answer), "right": 1.0}
    assert [reward.weight for reward in make_rewards([length, right], [0.2, 3])] == [0.2, 3.0]
    assert [reward.name for reward in make_rewards([right, right])] == ["right-1", "right-2"]


def raises(completion):
    return {}["missing"]


async def raises_later(completion):
    raise ValueError("no answer")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "reward 'raises' raised KeyError at .*test_prompts.py:[0-9]+: got 'missing'"),
        (raises_later, "reward 'raises_later' raised ValueError at .*test_prompts.py:[0-9]+: got no answer"),
        (lambda completion: None, "returned None: expected a finite number"),
        (lambda completion: float("nan"), "returned nan: expected a finite number"),
        (lambda completion: float("inf"), "returned inf"),
        (lambda completion: "good", "returned the text 'good'"),
        (lambda completion: [1.0], "returned a list of 1: expected a finite number"),
        (lambda completions: [1.0, 2.0], "returned a list of 2: expected a list of one number"),
        (lambda completions: 1.0, "returned an object of type float: expected a list of one number"),
        (lambda completions: [None], "returned None"),
        (lambda completion: 10**400, "returned a number that is too large"),
        (lambda completion: Decimal("NaN"), "returned nan"),
    ],
)
def test_bad_reward_leaves_the_episode_unscored(function, message):
    world = PromptWorld(ROWS, function)
    _, reward, terminated, _, info = play(world, "a reply")[-1]
    assert reward is None and terminated
    assert re.search(message, info["problem"]) and "\n" not in info["problem"]
    assert world.score([reward], info).raw is None


def test_a_reward_that_changes_its_row_changes_no_other_reply():
    def hits(completion, answers, row, messages):
        """Takes each answer once, as functions that count matches do."""
        messages[0]["content"] = row["more"]["of"].clear()
        return sum(answers.remove(word) is None for word in completion.split() if word in answers)

    rows = [{"prompt": f"{n}", "answers": ["a", "b", "b"], "more": {"of": [1]}} for n in range(8)]
    world = PromptWorld(rows, [hits, (hits, 10)])
    task = world.tasks("train", "seen")[0]
    before = json.dumps(task.spec)
    assert [play(world, "b a b b")[-1][1] for _ in range(3)] == [33, 33, 33]
    assert json.dumps(task.spec) == before
    tasks = PromptWorld(rows, lambda text: 1.0).tasks("train", "seen")
    assert world.tasks("train", "seen") == tasks, "and the prompts of other worlds are the same"


def test_code_that_exits_in_a_reward_or_tool_is_an_error_of_it():
    def run(completion):
        sys.exit(int(completion))

    def python(code: str) -> str:
        """Runs code."""
        sys.exit(int(code))

    with ThreadPoolExecutor(1) as pool:  # as episodes run them; in the main thread `exit()` ends the process
        step = pool.submit(play, PromptWorld(ROWS, run), "3").result()[-1]
        result = pool.submit(FunctionTool(python).run, {"code": "3"}).result()
    assert step[1] is None and re.search(r"raised SystemExit at .*test_prompts.py:\d+: got 3", step[4]["problem"])
    assert result.text == "error: SystemExit: 3" and "raised SystemExit at" in result.problem
    with pytest.raises(SystemExit):
        FunctionTool(python).run({"code": "3"})


def test_numbers_of_arrays_count():
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    completion = Completion("x", "p", ())
    for values in (numpy.array([0.25]), torch.tensor([0.25]), (0.25,), [numpy.float32(0.25)], [Decimal("0.25")]):
        assert Reward(lambda completions, values=values: values).score(completion, {}) == 0.25
    assert Reward(lambda completion: Decimal("0.5")).score(completion, {}) == 0.5
    assert Reward(lambda completion: numpy.float32(0.5)).score(completion, {}) == 0.5
    assert Reward(lambda completion: numpy.array(2)).score(completion, {}) == 2.0
    assert Reward(lambda completion: True).score(completion, {}) == 1.0


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ((), "rewards is empty"),
        (3, "cannot be called"),
        (lambda: 1.0, "does not take a completion"),
        (lambda prompt, answer: 1.0, "does not take a completion"),
        (lambda row: 1.0, "does not take a completion"),
        ((right, float("nan")), "not a number|cannot be called"),
        (lambda completion, solution: 1.0, "needs column 'solution': got columns answer, prompt"),
    ],
)
def test_impossible_rewards_are_refused(rewards, message):
    with pytest.raises(ConfigError, match=message):
        PromptWorld(ROWS, rewards)


def test_a_reply_in_a_parameter_with_the_name_of_a_column_is_told(caplog):
    def same(answer, text):
        return float(answer == text)

    world = PromptWorld([{**row, "text": "42"} for row in ROWS], same)
    assert play(world, "42")[-1][1] == 1.0
    assert "parameter 'answer' of reward 'same' is the reply, not the column" in caplog.text
    caplog.clear()
    PromptWorld(ROWS, lambda text, answer: 1.0)
    assert not caplog.records


def test_success_is_full_marks_or_what_is_said():
    world = PromptWorld(ROWS, [right, (right, 0.5)])
    assert world.reward_range == (0.0, 1.5)
    assert world.score([1.5], {}).success and not world.score([1.0], {}).success
    assert world.score([1.0], {}).unit == pytest.approx(2 / 3)
    assert PromptWorld(ROWS, right, success_at=0.2).score([0.3], {}).success


# ---------------------------------------------------------------------- rows and splits


@pytest.mark.parametrize("column", ["prompt", "question", "problem"])
def test_prompt_columns(column):
    world = PromptWorld([{column: f"number {n}", "answer": n} for n in range(10)], right)
    assert play(world)[0][0].startswith("number ")


def test_messages_open_a_conversation():
    rows = [
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"number {n}"}]}
        for n in range(10)
    ]
    observation, *_, info = play(PromptWorld(rows, lambda text: 1.0))[0]
    assert observation.startswith("system: Be brief.\n\nuser: number")
    assert [message["role"] for message in info["messages"]] == ["system", "user"]
    replied = [{"messages": [*row["messages"], {"role": "assistant", "content": "one"}]} for row in rows]
    assert play(PromptWorld(replied, lambda text: 1.0))[0][-1]["messages"] == info["messages"]
    as_text = [{"messages": json.dumps(row["messages"])} for row in rows]  # a cell of CSV
    assert play(PromptWorld(as_text, lambda text: 1.0))[0][-1]["messages"] == info["messages"]
    own = PromptWorld([{"prompt": f"number {n}"} for n in range(10)], lambda text: 1.0, instructions="Be brief.")
    assert [message["role"] for message in play(own)[0][-1]["messages"]] == ["system", "user"]


def test_chat_rows_are_written_by_the_chat_template():
    from benchmarks.templates import byte_level_tokenizer, template_text
    from evolvent.models.dialects import Chat, continue_conversation, open_conversation

    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    tokenizer = byte_level_tokenizer(template_text("qwen2_5.jinja"))
    chat = Chat(tokenizer)
    world = PromptWorld([{"prompt": f"add {n}"} for n in range(10)], lambda text: 1.0, tools=add, instructions="Add.")
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    first, second = play(world, call)
    opening = tokenizer.decode(open_conversation(chat, world.instructions, first[0], first[-1]))
    assert opening.startswith("<|im_start|>system\nAdd.") and '"name": "add"' in opening
    between = tokenizer.decode(continue_conversation(chat, second[0], second[-1], stopped=True))
    assert between == "\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


def test_splits_depend_on_the_prompts_alone():
    world = PromptWorld(ROWS, right)
    assert sum(world.splits.values()) == 40 and min(world.splits.values()) >= 2
    turned = PromptWorld(list(reversed(ROWS)), right)
    for split in ("train", "dev", "test"):
        assert {task.id for task in turned.tasks(split, "seen")} == {task.id for task in world.tasks(split, "seen")}
    more = PromptWorld([*ROWS, *({"prompt": f"and {n}", "answer": n} for n in range(200))], right)
    assert {task.id for task in world.tasks("train", "seen")} <= {task.id for task in more.tasks("train", "seen")}
    twice = PromptWorld([*ROWS, *({**row, "answer": 0} for row in ROWS)], right)
    split_of = {
        task.spec["row"]["prompt"]: task.split for split in ("dev", "test") for task in twice.tasks(split, "seen")
    }
    assert all((task.spec["row"]["prompt"] not in split_of) for task in twice.tasks("train", "seen")), (
        "rows with one prompt are in one split"
    )


def test_stated_splits_are_kept():
    rows = [{**row, "split": "test" if number < 5 else "train"} for number, row in enumerate(ROWS)]
    world = PromptWorld(rows, right)
    assert world.splits["test"] == 5 and world.splits["train"] + world.splits["dev"] == 35
    assert world.splits["dev"] >= 2


def test_rows_of_an_unknown_split_are_neither_trained_on_nor_measured(caplog):
    rows = [{**row, "split": "heldout" if number < 5 else " Train"} for number, row in enumerate(ROWS)]
    world = PromptWorld(rows, right)
    tasks = [task for split in ("train", "dev", "test") for task in world.tasks(split, "seen")]
    assert sorted(task.spec["row"]["answer"] for task in tasks) == [2 * number for number in range(5, 40)]
    assert (
        "5 of 40 rows are left out; the first: row 0: column 'split' has an unknown value: got heldout" in caplog.text
    )
    with pytest.raises(ConfigError, match="column 'split' has an unknown value: got 1, expected train, dev"):
        PromptWorld([{**row, "split": 1} for row in ROWS], right)


def test_a_row_of_train_and_test_is_held_out_and_a_shared_prompt_is_told(caplog):
    world = PromptWorld({"train": ROWS, "test": ROWS[:4]}, right)
    assert [task.spec["row"]["answer"] for task in world.tasks("test", "seen")] == [0, 2, 4, 6]
    assert not {0, 2, 4, 6} & {task.spec["row"]["answer"] for task in world.tasks("train", "seen")}
    assert "also in train" not in caplog.text
    others = [{**row, "answer": -1} for row in ROWS[:3]]
    world = PromptWorld({"train": ROWS, "dev": ROWS[30:32], "test": [*others, ROWS[20]]}, right)
    assert world.splits == {"train": 37, "dev": 2, "test": 4}
    assert "3 prompts of dev or test are also in train, where they are learned" in caplog.text
    unstated = [*({**row, "split": "test"} for row in others), *ROWS]
    in_test = PromptWorld(unstated, right).tasks("test", "seen")
    assert {task.spec["row"]["answer"] for task in in_test} == {-1, 0, 2, 4}, "one prompt, one split"


def test_small_and_repeated_rows(caplog):
    world = PromptWorld([*ROWS[:3], ROWS[0]], right)
    assert world.splits == {"train": 3, "dev": 3, "test": 3}
    assert "1 rows repeat another row" in caplog.text and "too few to measure" in caplog.text
    assert PromptWorld(ROWS[:6], right).splits == {"train": 2, "dev": 2, "test": 2}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the dataset is empty"),
        (ROWS[:1], "the dataset has one row"),
        ([{"text": "a", "answer": 1}], "has no prompts: got columns answer, text, expected a column prompt"),
        ([{"prompt": 3}, {"prompt": None}], "row 0: column 'prompt' is not a prompt: got int 3"),
        ([{"prompt": " "}, {"prompt": ""}], "column 'prompt' is empty"),
        ([{"messages": [{"role": "nobody", "content": "x"}]}], "no known role"),
        ([{"messages": [{"role": "assistant", "content": "x"}]}], "no message before a reply"),
    ],
)
def test_unusable_rows_are_refused(rows, message):
    with pytest.raises(ConfigError, match=message):
        PromptWorld(rows, lambda text: 1.0)


def test_mixed_rows_keep_the_usable_ones(caplog):
    rows = [*ROWS, {"prompt": 3, "answer": 3}, {"prompt": None, "answer": 1}]
    assert sum(PromptWorld(rows, right).splits.values()) == 40
    assert "2 of 42 rows are left out; the first: row 40: column 'prompt' is not a prompt" in caplog.text


# ---------------------------------------------------------------------- tools


class Unit(enum.Enum):
    METER, FOOT = "meter", "foot"


@dataclass
class Size:
    """A size."""

    height: float
    unit: Unit = Unit.METER


class Box(TypedDict):
    name: str
    tags: list[str]


def measure(
    size: Size,
    boxes: list[Box],
    kind: Literal["all", "one"] = "all",
    limit: int | None = None,
    extra: dict[str, float] | None = None,
) -> dict:
    """Measures boxes.

    Every box is looked at.

    Args:
        size: the size
            of a box.
        limit (int): most boxes.

    Returns:
        the result.
    """
    return {"unit": size.unit.value, "names": [box["name"] for box in boxes], "kind": kind, "limit": limit}


def test_schema_follows_from_signature_and_docstring():
    tool = FunctionTool(measure)
    properties = tool.tool.parameters["properties"]
    assert tool.tool.description == "Measures boxes. Every box is looked at."
    assert (
        properties["size"]["description"] == "the size of a box."
        and properties["limit"]["description"] == "most boxes."
    )
    assert properties["kind"] == {"enum": ["all", "one"], "type": "string", "default": "all"}
    assert properties["limit"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert tool.tool.parameters["required"] == ["size", "boxes"]
    assert tool.tool.parameters["$defs"]["Unit"]["enum"] == ["meter", "foot"]
    assert "title" not in json.dumps(tool.tool.parameters)
    result = tool.run({"size": {"height": 2, "unit": "foot"}, "boxes": [{"name": "a", "tags": []}], "limit": 3})
    assert json.loads(result.text) == {"unit": "foot", "names": ["a"], "kind": "all", "limit": 3}


def test_any_name_of_a_parameter_reaches_the_function():
    """In a model of pydantic these names are methods, settings or private."""

    def search(json: str, _x: int, model_config: str = "a", copy: int = 2, model_dump: int = 3, schema: str = "b"):
        return [json, _x, model_config, copy, model_dump, schema]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tool = FunctionTool(search)
    parameters = tool.tool.parameters
    assert list(parameters["properties"]) == ["json", "_x", "model_config", "copy", "model_dump", "schema"]
    assert parameters["required"] == ["json", "_x"]
    assert tool.run({"json": "j", "_x": 1, "model_config": "c", "schema": "s"}).text == '["j", 1, "c", 2, 3, "s"]'
    assert tool.run({"_x": "one", "parameter_0": "j"}).text.startswith(
        "error: search: json: Field required; _x: Input should be a valid integer"
    )


def test_results_are_json_and_partials_are_tools():
    numpy = pytest.importorskip("numpy")

    def give(number: int, factor: int = 1) -> object:
        results = [Size(1.5), {"unit": Unit.FOOT}, {3}, numpy.arange(3), numpy.float32(2.5)]
        return results[number]

    texts = [FunctionTool(give).run({"number": number}).text for number in range(5)]
    assert texts == ['{"height": 1.5, "unit": "meter"}', '{"unit": "foot"}', "[3]", "[0, 1, 2]", "2.5"]

    def scale(value: int, factor: int) -> int:
        return value * factor

    doubled = partial(scale, factor=2)
    assert (FunctionTool(doubled).name, FunctionTool(doubled).run({"value": 4}).text) == ("scale", "8")


def test_wrong_arguments_and_errors_are_read_by_the_model():
    tool = FunctionTool(measure)
    assert tool.run({"boxes": []}).text == "error: measure: size: Field required"
    assert tool.run({"size": {"height": 1}, "boxes": [], "other": 1}).text.startswith("error: measure: other: Extra")

    def fails(a: int) -> int:
        return 1 // a

    result = FunctionTool(fails).run({"a": 0})
    assert result.text.startswith("error: ZeroDivisionError")
    assert "tool 'fails' raised ZeroDivisionError at" in result.problem and "test_prompts.py:" in result.problem

    async def later(a: int) -> int:
        return a + 1

    assert FunctionTool(later).run({"a": 1}).text == "2"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a: a, "has a parameter without a type: got a"),
        (lambda *a: a, "takes arguments without names"),
        (3, "not a function"),
    ],
)
def test_tools_without_types_are_refused(function, message):
    with pytest.raises(ConfigError, match=message):
        PromptWorld(ROWS, right, tools=[function])


ADD = Tool("add_up", "", {"type": "object", "properties": {"a": {"type": "integer"}}})


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add_up", "arguments": {"a": 1}}</tool_call>',
        "<function=add_up><parameter=a>1</parameter></function>",
        '[{"name": "add_up", "arguments": {"a": 1}}]',
        '{"name": "add_up", "parameters": {"a": 1}}',
        '```json\n[{"name": "add_up", "arguments": {"a": 1}}]\n```',
        "[add_up(a=1)]",
        "[ add up ( a = 1 ) ]",
        '[TOOL_CALLS] [{"name": "add_up", "arguments": {"a": 1}}]',
        '<think>\n{maybe}\n</think>\n{"name": "add_up", "arguments": {"a": 1}}',
    ],
)
def test_calls_are_read_in_every_form(text):
    (call,) = read_calls(text, [ADD])[1]
    assert (call.name, call.arguments) == ("add_up", {"a": 1})


@pytest.mark.parametrize("text", ["3", "[1, 2]", '{"name": "Bob"}', "[not a call", "add_up", '{"a": 1}', ""])
def test_other_replies_are_text(text):
    assert read_calls(text, [ADD]) == (text, ())


def test_an_episode_with_tools_has_several_turns():
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    def used(completion, messages):
        return float(any(message["role"] == "tool" for message in messages) and completion == "3")

    world = PromptWorld(ROWS, used, tools=add, max_turns=3)
    steps = play(world, "[add(a=1, b=2)]", "3")
    assert steps[1][:3] == ("3", 0.0, False) and steps[2][1:3] == (1.0, True)
    assert play(world, "3")[-1][1] == 0.0
    assert play(world, '[add(a=1, b=2), {"x"}]')[-1][2], "what cannot be read is the final reply"
    last = play(world, "[add(a=1, b=2)]", "[add(a=1, b=2)]", "[add(a=1, b=2)]")[-1]
    assert last[2] and last[1] == 0.0, "the last turn is scored as it is"
    assert play(world, "[ad(a=1)]")[-1][2] and "unknown tool" in play(world, '[{"name": "ad", "arguments": {}}]')[-1][0]


def test_tool_episodes_can_be_searched_from_a_snapshot():
    def add(a: int, b: int) -> int:
        return a + b

    world = PromptWorld(ROWS, lambda text: 1.0, tools=add)
    env = world.make(world.tasks("train", "seen")[0])
    env.reset()
    env.step("[add(a=1, b=2)]")
    moment = env.snapshot()
    assert env.step("3")[2]
    env.restore(moment)
    assert env.step("[add(a=2, b=2)]")[0] == "4"


# ---------------------------------------------------------------------- identity


HELPED = 1


def helper():
    return HELPED


def test_fingerprint_covers_functions_and_what_they_use(monkeypatch):
    def reward(completion):
        return helper()

    before = code_fingerprint(reward)
    assert code_fingerprint(reward) == before
    monkeypatch.setattr(f"{__name__}.HELPED", 2)
    assert code_fingerprint(reward) != before
    made = [lambda completion, factor=factor: factor for factor in (1, 2)]
    assert len({code_fingerprint(function) for function in made}) == 2

    def close_over(value):
        return lambda completion: value

    assert code_fingerprint(close_over(1)) != code_fingerprint(close_over(2))


def test_fingerprint_of_a_world_covers_rewards_tools_and_rows():
    def add(a: int) -> int:
        return a

    fingerprints = {
        PromptWorld(ROWS, right).fingerprint,
        PromptWorld(ROWS[1:], right).fingerprint,
        PromptWorld(ROWS, lambda text: 1.0).fingerprint,
        PromptWorld(ROWS, (right, 0.5)).fingerprint,
        PromptWorld(ROWS, right, tools=add).fingerprint,
        PromptWorld(ROWS, right, instructions="x").fingerprint,
    }
    assert len(fingerprints) == 6 and PromptWorld(ROWS, right).fingerprint in fingerprints
