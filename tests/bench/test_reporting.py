"""The house rule for benchmarks: a table, `--json` and `--quick`, and one place that says what was measured on."""

import argparse
import ast
import importlib
import json
import os
import platform
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import page, reporting, scan

FOLDER = Path(reporting.__file__).parent
OTHERS = {  # modules that can be run and measure nothing by themselves
    "study": "packs and unpacks what studies keep",
    "bfcl_peer": "the other side of bfcl, in a Python of its own",
    "household_official": "the official engine behind a pipe",
    "maths_pairs": "writes the pairs that a test grades",
    "page": "makes docs/benchmarks.md",
    "policy_server_sides": "sides of policy_server, behind pipes",
    "select_sides": "a side of select, in a process of its own",
    "sequence_hopper": "how an expert was found once",
    "serve_noop": "a server that serve measures against",
    "soak_client": "clients that soak kills",
    "trad_index_sides": "a side of trad, in a process of its own",
}
MODULES = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
STUDIES = {path.parent.name: path for path in sorted(FOLDER.glob("*/__main__.py"))}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in {**MODULES, **STUDIES}.items()}
RUNNABLE = {name for name, text in TEXTS.items() if '__name__ == "__main__"' in text}
BENCHMARKS = sorted(RUNNABLE - OTHERS.keys())


def called(text: str) -> set[str]:
    """Names of all functions that a module calls, as they are written."""
    return {ast.unparse(node.func) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}


def test_what_is_no_benchmark_is_there():
    assert OTHERS.keys() <= RUNNABLE and len(BENCHMARKS) >= 35


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_names_the_options_and_the_figures(name, capsys):
    module = importlib.import_module(f"benchmarks.{name}.__main__" if name in STUDIES else f"benchmarks.{name}")
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    told = capsys.readouterr().out
    assert ended.value.code == 0 and told.startswith(f"usage: python -m benchmarks.{name} ")
    for option in ("--json", "--quick"):
        assert re.search(rf"^  {option} +\w", told, re.MULTILINE), option
    assert module.__doc__.splitlines()[-1] in told


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_ends_as_all_do(name):
    """With versions and the machine, and the one line of JSON, neither of which it words by itself."""
    helper = "train_gpu" if name == "train" else "pretrained" if "play_command" in called(TEXTS[name]) else ""
    helped = TEXTS[name] + TEXTS.get(helper, "")
    calls = called(TEXTS["pretrained"] if helper == "pretrained" else TEXTS[name])
    assert {"command_line", "finish"} <= calls
    assert called(helped) & {"about", "reporting.about"} or {"versions", "machine"} <= calls


@pytest.mark.parametrize("name", [name for name in TEXTS if name != "reporting"])
def test_nobody_else_asks_for_the_machine(name):
    asked = {"platform.machine", "platform.python_version", "version", "metadata.version", "os.getloadavg"}
    assert not called(TEXTS[name]) & asked
    if name not in OTHERS:
        printed = [
            node
            for node in ast.walk(ast.parse(TEXTS[name]))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "print" and "json.dumps" in ast.unparse(node)
        ]
        assert not printed
        assert not re.search(r"\bArgumentParser\(", TEXTS[name])


def test_a_quick_run_does_not_take_the_place_of_a_measurement(tmp_path, capsys):
    kept, other = tmp_path / "name.json", tmp_path / "other.json"
    parser = reporting.command_line("name", "What it is.", quick="little", save=kept)
    with pytest.raises(SystemExit):
        parser.parse_args(["--quick", "--save"])
    assert "supports no claim" in capsys.readouterr().err
    for words in (["--save"], ["--quick"], ["--quick", "--save", str(other)]):
        reporting.finish({"figure": 1}, parser.parse_args(words))
    assert json.loads(kept.read_text()) == json.loads(other.read_text()) == {"figure": 1}


# ------------------------------------------------------------------ what is said


def test_versions():
    found = reporting.versions("python", "numpy", "no-such-package")
    assert found == {"python": platform.python_version(), "numpy": np.__version__, "no-such-package": None}
    assert reporting.versions() == {}


@pytest.mark.parametrize(
    "text, name",
    [
        ("model name\t: AMD EPYC 7B13 Processor\nflags\t\t: fpu avx2 sse\n", "AMD EPYC 7B13 avx2"),
        ("model name\t: Intel(R) Xeon(R) CPU @ 2.20GHz\nflags\t\t: avx2 avx512f\n", "Intel Xeon @ 2.20GHz avx512f"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", ""),
    ],
)
def test_the_processor_is_named_with_its_widest_instructions(text, name, tmp_path):
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    assert reporting._processor_name(tmp_path / "cpuinfo") == name
    assert reporting._processor_name(tmp_path / "missing") == ""


def test_the_machine_in_words(monkeypatch):
    here, python = platform.machine(), f"Python {platform.python_version()}"
    assert reporting.machine().startswith(here) and reporting.machine().endswith(python)
    monkeypatch.setattr(reporting, "_processor_name", lambda: "")  # as where the system does not say
    assert reporting.machine() == f"{here}, {python}"
    assert reporting.machine(cores=True) == f"{here}, {os.cpu_count()} cores, {python}"
    assert reporting.machine("numpy", threads=1) == f"{here}, {python}, numpy {np.__version__}, 1 thread"
    assert reporting.machine("no-such-package", threads=2) == f"{here}, {python}, no-such-package missing, 2 threads"
    assert reporting.about("numpy", cores=True, threads=4) == {
        "versions": {"numpy": np.__version__},
        "machine": reporting.machine(cores=True, threads=4),
    }


def test_load_is_three_numbers_with_one_digit():
    found = reporting.load()
    assert len(found) == 3 and all(each >= 0 and each == round(each, 1) for each in found)


def test_the_page_tells_what_was_missing():
    assert page.versions({"versions": {"torch": "2.0", "numba": None}}) == "torch 2.0, no numba"
    assert page.versions({}) == ""


# ------------------------------------------------------------------ the end of a program


def test_save_is_a_file_where_one_is_kept(tmp_path):
    kept = tmp_path / "here.json"
    parser = reporting.command_line("x", "What it is.", quick="less", save=kept)
    assert vars(parser.parse_args([])) == {"json": False, "quick": False, "save": None}
    assert parser.parse_args(["--save", "--json"]).save == kept
    assert parser.parse_args(["--save", "other.json"]).save == Path("other.json")
    inside = reporting.command_line("x", None, quick="less", save=reporting.RESULTS / "x.json")
    assert "benchmarks/results/x.json" in " ".join(inside.format_help().split())
    assert "--save" not in reporting.command_line("x", "What it is.", quick="less").format_help()


def test_a_table_has_columns(capsys):
    reporting.show({"a": 1, "longer": "text", "left": 2}, without=("left",))
    assert capsys.readouterr().out == "a       1\nlonger  text\n"
    reporting.show({})
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("json_", "save"), [(True, True), (True, False), (False, True), (False, False)])
def test_finish(json_, save, tmp_path, capsys):
    file, found = tmp_path / "folder" / "x.json", {"x": 1.5, "ends": [None, 2], "name": "ä"}
    reporting.finish(found, argparse.Namespace(json=json_, save=file if save else None))
    out = capsys.readouterr().out
    assert (json.loads(out) == found and out.count("\n") == 1) if json_ else out == ""
    assert file.is_file() == save
    if save:
        assert file.read_text(encoding="utf-8") == json.dumps(found, indent=1) + "\n"


def test_a_study_has_no_file_to_save(capsys):
    reporting.finish({"x": 1}, argparse.Namespace(json=True))
    assert capsys.readouterr().out == '{"x": 1}\n'


def test_the_file_may_hold_more_than_was_measured_now(tmp_path, capsys):
    reporting.finish({"x": 1}, argparse.Namespace(json=True, save=tmp_path / "x.json"), kept={"x": 1, "y": 2})
    assert json.loads(capsys.readouterr().out) == {"x": 1}
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == {"x": 1, "y": 2}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_json_has_no_name_for_is_refused(wrong, tmp_path, capsys):
    file = tmp_path / "x.json"
    file.write_text("as it was", encoding="utf-8")
    for kept in (None, {"x": wrong}):
        measured = {"x": wrong if kept is None else 1.0}
        with pytest.raises(ValueError, match="JSON"):
            reporting.finish(measured, argparse.Namespace(json=True, save=file), kept=kept)
    assert file.read_text(encoding="utf-8") == "as it was" and capsys.readouterr().out == ""
    reporting.finish({"x": wrong}, argparse.Namespace(json=False, save=None))  # the table has told it


def test_a_benchmark_from_its_command_to_its_file(tmp_path, capsys):
    scan.main(["--quick", "--json", "--save", str(tmp_path / "scan.json")])
    *table, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert len(table) == len(found) and found == json.loads((tmp_path / "scan.json").read_text(encoding="utf-8"))
    assert found["versions"] == {"numpy": np.__version__} and found["machine"].endswith("1 thread")
    assert found["seed"] == 0 and found["quick"] and found["greatest_difference"] < 1e-9


@pytest.mark.browser
def test_the_viewer_says_it_in_one_line(tmp_path, monkeypatch, capsys):
    from benchmarks import viewer

    monkeypatch.setattr(viewer, "QUICK", 500)
    assert viewer.main(["--quick", "--json", "--save", str(tmp_path / "viewer.json")]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert len(table) == len(found) and found == json.loads((tmp_path / "viewer.json").read_text(encoding="utf-8"))
    assert re.match(r"\d+\.", found["versions"]["chromium"]) and found["seed"] == 0 and found["first_paint_ms"] > 0
