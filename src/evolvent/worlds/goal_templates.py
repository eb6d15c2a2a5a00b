"""Templates for the goals of the embedded worlds and their paraphrases, the table for `wording.Worded`."""

from __future__ import annotations

from collections.abc import Mapping

from evolvent.worlds.wording import Wording

__all__ = ["WORDINGS"]

_QUESTION_WORDING = Wording(
    r"^(?P<question>.+)$",
    ("find out {question}", "i would like to know {question}", "tell me {question}", "to be answered : {question}"),
    ("the question is : {question}",),
    ("do you know {question}",),
)
_ORDER_WORDING = Wording(
    r"^(?P<order>.+)$",
    ("do this : {order}", "what there is to do : {order}", "{order} . that is all", "the order : {order}"),
    ("here is your work : {order}",),
    ("could you do this : {order}",),
)

WORDINGS: Mapping[str, Wording] = {
    "crafting": Wording(
        r"Goal: craft (?P<goal>.+)\.",
        ("Goal: make {goal}.", "craft {goal} in the end.", "what we need is {goal}.", "build {goal} for me."),
        ("produce {goal}.",),
        ("get hold of {goal} by crafting.",),
    ),
    "backoffice": Wording(
        r"^do this : (?P<order>.+?) (?=\. open customers)",
        ("finish this : {order} ", "what there is to do : {order} ", "{order} , in full ", "the work : {order} "),
        ("here is your work : {order} ",),
        ("could you do this : {order} ",),
    ),
    "kitchen": Wording(
        r"^order : (?P<order>.+?) (?=\. on the )",
        ("prepare {order} ", "somebody ordered {order} ", "make {order} ", "{order} is ordered "),
        ("cook this : {order} ",),
        ("bring me {order} ",),
    ),
    "lookup": Wording(
        r"^find (?P<what>.+)$",
        ("tell me {what}", "what is {what}", "look up {what}", "name {what}"),
        ("say {what}",),
        ("i want to know {what}",),
    ),
    "gridworld": Wording(
        r"^(?P<mission>[^.]+) \. see",
        ("mission : {mission} . see", "do this : {mission} . see", "{mission} for me . see"),
        ("the order is : {mission} . see",),
        ("what to do : {mission} . see",),
    ),
    "wordle": Wording(
        r"^guess a word of (?P<n>\d+) letters$",
        ("find the hidden word of {n} letters", "which word of {n} letters is it", "a word of {n} letters is hidden"),
        ("{n} letters are hidden",),
        ("name the word , it has {n} letters",),
    ),
    "maze": Wording(
        r"^at (?P<here>\d+ \d+) goal",
        ("walk to the goal , you are at {here} goal", "reach the goal from {here} goal"),
        ("leave the maze from {here} goal",),
        ("find the way from {here} goal",),
    ),
    "countdown": Wording(
        r"^make (?P<target>\d+) from (?P<numbers>[\d ]+)$",
        ("reach {target} with {numbers}", "use {numbers} to get {target}", "target {target} , numbers {numbers}"),
        ("from {numbers} make {target}",),
        ("combine {numbers} until {target} is left",),
    ),
    "household": Wording(
        r"Your task is to: (?P<task>.+)\.$",
        ("Your job: {task}.", "I would like you to {task}.", "What there is to do: {task}.", "Go and {task}."),
        ("You have to {task}.",),
        ("Could you {task}?",),
    ),
    "searchqa": Wording(
        r"^Question: (?P<question>.+)\?$",
        ("Find out: {question}?", "I wonder: {question}?", "Tell me: {question}?", "To be answered: {question}?"),
        ("The question is: {question}?",),
        ("Do you know {question}?",),
    ),
    "sql": Wording(
        r"(?<=\n)(?P<question>[^\n]+)(?=(?:\nHint: [^\n]+)?$)",  # a hint comes after the question and stays
        ("Asked: {question}", "I need this: {question}", "What is wanted: {question}", "To do: {question}"),
        ("The question: {question}",),
        ("Answer this: {question}",),
    ),
    **dict.fromkeys(("weather", "movie", "academia"), _QUESTION_WORDING),
    **dict.fromkeys(("todo", "sheet"), _ORDER_WORDING),
}
