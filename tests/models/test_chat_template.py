"""Chat templates: every template that TRL ships, with two kinds of tokenizers, and rows with thoughts and tools."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.templates import TOKENIZERS, byte_level_tokenizer, examine, template_names, template_text
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import Continuation
from evolvent.errors import ConfigError, Incomplete, SampleInvalid
from evolvent.learn.rows import conversation_sequence, conversation_sequences
from evolvent.messages import Call, Message, Tool
from evolvent.models.dialects import Chat, Lines
from evolvent.models.policy import Policy, load_policy
from evolvent.search.proposers import LanguageProposer
from evolvent.serve.openai.conversations import ConversationCache
from evolvent.worlds.lookup import Lookup
from tests.models.test_dialects import CHATML, byte_tokenizer

CHATML_MARKS = ["<|im_start|>", "<|im_end|>"]
WEATHER = Tool(
    "get_weather",
    "Weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string", "description": "name"}}, "required": ["city"]},
)
CONVERSATION = [
    Message("system", "Be brief."),
    Message("user", "Weather in Oslo?"),
    Message("assistant", None, (Call("get_weather", {"city": "Oslo"}, "c1"),), extra={"reasoning_content": "Look."}),
    Message("tool", "4 degrees", tool_call_id="c1"),
    Message("assistant", "4 degrees.", extra={"reasoning_content": "Easy."}),
    Message("user", "Thanks"),
    Message("assistant", "Bye"),
]


@pytest.mark.parametrize("name", template_names())
@pytest.mark.parametrize("kind", list(TOKENIZERS))
def test_template_of_trl_turn_by_turn_equals_whole_rendering(kind, name):
    assert examine(kind, name) == ("exact", "")


# What each template writes for the three replies of CONVERSATION, read off its own source.
REPLIES = {
    "qwen3.jinja": (
        '<think>\nLook.\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
        "</tool_call><|im_end|>",
        "<think>\nEasy.\n</think>\n\n4 degrees.<|im_end|>",
        "<think>\n\n</think>\n\nBye<|im_end|>",
    ),
    # The prompt has opened the thought. Its newline belongs to the reply: an empty thought begins with two of them,
    # and two are one token.
    "qwen3_5_think.jinja": (
        "\nLook.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
        "</tool_call><|im_end|>",
        "\nEasy.\n</think>\n\n4 degrees.<|im_end|>",
        "\n\n</think>\n\nBye<|im_end|>",
    ),
    "gptoss.jinja": (
        "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant to=functions.get_weather"
        '<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>',
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>4 degrees.<|return|>",
        "<|channel|>final<|message|>Bye<|return|>",
    ),
    "glm4moe.jinja": (
        "\n<think>Look.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        "</tool_call><|observation|>",
        "\n<think>Easy.</think>\n4 degrees.<|user|>",
        "\n<think></think>\nBye<|user|>",
    ),
    "gemma4_v5.jinja": (
        '<|channel>thought\nLook.\n<channel|><|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>'
        "<|tool_response>",
        "<|channel>thought\nEasy.\n<channel|>4 degrees.<turn|>",
        "Bye<turn|>",
    ),
    "llama3_1.jinja": (  # it has no thoughts
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}<|eot_id|>',
        "4 degrees.<|eot_id|>",
        "Bye<|eot_id|>",
    ),
    "lfm2_2_5.jinja": (
        "<think>Look.</think><|tool_call_start|>[get_weather(city='Oslo')]<|tool_call_end|><|im_end|>",
        "<think>Easy.</think>4 degrees.<|im_end|>",
        "Bye<|im_end|>",
    ),
}


@pytest.mark.parametrize("name", list(REPLIES))
def test_thoughts_calls_and_results_are_learned_as_the_template_renders_them(name):
    tokenizer = byte_level_tokenizer(template_text(name))
    sequence = conversation_sequence("row", CONVERSATION, Chat(tokenizer), tools=[WEATHER])
    learned = []
    for step in range(3):
        ids = sequence.ids[(sequence.step == step) & (sequence.weight > 0)]
        learned.append(tokenizer.decode(ids.tolist()))
    assert learned == list(REPLIES[name])


@pytest.mark.parametrize(
    "name", ["qwen2_5.jinja", "llama3_1.jinja", "glm4moe.jinja", "lfm2_v2.jinja", "qwen3_vl.jinja"]
)
def test_conversation_with_tools_equals_the_whole_rendering(name):
    """Templates that leave the past unchanged: the sequence is the whole text, encoded at once by transformers."""
    tokenizer = byte_level_tokenizer(template_text(name))
    chat = Chat(tokenizer)
    assert chat.template.extends
    arguments = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    rows = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": "call00000", "function": arguments}],
        },
        {"role": "tool", "content": "4 degrees", "tool_call_id": "call00000"},
        {"role": "assistant", "content": "4 degrees."},
    ]
    text = tokenizer.apply_chat_template(rows, tools=[WEATHER.as_openai()], tokenize=False)
    whole = tokenizer.encode(text, add_special_tokens=False)
    messages = [
        Message(m.role, m.content, m.calls, m.tool_call_id) for m in CONVERSATION[:5]
    ]  # without thoughts, which some of these templates have
    ids = chat.template.conversation(messages, [WEATHER]).ids
    if ids[-1] in chat.stop_ids and len(ids) == len(whole) + 1:
        ids = ids[:-1]  # the next role's mark
    assert whole[: len(ids)] == ids and not tokenizer.decode(whole[len(ids) :], skip_special_tokens=True).strip()


def test_history_template_learns_every_reply_behind_the_rendered_past():
    tokenizer = byte_level_tokenizer(template_text("qwen3.jinja"))
    kept, rendered = Chat(tokenizer), Chat(tokenizer, history="template")
    messages = [Message(role, f"{role} {number}") for number, role in enumerate(["user", "assistant"] * 2)]
    (sequence,) = conversation_sequences("row", messages, kept)
    assert tokenizer.decode(sequence.ids.tolist()).count("<think>") == 2
    sequences = conversation_sequences("row", messages, rendered)
    assert [tokenizer.decode(each.ids.tolist()).count("<think>") for each in sequences] == [1, 1]
    rows = [{"role": m.role, "content": m.text} for m in messages]
    whole = tokenizer.encode(tokenizer.apply_chat_template(rows, tokenize=False), add_special_tokens=False)
    assert sequences[-1].ids.tolist() == whole[:-1]  # the newline behind the last turn is left out


@pytest.mark.parametrize("name", ["qwen3.jinja", "qwen2_5.jinja"])
def test_agent_with_history_template_reads_what_the_template_renders(name):
    """Every prompt is the whole rendering; where that extends what was read, only the rest of it is read."""
    tokenizer = byte_level_tokenizer(template_text(name))
    chat = Chat(tokenizer, history="template")
    policy = Policy(SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096)), tokenizer, chat)
    mind = LanguageAgent(policy).begin(Lookup(), Lookup().tasks("train", "seen")[0], seed=0)
    rows = [{"role": "system", "content": Lookup().instructions}] if Lookup().instructions else []
    read: list[int] = []
    for observation, written in [("a door", "<think>\nHm.\n</think>\n\nopen"), ("a hall", "north"), ("end", "stop")]:
        rows.append({"role": "user", "content": observation})
        whole = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
        acting = mind.act(observation, {})
        (ask,) = next(acting)
        before = read if ask.node is not None else []
        assert [*before, *ask.tokens] == tokenizer.encode(whole, add_special_tokens=False)
        assert (ask.node is None) == (not read or (name == "qwen3.jinja" and observation == "a hall"))
        ids = [*tokenizer.encode(written, add_special_tokens=False), tokenizer.convert_tokens_to_ids("<|im_end|>")]
        answer = Continuation(object(), np.asarray(ids, np.int32), np.zeros(len(ids), np.float32), "stop")
        with pytest.raises(StopIteration):
            acting.send(((answer,),))
        read = [*before, *ask.tokens, *ids]
        reply = chat.read_reply(ids)
        rows.append({"role": "assistant", "content": written if name == "qwen2_5.jinja" else reply.text})


def test_reply_of_harmony_is_read_without_its_analysis():
    tokenizer = byte_level_tokenizer(template_text("gptoss.jinja"))
    chat = Chat(tokenizer, end_ids=tokenizer.convert_tokens_to_ids(["<|end|>", "<|call|>"]))
    assert tokenizer.convert_tokens_to_ids("<|end|>") not in chat.stop_ids, "an analysis message is a thought"
    assert tokenizer.convert_tokens_to_ids("<|call|>") in chat.stop_ids
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>north<|return|>"
    reply = chat.read_reply(tokenizer.encode(text, add_special_tokens=False))
    assert (reply.thought, reply.text) == ("Hm.", "north")


@pytest.mark.parametrize(
    ("name", "written", "thought", "text"),
    [
        (
            "qwen3_5_think.jinja",
            "maybe <tool_call>a</tool_call>\n</think>\n\nnorth",
            "maybe <tool_call>a</tool_call>",
            "north",
        ),
        ("qwen3_5_think.jinja", "never closed", "never closed", ""),
        ("qwen3.jinja", "<think>\na\n</think>\n\n<think>b</think>north", "a\nb", "north"),
        ("qwen3.jinja", "say <think>x</think>", None, "say <think>x</think>"),
        ("llama3.jinja", "<think>\na\n</think>\n\nnorth", "a", "north"),
        ("llama3.jinja", "north", None, "north"),
    ],
)
def test_thoughts_are_removed_only_where_they_are_thoughts(name, written, thought, text):
    tokenizer = byte_level_tokenizer(template_text(name))
    reply = Chat(tokenizer).read_reply(tokenizer.encode(written, add_special_tokens=False))
    assert (reply.thought, reply.text) == (thought, text)


def test_template_without_generation_prompt_gets_the_header_of_a_reply():
    """The header is part of the prompt, although the template ignores `add_generation_prompt`."""
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer = byte_tokenizer(template, CHATML_MARKS)
    chat = Chat(tokenizer)
    assert tokenizer.decode(chat.open("", "hi")) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(chat.action("yes")) == "yes<|im_end|>"


def test_spaces_around_replies_are_written_as_the_template_writes_them():
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }} </s>{% endif %}{% endfor %}"
    )
    tokenizer = byte_tokenizer(template, ["<s>", "</s>"])
    chat = Chat(tokenizer)
    ids = chat.open("", "hi") + chat.action("yes") + chat.turn("go", stopped=True)
    assert tokenizer.decode(ids) == "<s>[INST] hi [/INST] yes </s><s>[INST] go [/INST]"
    assert chat.text(chat.action("yes")) == "yes"


def test_reply_that_ends_by_text_stops_at_that_text():
    template = (
        "{% for m in messages %}{{ 'User: ' if m.role == 'user' else 'Bot: ' }}{{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}Bot: {% endif %}"
    )
    tokenizer = byte_tokenizer(template, ["<s>", "</s>"])
    chat = Chat(tokenizer)
    assert chat.stop_strings == ("\nUser:",) and chat.stop_ids == {tokenizer.eos_token_id}
    ids = chat.open("", "hi") + chat.action("yes") + chat.turn("go", stopped=True)
    assert tokenizer.decode(ids) == "User: hi\nBot: yes\nUser: go\nBot: "
    assert chat.text(tokenizer.encode("yes\nUser:", add_special_tokens=False)) == "yes"


def test_template_that_refuses_instructions_gets_them_with_the_first_text():
    tokenizer = byte_level_tokenizer(template_text("gemma.jinja"))
    chat = Chat(tokenizer)
    assert "user\nBe brief.\n\nhi<end_of_turn>" in tokenizer.decode(chat.open("Be brief.", "hi"))


def test_stops_of_the_model_and_the_tokenizer_are_those_of_the_dialect():
    tokenizer = byte_tokenizer(CHATML, [*CHATML_MARKS, "<|eot|>", "<|endoftext|>"])
    names = ["<|im_end|>", "<|eot|>", "<|endoftext|>"]
    chat = Chat(tokenizer, end_ids=[tokenizer.convert_tokens_to_ids("<|eot|>"), 10**9])
    assert chat.stop_ids == set(tokenizer.convert_tokens_to_ids(names))
    lines = Lines(tokenizer, end_ids=[tokenizer.convert_tokens_to_ids("<|eot|>")])
    assert lines.stop_ids == set(tokenizer.convert_tokens_to_ids(names[1:]))


def test_text_that_spells_marks_has_the_tokens_of_its_letters_behind_the_right_neighbors():
    """Of a SentencePiece tokenizer too: no space is put before the letters, and nothing around them changes."""
    for make in TOKENIZERS.values():
        tokenizer = make(CHATML)
        chat = Chat(tokenizer)
        ids = chat.open("", "a <|im_end|> b")
        assert tokenizer.decode(ids).endswith("user\na <|im_end|> b<|im_end|>\n<|im_start|>assistant\n")
        assert ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1
        plain = chat.open("", "a plain b")
        assert ids[:4] == plain[:4] and ids[-5:] == plain[-5:]


def test_bad_templates_are_one_sentence_before_anything_is_written():
    for template, problem in [
        ("{% for m in messages %}", "cannot be used"),
        ("{{ raise_exception('no user turns here') }}", "no user turns here"),
        ("{{ messages[0].content }}", "drops a turn"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            Chat(byte_tokenizer(template, CHATML_MARKS))
    tokenizer = byte_tokenizer("{% for m in messages %}{{ m.content }} {% endfor %}", ["<s>", "</s>"])
    tokenizer.eos_token = None
    with pytest.raises(ConfigError, match="does not mark the end of a reply"):
        Chat(tokenizer)


def test_calls_of_a_template_without_calls_are_refused():
    chat = Chat(byte_tokenizer(CHATML, CHATML_MARKS))
    with pytest.raises(SampleInvalid, match="drops a turn of the assistant that calls tools"):
        conversation_sequence("row", CONVERSATION, chat)
    with pytest.raises(SampleInvalid, match=r"does not show tools.*train hammer"):
        conversation_sequence("row", CONVERSATION[4:], chat, tools=[WEATHER])


def test_unknown_history_is_named():
    with pytest.raises(ConfigError, match=r"unknown history 'tempate'.*did you mean 'template'"):
        Chat(byte_tokenizer(CHATML, CHATML_MARKS), history="tempate")


def test_many_thoughts_many_calls_and_long_conversations_lose_nothing():
    tokenizer = byte_level_tokenizer(template_text("qwen2_5.jinja"))
    chat = Chat(tokenizer)
    text = "".join(f"<think>t{number}</think>a{number} " for number in range(60)).strip()
    assert chat.read_reply(chat.action(text)).text.endswith("a59")
    assert tokenizer.decode(chat.action(text)) == f"{text}<|im_end|>"
    calls = tuple(Call(f"tool_{number}", {}) for number in range(14))
    tools = [Tool(call.name) for call in calls]
    messages = [Message("user", "go"), Message("assistant", None, calls)]
    reply = tokenizer.decode(chat.template.conversation(messages, tools).ids).partition("assistant\n")[2]
    assert [f'"name": "{call.name}"' in reply for call in calls] == [True] * 14
    turns = [Message(role, f"{role} {number}") for number in range(120) for role in ("user", "assistant")]
    assert len(chat.template.conversation(turns).replies) == 120


def test_thought_that_spells_an_end_does_not_end_the_reply():
    tokenizer = byte_level_tokenizer(template_text("qwen3.jinja"))
    messages = [Message("user", "go"), Message("assistant", "north", extra={"reasoning_content": "a<|im_end|>b"})]
    ids = Chat(tokenizer).template.conversation(messages).ids
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 2, "of the user and of the reply"


def test_calls_and_tools_that_spell_control_tokens_or_placeholders_are_refused():
    chat = Chat(byte_level_tokenizer(template_text("qwen2_5.jinja")))
    for hostile in ("<|im_end|>", "Evolvent0x0Text"):
        messages = [Message("user", "go"), Message("assistant", None, (Call("f", {"x": hostile}),))]
        with pytest.raises(SampleInvalid, match="spells the control token"):
            chat.template.conversation(messages, [Tool("f")])


def test_saved_policy_keeps_its_history_and_its_ends(tmp_path):
    """Also where the saved generation_config names another token, which would end replies otherwise."""
    tokenizer = byte_tokenizer(CHATML, CHATML_MARKS)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [7, 8]
    Policy(model, tokenizer, Chat(tokenizer, history="template")).save(tmp_path / "ours")
    loaded = load_policy(tmp_path / "ours")
    assert isinstance(loaded.dialect, Chat) and loaded.dialect.history == "template"
    assert loaded.dialect.stop_ids == Chat(tokenizer).stop_ids
    (tmp_path / "ours" / "evolvent.json").unlink()  # a folder of transformers
    assert load_policy(tmp_path / "ours").dialect.stop_ids == {7, 8, *Chat(tokenizer).stop_ids}
    (tmp_path / "ours" / "evolvent.json").write_text('{"dialect": "chat", "end_ids": ["7"]}')
    with pytest.raises(Incomplete, match="whole numbers as end_ids"):
        load_policy(tmp_path / "ours")


def test_past_is_rendered_anew_where_the_template_drops_thoughts_alone():
    """GLM-4.5 renders plain replies as they were, but not those with thoughts."""
    tokenizer = byte_level_tokenizer(template_text("glm4moe.jinja"))
    chat = Chat(tokenizer, history="template")
    assert chat.template.extends and not chat.template.keeps_thoughts and chat.renders_past
    assert not Chat(tokenizer).renders_past
    assert not Chat(byte_level_tokenizer(template_text("muse_glimmer.jinja")), history="template").renders_past
    ids = tokenizer.encode("\n<think>Hm.</think>\nopen<|user|>", add_special_tokens=False)
    rows = [{"role": "user", "content": "a door"}, {"role": "assistant", "content": "open"}]
    rows.append({"role": "user", "content": "a hall"})
    text = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
    assert chat.rendered_prompt("", [("a door", ids)], "a hall") == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("history", ["append", "template"])
def test_served_conversation_without_known_tokens_is_the_template_s(history):
    tokenizer = byte_level_tokenizer(template_text("qwen3.jinja"))
    chat = Chat(tokenizer, history=history)
    messages = [Message(role, f"{role} {number}") for number, role in enumerate(["user", "assistant", "user"])]
    rows = [{"role": message.role, "content": message.text} for message in messages]
    text = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
    ids = ConversationCache().encode_prompt(messages, chat, "a session")
    assert ids == tokenizer.encode(text, add_special_tokens=False)


def test_search_refuses_a_history_that_does_not_keep_tokens():
    tokenizer = byte_level_tokenizer(template_text("qwen3.jinja"))
    policy = Policy(SimpleNamespace(), tokenizer, Chat(tokenizer, history="template"))
    with pytest.raises(ConfigError, match="searches over turns keep the tokens of earlier turns"):
        LanguageProposer(policy, Lookup())
