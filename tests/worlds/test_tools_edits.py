"""To-do lists and sheets: the tools by worked examples, and the changes as they are read, made without the tools."""

from __future__ import annotations

import re
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import InvalidAction
from evolvent.messages import Call
from evolvent.trajectory import Task
from evolvent.worlds.panel import Sizes
from evolvent.worlds.tools.scoring import table_match
from evolvent.worlds.tools.sheet import Sheet
from evolvent.worlds.tools.sheets import Book
from evolvent.worlds.tools.table import Table, compute_formula, format_position, iterate_range, parse_position, to_cell
from evolvent.worlds.tools.todo import Agenda, Item, Project, Todo

SMALL = Sizes(train=60, dev=20, test=40)
LISTS, SHEET = Todo(sizes=SMALL), Sheet(sizes=SMALL)

AGENDA = Agenda(
    "2024-05-17",
    "arvik",
    (Project(31, "garden", False), Project(77, "attic", True)),
    (
        Item(58, 31, "paint fern", "use opal", 30, 2, "2024-05-20"),
        Item(59, 31, "wash drum", "use onyx", 45, 4, "2024-05-19"),
        Item(60, 77, "sell harp", "use coral", 15, 1, "2024-05-18"),
    ),
)
LISTS_BOX = LISTS.toolbox(LISTS.tasks("dev", "seen")[0])


def do(tool, state=AGENDA, **arguments):
    return LISTS_BOX.call(state, Call(tool, arguments))


def test_reading_a_to_do_list():
    assert do("get_projects")[1].value[1] == {"id": 77, "name": "attic", "is_favorite": True}
    assert do("get_tasks", project_id="31")[1].value[1] == {
        "id": 59,
        "content": "wash drum",
        "priority": 4,
        "due_date": "2024-05-19",
    }
    assert do("get_task_duration", task_id=58)[1].value["duration"] == 30
    assert do("get_task_description", task_id=60)[1].value["description"] == "use coral"
    assert do("get_user_current_date")[1].value == "2024-05-17"
    assert do("get_user_current_location")[1].value == "arvik"


def test_changing_a_to_do_list():
    for tool in ("complete_task", "delete_task"):
        after, _ = do(tool, task_id=59)
        assert [item.id for item in after.items] == [58, 60]
        assert do(tool, after, task_id=59)[1].failed
        assert do("get_task_duration", after, task_id=59)[1].failed
    after, _ = do("update_task", task_id=60, due_date="2024-06-01")
    assert [item.due_date for item in after.items] == ["2024-05-20", "2024-05-19", "2024-06-01"]
    after, result = do("update_project", project_id=77, is_favorite="false")  # text that says false is false
    assert after.projects[1] == Project(77, "attic", False)
    assert result.value == {"updated": {"id": 77, "name": "attic", "is_favorite": False}}
    assert [item.id for item in AGENDA.items] == [58, 59, 60]  # nothing is changed in place


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("complete_task", {"task_id": 31}),
        ("get_tasks", {"project_id": 58}),
        ("update_project", {"project_id": 31}),
        ("update_task", {"task_id": 58, "due_date": "soon"}),
        ("update_task", {"task_id": 58, "due_date": "2024-02-30"}),
        ("update_task", {"task_id": 58, "due_date": "2031-01-01"}),
        ("update_project", {"project_id": 31, "is_favorite": "maybe"}),
        ("delete_task", {"task_id": "all"}),
    ],
)
def test_what_cannot_be_changes_nothing(tool, arguments):
    state, result = do(tool, **arguments)
    assert result.failed
    assert state is AGENDA


def test_the_state_is_compared_without_ids():
    other = Agenda(
        AGENDA.today,
        AGENDA.city,
        (Project(1, "garden", False), Project(2, "attic", True)),
        tuple(
            Item(
                number,
                {31: 1, 77: 2}[item.project],
                item.content,
                item.description,
                item.duration,
                item.priority,
                item.due_date,
            )
            for number, item in enumerate(AGENDA.items)
        ),
    )
    assert other != AGENDA
    assert other.comparable_state() == AGENDA.comparable_state()
    assert do("update_project", project_id=31, is_favorite=True)[0].comparable_state() != AGENDA.comparable_state()


def todo_oracle(question: str, agenda: Agenda):
    """The answer, and the tasks and favorites that are left, from the question alone."""
    items, favorites = list(agenda.items), {project.name for project in agenda.projects if project.is_favorite}
    ids, answer = {project.name: project.id for project in agenda.projects}, "done"
    orders = {
        "earliest due date": (min, "due_date"),
        "latest due date": (max, "due_date"),
        "highest priority": (max, "priority"),
        "longest duration": (max, "duration"),
        "shortest duration": (min, "duration"),
    }
    for clause in question.split(" , then "):
        if found := re.fullmatch(r"make (\w+) (a|no) favorite", clause):
            (favorites.add if found[2] == "a" else favorites.discard)(found[1])
            continue
        found = re.fullmatch(r"(.*?)the task (.+) in (\w+)(?: to ([\w-]+))?", clause)
        pool = [item for item in items if item.project == ids[found[3]]]
        if found[2].startswith("with the "):
            pick, field = orders[found[2].removeprefix("with the ")]
            item = pick(pool, key=lambda one: getattr(one, field))
        else:
            (item,) = [one for one in pool if one.content == found[2]]
        place, verb = items.index(item), found[1].strip()
        if verb in ("complete", "delete"):
            del items[place]
        elif verb == "set the due date of":
            day = (
                (date.fromisoformat(agenda.today) + timedelta(days=1)).isoformat()
                if found[4] == "tomorrow"
                else found[4]
            )
            items[place] = Item(
                item.id, item.project, item.content, item.description, item.duration, item.priority, day
            )
        else:
            field = {"due date": "due_date", "name": "content"}.get(verb.split(" ", 2)[2].removesuffix(" of"))
            answer = getattr(item, field or verb.split()[2])
    return answer, items, favorites


def every_task(world):
    return [task for tier in world.tiers for task in world.tasks("test", tier)]


def expert_end(world, task):
    """The question, the first state, the state after the expert's plan, and its last call."""
    question, _ = world.make(task).reset()
    box = world.toolbox(task)
    state = box.start
    for action in world.expert(task):
        call = world.grammar.parse_call(action)
        state, result = box.call(state, call)
        assert not result.failed
    return question, box.start, state, call


def test_to_do_tasks_are_done_as_they_are_read():
    for task in every_task(LISTS):
        question, start, end, finish = expert_end(LISTS, task)
        answer, items, favorites = todo_oracle(question, start)
        assert finish.arguments["answer"] == answer
        assert list(end.items) == items, question
        assert {project.name for project in end.projects if project.is_favorite} == favorites


def test_answer_and_state_must_both_be_right():
    task = Task("todo", "1", {"kind": ["delete", "first", "due", "named"], "seed": 1})
    plan = LISTS.expert(task)
    edit = next(action for action in plan if action.startswith("delete_task"))
    for actions in ([one for one in plan if one != edit], [*plan[:-1], "finish 2024-01-01"], ["finish done"]):
        env = LISTS.make(task)
        env.reset()
        rewards = [env.step(action)[1] for action in actions]
        assert rewards == [0] * len(actions)
    assert LISTS.score(rewards, {}).success is False


TABLE = Table((("item", "kind", "price"), ("fern", "wood", 4), ("opal", "wax", 15), ("drum", "wood", 9)))


def test_positions():
    assert [parse_position(text) for text in ("A1", "c4", " Z99 ")] == [(0, 0), (3, 2), (98, 25)]
    assert [format_position(place) for place in ((0, 0), (3, 2), (98, 25))] == ["A1", "C4", "Z99"]
    assert list(iterate_range("A2", "B3")) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for text in ("", "1A", "A0", "A100", "AA1", "A1:B2"):
        with pytest.raises(InvalidAction):
            parse_position(text)
    with pytest.raises(InvalidAction):
        list(iterate_range("B2", "A3"))


@pytest.mark.parametrize(
    ("operator", "value"),
    [("SUM", 28), ("AVERAGE", 9.33), ("COUNT", 3), ("MAX", 15), ("MIN", 4), ("PRODUCT", 540)],
)
def test_formulas(operator, value):
    """Text among the cells does not count."""
    assert compute_formula(operator, ["price", 4, 15, "", 9]) == value


def test_formulas_that_cannot_be():
    assert compute_formula("MINUS", [4, 15]) == -11
    assert (compute_formula("SUM", []), compute_formula("COUNT", ["a"])) == (0, 0)
    for operator, cells in (
        ("MINUS", [1, 2, 3]),
        ("AVERAGE", ["a"]),
        ("MAX", []),
        ("SQRT", [4]),
        ("PRODUCT", [10**9] * 3),
    ):
        with pytest.raises(InvalidAction):
            compute_formula(operator, cells)


def test_sorting_keeps_the_head_and_moves_notes():
    noted = TABLE.with_note((2, 2), "dear")
    down = noted.sort_by(2, descending=True)
    assert [row[0] for row in down.rows] == ["item", "opal", "drum", "fern"]
    assert down.note_at((1, 2)) == "dear"
    mixed = Table((("x",), ("b",), (2,), ("",), ("a",), (10,)))
    assert [row[0] for row in mixed.sort_by(0, descending=False).rows] == ["x", 2, 10, "a", "b", ""]
    assert [row[0] for row in mixed.sort_by(0, descending=True).rows] == ["x", "b", "a", 10, 2, ""]
    with pytest.raises(InvalidAction):
        TABLE.sort_by(3, descending=False)


def test_inserting_and_deleting():
    grown = TABLE.insert_lines([["harp", "clay", 7]], 4, rows=True)
    assert grown.rows[4] == ("harp", "clay", 7)
    wider = TABLE.with_note((1, 2), "n").insert_lines([["sold", "1", 2]], 1, rows=False)
    assert wider.rows[:2] == (("item", "sold", "kind", "price"), ("fern", 1, "wood", 4))
    assert wider.rows[3] == ("drum", "", "wood", 9)
    assert (wider.note_at((1, 3)), wider.note_at((1, 2))) == ("n", "")
    left = TABLE.with_note((3, 0), "n").delete_lines([1, 2], rows=True)
    assert left.rows == (("item", "kind", "price"), ("drum", "wood", 9))
    assert left.note_at((1, 0)) == "n"
    assert TABLE.delete_lines([1], rows=False).rows[1] == ("fern", 4)
    for indexes in ([], [4], [-1], [0, 1, 2, 3]):
        with pytest.raises(InvalidAction):
            TABLE.delete_lines(indexes, rows=True)
    with pytest.raises(InvalidAction):
        TABLE.insert_lines([["x"]], 9, rows=True)


def test_writing_grows_and_trims():
    assert TABLE.with_cells([((4, 2), "28")]).rows[4] == ("", "", 28)
    assert TABLE.with_cells([((4, 2), 1)]).with_cells([((4, 2), "")]) == TABLE
    assert [to_cell(value) for value in ("5", "5.50", " x ", 5.0, True, None, "1e9")] == [
        5,
        5.5,
        "x",
        5,
        "TRUE",
        "",
        "1e9",
    ]


@given(st.lists(st.sampled_from(["sort", "row", "col", "drop", "write"]), max_size=8), st.integers(0, 99))
def test_tables_stay_rectangles_without_empty_edges(changes, seed):
    table = TABLE
    for at, change in enumerate(changes):
        place = (seed + 7 * at) % 6
        try:
            table = {
                "sort": lambda t, p: t.sort_by(p % 4, descending=p > 2),
                "row": lambda t, p: t.insert_lines([[p, "a"]], p, rows=True),
                "col": lambda t, p: t.insert_lines([["h", p]], p, rows=False),
                "drop": lambda t, p: t.delete_lines([p], rows=p % 2 == 0),
                "write": lambda t, p: t.with_cells([((p, p), p)]),
            }[change](table, place)
        except InvalidAction:
            continue
        assert len({len(row) for row in table.rows}) <= 1
        assert any(cell != "" for cell in table.rows[-1])
        assert any(row[-1] != "" for row in table.rows)


SHEET_BOX = SHEET.toolbox(SHEET.tasks("dev", "seen")[0])
BOOK = Book((("Sheet1", TABLE), ("Sheet2", Table((("a", 1),)))), "Sheet1")


def change(tool, state=BOOK, **arguments):
    return SHEET_BOX.call(state, Call(tool, arguments))


def test_sheet_tools():
    assert change("open_sheet", Book(BOOK.sheets), name="Sheet2")[0].opened == "Sheet2"
    assert change("get_all_values", Book(BOOK.sheets))[1].value == "please open a sheet before operating it"
    gone, _ = change("del_sheet", name="Sheet1")
    assert (gone.opened, gone.sheet("Sheet1")) == (None, None)
    assert change("get_cell_value", position="C3")[1].value == 15
    assert change("get_A1_annotation", row=3, col=2)[1].value == "B3"
    assert change("get_range_values", start_position="A1", end_position="B2")[1].value == [
        ["item", "kind"],
        ["fern", "wood"],
    ]
    assert change("filter_cells", query="wood")[1].value == ["B2", "B4"]
    assert change("filter_cells", query="^(wax|9)$")[1].value == ["B3", "C4"]
    assert change("filter_cells", query="wood", in_row=4)[1].value == ["B4"]
    assert change("filter_cells", query="wood", in_column=1)[1].value == []
    assert change("filter_cells", query="(a+)+$" * 20)[1].value == []
    assert change("get_value_by_formula", start_position="C2", end_position="C4", operator="SUM")[1].value == 28
    assert change("get_value_by_formula", position_list=["C3", "C4"], operator="minus")[1].value == 6
    assert change("get_value_by_formula", operator="SUM")[1].failed
    after, result = change(
        "update_cell_by_formula", start_position="C2", end_position="C4", result_position="C5", operator="MAX"
    )
    assert result.value[4] == ["", "", 15]
    assert change("delete_batch_data", after, dimension="row", index_list=[5])[0] == BOOK
    merged, _ = change("merge_cells", start_position="A2", end_position="B3")
    assert merged.table.rows[1:3] == (("fern", "fern", 4), ("fern", "fern", 15))
    noted, _ = change("update_note", position="B2", content="old")
    assert change("get_note", noted, position="B2")[1].value == "old"
    assert change("get_note", noted, position="B3")[1].value == ""
    frozen, _ = change("freeze_data", dimension="rows", num=2)
    sorted_, _ = change("sort_sheet_by_col", frozen, col_num=3, order="asc")
    assert [row[0] for row in sorted_.table.rows] == ["item", "fern", "drum", "opal"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("open_sheet", {"name": "Sheet9"}),
        ("freeze_data", {"dimension": "rows", "num": 4}),
        ("freeze_data", {"dimension": "all", "num": 1}),
        ("insert_rows", {"values_list": [1, 2], "row_idx": 2}),
        ("insert_rows", {"values_list": [], "row_idx": 2}),
        ("insert_rows", {"values_list": [[1]], "row_idx": 0}),
        ("insert_cols", {"values_list": [[[1]]], "col_idx": 1}),
        ("insert_cols", {"values_list": [["x"] * 99] * 30, "col_idx": 1}),
        ("delete_batch_data", {"dimension": "rows", "index_list": [2]}),
        ("delete_batch_data", {"dimension": "row", "index_list": ["x"]}),
        ("delete_batch_data", {"dimension": "row", "index_list": [[2]]}),
        ("update_cell", {"position": "B", "value": 1}),
        ("update_cell", {"position": "B2", "value": [1]}),
        ("update_range", {"start_position": "A1", "end_position": "B1", "values_list": [[1]]}),
        ("sort_sheet_by_col", {"col_num": 1, "order": "up"}),
        ("sort_sheet_by_col", {"col_num": 0, "order": "asc"}),
        ("get_value_by_formula", {"position_list": [1], "operator": "SUM"}),
        ("get_A1_annotation", {"row": 0, "col": 1}),
        ("get_A1_annotation", {"row": 10**9, "col": 1}),
        ("merge_cells", {"start_position": "B2", "end_position": "A1"}),
    ],
)
def test_what_a_sheet_cannot_do_changes_nothing(tool, arguments):
    state, result = change(tool, **arguments)
    assert result.failed
    assert state is BOOK


def sheet_oracle(question: str, rows: list[list], notes: dict) -> list[list]:
    """The table after the changes, on lists of lists, from the question alone."""
    rows = [list(row) for row in rows]
    for said in question.split(" : ", 1)[1].split(" ; then "):
        head = rows[0]
        if found := re.fullmatch(r"sort by (\w+) in (\w+) order", said):
            at = head.index(found[1])
            rows[1:] = sorted(rows[1:], key=lambda row: row[at], reverse=found[2] == "descending")
        elif found := re.fullmatch(r"delete the row of (\w+)", said):
            rows = [row for row in rows if row[0] != found[1]]
        elif found := re.fullmatch(r"delete all rows of kind (\w+)", said):
            rows = [row for row in rows if row[1] != found[1]]
        elif found := re.fullmatch(r"delete the column (\w+)", said):
            at = head.index(found[1])
            rows = [row[:at] + row[at + 1 :] for row in rows]
        elif found := re.fullmatch(r"add the row (.+) (at the end|as first row)", said):
            rows.insert(len(rows) if found[2] == "at the end" else 1, values(found[1]))
        elif found := re.fullmatch(r"add the column (\w+) with (.+) at the end", said):
            rows = [[*row, value] for row, value in zip(rows, [found[1], *values(found[2])], strict=True)]
        elif found := re.fullmatch(r"set the column (\w+) to (.+)", said):
            for row, value in zip(rows[1:], values(found[2]), strict=True):
                row[head.index(found[1])] = value
        elif found := re.fullmatch(r"set (\w+) of (\w+) to (\d+|what its note says)", said):
            row = next(row for row in rows if row[0] == found[2])
            row[head.index(found[1])] = int(found[3]) if found[3].isdigit() else notes[found[2], found[1]]
        elif found := re.fullmatch(r"merge item and kind of (\w+)", said):
            next(row for row in rows if row[0] == found[1])[1] = found[1]
        else:
            found = re.fullmatch(r"put the (\w+) of (\w+) below it", said)
            at = head.index(found[2])
            column = [row[at] for row in rows[1:]]
            value = {"sum": sum, "largest": max, "smallest": min, "number": len}[found[1]](column)
            rows.append(["" if place != at else value for place in range(len(head))])
    return rows


def values(text: str) -> list:
    return [int(word) if word.isdigit() else word for word in text.split()]


def test_sheet_tasks_are_done_as_they_are_read():
    for task in every_task(SHEET):
        question, start, end, _ = expert_end(SHEET, task)
        name = question.split()[1]
        table = start.get_sheet(name)
        notes = {(table.rows[row][0], table.rows[0][column]): int(note) for (row, column), note in table.notes}
        assert [list(row) for row in end.get_sheet(name).rows] == sheet_oracle(question, table.rows, notes), question
        assert [one for one in end.sheets if one[0] != name] == [one for one in start.sheets if one[0] != name]


def test_the_share_of_cells_put_right_counts_at_the_end():
    task = next(
        task
        for task in every_task(SHEET)
        if task.kind.split()[1:] in (["drop", "set"], ["set", "drop"], ["set", "add"], ["add", "set"])
    )
    plan = SHEET.expert(task)
    for kept in range(2, len(plan)):
        env = SHEET.make(task)
        env.reset()
        steps = [env.step(action) for action in (*plan[:kept], "finish")]
        rewards, info = [step[1] for step in steps], steps[-1][4]
        goal = SHEET.toolbox(task).start
        assert sum(rewards[:-1]) == 0
        assert SHEET.score(rewards, info).success is (kept == len(plan) - 1)
        assert (rewards[-1] == 0) == (kept == 2) or 0 < rewards[-1] <= 1
        assert 0 < info["score"] <= 1
        assert goal.opened is None
    env = SHEET.make(task)
    env.reset()
    assert env.step(f"del_sheet {env.reset()[0].split()[1]}")[4]["score"] == 0
    assert env.step("finish")[1:3] == (0.0, True)


def test_the_reported_score_is_the_originals_cell_match():
    task = every_task(SHEET)[0]
    _, start, end, _ = expert_end(SHEET, task)
    env = SHEET.make(task)
    name = env.reset()[0].split()[1]
    info = env.step(f"open_sheet {name}")[4]
    assert info["score"] == table_match(end.get_sheet(name).rows, start.get_sheet(name).rows)
