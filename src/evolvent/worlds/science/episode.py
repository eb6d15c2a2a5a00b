"""One action in a lab: a text is understood, done, answered and scored."""

from __future__ import annotations

from evolvent.worlds.science.actions import ImpossibleAction, execute, parse, render_question
from evolvent.worlds.science.house import Scene, update_score
from evolvent.worlds.science.lab import Command, Lab

__all__ = ["CANCELED", "NO_TELEPORT", "play_action"]

CANCELED = "You do none of these."
NO_TELEPORT = "You cannot teleport; go by the doors."
_MAX_CHOICES = 12


def play_action(scene: Scene, lab: Lab, text: str) -> tuple[str, bool]:
    """Plays an action, which changes the lab; an impossible one, and a question, take no time.

    Returns:
        The answer, and whether the action was possible.
    """
    question, lab.question = lab.question, ()
    try:
        command = _choose(question, text) if question else None
        if question and command is None and not text.strip():
            return CANCELED, True
        if command is None:
            commands = parse(lab, text)
            if len(commands) > 1:
                lab.question = tuple(commands[:_MAX_CHOICES])
                return render_question(lab, lab.question), True
            command = commands[0]
        if command.verb == "teleport" and not scene.can_teleport:
            return NO_TELEPORT, False
        answer = execute(lab, command, scene.text)
    except ImpossibleAction as refusal:
        return str(refusal), False
    lab.advance()
    update_score(scene, lab, command.first if command.verb == "focus" else -1)
    return answer, True


def _choose(question: tuple[Command, ...], text: str) -> Command | None:
    line = text.strip()
    return question[int(line)] if line.isascii() and line.isdecimal() and int(line) < len(question) else None
