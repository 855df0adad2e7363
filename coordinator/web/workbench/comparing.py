"""Two answers side by side: what differs between their questions, releases and estimates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["differences", "named", "site_rows"]


def named(study: str, text: str) -> tuple[str, str]:
    """(study, id) of an answer, given as its id in this study, or as ``STUDY/ID``; the id is blank for none.

    >>> named("cvd", "1f3a"), named("cvd", " lungs/9b2c "), named("cvd", "")
    (('cvd', '1f3a'), ('lungs', '9b2c'), ('cvd', ''))
    """
    other, slash, result_id = text.strip()[:160].partition("/")
    return (other, result_id) if slash else (study, other)


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Facts about two answers: a name, what each says, and whether they differ.

    Args:
        left, right: result of `AnalysisService.explain` for each.

    >>> asked = {"estimand": "mean(sbp)", "method": "REML", "test": "adhoc", "level": 0.95}
    >>> answer = {"study": "cvd", "asked": asked, "wave": 1, "planned": None, "effect": "Mean", "scale": "identity",
    ...           "provenance": {"plan": {"version": 1}, "bundles": {"a": "north"}, "code": {"tributary": "1"}}}
    >>> other = {**answer, "wave": 2}
    >>> [row for row in differences({"answer": answer, "stale": []}, {"answer": other, "stale": []}) if row[3]]
    [('wave', '1', '2', True)]
    """

    def said(one: Mapping[str, Any]) -> dict[str, str]:
        answer = one["answer"]
        asked, made = answer["asked"], answer["provenance"]
        return {
            "study": answer["study"],
            "question": asked["estimand"],
            "term": str(asked.get("term", "")),
            "effect": f"{answer['effect']}, {answer['scale']} scale",
            "wave": str(answer["wave"]),
            "plan": f"version {made['plan']['version']}",
            "stands as": f"planned: {answer['planned']}" if answer["planned"] else "exploratory",
            "pooled by": f"{asked['method']}, {asked['test']}, {100 * asked['level']:g} %",
            "releases": f"{len(made['bundles'])}",
            "code": ", ".join(f"{name} {version}" for name, version in sorted(made["code"].items())),
            "stale": "; ".join(one["stale"]) or "no",
        }

    first, second = said(left), said(right)
    return [(name, first[name], second[name], first[name] != second[name]) for name in first]


def site_rows(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[tuple[str, list[str], list[str]]]:
    """Every site of either answer: its cells in each as `coordinator.web.interface.reading.words` says them, or none.

    >>> words = {"heads": ["site", "mean"], "rows": [["north", "120"]]}
    >>> site_rows(words, {"heads": ["site", "mean"], "rows": [["south", "131"]]})
    [('north', ['120'], []), ('south', [], ['131'])]
    """
    one, two = ({row[0]: [cell or "" for cell in row[1:4]] for row in words["rows"]} for words in (left, right))
    return [(site, one.get(site, []), two.get(site, [])) for site in dict.fromkeys([*one, *two])]
