"""Your own world: list its tasks and write the episode as a generator that yields observations and receives actions."""

import evolvent as ev


class Guess(ev.TextWorld):
    name, horizon, instructions = "guess", 6, "Find the number from 1 to 50."

    def specs(self):
        return [{"number": number} for number in range(1, 51)]

    def play(self, spec):
        guess = yield "guess a number from 1 to 50"
        while guess != str(spec["number"]):
            guess = yield "a number please" if not guess.isdigit() else "low" if int(guess) < spec["number"] else "high"
        return 1.0


def halving(world, task):
    low, high, path = 1, 50, []
    while not path or path[-1] != str(task.spec["number"]):
        path.append(str((low + high) // 2))
        low, high = (int(path[-1]) + 1, high) if int(path[-1]) < task.spec["number"] else (low, int(path[-1]) - 1)
    return path


world = Guess()
starts = [ev.Start(task) for task in world.tasks("test", "seen")]
for trajectory in ev.collect({"guess": world}, starts, ev.Script(halving), engine=None):
    print(trajectory.task.spec, trajectory.actions, trajectory.success)
