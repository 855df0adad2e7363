"""Units of a hospital's values, and the factor from one to another: an own table, and what is not in it is refused.

A unit is a product of few factors with a prefix each, as ``mg/dL`` or ``umol/L``, in common spelling or in UCUM's. Mass
and amount of substance are told apart: from one to the other a molar mass is needed, so the analyte must be named.

Sources: units, NIST Special Publication 811, appendix B; spelling, the Unified Code for Units of Measure (UCUM); atomic
weights, IUPAC's abridged standard values of 2021, by which the molar mass of each formula is added up; HbA1c, the
IFCC's master equation to NGSP per cent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from shared.errors import UsageRefusal

__all__ = ["ANALYTES", "conversion", "known"]

ATOMS = {
    **{"H": 1.008, "C": 12.011, "N": 14.007, "O": 15.999, "Na": 22.990, "Mg": 24.305, "P": 30.974, "S": 32.06},
    **{"Cl": 35.45, "K": 39.098, "Ca": 40.078, "Fe": 55.845},
}
FORMULAS = {
    "cholesterol": "C27H46O",
    "triglycerides": "C57H104O6",  # triolein, as clinical chemistry reports them
    "glucose": "C6H12O6",
    "creatinine": "C4H7N3O",
    "urea": "CH4N2O",
    "urea nitrogen": "N2",
    "uric acid": "C5H4N4O3",
    "bilirubin": "C33H36N4O6",
    "lactate": "C3H6O3",
    "calcium": "Ca",
    "magnesium": "Mg",
    "phosphate": "P",
    "sodium": "Na",
    "potassium": "K",
    "chloride": "Cl",
    "iron": "Fe",
}


def _molar(formula: str) -> float:
    """Molar mass in g/mol.

    >>> round(_molar("C6H12O6"), 3), round(_molar("C27H46O"), 3)
    (180.156, 386.664)
    """
    return sum(ATOMS[atom] * int(count or 1) for atom, count in re.findall(r"([A-Z][a-z]?)(\d*)", formula))


ANALYTES: Mapping[str, float] = MappingProxyType(
    {name: round(_molar(formula), 3) for name, formula in FORMULAS.items()} | {"hemoglobin": 16114.5}
)
"""Analyte to its molar mass in g/mol; of hemoglobin that of one chain with its iron, as laboratories report it."""

# (dimension, size in its base unit): gram, mole, litre, metre, pascal, day, one.
_UNITS: Mapping[str, tuple[str, float]] = {
    **{"g": ("mass", 1.0), "lb": ("mass", 453.59237), "oz": ("mass", 28.349523125), "t": ("mass", 1e6)},
    **{"stone": ("mass", 6350.29318), "mol": ("amount", 1.0), "L": ("volume", 1.0)},
    **{"m": ("length", 1.0), "in": ("length", 0.0254), "ft": ("length", 0.3048)},
    **{"Pa": ("pressure", 1.0), "mmHg": ("pressure", 133.322387415), "bar": ("pressure", 1e5)},
    **{"cmH2O": ("pressure", 98.0665), "s": ("time", 1 / 86400), "min": ("time", 1 / 1440), "h": ("time", 1 / 24)},
    **{"d": ("time", 1.0), "wk": ("time", 7.0), "mo": ("time", 365.25 / 12), "a": ("time", 365.25)},
    **{"%": ("one", 0.01), "1": ("one", 1.0), "J": ("energy", 1.0), "cal": ("energy", 4.184)},
}
_PREFIXES = {"k": 1e3, "h": 1e2, "d": 0.1, "c": 0.01, "m": 1e-3, "u": 1e-6, "n": 1e-9, "p": 1e-12, "f": 1e-15}
_PREFIXED = {"g", "mol", "L", "m", "Pa", "J", "cal"}
_SPELLINGS = {
    **dict.fromkeys(("[lb_av]", "lbs", "pound", "pounds"), "lb"),
    **dict.fromkeys(("[oz_av]", "ounce", "ounces"), "oz"),
    **dict.fromkeys(("[stone_av]", "st"), "stone"),
    **dict.fromkeys(("[in_i]", "inch", "inches", '"'), "in"),
    **dict.fromkeys(("[ft_i]", "feet", "foot"), "ft"),
    **dict.fromkeys(("mm[Hg]", "mmhg", "torr"), "mmHg"),
    **dict.fromkeys(("cm[H2O]",), "cmH2O"),
    **dict.fromkeys(("l", "litre", "liter"), "L"),
    **dict.fromkeys(("year", "years", "y", "yr", "yrs"), "a"),
    **dict.fromkeys(("month", "months"), "mo"),
    **dict.fromkeys(("week", "weeks", "w"), "wk"),
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("hour", "hours", "hr"), "h"),
    **dict.fromkeys(("minute", "minutes"), "min"),
    **dict.fromkeys(("second", "seconds", "sec"), "s"),
    **dict.fromkeys(("percent", "pct"), "%"),
}
_SCALES: Mapping[tuple[str, str], tuple[float, float]] = {
    ("Cel", "[degF]"): (1.8, 32.0),
    ("[degF]", "Cel"): (1 / 1.8, -32 / 1.8),
    ("K", "Cel"): (1.0, -273.15),
    ("Cel", "K"): (1.0, 273.15),
    ("mmol/mol HbA1c", "% HbA1c"): (0.09148, 2.152),
    ("% HbA1c", "mmol/mol HbA1c"): (1 / 0.09148, -2.152 / 0.09148),
}
"""Scales with another zero: factor and what is added after it."""
_SCALE_NAMES = {
    **dict.fromkeys(("°C", "C", "degC", "celsius"), "Cel"),
    **dict.fromkeys(("°F", "F", "degF", "fahrenheit"), "[degF]"),
}


def conversion(unit: str, to: str, analyte: str = "") -> tuple[float, float]:
    """Factor and offset from one unit to another: a value times the factor, plus the offset.

    Args:
        unit, to: as ``mmol/L``.
        analyte: one of `ANALYTES`, or ``hba1c``, where the units alone do not tell.
    Raises: UsageRefusal: a unit or analyte that is not in the table, or two that do not measure the same.

    >>> conversion("lb", "kg"), conversion("in", "cm")
    ((0.45359237, 0.0), (2.54, 0.0))
    >>> round(conversion("mmol/L", "mg/dL", "glucose")[0], 4), round(conversion("mg/dL", "umol/L", "creatinine")[0], 2)
    (18.0156, 88.4)
    """
    if analyte and analyte not in ANALYTES and analyte != "hba1c":
        raise UsageRefusal(
            "the analyte must be one whose molar mass is known here",
            given=repr(analyte),
            next_step=f"One of {', '.join(sorted([*ANALYTES, 'hba1c']))}; or say the factor: data map STUDY --factor.",
        )
    if analyte == "hba1c":
        ends = tuple(f"{known_spelling(text)} HbA1c" for text in (unit, to))
    else:
        ends = tuple(_SCALE_NAMES.get(text.strip(), text.strip()) for text in (unit, to))
    if ends in _SCALES:
        return _SCALES[ends[0], ends[1]]
    (ours, size), (theirs, other) = _parsed(unit), _parsed(to)
    factor = size / other
    if ours != theirs:
        amount = {k: v for k, v in ours.items() if k not in ("mass", "amount")}
        rest = {k: v for k, v in theirs.items() if k not in ("mass", "amount")}
        substance = {ours.get("mass", 0), ours.get("amount", 0)} == {theirs.get("mass", 0), theirs.get("amount", 0)}
        if amount != rest or not substance:
            raise _unlike(unit, to, "they do not measure the same")
        if not analyte:
            raise _unlike(unit, to, "one is of mass, one of amount: name the analyte")
        factor = factor / ANALYTES[analyte] if ours.get("mass") else factor * ANALYTES[analyte]
    return float(f"{factor:.12g}"), 0.0


def known(unit: str) -> bool:
    """True if a unit is in the table.

    >>> known("mmol/l"), known("mg%"), known("furlong")
    (True, False, False)
    """
    try:
        _parsed(unit)
    except UsageRefusal:
        return unit.strip() in _SCALE_NAMES or any(unit.strip() == end for ends in _SCALES for end in ends)
    return True


# -- inside -----------------------------------------------------------------------------------------------------
def known_spelling(unit: str) -> str:
    """A unit in the table's spelling."""
    text = unit.strip().replace("µ", "u").replace("μ", "u").replace("mcg", "ug").replace(" ", "")
    return "/".join(_SPELLINGS.get(part, _SPELLINGS.get(part.lower(), part)) for part in text.split("/"))


def _parsed(unit: str) -> tuple[dict[str, int], float]:
    """Dimensions of a unit with their powers, and its size in base units."""
    dimensions: dict[str, int] = {}
    size = 1.0
    for place, part in enumerate(known_spelling(unit).split("/")):
        name, power = re.fullmatch(r"(.*?)([23]?)", part).groups()  # type: ignore[union-attr]
        sign = (-1 if place else 1) * int(power or 1)
        kind, one = _one(name, unit)
        size *= one**sign
        if kind == "volume":  # a litre is a cube of length: 1 mL is 1 cm3
            kind, sign, size = "length", 3 * sign, size * 1e-3**sign
        if kind != "one":
            dimensions[kind] = dimensions.get(kind, 0) + sign
    return {kind: power for kind, power in dimensions.items() if power}, size


def _one(name: str, unit: str) -> tuple[str, float]:
    if name in _UNITS:
        return _UNITS[name]
    base = _SPELLINGS.get(name[1:], name[1:])
    if name[:1] in _PREFIXES and base in _PREFIXED:
        kind, size = _UNITS[base]
        return kind, size * _PREFIXES[name[0]]
    raise UsageRefusal(
        "a unit must be one that is known here",
        given=repr(unit),
        next_step="As in mg/dL, mmol/L, kg, lb, cm, in, mmHg, kPa, days; or say the factor: data map STUDY --factor.",
    )


def _unlike(unit: str, to: str, why: str) -> UsageRefusal:
    return UsageRefusal(
        f"values in {unit} must be convertible to the plan's {to or 'unit, which is none'}",
        given=why,
        next_step=f"Add --analyte NAME=WORD ({', '.join(sorted(ANALYTES))}), or a factor: data map STUDY --factor.",
    )
