"""Your own world: list its tasks and write the episode as a generator that yields observations and receives actions."""

import evolvent as ev


class Guess(ev.TextWorld):
    name, horizon, instructions = "guess", 6, "Find the number from 1 to 63."

    def specs(self):
        return [{"number": number} for number in range(1, 64)]

    def play(self, spec):
        guess = yield "guess a number from 1 to 63"
        while guess != str(spec["number"]):
            guess = yield "low" if guess.isdecimal() and int(guess) < spec["number"] else "high"
        return 1.0

    def expert(self, task):  # halves what is left: 32, then 16 or 48, ...
        return [str((task.spec["number"] >> bit | 1) << bit) for bit in range(5, -1, -1)]


world = Guess()
starts = [ev.Start(task) for task in world.tasks("test", "seen")]
for trajectory in ev.collect({"guess": world}, starts, ev.Expert(), engine=None):
    print(trajectory.task.spec, trajectory.actions, trajectory.success)
