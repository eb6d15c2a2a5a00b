r"""Pairs of answers in mathematics whose truth does not come from our grader: exact fractions, sympy, or by hand.

`maths_pairs.jsonl` is what this script writes: `{"answer", "gold", "equal", "kind"}` a line. Every pair is graded in
both orders. Wrong are accepted pairs that differ; missed are equal ones that are not accepted.

    python -m benchmarks.maths_pairs    # writes the table anew; a test compares
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import factorial
from pathlib import Path

__all__ = ["TABLE", "Pair", "draw_pairs", "grade_pairs", "measure_numeric_speed", "read_pairs", "verify_pairs"]

TABLE = Path(__file__).with_name("maths_pairs.jsonl")
_SEED = 20261127


@dataclass(frozen=True)
class Pair:
    """Two answers, whether they are equal, and where that is known from."""

    answer: str
    gold: str
    equal: bool
    kind: str


# By hand: what words, marks and notation mean. The left of a line is compared with each on its right.
_EQUAL = r"""
12\text{ million} = 12000000
3.5 \text{ thousand} = 3500 = 3500\text{ dollars}
2 \text{ dozen} = 24
18 eggs = 18
73 in total = 73
10\text{ cm} = 10 = 10 \text{ centimeters} = 10\,\mathrm{cm}
864 \mbox{ inches}^2 = 864 = 864 \text{ square inches}
90^\circ = 90 = 90 \text{ degrees} = \frac{\pi}{2}
60^\circ = \frac{\pi}{3}
\$32,\!348 = 32348 = \$32,348 = 32{,}348
50\% = 50
10\text{ p.m.} = 10 \text{ pm} = 10 p.m.
5 \text{ north} = 5\text{ north}
\text{B} = B = \textbf{B} = (B) = \text{(B)} = **B**
\text{Yes} = yes = \text{yes} = Yes
\text{East} = east
\text{Navin} = Navin
**73** = 73 = __73__ = `73` = *73* = **73.** = **$73$**
**\frac{3}{4}** = 0.75
\varnothing = \emptyset = \{\}
x<3 = (-\infty,3) = 3>x = x \in (-\infty, 3)
x \ge 2 = [2,\infty) = x \geq 2 = 2 \le x
-1 < x \le 4 = (-1,4] = x \in (-1, 4] = 4 \ge x > -1
x<1 \text{ or } x>2 = (-\infty,1)\cup(2,\infty) = (-\infty, 1) \cup (2, \infty)
\{1,1,2\} = \{1,2\} = \{2,1\}
\{5,5\} = \{5\}
x=1,y=2 = (1,2) = y=2, x=1
x = 5 = 5
y = 2x + 3 = 2x+3
x=1 \text{ or } x=2 = 1,2 = 2 \text{ and } 1
1e-3 = 0.001 = 10^{-3} = \frac{1}{1000}
1.5e3 = 1500 = 1.5 \times 10^3 = 1.5 \cdot 10^{3}
3 1/2 = 3\frac{1}{2} = \frac{7}{2} = 3.5
\binom52 = 10 = \binom{5}{2}
0.\dot{1}4285\dot{7} = \frac{1}{7} = 0.\overline{142857}
-\frac{1}{2} = \frac{-1}{2} = \frac{1}{-2} = -.5 = −0.5
(1, 2) = (1,2) = \left(1,2\right)
n \text{ is even} = n\text{ is even}
y\text{-axis} = y\text{-axis}
5 \text{ or more} = 5\text{ or more}
30^\circ\text{ F} = 30^\circ \text{F}
2x+3y=5 = 4x+6y=10 = 5=2x+3y
\begin{pmatrix} 1 \\ 12/6 \end{pmatrix} = \begin{pmatrix} 1 \\ 2 \end{pmatrix}
2\pm\sqrt{3} = 2+\sqrt{3}, 2-\sqrt{3}
(x-1)(x+1) = x^2-1
i(1-i) = 1+i
\frac{1}{\sqrt{2}} = \frac{\sqrt{2}}{2}
e^{2x} = (e^x)^2
\ln 8 = 3\ln 2
5\pi \text{ cm}^2 = 5\pi = 5\pi\text{ square centimeters}
4 hundred = 400
1.2 million people = 1200000
120^\circ = \frac{2\pi}{3}
\sin 30^\circ = \frac12
\sin 45^\circ = \frac{\sqrt{2}}{2}
4 x 10^3 = 4000 = 4\times 10^{3}
7 \text{ or } 8 = 8 \text{ or } 7
1011_2 = 11
0.\overline{9} = 1
\frac{22}{7} = 3.\overline{142857}
\sqrt[3]{8} = 2
\binom{10}{3} = \binom{10}{7} = 120
(1,2)\cup(3,4) = (3,4)\cup(1,2)
\sum_{k=1}^{10} k = 55
\lfloor 3.7 \rfloor = 3
\pm 5 = 5,-5
27^{2/3} = 9
\left(\frac12, 3\right] = (0.5,3]
2 \text{ halves} = 1
\text{Monday} = Monday
10 percent = 10\%
"""
_DIFFERENT = r"""
12\text{ million} = 12\text{ thousand} = 12 = 12\text{ billion}
10\text{ p.m.} = 10\text{ a.m.}
12:00 = 1:00
5\text{ south} = 5\text{ north}
5 \text{ or more} = 5 = 5\text{ or less} = 5 \text{ or fewer}
n \text{ is even} = n \text{ is odd}
y\text{-axis} = y\text{-intercept} = x\text{-axis}
5\text{ hundredths} = 5 = 5\text{ tenths}
30^\circ\text{ F} = 30^\circ\text{ C}
10\text{ cm} = 10\text{ m} = 10\text{ cm}^2
5 \text{ cents} = \$5 = 5\text{ dollars}
R-r = r-R
\frac{R}{r} = \frac{r}{R}
R^2-r^2 = 0
Xx = x^2
4210_5 = 4210_7
52_8 = 52_{16}
101_3 = 101_2
1011 = 1011_2
x=1,y=2 = (2,1) = 2,1 = x=2,y=1
2 = 2.\overline{3}
0.\overline{3} = 0.\overline{6} = 0 = 0.3 = 0.333
0 = 0.\overline{3}
1.414214 = \sqrt{2}
3.141593 = \pi = \frac{22}{7}
2.718282 = e
0.577350 = \frac{1}{\sqrt{3}}
\frac{1}{3^{50}} = \frac{1}{2^{60}}
50\% = 0.5
\text{B} = \text{C} = A
\text{even} = \text{odd}
\text{east} = seat = west
\text{True} = False
(1,2) = (2,1) = [1,2]
[0,1) = [0,1] = (0,1)
x<3 = x \le 3 = (-\infty,3] = x>3 = (3,\infty)
-1 < x \le 4 = [-1,4] = (-1,4)
x<1 \text{ or } x>2 = (1,2) = (-\infty,1)
1, 1, 2 = 1, 2
\{1,2\} = \{1,3\} = \{1,2,3\}
1e-3 = 0.01 = e-3
2\sqrt{3} = 3\sqrt{2} = 2\sqrt{3}+10^{-8}
60^\circ = \frac{\pi}{6} = \frac{\pi}{4}
x^2+1 = x^2-1 = x^2
\ln 8 = 2\ln 3
\sin x = \cos x
2x+3y=5 = 2x+3y=6 = 3x+2y=5
x+y = x-y
5, not 7 = 7
\frac{x}{2} = \frac{2}{x}
\sqrt{x^2} = x
3 \text{ pairs} = 3
2 \text{ thirds} = 2
7 \text{ remainder } 2 = 7
(-2)^2 = -2^2
2^{3^2} = (2^3)^2
-5! = 120
5 m = 5 km
1 hour = 1 day
3 \text{ feet} = 3 \text{ inches}
5\pi \text{ cm}^2 = 5\pi \text{ m}^2
4 hundred = 4
7\text{ a.m.} = 7
7:30 a.m. = 7:30 p.m.
6:00 = 6
\text{triangle} = \text{integral}
silent = listen
north = \text{thorn}
\sin 30 = \frac12
10^{100} = 10^{100}+1
0.10000000000000000001 = 0.1
3.14159265358979323846 = \pi
V=\pi r^2h = V=\pi R^2h
x=2 = y=2
x \equiv 1 \pmod 3 = x \equiv 2 \pmod 3 = x \equiv 1 \pmod 5 = 1
2.3\overline{4} = 2.\overline{34}
0.333... = 0.333
\log_{28}5 = \log_2 85
x_{12} = x_1 2
x^{12} = x^1 2
\triangle ABC = \triangle ACB
x' = x
f'(x) = f(x)
5 squared = 5
between 5 and 6 = 5
5 \text{ red balls} = 5 \text{ blue balls}
5 units to the left = 5 units to the right
5% increase = 5% decrease
n\text{ is prime} = n
\begin{pmatrix}1\\2\end{pmatrix} = \begin{pmatrix}2\\1\end{pmatrix}
3+4i = 3-4i
a^b = b^a
10 \text{ mod } 3 = 10
3\cdot\frac12 = \frac{7}{2}
x>2 = x\ge2 = x>3
(1,2)\cup(3,4) = (1,2)\cup(3,5)
\$5 = 5 euros = £5
"""
_UNITS = ("cm", "meters", "hours", "dollars", "people", "square units", "apples", "miles per hour", "ways")


def _fraction_writings(value: Fraction) -> list[str]:
    r"""Writes a rational number in many ways, all exact."""
    sign, top, bottom = "-" if value < 0 else "", abs(value.numerator), value.denominator
    writings = [
        rf"{sign}\frac{{{top}}}{{{bottom}}}",
        f"{sign}{top}/{bottom}",
        rf"\dfrac{{{sign}{2 * top}}}{{{2 * bottom}}}",
    ]
    if bottom == 1:
        writings += [f"{sign}{top}", f"{sign}{top:,}", f"{sign}{top}.00"]
    elif top > bottom:
        writings.append(rf"{sign}{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}")
    return [*writings, *_decimal_writings(abs(value), sign)]


def _decimal_writings(value: Fraction, sign: str) -> list[str]:
    """Writes a terminating or a repeating decimal by long division."""
    whole, rest = divmod(value.numerator, value.denominator)
    digits, seen = "", dict[int, int]()
    while rest and rest not in seen and len(digits) < 30:
        seen[rest] = len(digits)
        digit, rest = divmod(rest * 10, value.denominator)
        digits += str(digit)
    if rest == 0:
        return [f"{sign}{whole}.{digits}"] if digits else []
    if rest not in seen:
        return []
    start = seen[rest]
    return [rf"{sign}{whole}.{digits[:start]}\overline{{{digits[start:]}}}"]


def _draw_fractions(rng: random.Random) -> Iterator[Pair]:
    for _ in range(70):
        value = Fraction(rng.randrange(-400, 400), rng.choice([1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 25, 37, 40]))
        if value == 0:
            continue
        left, right = rng.sample(_fraction_writings(value), 2)
        yield Pair(left, right, equal=True, kind="fractions")
        near = rng.choice(
            [-value, 1 / value, value + Fraction(1, 10**6), value * 10, value + 1, Fraction(round(value * 100), 100)]
        )
        if near != value:
            yield Pair(
                rng.choice(_fraction_writings(value)),
                rng.choice(_fraction_writings(near)),
                equal=False,
                kind="fractions",
            )


def _draw_words(rng: random.Random) -> Iterator[Pair]:
    for number in range(24):
        value, unit = rng.randrange(2, 900), _UNITS[number % len(_UNITS)]
        yield Pair(rf"{value} \text{{ {unit}}}", str(value), equal=True, kind="units")
        yield Pair(f"{value} {unit}", rf"{value}\text{{ {unit}}}", equal=True, kind="units")
        yield Pair(f"{value} {unit}", str(value + 1), equal=False, kind="units")


def _draw_bases(rng: random.Random) -> Iterator[Pair]:
    for _ in range(20):
        value = rng.randrange(5, 5_000)
        low, high = sorted(rng.sample(range(2, 10), 2))
        left, right = f"{_to_base(value, low)}_{low}", f"{_to_base(value, high)}_{{{high}}}"
        yield Pair(left, right, equal=True, kind="bases")
        yield Pair(left, f"{_to_base(value, low)}_{{{high}}}", equal=False, kind="bases")
        yield Pair(right, str(value), equal=True, kind="bases")


def _to_base(value: int, base: int) -> str:
    digits = ""
    while value:
        value, digit = divmod(value, base)
        digits = str(digit) + digits
    return digits


def _draw_tiny(rng: random.Random) -> Iterator[Pair]:
    for _ in range(10):
        power = rng.randrange(30, 400)
        yield Pair(rf"\frac{{1}}{{2^{{{power}}}}}", rf"2^{{-{power}}}", equal=True, kind="tiny")
        yield Pair(rf"\frac{{1}}{{2^{{{power}}}}}", rf"\frac{{1}}{{2^{{{power + 1}}}}}", equal=False, kind="tiny")
        yield Pair(rf"10^{{-{power}}}", rf"10^{{-{power + 1}}}", equal=False, kind="tiny")
        number = rng.randrange(12, 2_006)
        yield Pair(rf"\frac{{1}}{{{number}!}}", rf"\frac{{1}}{{{number + 2}!}}", equal=False, kind="tiny")
        small = rng.randrange(5, 16)
        yield Pair(rf"\frac{{1}}{{{small}!}}", f"1/{factorial(small)}", equal=True, kind="tiny")


def _draw_symbolic(rng: random.Random) -> Iterator[Pair]:
    """Expressions by sympy: factored and expanded, radicals simplified, logarithms, sines and complex numbers."""
    import sympy
    from sympy import latex

    x, y, large = sympy.symbols("x y X")
    for _ in range(24):
        a, b, c = (rng.choice([-5, -3, -2, 2, 3, 4, 7]) for _ in range(3))
        product = (x + a) * (b * x + c * y)
        sums = sympy.expand(product)
        yield Pair(latex(sums), latex(product), equal=True, kind="polynomials")
        other = sympy.expand(product + rng.choice([1, x, -y]))
        yield Pair(latex(other), latex(product), equal=sympy.simplify(other - product) == 0, kind="polynomials")
        cased = sums.subs(x, large)
        yield Pair(f"{latex(cased)} + x", f"{latex(sums)} + X", equal=False, kind="case")
    for _ in range(16):
        inside, factor = rng.choice([2, 3, 5, 6, 7]), rng.randrange(2, 9)
        root = rf"{factor}\sqrt{{{inside}}}"
        yield Pair(rf"\sqrt{{{factor**2 * inside}}}", root, equal=True, kind="radicals")
        yield Pair(f"{float(factor * sympy.sqrt(inside)):.6f}", root, equal=False, kind="radicals")
        yield Pair(rf"\sqrt{{{factor**2 * inside + 1}}}", root, equal=False, kind="radicals")
        yield Pair(rf"\frac{{{inside}}}{{\sqrt{{{inside}}}}}", rf"\sqrt{{{inside}}}", equal=True, kind="radicals")
    for turn in (6, 4, 3):
        for name, function in (("sin", sympy.sin), ("cos", sympy.cos), ("tan", sympy.tan)):
            exact = function(sympy.pi / turn)
            yield Pair(rf"\{name}\frac{{\pi}}{{{turn}}}", latex(exact), equal=True, kind="functions")
            yield Pair(rf"\{name}\frac{{\pi}}{{{turn}}}", latex(exact + 1), equal=False, kind="functions")
    for base, power in ((2, 3), (3, 4), (5, 2), (10, 6)):
        yield Pair(rf"\log_{{{base}}} {base**power}", str(power), equal=True, kind="functions")
        yield Pair(rf"\log_{{{base}}} {base**power}", str(power + 1), equal=False, kind="functions")
    for _ in range(8):
        a, b = rng.randrange(1, 9), rng.randrange(1, 9)
        square = sympy.expand((a + b * sympy.I) ** 2)
        yield Pair(latex(square), f"({a}+{b}i)^2", equal=True, kind="complex")
        yield Pair(latex(sympy.conjugate(square)), f"({a}+{b}i)^2", equal=square.is_real is True, kind="complex")


def _draw_sequences(rng: random.Random) -> Iterator[Pair]:
    for _ in range(16):
        values = rng.sample(range(-20, 40), 3)
        mixed = rng.sample(values, 3)
        text, other = ",".join(map(str, values)), ", ".join(map(str, mixed))
        yield Pair(text, other, equal=True, kind="lists")
        yield Pair(rf"\{{{text}\}}", rf"\left\{{{other}\right\}}", equal=True, kind="sets")
        yield Pair(f"({text})", f"({other})", equal=values == mixed, kind="tuples")
        halves = ",".join(rf"\frac{{{2 * value}}}{{2}}" for value in values)
        yield Pair(f"({halves})", f"({text})", equal=True, kind="tuples")
        low, high = sorted(rng.sample(range(-20, 40), 2))
        yield Pair(f"{low} < x < {high}", f"({low},{high})", equal=True, kind="intervals")
        yield Pair(rf"{low} \le x < {high}", f"({low},{high}]", equal=False, kind="intervals")


def _read_lines(lines: str, *, equal: bool) -> Iterator[Pair]:
    """Reads pairs of lines by hand: the first answer of a line with each other one."""
    for line in lines.strip().splitlines():
        parts = _split_line(line)
        for other in parts[1:]:
            yield Pair(parts[0], other, equal=equal, kind="by hand")


def _split_line(line: str) -> list[str]:
    first_word = line.split(" = ")
    if line.startswith(("x = 5 =", "y = 2x + 3 =")):  # an equation with spaces around its sign
        return [" = ".join(first_word[:2]), *first_word[2:]]
    return first_word


def draw_pairs() -> list[Pair]:
    """Draws the whole table, without doubles."""
    rng = random.Random(_SEED)
    drawn = [
        *_read_lines(_EQUAL, equal=True),
        *_read_lines(_DIFFERENT, equal=False),
        *_draw_fractions(rng),
        *_draw_words(rng),
        *_draw_bases(rng),
        *_draw_tiny(rng),
        *_draw_symbolic(rng),
        *_draw_sequences(rng),
    ]
    return list(dict.fromkeys(drawn))


def read_pairs() -> list[Pair]:
    """Reads the committed table."""
    return [Pair(**json.loads(line)) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def grade_pairs(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """Grades every pair in both orders; returns those wrongly accepted, and those missed, as they were graded."""
    from evolvent.grade.maths import MathsGrader

    found: dict[str, list[Pair]] = {"false": [], "missed": []}
    with MathsGrader(wall_s=20.0, max_processes=1) as grader:
        for pair in _both_orders(pairs):
            is_accepted = grader.compare(pair.answer, pair.gold).correct is True
            if is_accepted != pair.equal:
                found["false" if is_accepted else "missed"].append(pair)
    return found


def verify_pairs(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """Grades the same with math-verify alone."""
    from math_verify import parse, verify

    found: dict[str, list[Pair]] = {"false": [], "missed": []}
    for pair in _both_orders(pairs):
        gold, answer = (parse(f"${text}$", parsing_timeout=None) for text in (pair.gold, pair.answer))
        is_accepted = bool(gold and answer) and verify(gold, answer, timeout_seconds=None)
        if is_accepted != pair.equal:
            found["false" if is_accepted else "missed"].append(pair)
    return found


def _both_orders(pairs: list[Pair]) -> Iterator[Pair]:
    for pair in pairs:
        yield pair
        yield Pair(pair.gold, pair.answer, pair.equal, pair.kind)


def measure_numeric_speed(num_answers: int = 20_000) -> float:
    """Returns how many numeric answers are graded in a CPU-second, from whole responses."""
    from evolvent.grade.maths import MathsGrader

    rng, grader = random.Random(_SEED), MathsGrader()
    values = [Fraction(rng.randrange(-999, 999), rng.choice([1, 1, 1, 2, 3, 4, 10])) for _ in range(num_answers)]
    frames = ("So \\boxed{{{}}}.", "We add.\n#### {}", "Hence the answer is **{}**.", "Final answer: ${}$")
    rows = [
        (frames[number % 4].format(rng.choice(_fraction_writings(value)) if value else "0"), str(value))
        for number, value in enumerate(values)
    ]
    begun = time.process_time()
    for response, gold in rows:
        grader(response, gold)
    return num_answers / (time.process_time() - begun)


def main() -> int:
    """Writes the table."""
    rows = [json.dumps(asdict(pair), ensure_ascii=False) for pair in draw_pairs()]
    TABLE.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{len(rows)} pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
