r"""A small language for questions, written as in R, and read by the parser below: nothing in it is ever run as code.

    Surv(time, cvd) ~ sbp/10 + C(smoking) * age + strata(centre) + offset(log(years))
    sex == 1 & age >= 60

One grammar serves model formulas, filters and arithmetic. From loosest to tightest: ``~``, ``|``, ``&``, ``!``,
comparisons, ``+ -``, ``* /``, ``:``, the sign, ``^``. What a piece means depends on where it stands: in a formula ``+``
joins terms and ``*`` crosses them, inside ``I()`` and in a filter they are arithmetic.

The text comes from anyone who may ask a question, so its cost is bounded before it is read: `LONGEST` characters,
`MOST_TOKENS` tokens, `DEEPEST` brackets, `MOST_TERMS` terms after crossing. Whatever lies outside is an
`EstimandError` of one kind (`ParameterError`), never a crash and never an endless loop.
"""

from shared.estimands.formulas.grammar import BASES, DEEPEST, LONGEST, MOST_TERMS, MOST_TOKENS, Node, names, parse
from shared.estimands.formulas.long_rows import LongRows
from shared.estimands.formulas.right_side import CATEGORY, RightSide, check_arithmetic, is_logical, right_side
from shared.estimands.formulas.rows import QuestionRows, order_among, values

__all__ = [
    "BASES",
    "CATEGORY",
    "DEEPEST",
    "LONGEST",
    "MOST_TERMS",
    "MOST_TOKENS",
    "LongRows",
    "Node",
    "QuestionRows",
    "RightSide",
    "check_arithmetic",
    "is_logical",
    "names",
    "order_among",
    "parse",
    "right_side",
    "values",
]
