"""Commands run their models on the requested device, in the requested numbers; wrong requests are refused early.

The device of `tests/fake_device.py` stands for a GPU: it refuses to mix its tensors with those of the CPU.
"""

import json
import sys
import types
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from evolvent.cli.main import main
from evolvent.cli.setup.extensions import load_encoder
from evolvent.errors import ConfigError
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.optim.make import OffloadedOptimizer, OptimizerConfig, build_optimizer
from evolvent.learn.token_sequences import flatten
from evolvent.models.adapters import AdapterConfig, adapt
from evolvent.models.placement import Placement, find_device
from evolvent.models.policy import load_policy, tiny_policy
from evolvent.scale.initial import collect_demonstrations, make_policy
from evolvent.worlds.lookup import Lookup
from tests.fake_device import NAME, register, run_commands
from tests.forks import context

SMALL_PANEL = "--worlds lookup --panel.limit 2 --slots 16 --max_tokens 4"
EVOLVE = (
    f"evolve {SMALL_PANEL} --demonstrations 4 --namings 1 --explore 2 --method.clone_tokens 150 "
    "--method.round_tokens 100 --method.iterations 1 --method.samples_per_task 1"
)
GRPO = (
    f"train rl --method grpo {SMALL_PANEL} --demonstrations 4 --clone_tokens 100 --tasks 2 "
    "--rl.practice.iterations 1 --rl.practice.group_size 2"
)


def test_every_verb_runs_on_the_device_and_agrees_with_the_cpu(tmp_path):
    """Learning, playing and searching on another device give what the CPU gives."""
    commands = [
        f"{EVOLVE} --output_dir {tmp_path}/evolve",
        f"{GRPO} --output_dir {tmp_path}/grpo",
        f"eval {tmp_path}/evolve {SMALL_PANEL} --output_dir {tmp_path}/eval",
        f"collect --agent policy --policy {tmp_path}/evolve --worlds lookup --limit 2 --max_tokens 4 "
        f"--output_dir {tmp_path}/collect",
        f"search --worlds lookup --policy {tmp_path}/evolve --limit 1 --tiers seen --budgets 64 --methods greedy "
        f"--search.value none --search.max_tokens 4 --output_dir {tmp_path}/search",
        f"chat {tmp_path}/evolve/model --once boss --max-tokens 3",
    ]
    ended = run_commands([f"{command} --device fakegpu" for command in commands], tmp_path)
    assert ended == [(0, True)] * len(commands), (tmp_path / "output").read_text(encoding="utf-8")
    for verb, command in (("evolve", EVOLVE), ("grpo", GRPO)):
        assert main([*command.split(), "--output_dir", f"{tmp_path}/{verb}-cpu"]) == 0
        weights, cpu_weights = (
            load_file(tmp_path / folder / "model" / "model.safetensors") for folder in (verb, f"{verb}-cpu")
        )
        assert weights.keys() == cpu_weights.keys()
        for name, weight in weights.items():
            torch.testing.assert_close(weight, cpu_weights[name], rtol=1e-4, atol=1e-5)
        rows, cpu_rows = (
            [json.loads(line) for line in (tmp_path / folder / "stages.jsonl").read_text().splitlines()]
            for folder in (verb, f"{verb}-cpu")
        )
        assert [row["verb"] for row in rows] == [row["verb"] for row in cpu_rows]


@pytest.mark.long
def test_offloaded_states_and_reference_change_no_number(tmp_path):
    """The device that leaves them in main memory learns what the CPU learns, and a run goes on without it."""
    options = "--rl.kl 0.1 --rl.practice.iterations 2 --rl.practice.save_every 1"
    commands = [
        f"{GRPO} {options} --train.offload both --output_dir {tmp_path}/grpo --device fakegpu",
        f"train etpo {SMALL_PANEL} --demonstrations 4 --clone_tokens 100 --tasks 2 --rl.practice.iterations 1 "
        f"--rl.practice.group_size 2 --train.offload reference --output_dir {tmp_path}/etpo --device fakegpu",
        f"train rl --method grpo --resume {tmp_path}/grpo --train.offload optimizer --device fakegpu",
    ]
    ended = run_commands(commands, tmp_path)
    assert ended == [(0, True)] * len(commands), (tmp_path / "output").read_text(encoding="utf-8")
    assert main([*f"{GRPO} {options}".split(), "--output_dir", f"{tmp_path}/cpu"]) == 0
    weights, cpu_weights = (load_file(tmp_path / folder / "model/model.safetensors") for folder in ("grpo", "cpu"))
    for name, weight in weights.items():
        torch.testing.assert_close(weight, cpu_weights[name], rtol=1e-4, atol=1e-5)


def _measure_offload(folder):
    """Trains one update on the device with and without offload, and writes what it found."""
    register()
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = {}
    for offload in (None, "optimizer"):
        policy = make_policy([Lookup()], seed=3).to("fakegpu")
        config = TrainConfig(epochs=1, warmup_steps=0, max_steps=2, offload=offload)
        learner = Learner(policy, weighted_nll, config, seed=1)
        trajectories = collect_demonstrations([Lookup()], list(Lookup().tasks("train", "seen"))[:4], seed=0)
        sequences = flatten(trajectories, policy.dialect, instructions=lambda task: "", context=64).sequences
        report = learner.fit(sequences)
        states = [state for entry in learner.optimizer.state.values() for state in entry.values() if state.dim()]
        found[str(offload)] = {
            "losses": report.losses,
            "weights": sorted({weight.device.type for weight in policy.model.parameters()}),
            "states": sorted({state.device.type for state in states}),
        }
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


def test_the_device_holds_no_offloaded_states(tmp_path):
    process = context().Process(target=_measure_offload, args=(tmp_path,), daemon=True)
    process.start()
    process.join(120)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    plain, offloaded = found["None"], found["optimizer"]
    assert plain["states"] == ["fakegpu"] and offloaded["states"] == ["cpu"]
    assert offloaded["weights"] == ["fakegpu"]
    assert offloaded["losses"] == pytest.approx(plain["losses"], rel=1e-5) and len(plain["losses"]) == 2


def _measure_sharded_offload(folder):
    """Steps a weight that is distributed over a mesh of the device, with its states in main memory and without."""
    register()
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    mesh = DeviceMesh(NAME, [0], mesh_dim_names=("shard",))
    whole = torch.arange(15.0).view(5, 3)
    sharded = DTensor.from_local(whole.to(NAME), mesh, [Shard(0)]).requires_grad_()
    plain = whole.clone().requires_grad_()
    build = partial(build_optimizer, OptimizerConfig(), lr=0.1, betas=(0.9, 0.98), weight_decay=0.1)
    offloaded, expected = OffloadedOptimizer(build, [("weight", sharded)]), build([("weight", plain)])
    for step in range(3):
        gradient = torch.sin(whole + step)
        plain.grad = gradient
        sharded.grad = DTensor.from_local(gradient.to(NAME), mesh, [Shard(0)])
        offloaded.step()
        expected.step()
    moment = offloaded.state[sharded]["exp_avg"]
    found = {
        "difference": float((sharded.detach().to_local().cpu() - plain.detach()).abs().max()),
        "weight": sharded.to_local().device.type,
        "moment": [type(moment).__name__, moment.to_local().device.type, list(moment.device_mesh.mesh_dim_names)],
    }
    (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")


def test_a_part_of_a_weight_on_the_device_has_its_states_in_main_memory(tmp_path):
    process = context().Process(target=_measure_sharded_offload, args=(tmp_path,), daemon=True)
    process.start()
    process.join(120)
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert (found["weight"], found["moment"]) == (NAME, ["DTensor", "cpu", ["shard"]])
    assert found["difference"] < 1e-6


TEAM = (
    "train mat climbing --mat.decisions 80 --mat.rows 4 --mat.steps 10 --mat.update.ppo_epochs 2 "
    "--mat.update.minibatches 2 --episodes 4"
)
KINDS = ("mat", "mat_dec", "happo")


def test_a_team_learns_on_the_device_what_it_learns_on_the_cpu(tmp_path):
    """Half of the training runs there, and a resumed run goes on here."""
    commands = [f"{TEAM} --mat.kind {kind} --output_dir {tmp_path}/{kind} --device fakegpu" for kind in KINDS]
    ended = run_commands(commands, tmp_path)
    assert ended == [(0, True)] * len(KINDS), (tmp_path / "output").read_text(encoding="utf-8")
    for kind in KINDS:
        assert main([*TEAM.split(), "--mat.kind", kind, "--output_dir", f"{tmp_path}/{kind}-cpu"]) == 0
        history, cpu_history = (
            json.loads((tmp_path / folder / "history.json").read_text()) for folder in (kind, f"{kind}-cpu")
        )
        # Not the weights: Adam steps by noise where a gradient is zero, as those of the biases of keys are.
        for update, cpu_update in zip(history, cpu_history, strict=True):
            assert update == pytest.approx(cpu_update, rel=1e-3, abs=1e-4)
        row, cpu_row = (json.loads((tmp_path / folder / "table.json").read_text()) for folder in (kind, f"{kind}-cpu"))
        assert row == cpu_row
    argv = ["train", "mat", "--resume", f"{tmp_path}/mat", "--device", "cpu", "--mat.decisions", "120"]
    assert main(argv) == 0


SHORT = "--learn.train.max_steps 8 --learn.train.batch 8 --learn.context 4 --episodes 4 --evaluation 1 --horizon 12"
SEQUENCES = {
    "dt": f"train sequence --method dt cartpole {SHORT}",
    "odt": f"train sequence --method odt pendulum {SHORT} --learn.rounds 2 --learn.updates 5",
    "qt": f"train sequence --method qt cartpole {SHORT}",
    "tt": f"train sequence --method tt cartpole {SHORT} --learn.bins 8 --learn.planning.width 2",
}


def test_sequences_are_learned_on_the_device_as_on_the_cpu(tmp_path):
    """A resumed run goes on here; the policy of either plays here."""
    started = [f"{command} --output_dir {tmp_path}/{name} --device fakegpu" for name, command in SEQUENCES.items()]
    ended = run_commands(started, tmp_path)
    assert ended == [(0, True)] * len(SEQUENCES), (tmp_path / "output").read_text(encoding="utf-8")
    for name, command in SEQUENCES.items():
        assert main([*command.split(), "--output_dir", f"{tmp_path}/{name}-cpu"]) == 0
        history, cpu_history = (
            json.loads((tmp_path / folder / "history.json").read_text()) for folder in (name, f"{name}-cpu")
        )
        assert len(history) == len(cpu_history) > 1
        for row, cpu_row in zip(history, cpu_history, strict=True):
            assert row == pytest.approx(cpu_row, rel=1e-3, abs=1e-5)
    assert main(["train", "sequence", "--method", "dt", "--resume", f"{tmp_path}/dt", "--device", "cpu"]) == 0


def test_a_search_for_a_source_is_learned_on_the_device(tmp_path):
    command = (
        "train agdc --agdc.algorithm dqn --agdc.budget 150 --agdc.at_once 2 --agdc.n_particles 50 --particles 50 "
        "--episodes 2 --planners go_to_mean --pictures 0"
    )
    assert run_commands([f"{command} --output_dir {tmp_path}/one --device fakegpu"], tmp_path) == [(0, True)], (
        tmp_path / "output"
    ).read_text(encoding="utf-8")
    assert main([*command.split(), "--output_dir", f"{tmp_path}/cpu"]) == 0
    assert load_file(tmp_path / "one/policy/policy.safetensors").keys() == (
        load_file(tmp_path / "cpu/policy/policy.safetensors").keys()
    )
    assert (tmp_path / "one/policy/curve.json").read_text() == (tmp_path / "cpu/policy/curve.json").read_text()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("train sequence --device cuda:9", "device: got 'cuda:9'"),
        ("train agdc --device cuda:9", "device: got 'cuda:9'"),
        ("train mat climbing --device cuda:9", "device: got 'cuda:9'"),
        ("train mat climbing --device gpu!", "unknown device 'gpu!'"),
        ("train rl --method grpo --train.offload optimizer", "nothing would be gained"),
        ("train rl --method grpo --train.offload reference", "nothing would be gained"),
        (
            "train rl --method grpo --on here?players=0",
            "error: backend: players: got '0', expected a number of 1 or more",
        ),
        ("memory build runs/none --to m --device cuda:9 --encoder models/none", "device"),
        ("memory build data.jsonl --to m --device cpu", "hashed n-grams are computed without a model"),
        ("memory query m text --device cpu", "hashed n-grams are computed without a model"),
    ],
)
def test_places_that_a_command_cannot_have_are_refused(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    assert main(argv.split()) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_an_encoder_runs_on_the_requested_device(tmp_path, monkeypatch):
    loaded = []

    def make_transformer(model, *, device, **options):
        loaded.append(device)
        return torch.nn.Linear(2, 2)

    fake_package = types.ModuleType("sentence_transformers")
    fake_package.SentenceTransformer = make_transformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", fake_package)
    load_encoder(str(tmp_path), device="cpu")
    load_encoder(str(tmp_path))
    assert loaded == ["cpu", None]
    with pytest.raises(ConfigError, match="got 'cuda:9'"):
        load_encoder(str(tmp_path), device="cuda:9")


def test_dtype_and_context_reach_the_model(tmp_path):
    folder = tmp_path / "model"
    tiny_policy(["go", "left"], context=128).save(folder)
    policy = load_policy(folder, dtype="bfloat16", context=64)
    assert policy.model.dtype == torch.bfloat16
    assert policy.context == 64
    assert load_policy(folder).model.dtype == torch.float32


def test_an_adapter_is_loaded_on_its_base_in_the_dtype_that_it_was_trained_on(tmp_path):
    """Otherwise a resumed run goes on from other weights than an uninterrupted one."""
    tiny_policy(["go", "left"]).save(tmp_path / "base")
    base = load_policy(tmp_path / "base", dtype="bfloat16")
    adapt(base, AdapterConfig(kind="lora", targets=("all-linear",)), seed=0).save(tmp_path / "adapter")
    adapted = load_policy(tmp_path / "adapter")
    dtypes = {(".lora_" in name, weight.dtype) for name, weight in adapted.model.named_parameters()}
    assert dtypes == {(False, torch.bfloat16), (True, torch.float32)}
    assert adapted.base is not None
    assert adapted.base.digest == base.base.digest
    float_policy = load_policy(tmp_path / "adapter", dtype="float32")
    assert {weight.dtype for weight in float_policy.model.parameters()} == {torch.float32}
    float_policy.save(tmp_path / "again")
    again = load_policy(tmp_path / "again")
    for weight, expected in zip(again.model.parameters(), float_policy.model.parameters(), strict=True):
        assert torch.equal(weight, expected)


@pytest.mark.parametrize("verb", ["evolve --policy", "eval", "train rl --policy", "search --policy", "serve --policy"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--device tpu9", "device: unknown device 'tpu9'"),
        ("--device cuda:7", "got 'cuda:7', but no cuda device was found"),
        ("--dtype int3", "expected 'auto' or 'float32' or 'bfloat16' or 'float16'"),
        ("--context 4000", "context: got 4000, expected at most 128, the model's limit"),
    ],
)
def test_wrong_requests_are_refused_before_a_run_is_made(tmp_path, capsys, monkeypatch, verb, options, message):
    if "cuda" in options and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    monkeypatch.chdir(tmp_path)
    tiny_policy(["go", "left"], context=128).save(tmp_path / "model")
    assert main([*verb.split(), "model", *options.split()]) != 0
    errors = " ".join(capsys.readouterr().err.split())
    assert message in errors
    assert "fault of evolvent" not in errors
    assert not (tmp_path / "runs").exists()


def test_a_model_too_large_for_memory_is_refused_before_its_weights_are_read(tmp_path, monkeypatch):
    tiny_policy(["go", "left"]).save(tmp_path / "model")
    monkeypatch.setattr("evolvent.models.placement.available_bytes", lambda device: 1000)
    with pytest.raises(ConfigError, match=r"do not fit the memory of cpu: got .* GB, expected at most .* free"):
        load_policy(tmp_path / "model")


def test_the_memory_of_weights_is_counted_in_the_requested_dtype(tmp_path, monkeypatch):
    folder = tmp_path / "model"
    tiny_policy(["go", "left"]).save(folder)
    stored_bytes = (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr("evolvent.models.placement.available_bytes", lambda device: stored_bytes * 3 // 4)
    with pytest.raises(ConfigError):
        load_policy(folder)
    assert load_policy(folder, dtype="bfloat16").model.dtype == torch.bfloat16


def test_context_defaults_to_4096_or_the_models_limit(tmp_path):
    for limit, expected in ((128, 128), (9000, 4096)):
        folder = tmp_path / str(limit)
        tiny_policy(["go", "left"], context=limit).save(folder)
        assert load_policy(folder).context == expected
        assert load_policy(folder, context=None).context == limit
    with pytest.raises(ConfigError, match="got 9001, expected at most 9000"):
        load_policy(folder, context=9001)


def test_placement_names_devices_of_torch():
    assert find_device("cpu:0") == torch.device("cpu")
    assert Placement().context == "auto"
    with pytest.raises(ConfigError, match="unknown device 'meta'"):
        find_device("meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_command_runs_on_a_real_device(tmp_path):
    assert main([*f"{EVOLVE} --device cuda --dtype bfloat16".split(), "--output_dir", str(tmp_path / "run")]) == 0
