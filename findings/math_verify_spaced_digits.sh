#!/bin/sh
# math-verify 0.9.0: numbers that a space divides in LaTeX are added up, so that 299\,792\,458 is 1549.
#
# Digits in groups of three are set with a thin space ("\,"), as SI does and as language models write them. The space is
# dropped, and the groups are read like a whole number and a fraction: as a sum, or as a product where one of them is 0
# or has a decimal point. A mixed number with a slash becomes (2 + 3)/4. Without LaTeX the same package reads "1 000 000"
# as a million. Nothing is said, and verify() takes the wrong number as right and the right one as wrong, whether the
# spaces are in the reference or in the answer. Rewards made of it (TRL's accuracy_reward, for one) follow.
#
# Seen with Python 3.11, math-verify 0.9.0, latex2sympy2_extended 1.11.0 (true value; value read; equals the true value;
# equals the value read, all as verify() says):
#   $299\,792\,458$: 299792458; 1549; False; True
#   $12\ 345$: 12345; 357; False; True
#   $1\,500$: 1500; 501; False; True
#   $-1\,500$: -1500; -501; False; True
#   $1\,000$: 1000; 0; False; True
#   $2 3/4$: 11/4; 5/4; False; True
#   $12{,}345$: 12345; 12345; True; True
#   1 000 000: 1000000; 1000000; True; True
# Fails if that changes. evolvent reads such digits itself (`grade/maths.py`), and its graders judge these pairs right.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet "math-verify==0.9.0" "latex2sympy2_extended==1.11.0"
"$folder/venv/bin/python" - <<'PYTHON'
from fractions import Fraction

from math_verify import parse, verify

PAIRS = (  # a text; its value; the value that is read
    (r"$299\,792\,458$", Fraction(299792458), Fraction(299 + 792 + 458)),
    (r"$12\ 345$", Fraction(12345), Fraction(12 + 345)),
    (r"$1\,500$", Fraction(1500), Fraction(1 + 500)),
    (r"$-1\,500$", Fraction(-1500), Fraction(-501)),
    (r"$1\,000$", Fraction(1000), Fraction(1 * 0)),
    ("$2 3/4$", 2 + Fraction(3, 4), Fraction(2 + 3, 4)),
    (r"$12{,}345$", Fraction(12345), Fraction(12345)),
    ("1 000 000", Fraction(1000000), Fraction(1000000)),
)


def is_equal(text, value):
    """Returns what verify() says of a text against a plain number, the same both ways round."""
    number = rf"${value}$" if value.denominator == 1 else rf"$\frac{{{value.numerator}}}{{{value.denominator}}}$"
    gold, answer = parse(text), parse(number)
    verdict = verify(gold, answer)
    assert verify(answer, gold) == verdict
    return verdict


for text, true, expected in PAIRS:
    read = Fraction(str(parse(text)[0].doit()))
    verdicts = is_equal(text, true), is_equal(text, expected)
    print(f"{text}: {true}; {read}; {verdicts[0]}; {verdicts[1]}")
    assert read == expected, "it is read otherwise now"
    assert verdicts == (true == expected, True), "it is judged otherwise now"
PYTHON
