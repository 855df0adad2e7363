"""An answer as it stands, and beside it what a column mapped onto one site's scale makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coordinator.analyst.result import Result, estimate_of
from coordinator.analyst.shown import (
    caption_of,
    drawn,
    html,
)

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from coordinator.pooling.pool import PooledResult
    from shared.estimands.answer import Scale

__all__ = ["HarmonisedResult"]


class HarmonisedResult(Result):
    """An answer as it stands, and beside it what a column mapped onto one site's scale makes of it.

    All of `Result` is about the answer as it stands: nobody sees the harmonised one alone.
    """

    @property
    def mapping(self) -> Mapping[str, Any]:
        """The harmonised part of the document: maps, estimates, pooled result, warnings."""
        return self.document["harmonised"]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings against harmonising, in sentences."""
        return tuple(self.mapping["warnings"])

    @property
    def raw(self) -> float | None:
        """The estimate of all rows in one table, as if one laboratory had measured them."""
        value = self.mapping["raw"]["yi"]
        return None if value is None else float(value)

    @property
    def harmonised(self) -> PooledResult:
        """Pooled again as `Result.pooled`, from the mapped rows' estimates; its interval holds the maps' variance."""
        from dataclasses import replace

        pooled = self._pooled(self.mapping)
        return replace(pooled, shared=pooled.shared + float(self.mapping["map_variance"]))

    def forest(self, path: Any = None, kind: str = "forest", title: str = "", **how: Any) -> Any:
        """Draw the three answers in one forest plot; of another kind, the figure of the answer as it stands.

        Args: as of `Result.forest`; there are no subgroups and sides beside the three answers.
        Raises: ParameterError.
        """
        if kind != "forest" or any(how.values()):
            return super().forest(path, kind, title, **how)
        from coordinator.answers.harmonise import draw

        mapping = self.mapping
        what = mapping["column"].replace(",", " and ")
        title = title or f"{self.document['study']}: {self.document['term']}, {what} on the scale of {mapping['to']}"
        words = {"title": title, "question": self.document["estimand"], "warnings": self.warnings}
        arms = (self.pooled, self.harmonised, estimate_of(mapping["raw"]))
        return drawn(
            lambda file: draw(*arms, map_variance=mapping["site_map_variance"], path=file, **words), title, path
        )

    def show(self, out: Console) -> None:
        """Draw it."""
        from shared.terminal import number, table

        mapping, document = self.mapping, self.document
        out.print(mapping["lines"][0], style="bold")
        out.print(caption_of(document), style="dim")
        mapped = {row["site"]: row for row in mapping["estimates"]}
        rows = []
        for row in document["estimates"]:
            other = mapped.get(row["site"], row)
            spread = mapping["site_map_variance"].get(row["site"])
            cells = [_value(row, document["scale"]), _value(other, document["scale"])]
            why = row["reason"] or other["reason"]
            rows.append([row["site"], *cells, None if spread is None else number(spread**0.5), row["n"] or None, why])
        heads = ["site", "as released", "harmonised", "se of map", "n", "left out because"]
        out.print(table(heads, rows, right=heads[1:5]))
        for line in mapping["lines"][1:]:
            out.print(line, style="yellow" if line.startswith("warning") else None)
        out.print(f"result {self.id}", style="dim")

    def _repr_html_(self) -> str:
        return html(self.mapping["lines"][0], self.to_frame(), *self.mapping["lines"][1:])

    def to_frame(self) -> pd.DataFrame:
        """One row per site: the estimate as released with what is beside it, and the same after mapping.

        ``vi_map`` is the variance of the site's own map, and in no vi; ``vi_common_map``, alike in every row, is that
        of the pooled estimate by all maps, which have the reference's noise in common.
        """
        from coordinator.pooling.cautions import beside_each

        frame = super().to_frame()
        mapping = self.mapping
        mapped = {row["site"]: row for row in mapping["estimates"]}
        known = [mapped.get(site, {}) for site in frame["site"]]
        frame["yi_harmonised"] = [row.get("yi") for row in known]
        frame["vi_harmonised"] = [
            None if row.get("yi") is None else row["vi_sampling"] + row["vi_privacy"] for row in known
        ]
        for name in ("vi_privacy", "vi_common", "attenuation", "reason"):
            frame[f"{name}_harmonised"] = [row.get(name) for row in known]
        said = [*mapping["doubts"], *mapping["warnings"]]
        frame["cautions_harmonised"] = beside_each([row.get("warnings", ()) for row in known], said)
        frame["vi_map"] = [mapping["site_map_variance"].get(site) for site in frame["site"]]
        frame["vi_common_map"] = float(mapping["map_variance"])
        return frame


def _value(row: Mapping[str, Any], scale: Scale) -> str | None:
    """An estimate off the analysis scale, with its standard error on it."""
    from shared.estimands.effects import shown
    from shared.terminal import number

    if row["yi"] is None:
        return None
    return f"{number(shown(row['yi'], scale))} ({number((row['vi_sampling'] + row['vi_privacy']) ** 0.5)})"
