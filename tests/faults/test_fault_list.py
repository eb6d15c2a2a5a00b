"""Every numbered fault has its test, and `docs/reliability.md` says what the tests say.

After a wanted change: `python tests/faults/listing.py` writes the page's tables anew.
"""

from __future__ import annotations

import ast

import pytest
from listing import LAST, PAGE, RESUMES, ROOT, files_of_faults, renewed


def test_every_number_is_there():
    found = list(files_of_faults())
    missing = set(range(1, LAST + 1)) - {one.number for one in found}
    assert not missing and max(one.number for one in found) >= LAST
    assert all(one.tests > 0 and len(one.says) > 20 for one in found)


def test_the_page_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "run: python tests/faults/listing.py"


@pytest.mark.parametrize("row", RESUMES, ids=lambda row: row[0])
def test_what_proves_a_resume_is_there(row):
    name, _, function = row[3].partition("::")
    tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert not function or function in names
