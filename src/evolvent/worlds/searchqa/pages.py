"""Documents and their rendering, and the generated documents: facts told in one or two sentences.

A fact is on the page of its subject ("the teacher of anna is boris.") or, one in four, on the page of its
value ("boris is the teacher of anna."). So the documents that match a query best also mention whose teacher
anna is, and must be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evolvent.worlds.searchqa.invented import RELATIONS, Draws, Facts

__all__ = ["FIXED_WORDS", "Document", "build_documents", "render_results"]

FIXED_WORDS = "the of is. <information> nothing found </information> Doc 1 2 3 (Title:)"
"""The words and marks of observations besides names and relations."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document of a collection.

    Args:
        id: identifies the document in its collection.
        title: its subject; may be empty.
        text: its text.
        names: the names in it that could be an answer or the next search.
    """

    id: str
    title: str
    text: str
    names: tuple[str, ...] = ()

    @property
    def contents(self) -> str:
        """Returns the searched text: the title and the text."""
        return f"{self.title}\n{self.text}" if self.title else self.text


def render_results(documents: Sequence[Document], *, numbered: bool) -> str:
    """Renders the reply to a search.

    Args:
        documents: the results, best first.
        numbered: as in AgentGym, `Doc 1(Title: anna) text`. Else the texts alone, with the title in front if the
            text does not contain it.
    """
    if numbered:
        lines = [
            f"Doc {number}(Title: {document.title}) {document.text}"
            if document.title
            else f"Doc {number} {document.text}"
            for number, document in enumerate(documents, 1)
        ]
    else:
        lines = [
            document.text if document.title.lower() in document.text.lower() else f"{document.title}: {document.text}"
            for document in documents
        ]
    return f"<information>{chr(10).join(lines) or 'nothing found'}</information>"


_RELATION_ENTITIES = tuple((relation, entity) for relation in RELATIONS.values() for entity in relation.subjects)


def build_documents(facts: Facts, draws: Draws) -> tuple[Document, ...]:
    """Builds documents from all facts, in random order; their ids are their numbers from 1.

    At k1 = 0.9 and b = 0.4 a fact R of E is always among the three best documents for the query "R of E": the only
    ones before it contain both words because E is a value of R, which happens at most twice. A page that names R
    and E in two sentences is longer, and facts told from the side of their value stand alone.
    """
    names = facts.names
    side_draws = (draws.draw_numbers(len(_RELATION_ENTITIES)) % 4).tolist()
    join_draws = (draws.draw_numbers(len(_RELATION_ENTITIES)) % 4).tolist()
    pages: list[tuple[str, str, tuple[str, ...]]] = []
    facts_by_entity: dict[int, list[int]] = {}
    for index in draws.draw_order(len(_RELATION_ENTITIES)):
        relation, entity = _RELATION_ENTITIES[index]
        if side_draws[index]:
            facts_by_entity.setdefault(entity, []).append(index)
            continue
        value, subject = names[facts.value_of(relation, entity)], names[entity]
        pages.append((value, f"{value} is the {relation.name} of {subject}.", (value, subject)))
    for entity, indices in facts_by_entity.items():
        while indices:
            page_indices = [indices.pop() for _ in range(min(len(indices), 1 if join_draws[indices[-1]] else 2))]
            subject_name = names[entity]
            pairs = [
                (relation.name, names[facts.value_of(relation, entity)])
                for relation, _ in map(_RELATION_ENTITIES.__getitem__, page_indices)
            ]
            text = " ".join(f"the {relation} of {subject_name} is {value}." for relation, value in pairs)
            pages.append((subject_name, text, (subject_name, *(value for _, value in pairs))))
    order = draws.draw_order(len(pages))
    return tuple(Document(str(number), *pages[index]) for number, index in enumerate(order, 1))
