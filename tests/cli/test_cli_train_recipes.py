"""Every recipe of `evolvent train` on real data of every form: what it learns, what it leaves, and what it refuses."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import torch

import evolvent as ev
from evolvent.cli.main import main
from evolvent.cli.train import planning
from evolvent.errors import HashMismatch
from evolvent.learn.forward import compute_outputs
from evolvent.learn.loader import LearnableSequences
from evolvent.learn.token_sequences import collate_padded
from evolvent.learn.tokens import TokenFile
from evolvent.models.policy import load_policy, tiny_policy
from evolvent.models.tuned import kind_of
from tests.faults import sums

WORLD = ("--worlds", "crafting:0")
FEW = ("--train.max_steps", "12", "--train.warmup_steps", "3", "--train.batch_tokens", "256")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sums in every form, a run `shown` of experts, one `tried` at random, and a trained run `taught`."""
    folder = sums.write(tmp_path_factory.mktemp("recipes"))
    more = ("--limit", "20", *WORLD)
    assert main(["collect", *more, "--to", str(folder / "shown")]) == 0
    assert main(["collect", *more, "--agent", "random", "--samples", "3", "--to", str(folder / "tried")]) == 0
    words = [
        "train",
        "sft",
        str(folder / "messages.jsonl"),
        "--policy",
        str(folder / "policy"),
        "--train.max_steps",
        "60",
        "--train.warmup_steps",
        "5",
        "--to",
        str(folder / "taught"),
    ]
    assert main(words) == 0
    return folder


@pytest.fixture
def evolvent(data, tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; DATA in its words is where the data are. (code, output, complaints)"""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word).replace("DATA", str(data)) for word in words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def trained(evolvent, *words: object) -> tuple[list[float], Path, str]:
    """The losses of a training that must end well, its folder, and what it said."""
    code, shown, error = evolvent("train", *words, "--to", "run")
    assert (code, error) == (0, ""), error
    losses = sums.logged(Path("run"))
    assert sorted(losses) == list(range(1, len(losses) + 1))
    assert (Path("run") / "report.html").stat().st_size > 1000
    return [losses[update] for update in sorted(losses)], Path("run"), shown


OWN = ("--policy", "DATA/policy")


@pytest.mark.parametrize(
    ("words", "sequences"),
    [
        (("sft", "DATA/messages.jsonl", *OWN), 81),
        (("sft", "DATA/completions.jsonl", *OWN), 81),
        (("DATA/shown", *WORLD), 20),  # sft where no recipe is named
        (("pretrain", "DATA/text.jsonl", *OWN), 13),
        (("pretrain", "DATA/book.txt", *OWN, "--context", "16"), 21),
        (("distill", "DATA/messages.jsonl", *OWN, "--teacher", "DATA/taught", "--top", "4"), 81),
    ],
    ids=["messages", "completions", "episodes", "text", "book", "distill"],
)
def test_what_is_learned_is_learned(evolvent, words, sequences):
    losses, run, shown = trained(evolvent, *words, *FEW)
    assert len(losses) == 12 and losses[-1] < 0.8 * losses[0]
    assert f"{sequences:,} sequences" in shown and "model run/model" in shown
    policy = load_policy(run / "model")
    assert policy.version == 1 and policy.value_head is None
    state = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert state["state"] == "finished" and state["method"] == f"train {words[0] if words[0][0] != 'D' else 'sft'}"


def test_a_data_set_of_hugging_face(evolvent, tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(sums.questions()).save_to_disk(str(tmp_path / "saved"))
    losses, _, shown = trained(evolvent, "sft", "saved", *OWN, *FEW)
    assert "81 sequences" in shown and losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("source", [("DATA/pairs.jsonl", *OWN), ("DATA/tried", *WORLD)], ids=["rows", "episodes"])
def test_dpo_begins_at_its_reference(evolvent, source):
    losses, run, shown = trained(evolvent, "dpo", *source, *FEW)
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5), "policy and reference are one before the first update"
    assert min(losses[6:]) < 0.6 and " pairs, " in shown
    assert load_policy(run / "model").version == 1


def values(policy, parts) -> torch.Tensor:
    """What the head says at the target of every sequence."""
    policy.model.value_head = policy.value_head
    found = LearnableSequences(parts, together=1, vocabulary=len(policy.tokenizer), context=policy.context + 1)
    batch = collate_padded(found, [[index] for index in range(len(found))])
    with torch.inference_mode():
        said = compute_outputs(policy.model, batch, needs=("values",)).values
    assert said is not None
    return said


def test_a_reward_model_prefers_what_was_chosen(evolvent):
    losses, run, _ = trained(evolvent, "reward", "DATA/pairs.jsonl", *OWN, *FEW, "--train.max_steps", "60")
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5), "a fresh head says 0 of everything"
    chosen, rejected = values(load_policy(run / "model"), TokenFile(run / "tokens")).view(-1, 2).unbind(1)
    assert float((chosen > rejected).float().mean()) > 0.9


def test_scores_and_values_are_learned_from_episodes(evolvent):
    losses, run, shown = trained(evolvent, "reward", "DATA/tried", *WORLD, *FEW, "--kind", "scores")
    assert "60 sequences" in shown and "60 learned" in shown and load_policy(run / "model").value_head is not None
    code, _, error = evolvent("train", "value", "DATA/tried", *WORLD, *FEW, "--discount", "0.9", "--to", "other")
    assert (code, error) == (0, "")
    returns = [TokenFile(Path("other/tokens"))[at].columns["returns"] for at in range(60)]
    assert max(map(max, returns)) == 1.0 and any(0 < float(value) < 1 for row in returns for value in row)
    assert load_policy(Path("other/model")).value_head is not None and losses[-1] < losses[0]


def test_the_teacher_is_approached(evolvent, data):
    _, run, _ = trained(
        evolvent, "distill", "DATA/messages.jsonl", *OWN, *FEW, "--teacher", "DATA/taught", "--train.max_steps", "80"
    )
    first = TokenFile(run / "tokens")[0]
    assert {name: column.shape[1] for name, column in first.columns.items()} == {
        "teacher_ids": 27,
        "teacher_logprobs": 27,
    }
    before = [place - 1 for place in first.weight.nonzero()[0]]
    ids = torch.from_numpy(first.ids.astype("int64"))[None]
    with torch.inference_mode():
        one, other = (
            load_policy(folder / "model").model(input_ids=ids).logits[0, before].softmax(-1)
            for folder in (data / "taught", run)
        )
    assert float((one - other).abs().max()) < 0.1


@pytest.mark.parametrize("kind", ["lora", "prefix"])
def test_an_adapter_is_kept_on_its_base(evolvent, data, tmp_path, kind):
    shutil.copytree(data / "taught" / "model", tmp_path / "base")
    words = ("sft", "DATA/completions.jsonl", "--policy", "base", "--adapter.kind", kind, "--adapter.tokens", 4)
    losses, run, _ = trained(evolvent, *words, *FEW, "--train.lr", 2e-2)
    assert losses[-1] < losses[0] + 0.05
    tuned = load_policy(run / "model")
    assert kind_of(tuned.model) == kind and tuned.version == 2 and tuned.base is not None
    assert tuned.base.folder == tmp_path / "base" and not (run / "model" / "model.safetensors").exists()
    checkpoint = json.loads((run / "checkpoints" / "update-000000012" / "index.json").read_text(encoding="utf-8"))
    assert all(kind in name or "prompt" in name for name in checkpoint["model"]), "of the base nothing is saved"
    code, shown, _ = evolvent("chat", "run", "--once", "3 plus 4", "--temperature", "0")
    assert code == 0 and shown.strip()
    tiny_policy(sums.WORDS, context=32, seed=5).save(tmp_path / "base")
    with pytest.raises(HashMismatch, match="has changed"):
        load_policy(run / "model")


def test_a_value_head_beside_an_adapter(evolvent):
    words = ("value", "DATA/tried", *WORLD, "--adapter.kind", "lora", "--keep.snapshots", "true")
    _, run, _ = trained(evolvent, *words, *FEW)
    policy = load_policy(run / "model")
    assert kind_of(policy.model) == "lora" and policy.value_head is not None
    assert float(policy.value_head.outer.bias.detach().abs().max()) > 0, "it is the trained one"
    assert (run / "model" / "base" / "config.json").is_file(), "a base that lies nowhere is kept with its adapter"


def test_rows_that_are_left_out_are_told(evolvent, tmp_path):
    odd = [{"prompt": "1 plus 1", "completion": "2"}, {"prompt": "1"}, {"prompt": "1 plus", "completion": "many"}]
    path = sums.lines(tmp_path / "odd.jsonl", [*odd, *[{"text": "1"}] * 6])
    path.write_text(path.read_text(encoding="utf-8") + "no JSON\n", encoding="utf-8")
    _, _, shown = trained(evolvent, "sft", "odd.jsonl", *OWN, "--train.max_steps", 1)
    assert "1 sequences, 8 tokens, 2 learned" in shown
    told = [line for line in shown.splitlines() if line.startswith("left out: ")]
    assert len(told) == 6 and "odd.jsonl:2" in told[0] and "many" in told[1] and told[-1] == "left out: 4 more"


# ---------------------------------------------------------------------- what is refused

SFT = ("sft", "DATA/messages.jsonl", *OWN)
EMPTY = ["EMPTY", "BLANK", "JUNK"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sfft", "DATA/shown"), ["unknown recipe 'sfft' (did you mean 'sft'?)"]),
        (
            ("sft", "nowhere", "--optimizer.name", "adamv", "--policy", "nobody", "--device", "cuda"),
            ["data: nowhere does not exist", "policy: unknown policy 'nobody'"],  # told without torch, the rest with it
        ),
        (
            ("sft", "empty.jsonl", *OWN, "--optimizer.name", "adamv", "--device", "cuda"),
            [
                "empty.jsonl does not hold JSON lines",
                "optimizer.name: unknown optimizer 'adamv' (did you mean 'adam",
                "device: got 'cuda', but no cuda device was found",
            ],
        ),
        (("sft", "DATA/shown", "--worlds", "lookup"), ["unknown world 'crafting' (known: lookup)"]),
        (
            ("sft", "DATA/shown", *WORLD, "--threshold", "1"),
            ["does not hold an episode with a reward above 1.0 (lower"],
        ),
        (("sft", "DATA/taught", *OWN), ["taught does not hold episodes"]),
        (("sft", "empty.jsonl", *OWN), ["empty.jsonl does not hold JSON lines"]),
        (("sft", "junk.jsonl", *OWN), ["junk.jsonl does not hold JSON lines: junk.jsonl:1: the row is not valid JSON"]),
        (("pretrain", "empty.txt", *OWN), ["empty.txt is empty"]),
        (("sft", "nothing", *OWN), ["nothing is an empty folder"]),
        (("pretrain", "DATA/shown", *WORLD), ["shown holds episodes, but this recipe learns from text"]),
        (("value", "DATA/messages.jsonl", *OWN), ["messages.jsonl does not hold episodes"]),
        (
            ("dpo", "DATA/shown", *WORLD),
            ["20 episodes of", "do not form a pair: all episodes of each task are equally good", "--samples 4"],
        ),
        (("distill", "DATA/messages.jsonl", *OWN), ["teacher: missing teacher"]),
        (("distill", "DATA/messages.jsonl", *OWN, "--teacher", "none"), ["teacher: no model found at none"]),
        (
            ("distill", "DATA/shown", *WORLD, "--teacher", "DATA/taught"),
            ["taught differs from xs: 27 and 66 tokens"],
        ),
        ((*SFT, "--to", "DATA/taught"), ["taught already holds a run"]),
        (("sft", "DATA/messages.jsonl", "--policy", "nothing"), ["nothing is not a model folder"]),
        ((*SFT, "--context", "64"), ["context: got 64, expected at most 32, the model's limit"]),
        (
            (*SFT, "--parallel.tp", "3", "--parallel.pp", "5", "--optimizer.name", "adamv"),
            [
                "pp 5 x tp 3 needs 15 processes, 1 is there "
                "(start it with: torchrun --nproc-per-node 15 -m evolvent train",
                "4 key/value heads cannot be shared by 3 ranks",
                "the nearest possible layout of 15 is ",
                "(at most pp 3)",
                "adamv",
            ],
        ),
        (
            (*SFT, "--parallel.shard", "2"),
            ["--parallel.shard 2 --to runs/NAME)", "torchrun --nproc-per-node 2 -m evolvent train sft "],
        ),
        ((*SFT, "--adapter.kind", "prefix", "--parallel.recompute", "true"), ["prefix tuning cannot be recomputed"]),
        ((*SFT, "--adapter.kind", "prompt", "--parallel.tp", "2"), ["prompt cannot be combined with tp"]),
        ((*SFT, "--adapter.kind", "lora", "--adapter.rank", "65"), ["got 65, expected at most 64, the width of "]),
        ((*SFT, "--adapter.kind", "lora", "--adapter.targets", "qproj"), ["(did you mean 'q_proj'?)"]),
        (
            (*SFT, "--optimizer.name", "lomo", "--train.max_tokens_per_forward", "64", "--optimizer.clip", "norm"),
            ["lomo would change weights between the 2 micro-batches", "lomo uses each gradient before the global norm"],
        ),
        (
            (*SFT, "--optimizer.name", "sgd", "--optimizer.rho", "1"),
            ["optimizer.rho: got 1.0, but sgd does not support it"],
        ),
    ],
    ids=lambda value: "",
)
def test_bad_input_is_told_at_once_and_nothing_is_begun(evolvent, tmp_path, words, said):
    (tmp_path / "empty.jsonl").write_text("\n\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    (tmp_path / "junk.jsonl").write_text("hello\n{\n", encoding="utf-8")
    (tmp_path / "nothing").mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    code, shown, error = evolvent("train", *words)
    assert (code, shown) == (2, "") and all(part in error for part in said), error
    assert "Traceback" not in error and error.startswith("error: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sft", "odd.jsonl"), 'expected {"messages": [...]} or {"prompt", "completion"}'),
        (("dpo", "DATA/messages.jsonl"), 'expected {"prompt", "chosen", "rejected"}'),
        (("pretrain", "DATA/messages.jsonl"), 'expected {"text": "..."}'),
    ],
)
def test_data_of_another_form(evolvent, tmp_path, words, said):
    (tmp_path / "odd.jsonl").write_text('{"title": "x"}\n' * 81, encoding="utf-8")
    code, _, error = evolvent("train", *words, *OWN)
    assert code == 1 and said in error and error.count("\n") == 1 and "81 rows refused" in error
    assert [path.name for path in tmp_path.iterdir()] == ["odd.jsonl"], "the folder of the run is gone again"


SUMS = [(f"{a} plus {b}", str(a + b)) for a, b in sums.PAIRS]
LAYOUTS = {
    "agenttraj.json": (
        "conversations (AgentTraj)",
        [
            {
                "item_id": f"sums_{number}",
                "conversations": [
                    {"from": "human", "loss": None, "value": "1 plus 1"},
                    {"from": "gpt", "loss": 0, "value": "2"},
                    {"from": "human", "loss": None, "value": question},
                    {"from": "gpt", "loss": True, "value": answer},
                ],
            }
            for number, (question, answer) in enumerate(SUMS)
        ],
    ),
    "share.jsonl": (
        "conversations (ShareGPT)",
        [
            {"id": question, "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
            for question, answer in SUMS
        ],
    ),
    "alpaca.json": (
        "instructions (Alpaca)",
        [{"instruction": question, "input": "", "output": answer} for question, answer in SUMS],
    ),
    "table.csv": (
        "prompts with completions",
        [{"prompt": question, "completion": answer} for question, answer in SUMS],
    ),
    "table.parquet": (
        "questions with answers",
        [{"question": question, "answer": answer} for question, answer in SUMS],
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_files_people_have_teach_the_same_replies(evolvent, tmp_path, name):
    """The tokens that are learned are those of the same sums as messages, whatever the layout and the format."""
    title, rows = LAYOUTS[name]
    if name.endswith(".jsonl"):
        sums.lines(tmp_path / name, rows)
    elif name.endswith(".json"):
        (tmp_path / name).write_text(json.dumps(rows, indent=1))
    else:
        table = pa.Table.from_pylist(rows)
        (pq.write_table if name.endswith(".parquet") else pa_csv.write_csv)(table, tmp_path / name)
    few = ("--train.max_steps", "2", "--train.batch_tokens", "64")
    code, shown, error = evolvent("train", "sft", name, *OWN, *few, "--to", "run")
    assert (code, error) == (0, "") and f"{title}, 81 rows" in shown
    assert evolvent("train", "sft", "DATA/messages.jsonl", *OWN, *few, "--to", "plain")[0] == 0
    learned, plain = (_learned_tokens(Path(run)) for run in ("run", "plain"))
    assert learned == plain


@pytest.mark.parametrize("name", ["agenttraj.json", "share.jsonl", "alpaca.json"])
def test_imported_episodes_need_no_world(evolvent, tmp_path, name):
    rows = LAYOUTS[name][1]
    sums.lines(tmp_path / name, rows)
    assert evolvent("runs", "import", name, "--to", "imported")[0] == 0
    few = ("--train.max_steps", "2", "--train.batch_tokens", "64")
    code, shown, error = evolvent("train", "sft", "imported", *OWN, *few, "--to", "run")
    assert (code, error) == (0, "") and "left out" not in shown
    assert evolvent("train", "sft", "DATA/messages.jsonl", *OWN, *few, "--to", "plain")[0] == 0
    learned, plain = (_learned_tokens(Path(run)) for run in ("run", "plain"))
    assert learned == plain


def test_imported_preferences_are_pairs(evolvent, tmp_path):
    assert evolvent("runs", "import", "DATA/pairs.jsonl", "--to", "imported")[0] == 0
    few = ("--train.max_steps", "2", "--train.batch_tokens", "64")
    for data, run in (("imported", "run"), ("DATA/pairs.jsonl", "plain")):
        code, _, error = evolvent("train", "dpo", data, *OWN, *few, "--to", run)
        assert (code, error) == (0, "")
    learned, plain = (_learned_tokens(Path(run)) for run in ("run", "plain"))
    assert learned == plain


def test_a_run_is_learned_in_its_own_worlds(evolvent):
    assert evolvent("collect", "--worlds", "countdown:3", "--agent", "expert", "--limit", "6", "--to", "played")[0] == 0
    few = ("--train.max_steps", "2", "--train.batch_tokens", "64")
    code, shown, error = evolvent("train", "sft", "played", *few, "--to", "run")
    assert (code, error) == (0, "") and "worlds countdown:3: those of played" in shown
    assert 'worlds = ["countdown:3"]' in Path("run/config.toml").read_text()
    assert evolvent("runs", "export", "played", "--to", "played.jsonl")[0] == 0
    code, shown, error = evolvent("train", "sft", "played.jsonl", *few, "--to", "again")
    assert (code, error) == (0, "") and "worlds countdown: those of played.jsonl" in shown, "by their names"
    code, _, error = evolvent("train", "sft", "played", *few, "--worlds", "lookup", "--to", "other")
    assert code == 2 and "unknown world 'countdown' (known: lookup)" in error, "named worlds count"


def test_a_policy_that_knows_the_words_of_a_runs_worlds_alone_learns_the_run(evolvent):
    """The default worlds hold that of the run, but the policy does not know the words of the others."""
    ev.make_policy([ev.Lookup()]).save(Path("known"))
    assert evolvent("collect", "--worlds", "lookup", "--agent", "expert", "--limit", "6", "--to", "played")[0] == 0
    few = ("--train.max_steps", "2", "--train.batch_tokens", "64")
    code, shown, error = evolvent("train", "sft", "played", "--policy", "known", *few, "--to", "run")
    assert (code, error) == (0, "") and "worlds lookup: those of played" in shown


def _learned_tokens(run: Path) -> list[list[int]]:
    tokens = TokenFile(run / "tokens")
    return sorted(tokens[index].ids[tokens[index].weight > 0].tolist() for index in range(len(tokens)))


def test_of_pairs_the_chosen_side_is_learned(evolvent):
    """`train sft` on preferences learns what `train dpo` would raise, and says so."""
    _, run, shown = trained(evolvent, "sft", "DATA/pairs.jsonl", *OWN, *FEW)
    assert "preferences, 81 rows; of preferences the chosen side is learned" in shown
    assert TokenFile(run / "tokens").intake["forms"] == {"preferences": 81}


# ---------------------------------------------------------------------- the plan


def test_the_plan_of_a_small_model(evolvent, tmp_path):
    code, shown, _ = evolvent("train", *SFT, "--plan")
    assert code == 0 and list(tmp_path.iterdir()) == []
    rows = {line.split()[0]: line.split()[-1] for line in shown.splitlines() if line.strip()}
    assert "161,920 parameters; adamw, float32, over one process" in shown and "memory of a rank in MiB:" in shown
    assert "24 rows of 32 tokens" in shown and rows["fits"] == "yes"
    assert float(rows["parameters"]) == pytest.approx(4 * 161_920 / 2**20, abs=0.06)
    assert float(rows["optimizer"]) == pytest.approx(8 * 161_920 / 2**20, abs=0.06)


def test_the_plan_says_what_would_fit(evolvent, tmp_path):
    """A model of 7 billion parameters, of which there is only the configuration."""
    from transformers import LlamaConfig

    LlamaConfig(
        hidden_size=4096,
        num_hidden_layers=32,
        intermediate_size=11008,
        num_attention_heads=32,
        vocab_size=32000,
        max_position_embeddings=4096,
    ).save_pretrained(tmp_path / "large")
    words = ("train", "sft", "DATA/messages.jsonl", "--policy", "large", "--plan", "--card")
    code, shown, _ = evolvent(*words, "80")
    assert code == 0 and "6,738,415,616 parameters" in shown and "memory of a rank in GiB:" in shown
    fits = next(line.split() for line in shown.splitlines() if line.startswith("fits"))
    assert fits[:4] == ["fits", "80", "GiB", "no"] and set(fits[4:]) == {"yes"} and "adalomo" in shown
    code, shown, _ = evolvent(*words, "1000")
    assert "yes" in shown and "adalomo" not in shown, "what fits needs no advice"
    code, shown, _ = evolvent(*words, "0.01")
    assert code == 0 and "neither recomputation nor" in shown
    assert (
        evolvent(*words, "24GB")[2]
        == "error: --card: got '24GB', expected the memory of a device in GiB (for example --plan --card 24)\n"
    )


def test_the_plan_at_forty_columns(evolvent, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    code, shown, _ = evolvent("train", *SFT, "--plan", "--card", "0.01", "--adapter.kind", "lora")
    assert code == 0 and max(map(len, shown.splitlines())) <= 40 and "memory of a rank in MiB" in shown


def test_what_cannot_be_planned(evolvent, data, tmp_path):
    from transformers import AutoModelForCausalLM, GPT2Config

    config = GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=27, n_positions=32, bos_token_id=0, eos_token_id=0)
    policy = load_policy(data / "policy")
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "gpt2")
    policy.tokenizer.save_pretrained(tmp_path / "gpt2")
    words = ("sft", "DATA/messages.jsonl", "--policy", "gpt2")
    code, _, error = evolvent("train", *words, "--plan")
    assert code == 2 and "cannot plan the memory of a gpt2 model (train it in one process" in error
    losses, _, _ = trained(evolvent, *words, *FEW)
    assert losses[-1] < losses[0], "it is trained all the same, and not warned of"
    (tmp_path / "empty").mkdir()
    assert "empty is not a model folder" in evolvent("train", *words[:3], "empty", "--plan")[2]


def test_what_will_not_fit_is_warned_of(evolvent, monkeypatch):
    monkeypatch.setattr(planning, "find_memory_limit", lambda: (4 * 2**20, "the limit of the control group"))
    _, _, shown = trained(evolvent, *SFT, "--train.max_steps", 1)
    warning = next(line for line in shown.splitlines() if line.startswith("warning: "))
    assert "a rank may run out of memory" in warning and "--plan" in warning
    assert re.search(r"this cpu has 4\.\d MiB for it \(the limit of the control group\)", warning)
