"""Pages of the viewer over HTTP: they say what the files say, and what the static report says."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from html_page import Page
from practised import write_practice
from viewed import viewed

from evolvent.belief.traces import Look, Trace
from evolvent.store.store import Store
from evolvent.trajectory import Annotation, AnnotationTarget, Generation, Score, Step, Task, Trajectory
from evolvent.view.beliefs import encode_belief, parse_belief
from evolvent.view.data import read_run
from evolvent.view.document import page
from evolvent.view.library import Library
from evolvent.view.pages_trajectories import draw_curves
from evolvent.view.shading import find_colorings, shade_tokens
from tests.view.fabricated import write_run
from tests.view.trained import write_training

TASK = Task("lookup", "1", {"question": "who"}, "boss of boss", "evo", "test")


def generation(*logprobs, spans=()):
    """Two read tokens, then those that were sampled."""
    sampled = np.array([False, False, *[True] * len(logprobs)])
    ids = np.arange(len(sampled), dtype=np.int32)
    return Generation(ids, sampled, np.array([0, 0, *logprobs], np.float32), spans=spans)


def played(name="evolve-1-collect-ab/t/0", task=TASK, won=True, steps=3, **more):
    made = tuple(
        Step(
            f"you see {at}",
            f"go {at}",
            float(at == steps - 1),
            None if at else "let me think",
            (generation(-0.05, -0.5, -3.0, spans=(3, 5)),),
        )
        for at in range(steps)
    )
    return Trajectory(name, task, made, "the end", score=Score(2.0 * won, float(won), won), **more)


def stored(folder, trajectories, notes=(), state="running"):
    folder.mkdir(parents=True, exist_ok=True)
    info = {"method": "agentevol", "name": folder.name, "state": state, "seed": 3, "arms": ["evolve"]}
    (folder / "run.json").write_text(json.dumps(info))
    with Store.open(folder / "trajectories", writing=True) as store:
        for one in trajectories:
            store.append(one)
        for note in notes:
            store.annotate(note)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "first", rounds=2, tasks=30)
    write_run(root / "second", rounds=2, tasks=30, seed=1)
    write_practice(root / "deep" / "rl")
    one = played()
    notes = [
        Annotation(one.id, "judge", AnnotationTarget(step=1), 0.5),
        Annotation(one.id, "spans", AnnotationTarget(0, 0, 1), -2.0),
        Annotation(one.id, "spans", AnnotationTarget(0, 0, 0, 2), 1.0),
    ]
    others = [
        played(f"evolve-1-collect-ab/{n}/0", Task("maze", "1", {"n": n}, f"k{n % 3}", "seen"), n % 2 == 0, 2)
        for n in range(230)
    ]
    stored(root / "stored", [one, *others], notes)
    return root


@pytest.fixture(scope="module")
def server(folder):
    with viewed(folder) as found:
        yield found


def test_the_runs_below_a_folder(server):
    text = server.get("/")
    names = re.findall(r'<th scope="row"><a href="/run/[0-9a-f]{12}"><bdi>([^<]+)', text)
    assert sorted(names) == ["deep/rl", "first", "second", "stored"]
    found = server.get("/", q="SECO")
    assert "<bdi>second</bdi>" in found and "<bdi>first</bdi>" not in found
    assert "No run has these words" in server.get("/", q="nothing like it")
    assert "live" in Page(text).text, "a run that says so and wrote just now"


def test_a_run_alone_is_a_folder_of_one(folder):
    with viewed(folder / "first") as server:
        assert server.get("/").count("data-row>") == 1


def test_a_run_shows_its_report(server, folder):
    shown, report = Page(server.get(f"/run/{server.key('first')}")), Page(page(read_run(folder / "first")))
    said = report.text.split("Written by evolvent")[0]
    assert said.strip()[-200:] in shown.text and shown.tags.count("svg") == report.tags.count("svg") > 5
    assert shown.tags.count("main") == 1 and shown.tags.count("h1") == 1


def test_tabs_are_those_that_hold_something(server):
    def tabs(name):
        text = server.get(f"/run/{server.key(name)}")
        return re.findall(r'<a href="/run/\w{12}(/?\w*)"', text.split('class="tabs"')[1].split("</nav>")[0])

    assert tabs("first") == ["", "/load"]
    assert tabs("stored") == ["", "/trajectories"]


def test_the_list_is_read_page_by_page(server):
    base = f"/run/{server.key('stored')}/trajectories"
    seen, address = [], base
    while address:
        text = server.client.get(address).text
        seen += re.findall(r"trajectory\?id=([^&\"]+)", text)
        later = re.search(r'href="([^"]+)">later</a>', text)
        address = later[1].replace("&amp;", "&") if later else None
    assert len(seen) == len(set(seen)) == 231
    first_rows = re.findall(
        r'<th scope="row"><a href="[^"]+" title="[^"]+"><bdi>([^<]+)</bdi></a> <small><bdi>', server.get(base)
    )
    assert first_rows and all(re.search(r"[a-z]{3}", title) for title in first_rows), (
        "the text of the task, not its code"
    )


def test_the_list_filters_searches_and_sorts(server):
    base = f"/run/{server.key('stored')}/trajectories"
    assert re.search(r'id="found"[^>]*>115 of 231<', server.get(base, outcome="failed"))
    assert re.search(r'id="found"[^>]*>1 of 231<', server.get(base, q="think who"[6:]))
    text = server.get(base, q="boss", sort="length-")
    assert 'value="boss"' in text and '<option value="length-" selected>' in text
    assert "Nothing fits." in server.get(base, q="zebra")
    assert "231" in server.get(base, sort="no such order", first="999999999999", outcome="")


def test_a_window_has_what_the_page_has(server):
    base = f"/run/{server.key('stored')}"
    row = json.loads(server.get(f"{base}/rows", first=100, count=20, world="maze"))
    assert (row["first"], row["found"], row["whole"], row["told"]) == (100, 230, True, "230 of 231")
    assert row["html"].count("<tr ") == 20 and 'data-place="100"' in row["html"]
    assert json.loads(server.get(f"{base}/rows", count=10**9))["html"].count("<tr ") == 231


def test_a_trajectory_turn_by_turn(server):
    text = server.get(f"/run/{server.key('stored')}/trajectory", id=played().id)
    shown = Page(text)
    assert [f"you see {at}" in shown.text and f"go {at}" in shown.text for at in range(3)] == [True] * 3
    assert "let me think" in shown.text and "the end" in shown.text and "✓ solved" in shown.text
    assert text.count('id="turn-') == 3 and "judge" in text
    shades = re.findall(r'<span class="(read|unsure-\d)" ?', text.split('id="turn-1"')[1].split('id="turn-2"')[0])
    assert shades == ["read", "read", "unsure-0", "unsure-2", "unsure-4"], "p = .95, .61, .05"


def test_tokens_by_what_a_scorer_noted(server):
    text = server.get(f"/run/{server.key('stored')}/trajectory", id=played().id, colour="@spans")
    first = text.split('id="turn-1"')[1].split('id="turn-2"')[0]
    styles = re.findall(r'<span class="credit ([^"]+)"', first)
    assert styles == [
        "credit-0 unlearned",
        "credit-0 unlearned",
        "credit-up shade-3",
        "credit-down shade-5",
        "credit-down shade-5",
    ]
    assert "spans −2" in first and 'aria-current="true">spans<' in text


def test_neighbours_keep_the_question(server):
    base = f"/run/{server.key('stored')}/trajectory"
    text = server.get(base, id="evolve-1-collect-ab/4/0", outcome="solved")
    after = re.search(r'id="after" href="([^"]+)"', text)[1]
    assert "outcome=solved" in after and "%2F6%2F0" in after, "5 failed"


def test_credit_of_the_run_colours_its_trajectory(tmp_path):
    one = played("p/1/t/0", steps=1)
    tokens = [
        {"text": text, "logp": -0.1, "advantage": a, "return": 1.0, "value": v, "learned": True}
        for text, a, v in (("boss", 1.0, 0.25), ("nina", -0.5, 1.0))
    ]
    episode = {"trajectory": one.id, "turns": [{"step": 1, "observation": "", "reward": 1.0, "tokens": tokens}]}
    folder = stored(tmp_path / "rl", [one, played("p/1/u/0")])
    (folder / "credit.json").write_text(json.dumps([{"iteration": 1, "stage": "p", "episodes": [episode]}]))
    with viewed(tmp_path) as server:
        base = f"/run/{server.key('rl')}/trajectory"
        credit = server.get(base, id=one.id, colour="credit")
        assert re.findall(r'class="credit (credit-\w+ shade-\d)" title="advantage', credit) == [
            "credit-up shade-5",
            "credit-down shade-3",
        ]
        value = server.get(base, id=one.id, colour="value")
        assert re.findall(r'class="credit (credit-\w+ shade-\d)" title="value', value) == [
            "credit-up shade-2",
            "credit-up shade-5",
        ]
        assert "nina" in value
        assert ">credit</a>" not in server.get(base, id="p/1/u/0", colour="credit"), "the run kept none of it"


def test_finer_notes_go_before_coarser_ones():
    one = played(steps=2)
    notes = [
        Annotation(one.id, "s", AnnotationTarget(), 1.0),
        Annotation(one.id, "s", AnnotationTarget(1), 2.0),
        Annotation(one.id, "s", AnnotationTarget(1, 0, 1), 3.0),
        Annotation(one.id, "s", AnnotationTarget(1, 0, None, 4), 4.0),
        Annotation(one.id, "s", AnnotationTarget(1, 0, 9), 9.0),
        Annotation(one.id, "label", AnnotationTarget(), "good"),
    ]
    logprob, colour = find_colorings(one, notes[::-1], {})
    assert (logprob.name, colour.name) == ("logprob", "@s")
    assert colour.numbers == {(0, 0): {2: 1.0, 3: 1.0, 4: 1.0}, (1, 0): {2: 2.0, 3: 3.0, 4: 4.0}}
    assert colour.reach == 4.0
    drawn = shade_tokens(
        one.steps[0].generations[0], (0, 0), coloring=logprob, texts=lambda ids: ["<b>"] * len(ids), max_tokens=3
    )
    assert "<b>" not in drawn and "2 more" in drawn


def test_two_runs_task_by_task(server, folder):
    a, b = server.key("first"), server.key("second")
    text = server.client.get(f"/compare?run={a}&run={b}&which=b").text
    last = [
        {
            (row.world, row.tier, task): won
            for row in read_run(folder / name).results
            if row.arm == "evolve" and row.round == 2
            for task, _, won in row.outcomes
        }
        for name in ("first", "second")
    ]
    pairs = [(last[0][key], last[1][key]) for key in last[0]]
    counts = [pairs.count(want) for want in ((1, 1), (1, 0), (0, 1), (0, 0))]
    assert [int(n.replace(",", "")) for n in re.findall(r"<strong>([\d,]+)</strong>", text)] == counts
    difference = 100 * (sum(x for x, _ in pairs) - sum(y for _, y in pairs)) / len(pairs)
    assert f"a difference of {difference:+.1f} points".replace("-", "−") in text
    assert "Solved only by the second" in text
    assert "Solved only by the first" in server.client.get(f"/compare?run={a}&run={b}&which=nothing").text


def test_tasks_without_evaluations_come_from_the_stores(tmp_path):
    tasks = [Task("maze", "1", {"n": n}, "k") for n in range(4)]
    for name, wins in (("one", (1, 1, 0, 0)), ("two", (1, 0, 1, 0))):
        stored(tmp_path / name, [played(f"s/{t.id}/0", t, bool(w)) for t, w in zip(tasks, wins, strict=True)])
    with viewed(tmp_path) as server:
        a, b = server.key("one"), server.key("two")
        text = server.client.get(f"/compare?run={a}&run={b}&which=a").text
        assert re.findall(r"<strong>(\d)</strong>", text) == ["1", "1", "1", "1"]
        links = re.findall(r'href="(/run/\w+/trajectory[^"]+)">(solved|failed)<', text)
        assert [said for _, said in links] == ["solved", "failed"] and a in links[0][0] and b in links[1][0]
        assert server.client.get(links[0][0]).status_code == 200


def test_curves_are_means_over_common_panels(tmp_path):
    for name, worlds in (("one", ("x", "y")), ("two", ("x",))):
        (tmp_path / name).mkdir()
        rows = [
            {
                "arm": arm,
                "round": at,
                "world": world,
                "tier": "evo",
                "split": "test",
                "n": 4,
                "mean": 0.25 * at + (world == "y") * 0.5,
            }
            for world in worlds
            for arm, at in (("base", 0), ("evolve", 1))
        ]
        (tmp_path / name / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / name / "run.json").write_text(json.dumps({"name": name, "arms": ["evolve"]}))
    with viewed(tmp_path) as server:
        text = server.client.get(f"/compare?run={server.key('one')}&run={server.key('two')}").text
    assert "mean over 1 common panel<" in text
    assert re.findall(r"<title>(\w+), round (\d): ([\d.]+) %", text).count(("one", "1", "25")) == 1
    assert draw_curves([], []) == []


def test_memory_and_throughput(server):
    text = server.get(f"/run/{server.key('first')}/load")
    assert "Tokens a second" in text and "Environment steps a second" in text
    assert text.count('<svg class="chart"') == 2


def test_every_line_of_memory_is_named_in_its_color(tmp_path):
    write_training(tmp_path / "sft")
    with viewed(tmp_path) as server:
        text = server.get(f"/run/{server.key('sft')}/load")
    section = text.partition("<h2>Memory over time</h2>")[2]
    legend, _, chart = section.partition("<figure>")
    named = dict(re.findall(r'arm-(\w+)".*?</svg>([\w ]+)</span>', legend))
    assert set(named.values()) == {"peak", "parameters", "gradients", "optimizer state", "before training"}
    assert set(re.findall(r"arm-(\w+)", chart)) == set(named)


def test_leaderboards_are_of_results_files(tmp_path, server):
    assert "No run below this folder" in server.get("/boards")
    write_run(tmp_path / "bad", rounds=1, tasks=4)
    (tmp_path / "bad" / "agent-eval.json").write_text("{}")
    with viewed(tmp_path) as other:
        assert '<ul class="problems"><li><bdi>bad' in other.get("/boards")


def belief(steps=5):
    rng = np.random.default_rng(0)
    looks = [
        Look(
            position=(1.0 * at, 2.0),
            reading=0.1 * at,
            mean=np.array([3.0, 4.0]),
            covariance=np.eye(2),
            spread=2.0 - 0.1 * at,
            score=None if not at else 1.0,
            particles=rng.random((7, 2)),
        )
        for at in range(steps)
    ]
    return Trace(
        name="dcee <b>",
        area=((0.0, 10.0), (0.0, 8.0)),
        source=(6.0, 7.0),
        looks=looks,
        ended_by="agent",
        right=True,
        field=rng.random((4, 5)) + 0.01,
    )


def test_beliefs_go_to_a_file_and_back():
    found = parse_belief(json.loads(json.dumps(encode_belief(belief()))))
    assert found is not None and (found.name, found.ended_by, found.right, found.area) == (
        "dcee <b>",
        "agent",
        True,
        ((0.0, 10.0), (0.0, 8.0)),
    )
    for one, other in zip(found.looks, belief().looks, strict=True):
        np.testing.assert_allclose(one.particles, other.particles, rtol=1e-3)
        assert (one.position, one.spread, one.score) == (other.position, pytest.approx(other.spread), other.score)


BROKEN = (
    {},
    [],
    None,
    {"area": "x"},
    {"looks": []},
    {"field": [[1], [2, 3]]},
    {"area": [[1, 0], [0, 1]]},
    {"source": [1e300, 0]},
    {"field": [["a"]]},
)


@pytest.mark.parametrize("broken", BROKEN)
def test_what_is_no_belief_is_none(broken):
    row = {**encode_belief(belief()), **broken} if isinstance(broken, dict) and broken else broken
    assert parse_belief(row) is None


def test_belief_maps_moment_by_moment(tmp_path):
    folder = stored(tmp_path / "agdc", [])
    (folder / "beliefs").mkdir()
    (folder / "beliefs" / "dcee-0.json").write_text(json.dumps(encode_belief(belief())))
    (folder / "beliefs" / "torn.json").write_text('{"area": [')
    with viewed(tmp_path) as server:
        base = f"/run/{server.key('agdc')}/beliefs"
        assert "dcee &lt;b&gt;" in server.get(base) and "torn" not in server.get(base)
        text = server.get(base, name="dcee-0", at=2)
        assert "step 2 of 4" in text and "<b>" not in text and 'class="particles"' in text
        assert 'id="before"' in text and 'id="after"' in text
        assert 'id="after"' not in server.get(base, name="dcee-0", at=99)
        assert "Belief maps" in server.get(base, name="nobody")


def test_the_list_of_runs_has_the_mean_of_all_panels(tmp_path):
    """Rows with their outcomes may be larger than the end of the file that is looked at first."""
    folder = stored(tmp_path / "large", [])
    stages = [("old", 0.0)] * 9 + [("new", mean) for mean in (1.0, 0.5, 0.0, *[0.5] * 6, 1.0)]
    outcomes = [["x" * 100, "kind", 1.0]] * 200
    rows = [{"stage": stage, "mean": mean, "outcomes": outcomes} for stage, mean in stages]
    for kept, mean in ((rows, 0.55), (rows[9:], 0.55), (rows[:9], 0.0)):
        (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
        library = Library(tmp_path)
        (run,) = library.runs()
        assert library.status(run).success == pytest.approx(mean)
    (folder / "results.jsonl").write_text(json.dumps(rows[9]) + "\n")
    (run,) = library.runs()
    assert library.status(run).success == 1.0, "read again"


def test_the_list_of_runs_shows_the_method_and_not_its_control(tmp_path):
    folder = stored(tmp_path / "evolve-1", [])
    rows = [
        {"stage": f"{arm}-{number}", "arm": arm, "mean": mean, "padding": "x" * 40_000}
        for arm, number, mean in (("evolve", 1, 0.2), ("evolve", 2, 0.75), ("control", 1, 0.1), ("control", 2, 0.325))
    ]
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    library = Library(tmp_path)
    (run,) = library.runs()
    assert library.status(run).success == 0.75
    (folder / "results.jsonl").write_text(json.dumps(rows[3]) + "\n")
    (run,) = library.runs()
    assert library.status(run).success == 0.325, "the control's, where nothing else was measured"
    reinforced = [{"stage": "base", "arm": "base", "mean": 0.0}, {"stage": "ppo", "arm": "ppo", "mean": 1.0}]
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in reinforced))
    (run,) = library.runs()
    assert library.status(run).success == 1.0, "what was learned, not what it began with"


def test_greedy_play_is_not_shaded_as_certain():
    """At temperature 0 all log-probabilities are 0: they say nothing of how sure the policy was."""
    ids, sampled = np.arange(4, dtype=np.int32), np.array([False, True, True, True])

    def shaded(logprobs, model_logprobs=None):
        at_one = None if model_logprobs is None else np.array(model_logprobs, np.float32)
        generation = Generation(ids, sampled, np.array(logprobs, np.float32), model_logprobs=at_one)
        one = Trajectory("t", Task("w", "1", {}, "k"), (Step("o", "a", generations=(generation,)),))
        (coloring,) = find_colorings(one, [], {})
        drawn = shade_tokens(generation, (0, 0), coloring=coloring, texts=lambda ids: ["x"] * len(ids), max_tokens=9)
        return coloring.caption, str(drawn)

    caption, drawn = shaded([0, 0, 0, 0])
    assert "temperature 0" in caption and "log p" not in drawn and drawn.count("unsure-0") == 3
    caption, drawn = shaded([0, 0, -3, 0])
    assert not caption and drawn.count("log p") == 3 and "unsure-4" in drawn
    caption, drawn = shaded([0, 0, 0, 0], [0, 0, -3, 0])
    assert caption.startswith("(at temperature 1") and drawn.count("log p") == 3 and "unsure-4" in drawn


def test_the_legend_stands_beside_what_is_said_of_greedy_play(tmp_path):
    """Where log-probabilities are stored the colors are explained; where none are, only that is said."""
    ids, sampled = np.arange(4, dtype=np.int32), np.array([False, True, True, True])
    task = Task("maze", "1", {}, "k")
    for name, model_logprobs in (("known", np.array([0, -0.1, -3, -1], np.float32)), ("unknown", None)):
        generation = Generation(ids, sampled, np.zeros(4, np.float32), model_logprobs=model_logprobs)
        step = Step("o", "a", generations=(generation,))
        stored(tmp_path / name, [Trajectory("s/1/0", task, (step,), "", "world", Score(1.0, 1.0, True))])
    with viewed(tmp_path) as server:
        known, unknown = (
            server.client.get(f"/run/{server.key(name)}/trajectory?id=s/1/0").text for name in ("known", "unknown")
        )
    assert "p ≥ 0.9" in known and "(at temperature 1; tokens were chosen at temperature 0)" in known
    assert "p ≥ 0.9" not in unknown and "is not stored" in unknown


def test_a_pulse_changes_with_the_files(folder, server):
    key = server.key("second")
    before = json.loads(server.get("/pulse", run=key))
    assert json.loads(server.get("/pulse", run=key)) == before
    with (folder / "second" / "metrics.jsonl").open("a") as file:
        file.write('{"time_s": 1, "loss": 0.5, "kind": "fit", "step": 9}\n')
    after = json.loads(server.get("/pulse", run=key))
    assert after["stamp"] != before["stamp"]
    assert json.loads(server.get("/pulse"))["live"] is True


def test_a_store_that_is_damaged_is_told_of(tmp_path):
    folder = stored(tmp_path / "torn", [played(f"s/{n}/0") for n in range(3)])
    log = folder / "trajectories" / "log" / "seg-000001.jsonl"
    log.write_bytes(log.read_bytes().replace(b"you see", b"you SEE", 1))
    with viewed(tmp_path) as server:
        assert "cannot be read further" in server.get(f"/run/{server.key('torn')}/trajectories")


def test_what_is_not_there(server):
    base = f"/run/{server.key('stored')}"
    for path in ("/run/0123456789ab", f"{base}/trajectory?id=nobody", f"{base}/nothing", "/nowhere"):
        answer = server.client.get(path)
        assert answer.status_code == 404 and "There is nothing here" in answer.text, path
    assert server.client.get("/compare").status_code == 400


def test_the_list_of_runs_counts_iterations_and_not_measurements(tmp_path):
    run = tmp_path / "grpo"
    run.mkdir()
    (run / "run.json").write_text(json.dumps({"schema": 1, "name": "grpo"}), encoding="utf-8")
    rows = [{"kind": "practise", "step": 6, "loss": 0.5}, {"kind": "evaluate", "step": 1}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    library = Library(tmp_path)
    (entry,) = library.runs()
    assert library.status(entry).step == 6
