"""Cases that once failed, and the tests that keep them right.

Public bug reports, real files, real packages, a newcomer's first day, a pretrained model and an attack were tried on
this library. What failed is listed here by the right behavior, in our own words: A public reports, F packages and
formats, N a newcomer, V the report and the viewer, R a pretrained model, L training data and layouts, M clients and
servers, P methods, S an attack. A case counts as right where all of its tests passed, and each of them ran at least
once: a test that is skipped because a package is missing proves nothing. A case without tests is wrong.

`benchmarks.reality` runs them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.kept_tests import KeptTest, kept_file, read_kept, run_kept

__all__ = ["CASES", "Case", "find_tests", "group_outcomes", "judge_cases", "run_tests"]

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Case:
    """A case: the right behavior in one sentence, and the node ids of the tests that prove it."""

    id: str
    says: str
    tests: tuple[str, ...]


def _in(file: str, *names: str) -> tuple[str, ...]:
    """Returns the node ids of tests of one file, without the prefixes that all of them share."""
    return tuple(f"tests/{file}.py::test_{name}" for name in names)


CASES = (
    # ------------------------------------------------------------------------------------------ public bug reports
    Case(
        "A1",
        "A conversation that is written turn by turn has the tokens of its whole text, also with SentencePiece.",
        _in(
            "models/test_chat_template",
            "template_of_trl_turn_by_turn_equals_whole_rendering",
            "text_that_spells_marks_has_the_tokens_of_its_letters_behind_the_right_neighbors",
        )
        + _in("models/test_dialects", "sentencepiece_tokenizers_put_no_space_between_turns"),
    ),
    Case(
        "A2",
        "A template that refuses a system role gets the instructions before the first observation.",
        _in("models/test_chat_template", "template_that_refuses_instructions_gets_them_with_the_first_text")
        + _in("models/test_dialects", "a_template_without_system_turn_puts_instructions_before_the_first_observation"),
    ),
    Case(
        "A3",
        "All that a template writes around a reply is written, also the header that it hides.",
        _in(
            "models/test_chat_template",
            "template_without_generation_prompt_gets_the_header_of_a_reply",
            "spaces_around_replies_are_written_as_the_template_writes_them",
            "thoughts_calls_and_results_are_learned_as_the_template_renders_them",
        ),
    ),
    Case(
        "A4",
        "A reply ends at any stop of the template, the tokenizer and generation_config.",
        _in(
            "models/test_chat_template",
            "stops_of_the_model_and_the_tokenizer_are_those_of_the_dialect",
            "saved_policy_keeps_its_history_and_its_ends",
            "reply_that_ends_by_text_stops_at_that_text",
        )
        + _in("engine/test_local", "stop_strings_and_stop_ids"),
    ),
    Case(
        "A5",
        "An argument without quotation marks has the type that its schema allows.",
        _in(
            "grade/test_call_formats",
            "bare_text_has_the_type_that_the_schema_allows",
            "parameters_of_combined_and_broken_schemas_are_found",
            "every_writer_is_read_back_by_its_reader",
        )
        + _in("models/test_toolprompt", "texts_stay_texts_in_every_form")
        + _in("serve/test_openai_tools", "arguments_of_a_strict_tool_fit_its_schema_or_there_is_no_call")
        + _in("worlds/test_bfcl_world", "bare_text_in_a_turn_has_the_type_of_its_schema"),
    ),
    Case(
        "A6",
        "Arguments under another name are read or refused, and never lost.",
        _in(
            "grade/test_call_formats",
            "synonyms_of_arguments_are_read",
            "arguments_that_would_be_lost_are_refused",
            "fields_that_carry_no_argument_are_passed_over",
        ),
    ),
    Case(
        "A7",
        "Thoughts are removed where they are thoughts, and calls are read where they are made.",
        _in(
            "grade/test_call_formats",
            "marks_of_thoughts_inside_an_argument_stay",
            "a_call_inside_a_thought_is_not_made",
            "a_thought_that_the_prompt_opened",
        )
        + _in("models/test_toolprompt", "a_reply_begins_inside_the_thought_that_the_prompt_opened")
        + _in(
            "grade/test_markdown",
            "a_plain_action_is_read_without_its_thought",
            "a_thought_alone_is_no_action",
            "react_is_read_as_chat_models_write_it",
        ),
    ),
    Case(
        "A8",
        "Markdown around an answer or an action changes neither.",
        _in("grade/test_maths_pairs", "answers_are_found_as_chat_models_write_them")
        + _in(
            "grade/test_markdown",
            "react_is_read_as_chat_models_write_it",
            "react_without_a_readable_action_is_refused_with_the_text",
            "calls_and_web_actions_are_read_in_markdown",
            "countdown_is_read_as_chat_models_write_it",
        ),
    ),
    Case(
        "A9",
        "Words behind a number that carry a meaning are compared.",
        _in(
            "grade/test_maths_pairs",
            "what_is_decided_without_math_verify",
            "words_and_units_around_numbers",
            "no_pair_that_differs_is_accepted_and_equal_ones_are",
        ),
    ),
    Case(
        "A10",
        "Tiny numbers and numerals with a base are compared exactly.",
        _in("grade/test_maths_pairs", "what_is_decided_without_math_verify", "exact_values"),
    ),
    Case(
        "A11",
        "Equal answers in other forms are accepted: choices, sets, science, intervals, degrees, boxes without braces.",
        _in(
            "grade/test_maths_pairs",
            "what_is_decided_without_math_verify",
            "answers_are_found_as_chat_models_write_them",
            "a_box_without_braces_takes_an_argument_of_tex",
            "numbers_in_science_and_mixed_numbers_are_graded",
        ),
    ),
    Case(
        "A12",
        "A prompt that both sides of a preference repeat is read once.",
        _in("learn/test_rows", "both_sides_that_repeat_the_prompt_read_it_once")
        + _in(
            "data/test_forms",
            "preferences_of_every_layout_are_the_same_pair",
            "instructions_beside_sides_that_repeat_the_prompt_are_kept",
            "one_word_that_opens_both_replies_is_no_repeated_prompt",
        ),
    ),
    Case(
        "A13",
        "Thoughts of training rows are learned, or counted where the template has no place for them.",
        _in(
            "learn/test_rows",
            "thoughts_and_calls_are_learned",
            "thoughts_that_the_template_has_no_place_for_are_counted",
        )
        + _in("data/test_forms", "thoughts_of_every_spelling_are_the_same"),
    ),
    Case(
        "A14",
        "A column that is null means the same as a missing one.",
        _in("learn/test_rows", "every_spelling_of_a_weight_means_the_same", "weights_of_replies")
        + _in("data/test_forms", "columns_that_another_row_fills_change_nothing")
        + _in("data/test_table_files", "chats_are_the_same_rows_in_every_format")
        + _in("cli/test_cli_data", "function_calls_of_an_arrow_table_are_those_of_json_lines"),
    ),
    Case(
        "A15",
        "A turn with loss 0 or false is not learned, whatever the spelling.",
        _in(
            "curate/test_row_imports",
            "weights_of_messages_are_flags_of_agenttraj",
            "every_spelling_of_false_is_not_learned",
        )
        + _in("learn/test_rows", "every_spelling_of_a_weight_means_the_same"),
    ),
    Case(
        "A16",
        "Code is read from fences by the rules of CommonMark, and completions run as the official harness runs them.",
        _in("grade/test_markdown", "fences_are_those_of_commonmark")
        + _in("worlds/test_code_world", "fences_and_completions_are_those_of_models"),
    ),
    Case(
        "A17",
        "Actions of a box that is bounded on one side lie in the box.",
        _in(
            "worlds/test_team_parallel",
            "actions_lie_in_a_box_that_is_bounded_on_one_side",
            "every_number_of_a_box_with_several_kinds_of_bounds_is_in_the_space",
        ),
    ),
    Case(
        "A18",
        "Replies of endpoints in parts are read, an encoded body is told, and max_completion_tokens is found.",
        _in(
            "engine/test_endpoint",
            "content_in_parts_is_read_as_text_and_thought",
            "content_with_a_part_that_is_not_text_is_refused",
            "an_encoded_answer_is_told_from_one_that_is_not_json",
            "a_model_that_takes_max_completion_tokens_is_asked_so_from_then_on",
        ),
    ),
    Case(
        "A19",
        "A call that cannot be read is no abstention.",
        _in("grade/test_call_formats", "an_attempt_to_call_is_told_from_prose")
        + _in("worlds/test_bfcl_world", "a_broken_call_is_no_abstention"),
    ),
    Case(
        "A20",
        "One bad row, episode or template costs no other, and the reason is told.",
        _in("store/test_offline", "one_ragged_episode_is_named_and_the_others_are_read")
        + _in("cli/test_cli_data", "calls_as_lists_without_ids_are_masked")
        + _in(
            "models/test_chat_template",
            "template_of_trl_turn_by_turn_equals_whole_rendering",
            "thoughts_are_removed_only_where_they_are_thoughts",
        )
        + _in("models/test_dialects", "a_template_that_goes_through_the_parts_of_a_content_is_used")
        + _in("learn/test_rows", "thoughts_and_calls_are_learned"),
    ),
    # ------------------------------------------------------------------------------------------ packages and formats
    Case(
        "F1",
        "A gold answer of one capital letter matches itself.",
        _in("grade/test_maths_pairs", "what_is_decided_without_math_verify"),
    ),
    Case(
        "F2",
        "Symbols in capital and small letters are different.",
        _in("grade/test_maths_pairs", "what_math_verify_would_fold_is_not_accepted"),
    ),
    Case(
        "F3",
        "Numerals of different bases are different.",
        _in("grade/test_maths_pairs", "what_is_decided_without_math_verify", "exact_values"),
    ),
    Case(
        "F4",
        "Values that are assigned to names are compared by name.",
        _in("grade/test_maths_pairs", "what_is_decided_without_math_verify"),
    ),
    Case(
        "F5",
        "A repeating decimal is the fraction that it stands for.",
        _in("grade/test_maths_pairs", "what_is_decided_without_math_verify", "exact_values"),
    ),
    Case(
        "F6",
        "The best button of a bandit pays most.",
        _in("worlds/test_extras_textarena", "bandit_pays_one_less_the_regret"),
    ),
    Case(
        "F7",
        "Sets found pay their share of the turns, and success needs all.",
        _in("worlds/test_extras_textarena", "set_pays_the_share_of_its_turns"),
    ),
    Case(
        "F8",
        "A question about halting is answered by the right word alone.",
        _in("worlds/test_extras_reasoning", "halting_asks_for_the_right_word"),
    ),
    Case(
        "F9",
        "A VMAS episode among others is the episode alone.",
        _in(
            "worlds/test_team_extras",
            "vmas_rows_among_others_are_the_rows_alone",
            "vmas_leaves_the_shared_stream_alone",
        ),
    ),
    Case(
        "F10",
        "D4RL episodes that met their time limit are apart, or the horizon is asked for.",
        _in("store/test_offline", "read_d4rl_without_timeouts_needs_the_horizon", "find_ends_agrees_with_counting"),
    ),
    Case(
        "F11",
        "Parts of a Minari tuple keep their order.",
        _in("store/test_offline", "read_minari_keeps_the_order_of_a_tuple"),
    ),
    Case(
        "F12",
        "No action is paid for a score that was there before it.",
        _in("worlds/test_extras_sciworld", "no_action_is_paid_for_the_score_at_the_start"),
    ),
    Case(
        "F13",
        "A game that swaps its reward and its reason is paid by the number.",
        _in("worlds/test_extras_textarena", "rewards_and_reasons_are_not_swapped"),
    ),
    # ------------------------------------------------------------------------------------------ a newcomer
    Case(
        "N1",
        "A stage that is read from an earlier run says so, and changed code is run again.",
        _in(
            "scale/test_user_code",
            "a_changed_reward_is_played_again_and_what_is_read_says_so",
            "weights_and_held_functions_count_as_the_users_code",
        )
        + _in("cli/test_cli_world_files", "a_resumed_run_sees_an_edit_of_a_neighbor"),
    ),
    Case(
        "N2",
        "An error in a user's world is shown once, with file, line and count, in every verb and in Python.",
        _in(
            "scale/test_user_code",
            "a_bug_of_a_world_is_told_once_with_its_line_and_count",
            "a_bug_of_an_expert_or_a_score_is_told_with_its_line",
            "agents_that_cannot_play_a_world_say_so",
        )
        + _in("cli/test_cli_world_files", "a_bug_of_the_file_is_told_with_its_line_in_every_verb"),
    ),
    Case(
        "N3",
        "Prompts in any file, a reward function and typed tools are enough for GRPO, evaluation and search.",
        _in(
            "cli/test_cli_prompts",
            "from_a_file_and_a_function_to_a_model_and_its_measures",
            "several_rewards_weights_and_tools",
            "refusals",
        )
        + _in("scale/test_train_grpo", "it_tells_splits_results_and_what_was_read", "built_in_rewards_by_name"),
    ),
    Case(
        "N4",
        "Cut replies, a rate that was never reached and rewards without success are told as signs.",
        _in(
            "scale/test_user_code",
            "a_warm_up_longer_than_the_training_is_told_and_a_sign",
            "a_reward_without_success_is_a_sign_and_the_report_judges_the_return",
            "the_report_shows_the_mean_return_beside_success",
        )
        + _in("view/test_reinforcement_page", "each_sign_beyond_its_threshold_comes_first_with_what_it_means")
        + _in("cli/test_cli_world_files", "the_expert_the_random_agent_and_a_policy_play_it")
        + _in("models/test_defaults", "reinforcement_learning_has_the_same_defaults_in_python_and_on_the_command_line"),
    ),
    Case(
        "N5",
        "AgentTraj, ShareGPT and Alpaca files train as they are, with their instruction turns.",
        _in(
            "cli/test_cli_train_recipes",
            "files_people_have_teach_the_same_replies",
            "imported_episodes_need_no_world",
        )
        + _in("cli/test_cli_runs", "messages_end_with_the_reply_and_begin_with_the_rules")
        + _in("curate/test_row_imports", "import_then_export_keeps_every_message"),
    ),
    Case(
        "N6",
        "A world of one file and any Gymnasium environment play in every command.",
        _in(
            "cli/test_cli_world_files",
            "a_class_a_function_and_an_instance_are_worlds",
            "what_is_no_world_is_told_in_one_sentence",
        )
        + _in(
            "worlds/test_gymnasium_world",
            "the_vocabulary_of_a_box_holds_every_number",
            "language_agents_of_the_small_model_act_in_it",
            "a_class_of_a_file_is_a_world",
        ),
    ),
    Case(
        "N7",
        "Objects are short in notebooks, paths may be texts, and tasks are taken where episodes are asked for.",
        _in(
            "scale/test_notebooks",
            "a_run_of_one_world_takes_tasks_and_strings_and_is_listed",
            "objects_are_short_and_their_pages_escape",
            "a_policy_and_evaluations_are_short_and_paths_may_be_texts",
        )
        + _in("scale/test_train_grpo", "it_tells_splits_results_and_what_was_read"),
    ),
    Case(
        "N8",
        "The pages that a reader begins with show commands that exist and code that runs.",
        _in("docs/test_blocks_run", "a_block_runs", "shell_blocks_name_files_that_are_there")
        + _in("docs/test_commands_shown", "a_shown_command_is_understood")
        + _in("docs/test_tutorial", "it_has_ten_steps_and_no_file_without_a_name"),
    ),
    Case(
        "N9",
        "Pages say what one seed proves, and their exact lines are those that the commands print.",
        _in("docs/test_tutorial", "the_first_steps_print_what_the_page_says")
        + _in("view/test_outcome", "the_sentence_says_exploration_and_one_seed"),
    ),
    Case(
        "N10",
        "Foreign, misspelled and short names of settings are answered with ours, before torch is imported.",
        _in(
            "cli/test_cli_foreign_names",
            "a_foreign_name_is_answered_with_ours",
            "methods_of_reinforcement_learning_are_recipes_of_train",
            "the_last_part_of_a_path_is_enough_where_it_is_unique",
        )
        + _in("models/test_catalog", "a_model_that_was_not_fetched_names_the_command")
        + _in("cli/test_cli_settings", "a_mistake_is_told_before_torch_is_imported"),
    ),
    Case(
        "N11",
        "Runs made in Python have a name, method, state and seed in lists and reports.",
        _in(
            "scale/test_notebooks",
            "a_run_of_one_world_takes_tasks_and_strings_and_is_listed",
            "a_run_that_fails_says_so",
        ),
    ),
    # ------------------------------------------------------------------------------------------ report and viewer
    Case(
        "V1",
        "The list of runs shows the result of the method, not that of its control.",
        _in("view/test_viewer_pages", "the_list_of_runs_shows_the_method_and_not_its_control"),
    ),
    Case(
        "V2",
        "Tokens of greedy play are not shaded as certain.",
        _in("view/test_viewer_pages", "greedy_play_is_not_shaded_as_certain"),
    ),
    Case(
        "V3",
        "A loss that falls far is drawn on a logarithmic axis.",
        _in("view/test_charts", "a_loss_that_falls_by_a_hundred_is_drawn_on_a_logarithmic_axis"),
    ),
    Case(
        "V4",
        "Trajectories are listed by the text of their task.",
        _in("view/test_viewer_queries", "the_title_is_the_first_line_of_the_task_live_and_sealed")
        + _in("view/test_viewer_pages", "the_list_is_read_page_by_page"),
    ),
    Case(
        "V5",
        "Every count of the cost table is explained below it.",
        _in("view/test_document", "every_count_of_the_cost_is_explained_below_its_table"),
    ),
    Case(
        "V6",
        "Settings are folded, and an empty page says what would fill it.",
        _in("view/test_document", "settings_are_folded")
        + _in("view/test_viewer_pages", "leaderboards_are_of_results_files", "tabs_are_those_that_hold_something"),
    ),
    Case(
        "V7",
        "Without the token a browser gets a page.",
        _in("view/test_viewer_access", "a_browser_without_the_token_gets_a_page_and_programs_json"),
    ),
    Case(
        "V8",
        "A folder without a run, a set without rows and a file in the place of a folder are told.",
        _in("cli/test_cli_view", "a_folder_that_holds_no_run_is_refused_and_stays_empty")
        + _in("cli/test_cli_data", "a_set_without_rows_is_told")
        + _in("cli/test_cli_record", "a_file_is_no_folder_of_a_run"),
    ),
    # ------------------------------------------------------------------------------------------ a pretrained model
    Case(
        "R1",
        "An engine takes the memory of the tokens that it holds, within a budget; the context is a setting.",
        _in(
            "engine/test_memory",
            "lazy_zeros_take_memory_when_written_and_give_it_back",
            "mapping_of_more_than_the_memory_is_possible",
            "a_small_budget_changes_no_answer_and_is_kept",
            "memory_of_a_large_arena_is_that_of_the_tokens_held",
        )
        + _in(
            "cli/test_cli_devices",
            "a_model_too_large_for_memory_is_refused_before_its_weights_are_read",
            "context_defaults_to_4096_or_the_models_limit",
        ),
    ),
    Case(
        "R2",
        "Slots that nobody uses take no memory, and what is given back is free.",
        _in(
            "engine/test_memory",
            "lazy_zeros_take_memory_when_written_and_give_it_back",
            "memory_of_a_large_arena_is_that_of_the_tokens_held",
        ),
    ),
    Case(
        "R3",
        "Products of large weights have the same bits whatever rows are beside, one row included.",
        _in("models/test_cpu_layers", "packed_products_are_those_of_torch_whatever_the_rows_beside")
        + _in("engine/test_local", "packed_weights_give_the_same_answers_whatever_is_beside"),
    ),
    Case(
        "R4",
        "GGUF files, and folders that hold one, are policies in every command.",
        _in("models/test_gguf", "a_file_and_its_folder_are_policies_with_the_same_logits")
        + _in("cli/test_cli_models", "a_file_chats_trains_and_is_exported"),
    ),
    Case(
        "R5",
        "A policy with an adapter is trained on or merged by a setting.",
        _in("models/test_defaults", "a_policy_with_an_adapter_is_trained_on_or_merged")
        + _in("cli/test_cli_train_data", "a_trained_policy_goes_on_with_an_adapter"),
    ),
    Case(
        "R6",
        "Defaults of training follow from a pretrained model, and are told.",
        _in(
            "models/test_defaults",
            "the_rate_falls_with_the_root_of_the_size",
            "a_command_tells_what_it_filled_in",
            "runs_in_python_take_the_settings_that_fit_a_pretrained_policy",
        ),
    ),
    Case(
        "R7",
        "Examples and the form of an action reach a local agent, and replies that are none are counted and shown.",
        _in(
            "cli/test_cli_prompting",
            "examples_reach_the_model_and_are_kept_on_resume",
            "replies_that_are_not_actions_are_counted_and_shown",
        )
        + _in("rollout/test_prompting", "the_hint_names_the_form_of_an_action"),
    ),
    Case(
        "R8",
        "A budget that no reply fits in is refused.",
        _in("rollout/test_searching", "budgets_and_settings_that_could_never_work_are_refused"),
    ),
    Case(
        "R9",
        "Prompts of tools hold nothing to copy, and greedy log-probabilities are those of temperature 1.",
        _in("serve/test_openai_requests", "alternatives_of_every_token")
        + _in("models/test_toolprompt", "the_form_that_a_prompt_shows_is_no_call_when_it_is_copied"),
    ),
    Case(
        "R10",
        "A GGUF file has the tokens of llama.cpp, and is saved as an ordinary folder.",
        _in(
            "models/test_gguf",
            "tokens_are_those_of_llama_cpp",
            "a_saved_policy_is_an_ordinary_folder",
            "model_save_pretrained_works_too",
        ),
    ),
    # ------------------------------------------------------------------------------------------ training data
    Case(
        "L1",
        "Json fields of datasets are decoded.",
        _in("data/test_table_files", "json_fields_of_datasets_are_decoded", "chats_are_the_same_rows_in_every_format"),
    ),
    Case(
        "L2",
        "A reply without a weight beside one with it means the same in Arrow and in JSON lines.",
        _in("learn/test_rows", "every_spelling_of_a_weight_means_the_same")
        + _in("data/test_forms", "columns_that_another_row_fills_change_nothing"),
    ),
    Case(
        "L3",
        "Packed rows are computed as single ones, or refused.",
        _in(
            "learn/test_family_rows",
            "sequences_of_a_row_get_what_they_get_alone_or_the_layout_is_refused",
            "decoders_that_count_positions_otherwise_are_right_or_refused",
            "roberta_and_roformer_are_refused",
        ),
    ),
    Case(
        "L4",
        "Tools of public templates are written and read in the template's own form.",
        _in("models/test_toolprompt", "the_form_of_a_public_template_is_known_and_its_texts_are_read_back")
        + _in("grade/test_call_formats", "each_format_is_read"),
    ),
    # ------------------------------------------------------------------------------------------ clients and servers
    Case(
        "M1",
        "Replies fit their schema, alone and beside tools.",
        _in(
            "serve/test_openai_requests",
            "a_reply_fits_its_schema",
            "the_client_parses_replies",
            "a_reply_beside_tools_calls_them_or_fits_its_schema",
            "a_required_call_or_no_call_decides_what_a_format_means",
        ),
    ),
    Case(
        "M2",
        "Prompts are scored as lm-evaluation-harness does it, with alternatives, biases and penalties.",
        _in(
            "serve/test_openai_requests",
            "echoed_prompts_have_log_probabilities_as_lm_evaluation_harness_reads_them",
            "alternatives_of_every_token",
            "a_biased_token_is_written_or_never",
            "penalties_lower_tokens_that_were_used",
        ),
    ),
    Case(
        "M3",
        "Every world passes the checker of Gymnasium, and every environment of Gymnasium is a world.",
        _in(
            "worlds/test_as_gymnasium",
            "every_world_passes_the_checker_of_gymnasium",
            "vectorized_environments_play_what_single_ones_play",
        )
        + _in("worlds/test_gymnasium_world", "an_episode_is_that_of_gymnasium_under_the_seed_of_the_task"),
    ),
    Case(
        "M4",
        "An agent that cannot play a world says why.",
        _in("scale/test_user_code", "agents_that_cannot_play_a_world_say_so"),
    ),
    Case(
        "M5",
        "ShareGPT with tools, AgentInstruct and AgentTraj files are imported and learned.",
        _in("data/test_forms", "layout_is_detected_and_read", "sharegpt_with_tools_has_calls_and_results")
        + _in(
            "curate/test_row_imports",
            "agentinstruct_has_its_world_by_its_id",
            "ids_are_kept_and_repeated_ones_are_numbered",
        )
        + _in("cli/test_cli_train_recipes", "imported_episodes_need_no_world"),
    ),
    Case(
        "M6",
        "Exported messages may end with the reply.",
        _in("cli/test_cli_runs", "messages_end_with_the_reply_and_begin_with_the_rules"),
    ),
    Case(
        "M7",
        "Responses, request ids, addresses that end in /mcp and Minari files are there; foreign recipes are refused.",
        _in("serve/test_openai_responses", "a_text_is_answered_as_in_a_chat", "a_stream_tells_the_same")
        + _in("serve/test_openai_requests", "requests_have_ids")
        + _in("serve/test_mcp_server", "an_address_may_end_in_mcp")
        + _in("serve/test_agentgym_protocol", "recipes_and_a_goal_of_the_caller_are_refused")
        + _in("store/test_minari", "episodes_of_numbers_come_back"),
    ),
    Case(
        "M15",
        "A named function is called exactly once, and a call that is cut is told as one.",
        _in("serve/test_openai_requests", "a_named_function_is_called_once_and_a_cut_call_is_told"),
    ),
    # ------------------------------------------------------------------------------------------ methods
    Case(
        "P1",
        "Reinforcement learning over tokens stays where it has come to.",
        _in(
            "methods/test_stability",
            "a_method_ends_within_a_tenth_of_its_peak",
            "small_gradients_make_small_steps_in_reinforcement_learning",
        ),
    ),
    Case(
        "P2",
        "Advantages are whitened by default, as in the released code.",
        _in("methods/test_method_presets", "ppo", "poad_and_ntpo"),
    ),
    Case(
        "P3",
        "The unit of concentrations changes no decision.",
        _in(
            "belief/test_planners",
            "the_unit_of_concentrations_changes_no_decision",
            "entrotaxis_is_the_entropy_of_readings_in_steps_of_the_noise",
        ),
    ),
    Case(
        "P4",
        "Function calls without ids are learned, and calls of a file are scored by F1 of names and arguments.",
        _in("cli/test_cli_train_data", "hammer_takes_rows_of_lists_without_ids")
        + _in(
            "cli/test_cli_bfclbench",
            "bench_calls_scores_an_expert_with_full_marks_and_names_the_bad_row",
            "layouts_are_told_by_their_fields_and_experts_are_right",
        ),
    ),
    Case(
        "P5",
        "A run is learned in its own worlds.",
        _in("cli/test_cli_train_recipes", "a_run_is_learned_in_its_own_worlds"),
    ),
    Case(
        "P6",
        "A team's training says that its tasks are few, and ETPO learns with its defaults.",
        _in("cli/test_train_mat", "few_training_tasks_are_told_beside_the_measurement")
        + _in("methods/test_method_presets", "etpo")
        + _in("rl/test_trainer", "every_method_learns_to_say_what_is_shown"),
    ),
    Case(
        "P7",
        "Long methods show progress, tables keep their words, and a failed run does not block its folder.",
        _in("cli/test_cli_train_agdc", "a_run_holds_policies_table_episodes_and_report")
        + _in("cli/test_cli_console", "too_narrow_for_its_words_it_becomes_blocks")
        + _in("cli/test_cli_foreign_names", "help_on_an_unknown_recipe_does_not_show_that_of_another")
        + _in("cli/test_cli_train_data", "mistakes_are_told_in_a_sentence"),
    ),
    Case(
        "P8",
        "A search in turns can be judged by rollouts.",
        _in(
            "search/test_environments",
            "rollouts_value_a_state_by_the_mean_return_of_the_rest",
            "rollouts_of_a_policy_count_in_the_budget",
        ),
    ),
    # ------------------------------------------------------------------------------------------ an attack
    Case(
        "S1",
        "A large schema is constrained or refused, and ends no server.",
        _in(
            "faults/test_f70_large_schemas",
            "a_schema_beyond_a_bound_is_refused_with_the_bound",
            "many_tools_are_bounded_together",
            "rules_of_many_properties_are_shallow",
            "the_most_that_is_allowed_compiles",
            "a_trial_that_fails_refuses_the_schema_and_the_process_goes_on",
            "small_schemas_start_no_process",
            "a_forked_process_does_not_share_its_parents_worker",
            "the_server_answers_400_with_the_bound_and_goes_on",
        ),
    ),
    Case(
        "S2",
        "Memory that is not free is not promised.",
        _in(
            "faults/test_f84_address_limit",
            "evolve_fits_itself_or_says_so_before_it_trains",
            "what_is_left_is_the_limit_without_what_is_taken",
            "work_that_does_not_fit_is_refused_with_its_numbers",
            "a_command_asks_before_it_loads_torch",
            "the_engine_takes_a_share_of_the_addresses",
            "a_refused_allocation_is_told_as_what_it_is",
            "a_small_file_takes_little_memory_to_read",
        )
        + _in(
            "faults/test_f85_memory_limits",
            "without_a_group_the_system_says",
            "the_groups_own_limit",
            "the_tightest_group_above_counts",
            "groups_of_version_1",
            "inside_a_container_the_mount_is_the_group",
            "the_engine_keeps_to_half_of_it",
            "a_command_says_it_before_anything_is_done",
            "defaults_run_on_a_machine_of_4_gib",
        ),
    ),
    Case(
        "S3",
        "Heads, bodies and idle connections have deadlines.",
        _in(
            "faults/test_f62_slow_connections",
            "a_connection_without_a_request_is_ended",
            "a_head_that_does_not_end_is_answered_408",
            "a_head_byte_by_byte_has_the_same_deadline",
            "a_body_that_does_not_end_is_answered_408",
            "a_half_closed_connection_is_ended",
            "a_connection_between_two_requests_is_ended_and_serves_before",
            "a_slow_world_answers_after_all_deadlines",
            "a_body_that_keeps_its_pace_arrives",
            "a_client_that_does_not_read_is_ended",
            "a_silent_websocket_is_closed_and_a_talking_one_is_not",
            "nothing_is_left_behind",
        )
        + _in(
            "faults/test_f63_many_connections",
            "a_flood_of_connections_beside_few_descriptors",
            "1500_connections_beside_1024_descriptors",
            "the_reserve_tells_how_the_server_does_and_refuses_the_rest",
            "a_full_policy_server_refuses_in_openais_form",
            "one_address_does_not_take_the_place_of_another",
            "those_that_never_asked_make_room_before_those_that_wait_for_the_next_request",
            "the_limits_fit_the_descriptors_of_the_process",
            "every_server_of_the_package_listens_through_the_same_limits",
        )
        + _in("faults/test_f69_failed_accepts", "accept_errors_are_logged_once_and_back_off"),
    ),
    Case(
        "S4",
        "A folder from a stranger is refused in one sentence, or bounded.",
        _in(
            "faults/test_f71_chat_templates",
            "a_template_that_fails_is_one_typed_sentence",
            "a_template_that_does_not_end_is_ended",
            "a_template_that_counts_on_is_ended_in_time",
            "a_template_that_asks_for_much_memory_is_refused",
            "a_long_template_is_refused_unread",
            "renderings_are_those_of_transformers",
            "a_model_folder_with_a_broken_template_names_it",
        )
        + _in(
            "faults/test_f72_model_folders",
            "a_size_that_does_not_fit_the_weights_is_refused_before_anything_is_built",
            "layers_that_predict_further_tokens_belong_to_the_model",
            "a_huge_text_file_is_refused_by_its_size",
            "a_header_of_weights_with_an_impossible_shape_is_refused",
            "a_configuration_that_transformers_refuses_is_a_typed_error",
        )
        + _in(
            "faults/test_f73_tokenizers",
            "a_tokenizer_that_fails_in_its_trial_is_not_loaded_here",
            "a_damaged_tokenizer_is_a_typed_error",
            "a_tokenizer_that_is_not_json_is_a_typed_error",
            "a_tokenizer_is_tried_once_as_long_as_its_file_stays",
        )
        + _in(
            "faults/test_f77_weights_not_finite",
            "weights_that_are_not_finite_are_refused",
            "weights_whose_sum_overflows_are_finite",
        )
        + _in(
            "faults/test_f78_pipes_and_devices",
            "a_pipe_in_place_of_a_file_is_refused_and_not_waited_for",
            "a_link_to_a_device_and_one_that_leads_nowhere_are_refused",
            "a_link_to_a_file_is_a_file",
            "a_pipe_with_the_name_of_a_gguf_file_is_not_waited_for",
        ),
    ),
    Case(
        "S5",
        "A small file that expands without end is bounded, and the reason is told.",
        _in(
            "faults/test_f74_expanding_tables",
            "a_dictionary_is_measured_before_its_rows_are_written_out",
            "every_reader_refuses_it",
            "the_command_names_the_reason",
            "pages_that_unpack_to_much_are_refused_by_the_metadata",
            "a_number_that_repeats_is_counted_by_rows",
            "texts_in_lists_and_structs_are_measured",
            "long_texts_are_read_in_small_batches",
            "ordinary_files_are_read_as_they_were",
            "a_damaged_file_is_not_called_one_that_cannot_be_written",
            "no_reader_opens_parquet_unmeasured",
        )
        + _in(
            "faults/test_f76_packed_texts",
            "a_small_file_that_unpacks_to_much_is_refused",
            "readers_of_whole_files_refuse_it",
            "ordinary_packed_rows_are_read",
            "a_damaged_packed_file_is_a_typed_error",
        )
        + _in(
            "faults/test_f79_gguf_headers",
            "a_gguf_header_that_counts_beyond_its_end_is_refused",
            "a_gguf_array_longer_than_the_file_is_refused",
            "the_layers_of_a_gguf_file_are_compared_with_its_header",
        ),
    ),
    Case(
        "S6",
        "A box leaves nothing behind, and no text of it breaks the host.",
        _in("faults/test_f80_kernel_objects", "it_does_not_get_out", "the_host_is_as_before")
        + _in("faults/test_f81_unprintable", "it_does_not_get_out", "the_host_is_as_before")
        + _in("faults/test_f82_honest_programs", "an_honest_program_runs", "numpy_runs"),
    ),
    Case(
        "S7",
        "Logs hold no key, and answers to large bodies arrive.",
        _in(
            "faults/test_f64_refused_bodies",
            "a_body_of_9_mb_is_answered_413",
            "a_body_of_unknown_length_is_answered_413",
            "a_large_body_without_the_token_is_refused_as_such",
            "a_body_that_is_no_http_is_answered_400",
            "an_endless_body_is_cut",
            "bodies_that_arrive_slowly_do_not_fill_the_memory",
            "the_official_clients_see_the_refusal",
        )
        + _in(
            "faults/test_f65_keys_in_queries",
            "a_server_logs_requests_without_their_queries",
            "a_line_holds_the_path_and_no_control_text",
            "malformed_requests_are_told_once",
        )
        + _in(
            "faults/test_f66_right_names",
            "a_flipped_parquet_file_is_told_as_damaged",
            "an_error_of_the_disk_keeps_its_advice",
            "the_help_names_verbs_that_exist",
        ),
    ),
)


def find_tests(tests: Iterable[str]) -> list[str]:
    """Returns the node ids whose file defines a function of that name."""
    names_by_file: dict[str, set[str]] = {}
    found = []
    for test in tests:
        file, _, name = test.partition("::")
        if file not in names_by_file:
            text = (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else ""
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            names_by_file[file] = {node.name for node in ast.parse(text).body if isinstance(node, functions)}
        if name in names_by_file[file]:
            found.append(test)
    return found


def group_outcomes(kept: Iterable[KeptTest]) -> dict[str, list[str]]:
    """Returns by node id without parameters what became of each run of a test: passed, failed or skipped.

    A file that skips all of its tests at once stands under its own name.
    """
    outcomes: dict[str, list[str]] = {}
    for test in kept:
        outcomes.setdefault(test.test.partition("[")[0], []).append(test.outcome)
    return outcomes


def judge_cases(cases: Sequence[Case], outcomes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Counts the cases whose tests all passed.

    >>> case = Case("A", "It works.", ("tests/a.py::test_a",))
    >>> judge_cases([case], {"tests/a.py::test_a": ["passed", "skipped"]})["cases_right"]
    1
    >>> judge_cases([case], {"tests/a.py::test_a": ["skipped"]})
    {'cases': 1, 'cases_right': 0, 'cases_wrong': [], 'cases_not_run': ['A']}
    """
    wrong, not_run = [], []
    for case in cases:
        found = [set(outcomes.get(test, outcomes.get(test.partition("::")[0], ()))) for test in case.tests]
        if not found or any("failed" in kinds or not kinds for kinds in found):
            wrong.append(case.id)
        elif not all("passed" in kinds for kinds in found):
            not_run.append(case.id)
    right = len(cases) - len(wrong) - len(not_run)
    return {"cases": len(cases), "cases_right": right, "cases_wrong": wrong, "cases_not_run": not_run}


def run_tests(cases: Iterable[Case] = CASES, *, file: Path | None = None) -> dict[str, Any]:
    """Runs the tests of cases in one pytest process; returns the figures.

    A case whose test is missing is wrong. pytest is not asked for it, because it would then run none of the others.

    Args:
        file: where what became of each test is kept (`benchmarks.kept_tests`) until all have ended; None: that of these
            sources and cases.
    """
    chosen = tuple(cases)
    present = find_tests(sorted({test for case in chosen for test in case.tests}))
    file = file or kept_file("reality", *present)
    code = run_kept(file, sorted({test.partition("::")[0] for test in present}), chosen=present)
    kept = read_kept(file)
    file.unlink()
    figures = judge_cases(chosen, group_outcomes(kept))
    return {**figures, "cases_pytest_code": code, "cases_seconds": round(sum(test.seconds for test in kept), 1)}
