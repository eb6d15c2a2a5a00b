"""Deduction: facts, rules, a statement that is true or false, and the truth of every step of a proof."""
