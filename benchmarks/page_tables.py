"""Which figures of which results files stand on `docs/benchmarks.md`, in which order, and what they were to reach.

A figure is a path into a file, its aim a number, or the path of one that the benchmark itself wrote down (`goals.x`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BENCHES", "Bench", "Figure"]


@dataclass(frozen=True)
class Figure:
    """A line of a table: what it is, where it stands, what it was to reach, and which way is better."""

    what: str
    path: str
    aim: float | str | None = None
    better: Literal["more", "less"] = "more"


@dataclass(frozen=True)
class Bench:
    """A benchmark with a results file."""

    title: str
    command: str
    file: str
    figures: tuple[Figure, ...]
    about: str = ""


def _x(what: str, path: str, aim: float | str | None = None) -> Figure:
    return Figure(what, path, aim)


def _most(what: str, path: str, aim: float | str | None) -> Figure:
    return Figure(what, path, aim, "less")


BENCHES = (
    Bench(
        "AgentEvol on a pretrained model",
        "evolve_real",
        "evolve_real.json",
        (
            _x("success as published, without examples, on evo and combo", "zero_shot"),
            _x("the same after cloning", "base"),
            _x("evolve", "evolve"),
            _x("more cloning, as many learned tokens", "train"),
            _x("more cloning, as many computed tokens", "total"),
            _x("evolve minus the last", "primary"),
        ),
        about="SmolLM2-135M, crafting and lookup; four of six seeds are complete, so there is no verdict yet.",
    ),
    Bench(
        "A pretrained model beside its peers",
        "real_model",
        "real_model.json",
        (
            _x("decoding over transformers, 1 text, float32", "decode_over_transformers_1", 2.5),
            _x("8 texts", "decode_over_transformers_8", 4),
            _x("32 texts", "decode_over_transformers_32"),
            _x("decoding over llama.cpp, 1 text, float32", "decode_over_llamacpp_1", 0.9),
            _x("8 texts, float32", "decode_over_llamacpp_8", 2.5),
            _x("8 texts, bfloat16", "decode_over_llamacpp_8_bfloat16", 2.5),
            _x("decoding over OpenVINO GenAI, 8 texts, float32", "decode_over_openvino_8", 0.8),
            _x("32 texts, float32", "decode_over_openvino_32", 0.8),
            _x("32 texts, bfloat16", "decode_over_openvino_32_bfloat16", 0.8),
            _x("fine-tuning with LoRA over the HF Trainer", "sft_lora_over_trainer", 1.6),
            _x("fine-tuning all weights over the HF Trainer", "sft_full_over_trainer", 1.4),
            _x("fine-tuning with LoRA over TRL", "sft_over_trl", 1.6),
            _x("a step of GRPO over TRL", "grpo_over_trl", 4),
            _x("the model's share of that step", "grpo_model_share", 0.85),
            _most("memory of that step, GB", "grpo_rss_gb", 2.2),
            _x("decoding on two threads over one", "threads2_decode", 1.7),
            _x("training on two threads over one", "threads2_train", 1.7),
        ),
        about="SmolLM2-135M on one thread, tokens per CPU second, both sides interleaved in one run. Ratios depend on "
        "the processor, which `machines` in the file names for each work.",
    ),
    Bench(
        "The first hour of a user",
        "first_hour",
        "first_hour.json",
        (
            _x("tasks of twelve that their scripts do", "tasks_done", 12),
            _most("lines of code, median", "median_lines", 12),
            _most("lines of code over those of its peers, where they do the task", "over_peer_lines", 0.7),
        ),
        about="Scripts of `benchmarks/first_hour`, each in an empty folder; peers are TRL, Stable-Baselines3, "
        "verifiers and inspect_ai.",
    ),
    Bench(
        "Chat templates",
        "templates",
        "templates.json",
        (
            _x("templates of TRL with three tokenizers, written as the template renders them", "exact", 216),
            _most("written wrongly", "wrong", 0),
        ),
    ),
    Bench(
        "Model families",
        "families",
        "families.json",
        (
            _x("families of transformers that share prefixes", "families", 60),
            _most("largest difference from the model's own forward", "worst_difference", 1e-5),
            _most("families that are computed again for every token", "recomputed", 0),
        ),
    ),
    Bench(
        "Memory of a pretrained model",
        "model_memory",
        "model_memory.json",
        (
            _most("memory over weights and tokens, float32", "rss_over_needed_float32", 1.3),
            _most("memory over weights and tokens, bfloat16", "rss_over_needed_bfloat16", 1.3),
            _most("commands with default settings that fail", "default_commands_failed", 0),
        ),
    ),
    Bench(
        "What models write, and packages pay",
        "reality",
        "reality.json",
        (
            _x("round trips of calls through their formats", "call_roundtrips", 10_000),
            _most("calls read wrongly", "call_wrong", 0),
            _x("pairs of maths answers", "maths_pairs", 400),
            _most("wrong answers accepted", "maths_false_accept", 0),
            _most("wrong answers that math-verify alone accepts", "math_verify_false_accept", None),
            _x("right answers accepted", "maths_true_accept", 0.98),
            _x("tasks of packaged games and puzzles that were played", "package_tasks"),
            _most("tasks where the best player is not above the worst", "package_order_wrong", 0),
        ),
    ),
    Bench(
        "Function calling: the checker",
        "bfcl --data FOLDER",
        "bfcl.json",
        (
            _x("gold answers of BFCL v4 accepted, of 2,501 (four cannot be answered)", "gold_accepted", 2497),
            _most("corrupted answers accepted, of 24,174", "corrupted_accepted", 0),
        ),
    ),
    Bench(
        "Sandbox",
        "sandbox",
        "sandbox.json",
        (
            _most("attacks that got out, of 282", "escaped", "goals.escaped"),
            _most("cheating programs that passed", "cheats_passed", "goals.cheats_passed"),
            _x("HumanEval's own solutions accepted, of 164", "canonical", 164),
            _most("milliseconds of a fresh box over bare Python", "overhead_ms", "goals.overhead_ms"),
            _most("seconds that a killed job ends too late", "late_s", "goals.late_s"),
        ),
    ),
    Bench(
        "Household beside the official engine",
        "household --official PYTHON",
        "household.json",
        (
            _most("states that differ", "parity_mismatches", "goals.parity_mismatches"),
            _x("states compared", "parity_states", "goals.parity_states"),
            _x("games compared", "parity_games", "goals.parity_games"),
            _x("steps per CPU-second", "steps_per_cpu_s", "goals.steps_per_cpu_s"),
            _x("the same, times the official engine's", "official.x_steps"),
        ),
    ),
    Bench(
        "Worlds",
        "worlds",
        "worlds.json",
        tuple(
            figure
            for world in ("shop", "site", "science", "kitchen", "virtualhome", "datasci")
            for figure in (
                _x(f"{world}: steps per CPU-second", f"steps_per_cpu_s.{world}", f"goals.steps_per_cpu_s.{world}"),
                _x(f"{world}: episodes that the expert wins", f"expert_success.{world}.value", "goals.expert_success"),
                _most(f"{world}: won by random actions", f"random_success.{world}.value", "goals.random_success"),
                _most(f"{world}: won by blind replay", f"blind_replay.{world}.value", "goals.blind_replay"),
            )
        ),
        "The worst of the held-out tiers. `worlds.json` also holds first visits, the start of a fresh process, sql, "
        "weather, sheet, backoffice (7,822 steps a CPU-second), and battles, whose expert is a planner (`script`: a "
        "script that is as fast as play).",
    ),
    Bench(
        "Serving worlds",
        "serve",
        "serve.json",
        (
            _x("server CPU of a step, a POST each over a batch of 256", "x_post_per_step", "goals.x_post_per_step"),
            _most(
                "AgentGym's mount over a route that does nothing",
                "agentgym_over_noop_cpu",
                "goals.agentgym_over_noop_cpu",
            ),
            _most("latency of 256 sessions, p99 over p50", "p99_over_p50_256", "goals.p99_over_p50_256"),
            _most("errors", "errors", "goals.errors"),
        ),
    ),
    Bench(
        "The policy server",
        "policy_server --peers PYTHON",
        "policy_server.json",
        (
            _x("tokens a second over `transformers serve`, 32 clients", "x_transformers_serve_32", 3),
            _x("over `transformers serve` with its continuous batching", "x_transformers_serve_batching_32"),
            _x("over a bare loop of the same engine, 32 clients", "over_bare_loop", 0.8),
            _most("milliseconds to the first text, 32 clients", "ttft_ms", None),
        ),
        "One checkpoint of 17 million weights on every side, the same texts from all ([Serving](serving.md)).",
    ),
    Bench(
        "Ten minutes of load with kills",
        "soak",
        "soak.json",
        (
            _most("wrong observations", "wrong_observations", "goals.wrong_observations"),
            _most("sessions left", "sessions_left", "goals.sessions_left"),
            _most("memory at the end over the beginning", "rss_growth", "goals.rss_growth"),
            _most("errors without an explanation", "errors_unexplained", "goals.errors_unexplained"),
            _x("observations compared", "observations"),
        ),
    ),
    Bench(
        "Layouts of training",
        "parallel",
        "parallel.json",
        (
            _most("largest difference of a loss to one process, over 10 updates", "max_loss_diff", 2e-6),
            _most("the same with LoRA", "lora_max_diff", 1e-5),
            _x("cells (family, layout, optimizer)", "cells"),
            _x("trainings gone on under another layout", "resume_pairs", 12),
            _most("their largest difference", "resume_max_diff", 2e-6),
        ),
    ),
    Bench(
        "Memory of training",
        "memory",
        "memory.json",
        (
            _most("beyond the weights, in weights: LOMO", "beyond_params.lomo.evolvent", "aims.lomo"),
            _most("AdaLomo", "beyond_params.adalomo.evolvent", "aims.adalomo"),
            _x("AdamW", "beyond_params.adamw.evolvent"),
            _x("LoRA", "beyond_params.lora.evolvent"),
            _most("planner, error of weights, gradients and state", "planner_state_error", 0.05),
            _most("planner, error of activations", "planner_activation_error", 0.2),
        ),
    ),
    Bench(
        "A step of GRPO beside TRL",
        "rl_step",
        "rl_step.json",
        (
            _x("CPU of TRL's GRPOTrainer over ours: texts of one length", "shapes.even.x_trl", 3),
            _x("texts that end by themselves", "shapes.uneven.x_trl", 3),
            _x("long prompts", "shapes.long prompt.x_trl", 3),
            _x("share of the step in the model", "model_share", 0.8),
            _most("share in credit", "credit_share", 0.01),
        ),
    ),
    Bench(
        "A step of GRPO on an H100, 0.5B",
        "rl_step --device cuda",
        "rl_step_cuda.json",
        (
            _x("tokens written a second, 512 texts at once", "rollout_tokens_per_s"),
            _x("over the `generate` of transformers", "over_generate"),
            _most("seconds of a step of 512 texts, 128 tokens read and 256 written", "step_s", None),
            _x("share of the device's limit: playing", "share_of_limit.play"),
            _x("learning", "share_of_limit.learn"),
            _x("the whole step", "share_of_limit.step"),
            _most("share in credit", "credit_share", 0.01),
            _x(
                "rows that share beginnings over rows apart, prompts of 1,000 tokens, 128 written: learning",
                "long prompts.faster.learn",
            ),
            _x("the whole step", "long prompts.step_faster"),
        ),
        "Random weights, bfloat16. What the limits are: `benchmarks/rl_step_gpu.py`.",
    ),
    Bench(
        "Reinforcement learning over two ranks",
        "rl_ranks",
        "rl_ranks.json",
        (
            _most(
                "largest difference of an iteration from the same checkpoint", "max_difference", "goals.max_difference"
            ),
            _x("updates of these iterations", "updates"),
            _x("largest difference of two whole runs", "drift"),
            _x("updates of a whole run", "drift_updates"),
            _most("episodes lost with a player and a rank killed", "lost", "goals.lost"),
            _most("episodes stored twice", "doubled", "goals.doubled"),
            _x("tokens learned per CPU-second over one process", "two_ranks_efficiency", "goals.two_ranks_efficiency"),
            _x("wall time without playing ahead over that with it", "lag1_speedup", "goals.lag1_speedup"),
        ),
        "The efficiency is that of SmolLM2-135M with LoRA; the other figures are those of a small model.",
    ),
    Bench(
        "What searching costs",
        "search_cost",
        "search_cost.json",
        (
            _most(
                "tokens computed of those that must be, at most",
                "computed_over_limit_max",
                "goals.computed_over_limit_max",
            ),
            _x("beam over prefilling anew, depth 8", "x_reprefill_d8", "goals.x_reprefill_d8"),
            _x("depth 64", "x_reprefill_d64", "goals.x_reprefill_d64"),
            _x("over copying caches", "x_path_copy", "goals.x_path_copy"),
            _x("16 problems together over one after another, least", "x_batching", "goals.x_batching"),
            _most("MCTS over best of n, CPU of a computed token", "mcts_over_bon_cpu", "goals.mcts_over_bon_cpu"),
        ),
    ),
    Bench(
        "Teams: area under the learning curve",
        "mat",
        "mat.json",
        (
            _x("HalfCheetah 6x1: MAT", "auc.halfcheetah_6x1.mat"),
            _x("MAT-Dec", "auc.halfcheetah_6x1.mat_dec"),
            _x("MAPPO", "auc.halfcheetah_6x1.mappo"),
            _x("HAPPO", "auc.halfcheetah_6x1.happo"),
            _x("MAT minus HAPPO", "above.halfcheetah_6x1.happo"),
        ),
        "Each training has one per cent of the paper's steps ([MAT](papers/mat.md)).",
    ),
    Bench(
        "Hammer: masking and irrelevance",
        "masking --report",
        "masking.json",
        (
            _x("plain: right under names as they are", "accuracy.plain.plain"),
            _x("under other names", "accuracy.plain.renamed"),
            _x("both: under names as they are", "accuracy.both.plain"),
            _x("under other names", "accuracy.both.renamed"),
            _x("share of plain's drop that both saves", "drop_saved", "goals.drop_saved"),
            _x("in points", "drop_saved_ci"),
            _x("refusing what nothing answers, both minus plain", "irrelevant_gain", 0),
            _x("names as they are, both minus plain", "plain_change", 0),
            _x("the same with three times the tokens", "plain_change_3x_tokens", 0),
            _x("four times the weights, plain: under other names", "accuracy.plain, 4x.renamed"),
            _x("samples masked per CPU-second", "samples_per_s", "goals.samples_per_s"),
        ),
        "Models of 0.2 million weights, three seeds ([Hammer](papers/hammer.md)).",
    ),
    Bench(
        "Comments in code",
        "comments --src FOLDER",
        "comments.json",
        (
            _x("real files that got comments", "files", "goals.files"),
            _x("languages", "languages", "goals.languages"),
            _most("files whose code changed", "unequal", "goals.unequal"),
            _most("changes of one token not noticed, of 8,028", "undetected", "goals.undetected"),
            _x("MB a CPU-second", "mb_per_s", "goals.mb_per_s"),
            _x("pass@1, mean of three models: commented and filtered minus the generator", "effect_ci.generator", 0),
            _x("minus raw", "effect_ci.raw", 0),
            _x("minus filtered raw", "effect_ci.filtered raw", 0),
        ),
        '"Reached" is about means; every interval holds 0 ([comments](papers/comments.md)).',
    ),
    Bench(
        "P3: choosing what to learn",
        "p3 --report",
        "p3.json",
        (
            _x("maths: P3", "accuracy.maths.p3"),
            _x("minus random", "p3_minus.maths.random", 0),
            _x("minus the whole pool", "p3_minus.maths.full", 0),
            _x("programs: P3", "accuracy.programs.p3"),
            _x("minus random", "p3_minus.programs.random", 0),
            _x("minus the whole pool", "p3_minus.programs.full", 0),
            _x("maths with 30 % wrong answers: P3", "accuracy.noisy maths.p3"),
            _x("minus random", "p3_minus.noisy maths.random", 0),
            _x("minus P3 without the difficulty", "p3_minus.noisy maths.no difficulty", 0),
        ),
        '"Reached" is about means; every interval holds 0 ([P3](papers/p3.md)).',
    ),
    Bench(
        "Selecting by determinants",
        "select --peers PYTHON",
        "select.json",
        (
            _x(
                "problems of 200 with the indices of the naive greedy", "identical_to_naive", "goals.identical_to_naive"
            ),
            _most("seconds, 60 of 1,000,000 x 64", "seconds_1m", "goals.seconds_1m"),
            _most("peak megabytes, features included", "peak_mb_1m", "goals.peak_mb_1m"),
            _x("CPU of fast-map-dpp's kernel form over ours, n 10,000, k 512", "x_peers.kernel_form"),
            _most("ours over it", "ours_over_kernel_form", "goals.ours_over_kernel_form"),
            _x("submodlib over ours, n 2,000, k 100", "x_peers.submodlib"),
            _x("DPPy, which draws an exact sample", "x_peers.dppy"),
            _x("facility location: submodlib over ours", "x_peers.submodlib_facility"),
            _x("apricot over ours", "x_peers.apricot_facility"),
        ),
        "The same indices from every side that answers the same task.",
    ),
    Bench(
        "Ray",
        "scale",
        "scale.json",
        (
            _most("CPU of an episode on Ray over the same in one process, less 1", "overhead", "goals.overhead"),
            _x("two nodes over one, an environment-bound load", "x_two_nodes", "goals.x_two_nodes"),
            _most("episodes lost when a node is killed", "lost", "goals.lost"),
            _most("episodes twice", "doubled", "goals.doubled"),
        ),
    ),
    Bench(
        "The list of faults, provoked, and half an hour of mixed load",
        "faults --soak-minutes 30",
        "faults.json",
        (
            _x("faults listed", "listed", "goals.listed"),
            _x("provoked", "provoked", "goals.provoked"),
            _x("ended as expected", "as_expected", "goals.as_expected"),
            _x("tests that ran", "tests"),
            _x("trajectories of the soak", "soak.trajectories"),
            _x("servers killed in it", "soak.servers_killed"),
            _most("trajectories lost", "lost", "goals.lost"),
            _most("trajectories twice", "doubled", "goals.doubled"),
        ),
    ),
    Bench(
        "A day in miniature",
        "soak_all --minutes 30",
        "soak_all.json",
        (
            _most("trajectories lost", "lost", "goals.lost"),
            _most("trajectories twice", "doubled", "goals.doubled"),
            _most("trajectories, trainings or pages that were wrong", "wrong", "goals.wrong"),
            _most("processes, connections or files left open", "left_open", "goals.left_open"),
            _most("memory of the recording endpoint at the end over the start", "rss_growth", "goals.rss_growth"),
            _most("ms within which 99 of 100 health checks answered", "health_p99_ms", "goals.health_p99_ms"),
            _x("sessions recorded", "trajectories_record"),
            _x("servers killed", "servers_killed"),
            _x("trainings on two ranks killed", "trainings_killed"),
            _x("connections that sent slowly", "slow_opened"),
        ),
    ),
    Bench(
        "The viewer in Chromium, 100,000 trajectories",
        "viewer --axe AXE_MIN_JS",
        "viewer.json",
        (
            _most("milliseconds to the first useful paint", "first_paint_ms", 1000),
            _most("milliseconds of a search", "search_ms", 200),
            _most("the slowest search", "slowest_search_ms", None),
            _most("serious findings of axe-core", "axe_serious", 0),
        ),
    ),
    Bench(
        "A model of larger clusters",
        "scale_sim",
        "scale_sim.json",
        (
            _most(
                "foreseen and measured seconds of circles of 1, 2 and 4 workers: the worst factor", "worst_ratio", None
            ),
            _most("mean field beside every row simulated: the worst difference", "mean_field.worst", None),
            _x("foreseen steps a second, 7B, 256 GPUs, 10,000 environments", "predictions.7B.256.10000.steps_s"),
        ),
        "A prediction ([Estimates for clusters](scaling.md)).",
    ),
    Bench(
        "Policies over recorded episodes",
        "sequence",
        "sequence.json",
        (
            _x("DT above cloning, Hopper's replay", "orderings.hopper-replay: dt > bc", 0),
            _x("Pendulum's replay", "orderings.pendulum-replay: dt > bc", 0),
            _x("CartPole's replay", "orderings.cartpole-replay: dt > bc", 0),
            _x("TT above DT on the pieces, of 10", "orderings.stitching-pieces: tt > dt", 0),
            _x("Q-Transformer above DT on the pieces", "orderings.stitching-pieces: q > dt", 0),
            _most("one policy for four tasks behind its specialists, in its worst", "multi_task_gap", 0.1),
            _x("tasks of five in which DT is above cloning, whole interval over ten seeds", "family.dt_above_bc", 4),
        ),
        'Scores from 0 (random) to 100 (the expert); "reached" is about means ([Sequences](sequences.md)).',
    ),
    Bench(
        "MAT's loop beside a plain one",
        "mat_speed",
        "mat_speed.json",
        (
            _x("acting, 6 agents", "x_action", "goals.x_action"),
            _x("the whole loop, environment excluded", "x_total", "goals.x_total"),
            _most("growth of the whole with the number of agents, exponent", "growth_exponent", None),
        ),
    ),
    Bench(
        "Particle filters beside NumPy",
        "belief",
        "belief.json",
        (
            _x("256 beliefs of 1,000 particles", "x_numpy_256x1000", "goals.x_numpy_256x1000"),
            _x("one of 10,000", "x_numpy_1x10000", "goals.x_numpy_1x10000"),
        ),
    ),
    Bench(
        "Finding a source, and knowing that it is found",
        "plume",
        "plume.json",
        (
            _x("success: PPO with AGDC", "policies.ppo/agdc.success"),
            _x("DQN with AGDC", "policies.dqn/agdc.success"),
            _x("DCEE", "policies.dcee.success"),
            _x("infotaxis", "policies.infotaxis.success"),
            _x("PPO with AGDC minus infotaxis", "against.ppo/agdc.infotaxis.success"),
            _most("steps of an episode, PPO with AGDC minus DCEE", "against.ppo/agdc.dcee.steps", 0),
            _most("minus infotaxis", "against.ppo/agdc.infotaxis.steps", 0),
            _most("episodes that stop where no source is, PPO with AGDC", "policies.ppo/agdc.false_cessation", 0.02),
            _most("milliseconds of a decision of PPO with AGDC", "policies.ppo/agdc.decision_ms", None),
            _most("of DCEE", "policies.dcee.decision_ms", None),
        ),
        "512 episodes, five training seeds ([AGDC](papers/agdc.md)).",
    ),
    Bench(
        "Retrieved steps",
        "trad --match --index --agents",
        "trad.json",
        (
            _x("share whose next action fits: by thoughts", "match.thought"),
            _x("by metadata", "match.metadata"),
            _x("the difference", "match_gain_ci"),
            _x("after half of the thoughts were replaced by wrong ones", "gain_when_wrong_ci.thought_wrong_50"),
            _most("texts embedded again when more is added", "store.embedded_again", "goals.embedded_again"),
            _x("episodes solved by a taught small model, TRAD, all worlds", "success.all.trad"),
        ),
        "Of the last line every system has 0: nothing there ranks them ([TRAD](papers/trad.md)).",
    ),
    Bench(
        "Retrieved steps by the size of prompts, under gates",
        "trad_agents --study budgets",
        "trad_budgets.json",
        (
            _x("actions right where the prompt shows the command, TRAD at 600 tokens", "followed.trad.600", 0.9),
            _x("actions whose command the prompt shows, 600 tokens: TRAD", "told.trad.600"),
            _x("Synapse, whole demonstrations", "told.synapse.600"),
            _x("episodes solved, 600 tokens: TRAD", "success.trad.600"),
            _x("TRAD minus Synapse, 600 tokens", "trad_minus_synapse_ci", 0),
            _x("the same, 900 tokens", "trad_minus.synapse.900"),
        ),
        "A small reader of demonstrations, hidden commands, 24 tasks of new kinds ([TRAD](papers/trad.md)).",
    ),
    Bench(
        "Searching countdown",
        "search_quality",
        "search_quality.json",
        (
            _x("best of n, 2,000 computed tokens", "accuracy.countdown.best_of_n.2000"),
            _x("MCTS", "accuracy.countdown.mcts.2000"),
            _x("Gumbel", "accuracy.countdown.gumbel.2000"),
            _x("beam", "accuracy.countdown.beam.2000"),
            _x("best search minus greedy decoding", "best_minus_greedy.countdown", 0.25),
            _x("greedy decoding after two rounds of the loop, minus before", "loop_gain_ci.countdown", 0.1),
            _x("minus that of as many more tokens of demonstrations", "loop_over_control_ci.countdown"),
        ),
    ),
    Bench(
        "Searching countdown with 5 and 6 numbers, under gates",
        "search_quality --study hard",
        "search_hard.json",
        (
            _x("AUC of the learned judge among equally many numbers, 5", "judge_auc.5.learned.within_levels", 0.75),
            _x("6 numbers", "judge_auc.6.learned.within_levels", 0.75),
            _x("best of n, 5 numbers", "accuracy.5.best_of_n, none"),
            _x("the best search of the development seed minus that, 5 numbers", "best_search_minus_bon.5"),
            _x("best of n, 6 numbers", "accuracy.6.best_of_n, none"),
            _x("the best search of the development seed minus that, 6 numbers", "best_search_minus_bon.6"),
        ),
        "One sample in 100 (5 numbers) or 290 (6) is right; 800 written tokens each ([TS-LLM](papers/tsllm.md)).",
    ),
    Bench(
        "Process labels without people",
        "prm",
        "prm.json",
        (
            _x("right labels, Math-Shepherd", "label_accuracy.shepherd"),
            _x("right labels, OmegaPRM", "label_accuracy.omega"),
            _x("rollouts for a right label, Math-Shepherd over OmegaPRM", "rollouts_ratio", 3),
            _x("choosing by the model minus a majority, 16 samples", "prm_minus_majority.16"),
        ),
    ),
    Bench(
        "OpenR, part by part",
        "openr",
        "openr.json",
        (
            _x("deduction: base", "accuracy.deduction.base"),
            _x("imitated longer", "accuracy.deduction.imitated"),
            _x("online", "accuracy.deduction.online"),
            _x("offline", "accuracy.deduction.offline"),
            _x("online minus base, interval", "rl_gain_ci.deduction.online"),
        ),
        "No arm gains beyond its interval.",
    ),
    Bench(
        "Decoding with a process reward model, under gates",
        "openr --study clock",
        "openr_clock.json",
        (
            _x("AUC of the reward model within equally many equations", "judge.auc", 0.8),
            _x("majority of 20 samples", "decoded.majority"),
            _x("best of 8 by the reward model", "decoded.guided"),
            _x("beam of 4 by the reward model", "decoded.beam"),
            _x("best of 8 minus majority", "guided_minus_majority", 0),
            _x("beam minus majority", "beam_minus_majority", 0),
        ),
        "Sums whose facts the policy partly has wrong, with confidence ([OpenR](papers/openr.md)).",
    ),
    Bench(
        "Votes that stop early",
        "stopping",
        "stopping.json",
        (
            _x("tokens saved at equal accuracy, countdown", "at_equal_accuracy.countdown-0.7.agreement.saved", 0.4),
            _x("word problems", "at_equal_accuracy.problems-0.7.agreement.saved", 0.4),
            _x("by `decided` alone, countdown", "at_equal_accuracy.countdown-0.7.decided.saved"),
        ),
    ),
    Bench(
        "Credit for every token",
        "credit",
        "credit.json",
        (
            _x("kitchen, POAD minus PPO, area under the curve", "poad_over.kitchen.ppo"),
            _x("kitchen, POAD minus NTPO", "poad_over.kitchen.ntpo"),
            _x("household, POAD minus PPO", "poad_over.household.ppo"),
            _x("household, POAD minus NTPO", "poad_over.household.ntpo"),
            _x("worlds in which POAD is above both", "poad_wins", 2),
            _x("kitchen, POAD with no discount inside an action", "inner_discount.kitchen.auc.1"),
            _x("with .9", "inner_discount.kitchen.auc.0.9"),
            _x("with .5", "inner_discount.kitchen.auc.0.5"),
            _x("more discount inside is never better, in any world", "inner_discount_monotone", 1),
        ),
    ),
    Bench(
        "Reward at equal divergence from the reference",
        "credit --study language",
        "credit_language.json",
        (
            _x("ETPO within 0.1 nats a token", "return.0.1.etpo"),
            _x("PPO over tokens", "return.0.1.token_ppo"),
            _x("the largest return there is", "limit.0.1"),
            _x("ETPO minus PPO over tokens", "etpo_minus_ppo_ci", 0),
            _x("perplexity of unpaid language, ETPO over PPO over tokens", "etpo_over_ppo_perplexity.0.1"),
        ),
        "Twelve colors, the share of right ones is paid ([ETPO](papers/etpo.md)).",
    ),
    Bench(
        "Credit by length of action",
        "credit --study lengths",
        "credit_lengths.json",
        (
            _x("POAD minus PPO over actions, area under the curve, 4 words", "poad_minus_action_ci.4"),
            _x("16 words", "poad_minus_action_ci.16", 0),
            _x("32 words", "poad_minus_action_ci.32", 0),
            _x("48 words", "poad_minus_action_ci.48", 0),
            _x("runs of eight at 12 words that end near their peak", "stable_runs", 8),
            _x("gates passed", "gate_passed", 1),
        ),
        "Table policies under the library's estimators, losses and optimizer ([POAD](papers/poad.md)).",
    ),
    Bench(
        "A reverse curriculum (R3)",
        "r3",
        "r3.json",
        (
            _x("mixed minus outcome, mean of ten panels", "r3_minus_outcome_mean", 0.04),
            _x("arithmetic, base", "base.arithmetic"),
            _x("imitation", "accuracy.arithmetic.sft"),
            _x("outcome", "accuracy.arithmetic.outcome"),
            _x("staged", "accuracy.arithmetic.staged"),
            _x("mixed (R3)", "accuracy.arithmetic.mixed"),
            _x("programs, base", "base.programs"),
            _x("imitation", "accuracy.programs.sft"),
            _x("outcome", "accuracy.programs.outcome"),
            _x("staged", "accuracy.programs.staged"),
            _x("mixed (R3)", "accuracy.programs.mixed"),
        ),
        "Ten panels and what they say: [R3](papers/r3.md).",
    ),
    Bench(
        "R3 on hidden chains, under gates",
        "r3 --study chains",
        "r3_chains.json",
        (
            _x("mixed minus outcomes alone, over 8, 12 and 16 steps", "r3_minus_outcome_ci", 0),
            _x("8 steps", "r3_minus_outcome_by_length.8"),
            _x("12 steps", "r3_minus_outcome_by_length.12"),
            _x("16 steps", "r3_minus_outcome_by_length.16"),
            _x("imitation of the same demonstrations, 16 steps", "success.sft.16"),
            _x("staged, 16 steps", "success.staged.16"),
            _x("gates passed", "gate_passed", 1),
        ),
        "Six frozen seeds ([R3](papers/r3.md)).",
    ),
    Bench(
        "MAT by number of agents, under gates",
        "mat --study sizes",
        "mat_sizes.json",
        (
            _x("`distinct`, 8 agents: MAT minus MAPPO, area under the curve", "mat_minus_ci.distinct 8.mappo", 0),
            _x("minus MAT-Dec", "mat_minus_ci.distinct 8.mat_dec", 0),
            _x("minus HAPPO", "mat_minus_ci.distinct 8.happo", 0),
            _x("12 agents: minus MAPPO", "mat_minus_ci.distinct 12.mappo", 0),
            _x("minus MAT-Dec", "mat_minus_ci.distinct 12.mat_dec", 0),
            _x("minus HAPPO", "mat_minus_ci.distinct 12.happo", 0),
            _x("gates passed", "gate_passed", 1),
        ),
        "A team is paid for actions that no other took ([MAT](papers/mat.md)).",
    ),
    Bench(
        "MAT in foraging, under gates",
        "mat --study foraging",
        "mat_foraging.json",
        (
            _x("MAT minus MAPPO, area under the curve", "mat_minus_ci.foraging.mappo", 0),
            _x("minus MAT-Dec", "mat_minus_ci.foraging.mat_dec", 0),
            _x("minus HAPPO", "mat_minus_ci.foraging.happo", 0),
            _x("gates passed", "gate_passed", 1),
        ),
        "Three agents that see different things; 131,072 decisions, three seeds ([MAT](papers/mat.md)).",
    ),
    Bench(
        "Comment augmentation on SmolLM2, under gates",
        "comments_real",
        "comments_real.json",
        (
            _x("commented and filtered minus bare code, as much code", "comments_minus_raw_ci", 0),
            _x("bare code", "success.raw"),
            _x("every comment right", "success.right_tokens", 0.3),
            _x("gates passed", "gate_passed", 1),
        ),
        "Functions over an invented library, asked in words; three seeds ([comments](papers/comments.md)).",
    ),
    Bench(
        "Masked names on SmolLM2 (Hammer), under gates",
        "hammer_real",
        "hammer_real.json",
        (
            _x("masked minus plain under new names", "masked_minus_plain_renamed_ci", 0),
            _x("share of plain's drop that masking saves", "drop_saved", 0.8),
            _most("what masking costs on original names", "plain_loss", 0.02),
            _x("plain, no tool fits", "irrelevant.plain"),
            _x("masked, no tool fits", "irrelevant.masked"),
            _x("gates passed", "gate_passed", 1),
        ),
        "Tools of domains that nobody learned; valid calls ([Hammer](papers/hammer.md)).",
    ),
    Bench(
        "Optimizers by tunings",
        "tuning",
        "tuning.json",
        (
            _x("base", "base.success"),
            _x("AdamW, full", "success.adamw.full"),
            _x("AdamW, LoRA", "success.adamw.lora"),
            _x("AdamW, prefix", "success.adamw.prefix"),
            _x("LOMO, full", "success.lomo.full"),
            _x("AdaLomo, full", "success.adalomo.full"),
        ),
    ),
)
