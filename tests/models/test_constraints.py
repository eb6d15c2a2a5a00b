"""Constraints: the mask against every continuation of small languages, walks at random, and what is refused."""

import itertools
import json

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llguidance")

from evolvent.errors import ConfigError, InvalidAction, SampleInvalid, VocabularyMismatch
from evolvent.grade.calls import decode_calls
from evolvent.messages import Call, CallSample, Message, Tool
from evolvent.models.call_grammars import build_grammar
from evolvent.models.call_schemas import AnswerLimits, close_exclusive_bounds, narrow_schema
from evolvent.models.constraints import CallConstraints
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer
from evolvent.models.toolchat import ChatTools
from evolvent.models.toolprompt import Compact, FourBlocks
from evolvent.schemas import find_argument_faults
from evolvent.worlds.functions.catalogue import catalogue
from evolvent.worlds.functions.episode import read_calls, write_calls
from evolvent.worlds.functions.spelling import encode_words, resolve_names
from evolvent.worlds.functions.world import Functions, closed_vocabulary
from tests.models.test_dialects import CHATML, byte_tokenizer
from tests.models.test_toolprompt import HERMES, SAMPLE

SMALL = AnswerLimits(calls=2, text=6, items=2)
TOOLS = (
    Tool(
        "get",
        "",
        {
            "type": "object",
            "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, 12, None]}, "ab": {"enum": ["x", "x y"]}},
            "required": ["b"],
        },
    ),
    Tool(
        "get_all",
        "",
        {
            "type": "object",
            "properties": {"c": {"type": "array", "items": {"enum": [0, -1]}, "minItems": 1, "maxItems": 2}},
        },
    ),
    Tool(
        "go",
        "",
        {
            "type": "object",
            "properties": {
                "o": {
                    "type": "object",
                    "minProperties": 1,
                    "properties": {"k_l": {"type": "integer", "minimum": 3, "maximum": 4}, "m": {"type": "boolean"}},
                }
            },
            "required": ["o"],
        },
    ),
)
WORDS = '[ ] ( ) = , " : { } - True False None get all go a b ab c o k l m 0 1 3 4 12 x y'.split()  # noqa: SIM905
MARKED = ["<|im_start|>", "<|im_end|>", "<tool_call>"]


def policy_of(tokenizer, dialect: str | None = None, *, context: int = 256) -> Policy:
    model = init_tiny(tiny_config(len(tokenizer), context=context), seed=0)
    return Policy(model, tokenizer, dialect_for(tokenizer, dialect))


@pytest.fixture(scope="module")
def words() -> Policy:
    return policy_of(word_tokenizer(WORDS), "words")


@pytest.fixture(scope="module")
def letters() -> Policy:
    tokenizer = byte_tokenizer(CHATML, MARKED)
    tokenizer.eos_token = "<|im_end|>"  # the only token that ends a reply
    return policy_of(tokenizer)


@pytest.fixture(scope="module")
def world_words() -> Policy:
    return policy_of(word_tokenizer(sorted(closed_vocabulary())), "words")


def arguments_of(tool: Tool) -> list[dict]:
    """Every object of arguments, in the order of the schema, by trying all values of a small pool."""
    pool = {
        "a": [True, False],
        "b": [1, 12, None],
        "ab": ["x", "x y"],
        "c": [list(one) for n in (1, 2) for one in itertools.product([0, -1], repeat=n)],
        "o": [
            {"k_l": 3},
            {"k_l": 4},
            {"m": True},
            {"m": False},
            *({"k_l": n, "m": m} for n in (3, 4) for m in (True, False)),
        ],
    }
    names = list(tool.parameters["properties"])
    found = []
    for chosen in itertools.chain.from_iterable(itertools.combinations(names, n) for n in range(len(names) + 1)):
        for values in itertools.product(*(pool[name] for name in chosen)):
            one = dict(zip(chosen, values, strict=True))
            if not find_argument_faults(one, tool.parameters):
                found.append(one)
    return found


def python(call: Call) -> str:
    """Python's form, written once more: texts in double quotes."""

    def value(one) -> str:
        if isinstance(one, dict):
            return "{" + ", ".join(f"{json.dumps(k)}: {value(v)}" for k, v in one.items()) + "}"
        if isinstance(one, list):
            return "[" + ", ".join(map(value, one)) + "]"
        return json.dumps(one) if isinstance(one, str) else repr(one)

    return f"{call.name}({', '.join(f'{k}={value(v)}' for k, v in call.arguments.items())})"


def language(form: str, most: int) -> set[str]:
    """Every answer of at most so many calls."""
    calls = [Call(tool.name, one) for tool in TOOLS for one in arguments_of(tool)]
    found = {"[]"}
    for count in range(1, most + 1):
        for several in itertools.product(calls, repeat=count):
            rows = [json.dumps({"name": one.name, "arguments": one.arguments}) for one in several]
            found.add(
                {
                    "words": encode_words(several),
                    "python": f"[{', '.join(map(python, several))}]",
                    "json": f"[{', '.join(rows)}]",
                    "xml": "\n".join(f"<tool_call>\n{row}\n</tool_call>" for row in rows),
                }[form]
            )
    return found


def check_all(start, texts: dict[tuple[int, ...], None], stop: int, size: int) -> int:
    """At every beginning of every text exactly the tokens of longer beginnings are allowed; returns how many."""
    follow: dict[tuple[int, ...], set[int]] = {}
    for text in texts:
        for end, token in enumerate((*text, stop)):
            follow.setdefault(text[:end], set()).add(token)
    waiting = [((), start)]
    seen = 0
    while waiting:
        before, state = waiting.pop()
        mask = state.allowed()
        assert mask.shape == (size,) and set(np.flatnonzero(mask).tolist()) == follow[before], before
        seen += 1
        for token in follow[before] - {stop}:
            after = state.copy()
            after.advance(token)
            waiting.append(((*before, token), after))
    assert seen == len(follow)
    return seen


def test_the_mask_over_words_is_that_of_all_continuations(words):
    start = CallConstraints(words, limits=AnswerLimits(calls=1, text=6, items=2)).for_tools(TOOLS, form="words")
    texts = dict.fromkeys(tuple(words.dialect.action(text)[:-1]) for text in language("words", 1))
    (stop,) = words.dialect.stop_ids
    assert check_all(start, texts, stop, len(words.tokenizer)) > 150
    two = CallConstraints(words, limits=SMALL).for_tools(TOOLS[1:2], form="words")
    lists = [encode_words([Call("get_all", one)]) for one in arguments_of(TOOLS[1])]
    pairs = {"[]", *lists, *(f"{a[:-1]}, {b[1:]}" for a in lists for b in lists)}
    assert (
        check_all(
            two, dict.fromkeys(tuple(words.dialect.action(one)[:-1]) for one in pairs), stop, len(words.tokenizer)
        )
        > 100
    )


@pytest.mark.parametrize("form", ["python", "json", "xml"])
def test_the_mask_over_bytes_is_that_of_all_continuations(letters, form):
    tokenizer, (stop,) = letters.tokenizer, letters.dialect.stop_ids
    start = CallConstraints(letters, limits=AnswerLimits(calls=1, text=6, items=2)).for_tools(TOOLS, form=form)
    texts: dict[tuple[int, ...], None] = {}
    mark = tokenizer.convert_tokens_to_ids("<tool_call>")
    spelled = [tokenizer.convert_tokens_to_ids(letter) for letter in "<tool_call>"]
    for text in language(form, 1):
        for first in ("", " "):
            ids = tuple(tokenizer.encode(first + text, add_special_tokens=False))
            texts[ids] = None
            texts[tuple(one for index in ids for one in (spelled if index == mark else [index]))] = None
    assert check_all(start, texts, stop, len(tokenizer)) > 500


def merged() -> Policy:
    """Byte-level pieces of several letters, that lie across the bounds of names, quotes and commas."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<eos>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(sorted(language("json", 1) | language("python", 1)), trainer)
    return policy_of(PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>"), "lines")


@pytest.mark.parametrize("form", ["python", "json"])
def test_pieces_across_bounds_are_allowed_exactly_where_some_text_goes_on_so(form):
    policy = merged()
    tokenizer, (stop,) = policy.tokenizer, policy.dialect.stop_ids
    texts = {first + text for text in language(form, 1) for first in ("", " ")}
    begun = {text[:end] for text in texts for end in range(len(text) + 1)}
    pieces = {index: tokenizer.decode([index]) for index in range(len(tokenizer)) if index != stop}
    waiting = {"": CallConstraints(policy, limits=AnswerLimits(calls=1, text=6, items=2)).for_tools(TOOLS, form=form)}
    seen: set[str] = set()
    while waiting:
        before, state = waiting.popitem()
        seen.add(before)
        follow = {index for index, piece in pieces.items() if before + piece in begun}
        expected = follow | ({stop} if before in texts else set())
        assert set(np.flatnonzero(state.allowed()).tolist()) == expected, before
        for index in follow:
            if before + pieces[index] not in seen:
                waiting[before + pieces[index]] = after = state.copy()
                after.advance(index)
    assert max(map(len, pieces.values())) > 5 and texts <= seen


def walk(state, stop: int, rng: np.random.Generator, *, most: int = 3000) -> list[int]:
    """Allowed tokens at random, ending where that is allowed more often than not."""
    ids: list[int] = []
    for _ in range(most):
        allowed = np.flatnonzero(state.allowed())
        token = stop if state.allowed()[stop] and rng.random() < 0.7 else int(rng.choice(allowed))
        if token == stop:
            return ids
        ids.append(token)
        state.advance(token)
    raise LookupError("a walk that does not end")


@pytest.mark.parametrize("form", ["words", "python", "json", "xml", "words over bytes"])
def test_whatever_is_written_for_generated_tools_is_valid(form, letters, world_words):
    policy, short = (world_words, "words") if form == "words" else (letters, form.split()[0])
    made, (stop,) = CallConstraints(policy, limits=AnswerLimits(calls=3, text=8, items=3)), policy.dialect.stop_ids
    tools, rng, count = [entry.tool for entry in catalogue().values()], np.random.default_rng(7), 0
    for at in range(0, len(tools), 9):
        some = tools[at : at + 3]
        text = policy.dialect.text(walk(made.for_tools(some, form=short), stop, rng))
        calls, by = resolve_names(read_calls(text, short), some), {tool.name: tool for tool in some}
        assert all(find_argument_faults(call.arguments, by[call.name].parameters) == () for call in calls), text
        count += len(calls)
    assert count > 20


@pytest.mark.parametrize("form", ["words", "python", "json", "xml"])
def test_right_answers_of_the_generator_can_be_written(form, letters, world_words):
    policy, world = (world_words if form == "words" else letters), Functions(form)
    made = CallConstraints(policy)
    for task in [task for tier in world.tiers for task in world.tasks("dev", tier)[:8]]:
        for text in world.expert(task):
            calls = [Call(one.name, one.arguments) for one in read_calls(text, form)]
            text = f"[{', '.join(map(python, calls))}]" if form == "python" else write_calls(calls, form)
            state = made.for_tools(world.toolbox(task).tools, form=form)
            for token in policy.dialect.action(text):
                assert state.allowed()[token], text
                state.advance(token)


# ------------------------------------------------------------------ schemas

SCALARS = st.one_of(
    st.builds(
        lambda low, n: {"type": "integer", "minimum": low, "maximum": low + n}, st.integers(-9, 9), st.integers(0, 30)
    ),
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "string", "minLength": 2},
            {"type": "string", "pattern": "b<?", "maxLength": 4},
            {"type": "number"},
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            {"type": "integer"},
            {"type": "integer", "multipleOf": 3, "minimum": 4},
            {"type": ["boolean", "null"]},
            {"const": {"a": [1.5]}},
            {"enum": ['é"', "</tool", 1, 2.5, False], "type": ["string", "number"]},
            {},
            {"type": "string", "format": "date"},
            {"type": "tuple", "items": [{}, {"type": "int"}]},
            {"oneOf": [{"type": "string", "maxLength": 1}, {"type": "integer"}]},
            {"allOf": [{"type": "number"}, {"minimum": 2}, {"maximum": 3}]},
            {"type": "integer", "minimum": 10**17},
        ]
    ),
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(lambda one, n: {"type": "array", "items": one, "minItems": n}, inner, st.integers(0, 2)),
        st.builds(
            lambda several, free: {
                "type": "object",
                "properties": dict(zip("abc", several, strict=False)),
                "required": ["b"] if len(several) > 1 else [],
                "additionalProperties": free,
            },
            st.lists(inner, max_size=3),
            st.booleans(),
        ),
        st.builds(lambda one: {"type": "object", "additionalProperties": one}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(schema=SCHEMAS, form=st.sampled_from(["python", "json", "xml"]), seed=st.integers(0, 99))
def test_a_narrow_schema_only_asks_for_more(letters, schema, form, seed):
    tool = Tool("f", "", {"type": "object", "properties": {"x": schema}, "required": ["x"]})
    (stop,) = letters.dialect.stop_ids
    try:
        state = CallConstraints(letters, limits=AnswerLimits(calls=1, text=5, items=2)).for_tools(
            [tool], form=form, abstain=None
        )
    except SampleInvalid as error:
        assert "tag" in str(error) and form == "xml"
        return
    text = letters.dialect.text(walk(state, stop, np.random.default_rng(seed)))
    (call,) = decode_calls(text, form=form)
    assert call.name == "f" and find_argument_faults(call.arguments, tool.parameters) == (), text


BAD = [
    ({"type": "array", "uniqueItems": True}, "the keyword 'uniqueItems' at x"),
    ({"not": {"type": "string"}}, "the keyword 'not' at x"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "no value is possible at x"),
    ({"type": "integer", "multipleOf": 10, "minimum": 1, "maximum": 9}, "no value is possible at x"),
    ({"enum": []}, "no value is possible at x"),
    ({"enum": ["a"], "type": "integer"}, "no value is possible at x"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "no value is possible at x"),
    ({"type": "array", "items": False, "minItems": 1}, "no value is possible at x"),
    ({"type": "number", "multipleOf": 0.1}, "a fractional multipleOf at x"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "a oneOf with overlapping branches at x"),
    ({"type": "object", "additionalProperties": True, "minProperties": 2}, "minProperties of an object with unnamed"),
    ({"allOf": [{"minimum": 1}, {"minimum": 2}]}, "both have 'minimum'"),
    ({"allOf": [{"const": 1}, {"const": True}]}, "both have 'const'"),
    ({"allOf": [{"const": None}, {"const": 1}]}, "both have 'const'"),
    ({"type": []}, "no value is possible at x"),
    (
        {"allOf": [{"properties": {"a": {}}, "additionalProperties": False}, {"properties": {"b": {}}}]},
        "an intersection of two schemas, one of them with 'additionalProperties' at x",
    ),
    ({"properties": {"a": {}}, "allOf": [{"additionalProperties": {"type": "integer"}}]}, "'additionalProperties'"),
    ({"prefixItems": [{}], "allOf": [{"items": {"type": "integer"}}]}, "one of them with 'items' at x"),
    ({"properties": {"a": {}}, "anyOf": [{"type": "object", "additionalProperties": False}]}, "'additionalProperties'"),
]


@pytest.mark.parametrize(("schema", "said"), BAD, ids=[one[1][:40] for one in BAD])
def test_what_cannot_be_held_is_refused_with_its_path(letters, schema, said):
    tool = Tool("f", "", {"type": "object", "properties": {"x": schema}, "required": ["x"]})
    with pytest.raises(SampleInvalid, match=said) as raised:
        CallConstraints(letters).for_tools([tool], form="json")
    assert "calls of the tool 'f' cannot be constrained" in str(raised.value)


@pytest.mark.parametrize("pattern", [r"^\s$", r"^[\s_]$", r"^\w$", r"^[^\W]$", r"^\d$", r"^\S$", r"^[^\d\s]$"])
def test_classes_of_characters_are_those_that_answers_are_checked_with(letters, pattern):
    tool = Tool(
        "f", "", {"type": "object", "properties": {"x": {"type": "string", "pattern": pattern}}, "required": ["x"]}
    )
    start = CallConstraints(letters).for_tools([tool], form="json")
    for letter in "\u00a0\u3000\u0661\u00e9a1_ -":
        state, text = start.copy(), f'[{{"name": "f", "arguments": {{"x": "{letter}"}}}}]'
        written = True
        for token in letters.tokenizer.encode(text, add_special_tokens=False):
            written = written and bool(state.allowed()[token])
            state.advance(token)
        if written:
            assert find_argument_faults({"x": letter}, tool.parameters) == (), (pattern, letter)
    assert start.allowed().any()


def test_listed_objects_are_read_back_from_words(letters):
    listed = [{"k_l": 1}, [{"m n": "a_b"}], {"o": "two  spaces"}]
    tool = Tool("f_g", "", {"type": "object", "properties": {"x_y": {"enum": listed}}, "required": ["x_y"]})
    start, seen = CallConstraints(letters).for_tools([tool], form="words", abstain=None), []
    for seed in range(12):
        text = letters.dialect.text(walk(start.copy(), *letters.dialect.stop_ids, np.random.default_rng(seed)))
        seen += [call.arguments["x_y"] for call in resolve_names(read_calls(text, "words"), [tool])]
    assert all(one in seen for one in listed[:2]) and all(one in listed[:2] for one in seen)


def test_what_stands_beside_a_choice_that_is_always_open_still_holds(letters):
    tool = Tool("f", "", {"type": "object", "properties": {"x": {"type": "boolean", "anyOf": [True, False]}}})
    assert narrow_schema(tool, AnswerLimits())["properties"]["x"] == {"type": "boolean"}
    listed = Tool("f", "", {"type": "object", "properties": {"x": {"type": "string", "allOf": [{"enum": ["a", 1]}]}}})
    assert narrow_schema(listed, AnswerLimits())["properties"]["x"] == {"enum": ["a"]}


def test_listed_values_are_looked_at_once_each(monkeypatch):
    def alone(arguments, schema):
        assert len(json.dumps(schema)) < 200, "each value is checked beside all others: quadratic work"
        return find_argument_faults(arguments, schema)

    monkeypatch.setattr("evolvent.models.call_schemas.find_argument_faults", alone)
    values = [f"v{number}" for number in range(300)]
    listed = {"enum": [*values, 1, True, 1, "v0", None], "type": ["string", "integer", "boolean"]}
    tool = Tool("f", "", {"type": "object", "properties": {"x": listed}})
    assert narrow_schema(tool, AnswerLimits())["properties"]["x"]["enum"] == [*values, 1, True]


def test_an_optional_parameter_that_nothing_satisfies_is_left_out():
    tool = Tool("f", "", {"type": "object", "properties": {"x": {"enum": []}, "y": {"type": "boolean"}}})
    assert list(narrow_schema(tool, AnswerLimits())["properties"]) == ["y"]


def test_names_and_settings_that_cannot_be_used_are_refused(letters, words):
    made = CallConstraints(letters)
    empty = {"type": "object", "properties": {}}
    with pytest.raises(SampleInvalid, match="two tools have the same name"):
        made.for_tools([Tool("f", "", empty), Tool("f", "", empty)], form="json")
    with pytest.raises(SampleInvalid, match="ambiguous"):
        made.for_tools([Tool("f_g", "", empty), Tool("f__g", "", empty)], form="words")
    with pytest.raises(SampleInvalid, match="the call format cannot write a name"):
        made.for_tools([Tool("f g", "", empty)], form="python")
    with pytest.raises(SampleInvalid, match="the call format cannot write a name"):
        made.for_tools([Tool("get_2_items", "", empty)], form="words")
    with pytest.raises(SampleInvalid, match="a text without pattern and with minLength of at most 1"):
        made.for_tools(
            [Tool("f", "", {"type": "object", "properties": {"x": {"type": "string", "pattern": "a"}}})], form="words"
        )
    with pytest.raises(ConfigError, match="a call is required, but the tool list is empty"):
        made.for_tools([], form="json", abstain=None)
    with pytest.raises(ConfigError, match="form"):
        made.for_tools(TOOLS, form="java")
    with pytest.raises(VocabularyMismatch, match="missing from the policy's vocabulary"):
        CallConstraints(words).for_tools([Tool("unheard", "", empty)], form="words")
    with pytest.raises(ConfigError, match="a word-level vocabulary supports only one call format"):
        CallConstraints(words).for_tools(TOOLS, form="json")
    with pytest.raises(ConfigError, match=r"(?s)calls.*text.*items"):
        AnswerLimits(calls=0, text=0, items=0)
    assert build_grammar([], form="json", limits=SMALL).text.endswith('start: " "? ("[]")\n\n')


def test_a_copy_goes_its_own_way_and_wrong_tokens_end_a_text(letters):
    start = CallConstraints(letters).for_tools(TOOLS, form="json")
    bracket = letters.dialect.action("[")[0]
    other = start.copy()
    other.advance(bracket)
    assert start.allowed()[bracket] and not other.allowed()[bracket]
    wrong = start.copy()
    wrong.advance(letters.dialect.action("x")[0])
    assert not wrong.allowed().any() and wrong.fault and not start.fault


def test_prompts_read_back_what_is_written_under_them(letters, world_words):
    chat, rng = ChatTools(byte_tokenizer(HERMES, MARKED)), np.random.default_rng(3)
    named = {tool.name: tool for tool in SAMPLE.tools}
    limits, (stop,), kinds = AnswerLimits(calls=2, text=5, items=2), letters.dialect.stop_ids, set()
    for prompt in (Compact(), FourBlocks(), chat) * 6:
        sample = SAMPLE if prompt is chat or rng.random() < 0.8 else CallSample("n", SAMPLE.messages, SAMPLE.tools, ())
        text = letters.dialect.text(walk(CallConstraints(letters, limits=limits).for_prompt(prompt, sample), stop, rng))
        kinds.add("`" in text[:5])
        for call in prompt.parse_calls(text, sample):
            assert find_argument_faults(call.arguments, named[call.name].parameters) == (), text
    assert kinds == {True, False}
    with pytest.raises(ConfigError, match="the prompt does not define a call format"):
        CallConstraints(letters).for_prompt(object(), SAMPLE)
    hotel = Tool("find_hotel", "", {"type": "object", "properties": {"city": {"type": "string"}}})
    asked = CallSample("h", (Message("user", "a hotel in oslo please"),), (hotel,), ())
    spaced = '[ find hotel ( city = " oslo " ) ]'
    assert Compact().parse_calls(spaced, asked) == (Call("find_hotel", {"city": "oslo"}),), (
        "spaces are the model's, not oslo's"
    )


def test_a_text_that_is_cut_is_no_calls(letters):
    whole = "".join(sorted(language("json", 1), key=len)[-1:])
    for end in range(1, len(whole)):
        with pytest.raises(InvalidAction):
            decode_calls(whole[:end], form="json")


BOUNDED = (
    {"exclusiveMinimum": 0, "maximum": 0.5},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 0.01},
    {"exclusiveMinimum": 1, "maximum": 1.5},
    {"minimum": -0.5, "exclusiveMaximum": 0},
    {"minimum": -1.5, "exclusiveMaximum": -1.0},
    {"exclusiveMinimum": 0.5, "maximum": 0.75},
    {"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]},
    {"exclusiveMinimum": 1, "maximum": 2, "multipleOf": 0.5},
    {"exclusiveMinimum": 0, "minimum": 0.25, "maximum": 0.5},
    {"exclusiveMinimum": 9999999999, "exclusiveMaximum": 10000000001},
)
NUMBERS = "0 -0 0.0 0.001 0.005 0.1 0.25 0.5 0.6 -0.1 -0.5 1 1.0 1.2 1.5 -1 -1.0 -1.2 2 9999999999 10000000000".split()  # noqa: SIM905


@pytest.mark.parametrize("bounds", BOUNDED, ids=json.dumps)
def test_an_answer_never_equals_an_exclusive_bound_of_its_schema(letters, bounds):
    schema = {"type": "number", **bounds}
    validator = jsonschema.Draft202012Validator({"properties": {"minimum": schema}, "required": ["minimum"]})
    answer_schema = {"type": "object", "properties": {"minimum": schema}, "required": ["minimum"]}
    constraints = CallConstraints(letters)
    (stop,) = letters.dialect.stop_ids
    for start in (
        constraints.for_schema(answer_schema),
        constraints.for_tools(TOOLS, form="json", answer_schema=answer_schema),
    ):
        fitting = set()
        for number in NUMBERS:
            text = f'{{"minimum": {number}}}'
            tokens, state = letters.dialect.action(text), start.copy()
            assert tokens[-1] == stop
            is_allowed = True
            for token in tokens:
                is_allowed = is_allowed and bool(state.allowed()[token])
                if is_allowed:
                    state.advance(token)
            if is_allowed:
                assert validator.is_valid(json.loads(text)), number
                fitting.add(float(number))
        values = {float(number) for number in NUMBERS}
        assert fitting == {value for value in values if validator.is_valid({"minimum": value})}


def test_a_range_that_is_narrower_than_the_margin_keeps_its_far_half(letters):
    schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1e-10}
    assert close_exclusive_bounds(schema) == {"type": "number", "minimum": 5e-11, "maximum": 1e-10}
    CallConstraints(letters).for_schema({"type": "object", "properties": {"minimum": schema}, "required": ["minimum"]})


def test_bounds_are_closed_in_schemas_and_not_in_values():
    value = {"exclusiveMinimum": 0}
    schema = {
        "properties": {"enum": {"exclusiveMinimum": 0}, "n": {"type": "integer", "exclusiveMinimum": 0}},
        "items": [{"exclusiveMaximum": 2.5}, {"exclusiveMaximum": 3, "maximum": 1}],
        "enum": [value],
        "exclusiveMinimum": True,
    }
    assert close_exclusive_bounds(schema) == {
        "properties": {"enum": {"minimum": 1e-9}, "n": {"type": "integer", "exclusiveMinimum": 0}},
        "items": [{"exclusiveMaximum": 2.5}, {"maximum": 1}],
        "enum": [value],
        "exclusiveMinimum": True,
    }
