"""Every refusal is typed, documented, and survives the wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import CATALOGUE, ParameterError, Refusal, refusal_from_code

MANUAL = Path(__file__).resolve().parents[3] / "docs" / "operators-manual.md"
EXIT_CODES = {2, 10, 11, 12, 20, 21, 30, 40}


@pytest.mark.parametrize("code", sorted(set(CATALOGUE) - {"E_REFUSED"}))
def test_every_code_stands_in_the_operators_manual(code):
    kind = CATALOGUE[code]
    assert f"| `{code}` | {kind.exit_code} | {kind.meaning} | {kind.fixer} |" in MANUAL.read_text()
    assert kind.exit_code in EXIT_CODES
    assert kind.__doc__


def test_codes_differ():
    kinds = [kind for kind in CATALOGUE.values()]
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_a_refusal_says_what_must_hold_what_was_given_and_what_to_do():
    refusal = ParameterError("w must be in [0, 1)", given="1.2", next_step="Lower w.")
    assert str(refusal) == "w must be in [0, 1), got 1.2. Lower w."
    assert str(Refusal("it must hold")) == "it must hold."


def test_a_refusal_keeps_its_type_over_the_wire():
    for code, kind in CATALOGUE.items():
        again = refusal_from_code(code, "what must hold.")
        assert type(again) is kind
        assert str(again) == "what must hold."
    assert type(refusal_from_code("E_FROM_THE_FUTURE", "text")) is Refusal
