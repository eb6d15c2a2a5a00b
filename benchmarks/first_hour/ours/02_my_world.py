# Write a world of my own and measure a policy in it. shows: guess
import evolvent as ev


class Guess(ev.TextWorld):
    name, horizon = "guess", 4

    def specs(self):
        return [{"number": n} for n in range(60)]

    def vocabulary(self):
        return ["guess", "higher", "lower", *map(str, range(60))]

    def play(self, spec):
        reply = yield "guess"
        while reply != str(spec["number"]):
            reply = yield "higher" if reply < str(spec["number"]) else "lower"
        return 1.0


print(ev.evaluate(ev.make_policy([Guess()]), Guess(), limit=5))
