"""The evaluators of WebArena without a browser and without a judge: answers, the last address, contents of pages.

A task is solved if all its evaluators accept, as in WebArena (Zhou et al. 2023, https://arxiv.org/abs/2307.13854).
`exact_match` and `must_include` compare as there. `fuzzy_match` asks no model: it compares normalized texts, in which
dates, amounts and articles are written alike. The right answer to a task that cannot be done is `N/A`, exactly.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from evolvent.trajectory import Json
from evolvent.worlds.site.records import View
from evolvent.worlds.site.router import render_page, resolve_url

__all__ = [
    "NOT_AVAILABLE",
    "Evaluation",
    "ProgramCheck",
    "clean_answer",
    "is_accepted",
    "matches_exactly",
    "matches_fuzzily",
    "matches_included",
    "matches_url",
]

NOT_AVAILABLE = "N/A"
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """Contents that a page must have after the episode.

    Args:
        url: address of the page; `last` is the one that is open, `func:latest_order` and its like name a row.
        locator: key of the nodes whose names count; "" takes all nodes.
        required: texts that must be included, each of them.
        is_exact: the joined names must equal the one required text instead.
    """

    url: str
    locator: str
    required: tuple[str, ...]
    is_exact: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluators of a task; empty ones do not count.

    Args:
        exact_match: the answer.
        must_include: texts that the answer must hold.
        fuzzy_match: the answer, compared after normalization.
        reference_url: the address that must be open, or a longer one.
        program_html: contents of pages.
    """

    exact_match: str = ""
    must_include: tuple[str, ...] = ()
    fuzzy_match: str = ""
    reference_url: str = ""
    program_html: tuple[ProgramCheck, ...] = ()

    def to_config(self) -> dict[str, Json]:
        """Returns the evaluators in the form of the `eval` part of WebArena's task files."""
        answers: dict[str, Json] = {}
        if self.exact_match:
            answers["exact_match"] = self.exact_match
        if self.must_include:
            answers["must_include"] = list(self.must_include)
        if self.fuzzy_match:
            answers["fuzzy_match"] = [self.fuzzy_match]
        checks: list[Json] = [
            {
                "url": check.url,
                "locator": check.locator,
                "required_contents": {"exact_match": check.required[0]}
                if check.is_exact
                else {"must_include": list(check.required)},
            }
            for check in self.program_html
        ]
        parts = {"string_match": bool(answers), "url_match": bool(self.reference_url), "program_html": bool(checks)}
        return {
            "eval_types": [name for name, is_used in parts.items() if is_used],
            "reference_answers": answers or None,
            "reference_url": self.reference_url,
            "program_html": checks,
        }


_MAX_WORDS_BESIDE = 12  # of a sentence that holds an answer
_DATE = re.compile(r"\d{4}/\d\d/\d\d")


def clean_answer(answer: str) -> str:
    """Returns an answer without the spaces and quotes around it, in lower case.

    >>> clean_answer(" 'Ada Abbott' ")
    'ada abbott'
    """
    text = answer.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def matches_exactly(reference: str, answer: str) -> bool:
    """Says whether an answer equals the reference after cleaning."""
    return clean_answer(answer) == clean_answer(reference)


def matches_included(reference: str, answer: str, *, as_word: bool = False) -> bool:
    """Says whether an answer includes the reference.

    Args:
        as_word: a reference of one character must be a word of the answer, so that 3 is not found in 13.
    """
    text, part = clean_answer(answer), clean_answer(reference)
    if as_word and len(part) == 1:
        return part in re.findall(r"\w+|[^\w\s]", text)
    return part in text


def normalize(text: str) -> str:
    """Returns a text in which dates, amounts and articles are written alike.

    >>> normalize("The 12th of June 2025") == normalize("2025-06-12") == normalize("Jun 12, 2025.")
    True
    """
    text = re.sub(r"\b(the|an?|of|on)\b|(?<=\d)(st|nd|rd|th)\b|[$.!?]+(?=\s|$)|\$", " ", text.lower())
    text = re.sub(r"\b(\d{4})-(\d\d?)-(\d\d?)\b", lambda match: _write_date(match[1], int(match[2]), match[3]), text)
    names = "|".join(_MONTHS)
    pattern = rf"\b({names})[a-z]*\.? +(\d\d?)(?: *,)? +(\d{{4}})\b"
    text = re.sub(pattern, lambda match: _write_date(match[3], _MONTHS.index(match[1]) + 1, match[2]), text)
    pattern = rf"\b(\d\d?) +({names})[a-z]*\.?(?: *,)? +(\d{{4}})\b"
    text = re.sub(pattern, lambda match: _write_date(match[3], _MONTHS.index(match[2]) + 1, match[1]), text)
    return " ".join(text.split())


def _write_date(year: str, month: int, day: str) -> str:
    return f"{year}/{month:02}/{int(day):02}"


def matches_fuzzily(reference: str, answer: str) -> bool:
    """Says whether an answer is the reference, or a sentence that holds it, after normalization.

    A sentence has few words beside the reference, and no other date where that is one: a page copied whole is no
    answer.
    """
    expected, said = normalize(reference), normalize(clean_answer(answer))
    is_short = len(said.split()) <= len(expected.split()) + _MAX_WORDS_BESIDE
    is_single = not _DATE.fullmatch(expected) or set(_DATE.findall(said)) == {expected}
    return is_short and is_single and f" {expected} " in f" {said} "


def matches_url(reference: str, url: str) -> bool:
    """Says whether an address is the reference or below it, with the same parts of the query.

    WebArena looks for the reference anywhere in the address, so that issue 1 is also found in issue 12; here the parts
    of the path are compared as wholes.

    >>> matches_url("http://a.com/issues/1", "http://a.com/issues/1?tab=notes")
    True
    >>> matches_url("http://a.com/issues/1", "http://a.com/issues/12")
    False
    """
    parts, reference_parts = urlsplit(url.rstrip("/")), urlsplit(reference.rstrip("/"))
    query = parse_qs(parts.query)
    is_below = f"{parts.netloc}{parts.path}/".startswith(f"{reference_parts.netloc}{reference_parts.path}/")
    return is_below and all(
        set(values) & set(query.get(name, ())) for name, values in parse_qs(reference_parts.query).items()
    )


def _is_satisfied(check: ProgramCheck, url: str, view: View) -> bool:
    page = render_page(view, url if check.url == "last" else resolve_url(view, check.url))
    content = "\n".join(page.list_names(check.locator))
    if check.is_exact:
        return matches_exactly(check.required[0], content)
    return all(matches_included(text, content) for text in check.required)


def is_accepted(evaluation: Evaluation, *, answer: str, url: str, view: View) -> bool:
    """Says whether all evaluators of a task accept an episode.

    Args:
        evaluation: the evaluators.
        answer: the text of the last action, `stop [answer]`.
        url: the address that was open at the end.
        view: the rows at the end.
    """
    if evaluation.exact_match and not matches_exactly(evaluation.exact_match, answer):
        return False
    is_single = len(evaluation.must_include) == 1
    if not all(matches_included(text, answer, as_word=is_single) for text in evaluation.must_include):
        return False
    if evaluation.fuzzy_match and not matches_fuzzily(evaluation.fuzzy_match, answer):
        return False
    if evaluation.reference_url and not matches_url(evaluation.reference_url, url):
        return False
    return all(_is_satisfied(check, url, view) for check in evaluation.program_html)
