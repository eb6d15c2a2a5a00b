"""Tensor parallelism: parts learn what the whole model learns; slices of a vocabulary say what all of it says."""

import plan_ranks
import pytest
import torch
from crew import Crew
from transformers import AutoConfig

from evolvent.learn.parallel.ranks import SINGLE_PROCESS, Mesh, vocab_logprobs, vocab_sample
from evolvent.learn.parallel.tensor_parallel import apply_tp, check_tp

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
COLUMNS, ROWS = ["q_proj", "v_proj", "up_proj"], ["o_proj", "down_proj"]


@pytest.fixture(scope="module")
def two():
    with Crew(2) as made:
        yield made


@pytest.fixture(scope="module")
def four():
    with Crew(4) as made:
        yield made


def differences(crew, cells):
    """Per cell the largest difference of losses to one process. All ranks must agree, and the first norm be right."""
    first, *others = crew.run(plan_ranks.curves, cells)
    assert all(other == first for other in others)
    found = []
    for ((family, settings, _), options), (losses, norms) in zip(cells, first, strict=True):
        expected, right = plan_ranks.curve(family, settings, Mesh(), targets=options.get("targets"))
        assert expected[0] - expected[-1] > 0.1  # something was learned
        assert norms[0] == pytest.approx(right[0], rel=1e-6)  # later ones feel Adam's division by almost nothing
        found.append(max(abs(one - other) for one, other in zip(losses, expected, strict=True)))
    return found


# ------------------------------------------------------------------ trainings


@pytest.mark.parametrize(
    "family",
    [pytest.param(each, marks=[pytest.mark.long] if each in ("qwen2", "mistral") else []) for each in FAMILIES],
)
def test_two_parts_learn_what_one_process_learns(two, family):
    cells = [
        ((family, {"tied": tied}, Mesh(tp=2)), {"sequence": sequence})
        for tied, sequence in ((False, True), (True, False))
    ]
    assert max(differences(two, cells)) <= 2e-6


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_all_of_the_matrix(two, four, family):
    ways = [(tied, sequence) for tied in (False, True) for sequence in (False, True)]
    cells = [((family, {"tied": tied}, Mesh(tp=2)), {"sequence": sequence}) for tied, sequence in ways]
    for mesh in (Mesh(tp=2, shard=2), Mesh(tp=2, replicate=2)):
        sharded = [((family, {"tied": tied}, mesh), {"sequence": sequence, "micro": 2}) for tied, sequence in ways]
        assert max(differences(four, sharded)) <= 2e-6
    whole = [((family, {"num_key_value_heads": 4}, Mesh(tp=4)), {"sequence": sequence}) for sequence in (False, True)]
    assert max(differences(four, whole)) <= 2e-6
    assert max(differences(two, cells)) <= 2e-6


@pytest.mark.long
def test_parts_that_are_sharded_again(four):
    """FSDP2 over tensor parallelism: weights are laid over both dimensions; with accumulation over micro-batches."""
    cell = ("qwen3", {"tied": True}, Mesh(tp=2, shard=2)), {"sequence": True, "micro": 2}
    assert max(differences(four, [cell])) <= 2e-6


@pytest.mark.long
def test_lora_that_is_sharded_again(four):
    cells = [
        (("llama", {}, Mesh(tp=2, shard=2)), {"sequence": sequence, "targets": COLUMNS + ROWS})
        for sequence in (False, True)
    ]
    assert max(differences(four, cells)) <= 1e-5


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param([*COLUMNS, *ROWS, "lm_head"], id="all"),
        pytest.param(COLUMNS, id="columns", marks=pytest.mark.long),
        pytest.param(ROWS, id="rows", marks=pytest.mark.long),
    ],
)
def test_lora(two, targets):
    cells = [(("llama", {}, Mesh(tp=2)), {"sequence": sequence, "targets": targets}) for sequence in (False, True)]
    assert max(differences(two, cells)) <= 1e-5


def test_it_would_be_seen_if_gradients_were_not_summed(two):
    cells = [(("qwen3", {}, Mesh(tp=2)), {"sequence": False, "deaf": True})]  # q_norm and k_norm alone
    expected, _ = plan_ranks.curve("qwen3", {}, Mesh())
    for [(losses, _)] in two.run(plan_ranks.curves, cells):
        assert max(abs(one - other) for one, other in zip(losses, expected, strict=True)) > 2e-5


# ------------------------------------------------------------------ one backward


@pytest.mark.parametrize(
    ("way", "family", "settings", "targets", "sequence"),
    [
        ("ids", "llama", {}, None, True),
        ("ids", "qwen3", {"attn_implementation": "eager"}, None, True),
        ("ids", "llama", {}, COLUMNS + ROWS, True),
        ("ids", "granite", {}, None, True),
        ("ids", "gemma2", {"sliding_window": 8}, None, False),
        ("packed", "qwen3", {}, None, True),
        ("packed", "qwen2", {}, None, False),
        ("recompute", "qwen3", {}, None, True),
        ("recompute", "llama", {}, COLUMNS + ROWS, False),
        ("value", "mistral", {}, None, True),
        ("copy", "qwen3", {"tied": True}, None, True),
    ],
)
def test_every_gradient_is_whole_after_backward(two, way, family, settings, targets, sequence):
    for loss, gradient in two.run(plan_ranks.compared, way, family, settings, targets, sequence):
        assert loss <= 1e-6
        assert gradient <= 1e-5


@pytest.mark.long
def test_a_layer_compiles_to_one_graph():
    with Crew(2) as fresh:  # compiled code is kept by process, and knows its process group
        for loss, gradient in fresh.run(plan_ranks.compared, "compile", "llama", {}, COLUMNS + ROWS, True):
            assert loss <= 1e-6
            assert gradient <= 1e-5


@pytest.mark.parametrize("sequence", [False, True])
def test_hidden_states_enter_and_leave_a_stage_whole(two, sequence):
    for found in two.run(plan_ranks.staged, sequence):
        assert max(found) <= 1e-5


@pytest.mark.parametrize("tied", [False, True])
def test_a_rank_holds_its_part(two, tied):
    copied = 4 * plan_ranks.WIDTH * (2 * 2 + 1 + 2) + 4 * 8 * 2 * 2  # norms, biases of o_proj; q_norm, k_norm
    for own, whole, same in two.run(plan_ranks.held, tied):
        assert own == (whole + copied) / 2
        assert same is tied


def test_one_process_changes_nothing():
    model = plan_ranks.tiny()
    before = list(model.parameters())
    apply_tp(model, SINGLE_PROCESS, sequence=True)
    assert all(one is other for one, other in zip(model.parameters(), before, strict=True))


# ------------------------------------------------------------------ the vocabulary


@pytest.mark.parametrize(("shape", "dtype"), [((5,), torch.float32), ((5, 3), torch.float32), ((5, 3), torch.bfloat16)])
def test_logprobs_of_slices(two, shape, dtype):
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(5, 10, generator=generator) * 4).to(dtype)
    logits[0, 4:] += 200  # far beyond what exp can hold
    logits[1, :5] = -torch.inf  # a slice of which nothing is left
    ids, gradient = torch.randint(10, shape, generator=generator), torch.randn(shape, generator=generator)
    ids[1] = 7
    whole = logits.clone().requires_grad_()
    table = torch.log_softmax(whole.float(), dim=-1)
    expected = table.gather(-1, ids.view(5, -1)).view(shape)
    expected.backward(gradient)
    results = two.run(plan_ranks.slices, logits, ids, gradient)
    for found, part in results:
        torch.testing.assert_close(found, expected.detach(), rtol=1e-6, atol=1e-5)
        assert part.dtype == dtype
    torch.testing.assert_close(torch.cat([part for _, part in results], dim=-1), whole.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (5, 3)])
def test_logprobs_of_one_process(shape):
    logits, ids = torch.randn(5, 10), torch.randint(10, shape)
    expected = torch.log_softmax(logits, dim=-1).gather(-1, ids.view(5, -1)).view(shape)
    torch.testing.assert_close(vocab_logprobs(logits, ids, SINGLE_PROCESS), expected)


def test_draws_do_not_depend_on_slices(two):
    logits = torch.randn(300, 10, generator=torch.Generator().manual_seed(4))
    one = vocab_sample(logits, SINGLE_PROCESS, torch.Generator().manual_seed(9))
    for drawn in two.run(plan_ranks.draws, logits, 9):
        assert torch.equal(drawn, one)
    assert not torch.equal(one, vocab_sample(logits, SINGLE_PROCESS, torch.Generator().manual_seed(10)))


def test_draws_follow_the_softmax():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, -torch.inf])
    drawn = vocab_sample(logits.expand(20_000, -1), SINGLE_PROCESS, torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn, minlength=5) / len(drawn)
    torch.testing.assert_close(shares, logits.softmax(0), rtol=0, atol=4 * 0.5 / 20_000**0.5)
    assert shares[4] == 0


def test_nothing_to_say(two):
    empty, ids = torch.zeros(0, 10), torch.zeros(0, dtype=torch.int64)
    for found, part in two.run(plan_ranks.slices, empty, ids, torch.zeros(0)):
        assert found.shape == (0,)
        assert part.shape == (0, 5)
    assert [len(drawn) for drawn in two.run(plan_ranks.draws, empty, 0)] == [0, 0]


# ------------------------------------------------------------------ what is refused


def shape(**changes):
    sizes = {"num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 48, "vocab_size": 256}
    return AutoConfig.for_model("qwen3", **sizes | changes)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_sizes_that_divide(tp):
    assert check_tp(shape(), tp) == []


def test_sizes_that_do_not_divide_are_named_with_the_largest_tp():
    [problem] = check_tp(shape(), 12)[:1]
    assert str(problem) == ("parallel.tp: 4 key/value heads cannot be shared by 12 ranks (set tp to a divisor of 4)")
    found = check_tp(shape(num_attention_heads=10, intermediate_size=50, vocab_size=257), 4)
    assert [problem.what.partition(" cannot")[0] for problem in found] == [
        "10 attention heads",
        "50 hidden units of an MLP",
        "257 words of the vocabulary",
    ]
    assert "set tp to a divisor of 1" in found[0].hint


def test_a_family_without_a_plan_or_with_a_style_that_is_not_known():
    [problem] = check_tp(AutoConfig.for_model("gpt2"), 2)
    assert "'gpt2' models have no plan" in problem.what
    assert "base_model_tp_plan" in problem.hint
    found = check_tp(AutoConfig.for_model("phi3", vocab_size=256), 2)
    assert [(problem.where, problem.what) for problem in found] == [
        ("layers.*.self_attn.o_proj", "unknown tensor-parallel style 'rowwise_split_input'"),
        ("layers.*.mlp.down_proj", "unknown tensor-parallel style 'rowwise_split_input'"),
    ]


def test_models_that_cannot_be_laid_stay_as_they_are(two):
    for found in two.run(plan_ranks.refusals):
        unplanned, misread, head, uneven, dora, ia3, prefix, odd = found
        assert unplanned.startswith(
            "model.layers.1.self_attn.gate: the model's plan for tensor parallelism has no style"
        )
        assert misread == "layers.*.mlp.up_proj: unknown tensor-parallel style 'colwize' (did you mean 'colwise'?)"
        assert head == "lm_head: unknown tensor-parallel style 'rowise' (did you mean 'rowwise'?)"
        assert "63 words of the vocabulary cannot be shared by 2 ranks" in uneven
        assert dora.startswith("model.layers.0.self_attn.q_proj: Linear cannot be split (plain linears and plain LoRA")
        assert ia3.startswith("model.layers.0.self_attn.k_proj: Linear cannot be split")
        assert prefix.startswith("parallel.tp: prefix and prompt tuning cannot be split")
        assert odd.startswith("hidden states cannot be cut along their sequence: got 7 tokens in a row")
