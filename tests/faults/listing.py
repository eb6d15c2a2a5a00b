"""The tables of `docs/reliability.md`, made from the tests: `python tests/faults/listing.py` writes them anew.

A row is the first paragraph of a file's docstring, the first sentence of the second, and how many tests there are. What
stands between the marks of the page is replaced, the rest is written by hand.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reliability.md"
LAST = 85  # numbers up to here have no gap
SAYS = re.compile(r"(?:(?:Fault|F) ?(\d+)(?: at [\w ]+)?: )?(.+)", re.DOTALL)
GROUPS = (
    (1, "World servers and their clients"),
    (17, "The store"),
    (25, "Learning"),
    (38, "Engine, reward, judge"),
    (43, "Search"),
    (45, "Sandbox"),
    (49, "Files, paths, pages"),
    (58, "Settings and the command line"),
    (62, "Servers among strangers"),
    (70, "Foreign schemas, models, data and older runs"),
    (80, "What a box takes from its host, and memory"),
)
# Command -> what kills it, what is equal then, and the test that proves it.
RESUMES = (
    (
        "evolve",
        "SIGINT, SIGKILL, SIGTERM, one after another",
        "results, every episode",
        "tests/faults/test_f59_interrupted.py::test_interrupted_three_times_and_resumed",
    ),
    (
        "collect, eval, bench agent-eval, bfcl, code and seek, train rl, mat and agdc, memory build, data comment",
        "SIGKILL at two of its writes",
        "episodes, results, tables, weights, files; all but clocks",
        "tests/faults/test_f59_resumed_commands.py::test_killed_twice_and_resumed_it_ends_equal",
    ),
    (
        "train dpo, reward, value, distill, pretrain, hammer, comments, p3, sequence, tsllm and openr",
        "SIGKILL at two of its writes",
        "weights, tables and what was measured; all but clocks",
        "tests/faults/test_f59_resumed_training.py::test_a_training_killed_twice_and_resumed_ends_equal",
    ),
    (
        "train sft and other recipes",
        "SIGINT, SIGTERM, SIGKILL",
        "every loss and weight, bit for bit",
        "tests/cli/test_cli_train.py::test_it_goes_on_with_the_same_losses",
    ),
    (
        "train on several ranks",
        "one rank killed, all stopped",
        "the weights of the whole run",
        "tests/faults/test_f36_ranks.py",
    ),
    (
        "train rl --on here?players=2",
        "a player killed while it plays ahead",
        "every episode, the weights",
        "tests/scale/test_player_processes.py::test_a_killed_player_costs_no_episode",
    ),
    (
        "train comments",
        "an interrupt after a stage",
        "data and weights",
        "tests/methods/test_comments_method.py::test_a_stopped_run_goes_on",
    ),
    (
        "search",
        "SIGKILL in the midst, a torn row, other slots",
        "every row but its clocks, every tree",
        "tests/cli/test_cli_search.py::test_a_killed_run_goes_on_and_ends_the_same",
    ),
    (
        "data",
        "SIGKILL between shards",
        "every byte",
        "tests/curate/test_data_stages.py::test_a_killed_run_goes_on_to_the_same_bytes",
    ),
    (
        "data comment",
        "stopped in the midst",
        "every row",
        "tests/cli/test_cli_datacomment.py::test_a_stopped_run_goes_on_and_gives_the_same",
    ),
    (
        "collect --experts",
        "stopped in the midst",
        "every byte of the corpus",
        "tests/curate/test_corpus.py::test_the_command_writes_the_same_corpus_again_and_goes_on",
    ),
)


@dataclass(frozen=True)
class Provoking:
    """A file of tests: the fault's number, what its docstring says, how many tests it defines, what they need."""

    number: int
    says: str
    file: str
    tests: int
    needs: tuple[str, ...]


def files_of_faults() -> Iterator[Provoking]:
    """The files of this folder that are about a numbered fault, by number and name."""
    for path in sorted(Path(__file__).parent.glob("test_f[0-9]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        first, *more = (" ".join(part.split()) for part in (ast.get_docstring(tree) or "").split("\n\n"))
        second = re.match(r".*?\.(?= |$)", more[0])[0] if more else ""
        found, number = SAYS.fullmatch(f"{first} {second}".strip()), int(path.name[6:8])
        if found is None or int(found[1] or number) != number:
            raise SystemExit(f"{path.name}: its docstring has to say what fault {number} does")
        count = sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(tree))
        text = ast.unparse(tree)
        needs = re.findall(r"importorskip\('([\w.]+)'", text) + ["Chromium"] * ("mark.browser" in text)
        yield Provoking(number, found[2], path.name, count, tuple(dict.fromkeys(needs)))


def fault_rows() -> str:
    """The table of faults, in groups."""
    rows: dict[int, list[Provoking]] = {}
    for one in files_of_faults():
        rows.setdefault(one.number, []).append(one)
    lines, titles = [], dict(GROUPS)
    for number in range(1, max(rows) + 1):
        if number in titles:
            lines += [
                "",
                f"### {titles[number]}",
                "",
                "| | what is provoked, and what happens | tests |",
                "|---|---|---|",
            ]
        for one in rows.get(number, ()):
            says = one.says.replace("|", "\\|")
            needs = f"; needs {', '.join(one.needs)}" if one.needs else ""
            lines.append(f"| {number} | {says[0].upper()}{says[1:]} | `{one.file}` ({one.tests}{needs}) |")
    return "\n".join(lines[1:])


def resume_rows() -> str:
    """The table of commands that are killed and resumed."""
    lines = ["| command | killed by | equal afterwards | test |", "|---|---|---|---|"]
    lines += [f"| {command} | {killed} | {equal} | `{test}` |" for command, killed, equal, test in RESUMES]
    return "\n".join(lines)


def renewed(page: str) -> str:
    """The page with its tables made anew."""
    for name, text in (("faults", fault_rows()), ("resumes", resume_rows())):
        begin, end = f"<!-- {name}: made by tests/faults/listing.py -->", f"<!-- end of {name} -->"
        before, mark, rest = page.partition(begin)
        _, closing, after = rest.partition(end)
        if not (mark and closing):
            raise SystemExit(f"{PAGE.name} has no place for {name}")
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
