"""`evolvent view`: the report of a run, wherever it stands."""

from __future__ import annotations

import json
import webbrowser

import pytest
from recorded import record

from evolvent.cli.main import main


def test_the_report_is_written_and_named(tmp_path, capsys):
    record(tmp_path / "run")
    assert main(["view", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'run' / 'report.html'}\n"
    assert "<html" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_another_file(tmp_path, capsys):
    record(tmp_path / "run")
    assert main(["view", str(tmp_path / "run"), "--to", str(tmp_path / "a b.html")]) == 0
    assert (tmp_path / "a b.html").exists() and not (tmp_path / "run" / "report.html").exists()


def test_into_a_folder(tmp_path, capsys, monkeypatch):
    record(tmp_path / "run")
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    assert main(["view", str(tmp_path / "run"), "--to", "."]) == 0
    assert (capsys.readouterr().out, (tmp_path / "out" / "report.html").exists()) == ("report.html\n", True)


def test_open(tmp_path, capsys, monkeypatch):
    record(tmp_path / "run")
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address))
    assert main(["view", str(tmp_path / "run"), "--open"]) == 0
    assert opened == [(tmp_path / "run" / "report.html").as_uri()]
    assert "no browser could be opened" in capsys.readouterr().out


def test_no_such_run(tmp_path, capsys):
    assert main(["view", str(tmp_path / "nowhere")]) == 2
    assert "run not found" in capsys.readouterr().err


def test_a_folder_that_holds_no_run_is_refused_and_stays_empty(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(["view", str(tmp_path / "empty")]) == 2
    assert "does not hold a run" in capsys.readouterr().err and not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize("verb", ["train sequence", "train mat", "train agdc", "bench seek"])
def test_view_run_with_its_own_page_keeps_the_page(verb, tmp_path, capsys):
    folder, page = tmp_path / "run", "<!doctype html><p>returns earned and asked for</p>"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"verb": verb, "method": "dt", "state": "finished"}), encoding="utf-8")
    assert main(["view", str(folder)]) == 2
    assert f"evolvent {verb} --resume {folder}" in capsys.readouterr().err and not (folder / "report.html").exists()
    (folder / "report.html").write_text(page, encoding="utf-8")
    assert main(["view", str(folder)]) == 0
    assert main(["view", str(folder), "--to", str(tmp_path / "copy.html")]) == 0
    assert {path.read_text(encoding="utf-8") for path in (folder / "report.html", tmp_path / "copy.html")} == {page}
