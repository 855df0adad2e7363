"""The quality report as one HTML page, with pictures and without a script: it is opened here and stays here."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from shared.terminal import inert

if TYPE_CHECKING:
    from site_agent.records.quality import ColumnPicture, Finding, QualityReport

__all__ = ["page"]

WIDE, HIGH = 260, 90
_MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src 'unsafe-inline'"><title>{title}</title><style>
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2733 }}
table {{ border-collapse: collapse }} td, th {{ text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top }}
.fail {{ color: #a3190f }} .warn {{ color: #7a5200 }} .ok {{ color: #1f6b3a }}
figure {{ display: inline-block; margin: 0 1.2rem 1.2rem 0 }} figcaption {{ font-size: 13px }}
.stays {{ border-left: 4px solid #a3190f; padding-left: .8rem }} rect {{ fill: #3b6ea5 }} text {{ font-size: 10px }}
</style></head><body>
<h1>{title}</h1>
<p class="stays"><strong>This page shows single columns of the hospital's own records. It stays at the site</strong>:
the agent sends none of it, and no price covers it.</p>
"""


def page(report: QualityReport, *, study: str, file: str, day: str) -> str:
    """The page of a report.

    Args:
        day: on which it was read.
    """
    title = escape(f"Quality of {study}: {report.rows:,} rows of {file}, {day}")
    parts = [_HEAD.format(title=title), "<h2>Findings</h2><table>"]
    parts += ["<tr><th></th><th>column</th><th>expected</th><th>rows otherwise</th></tr>"]
    parts += map(_finding, report.findings)
    parts.append("</table>")
    if report.pictures:
        parts.append("<h2>Columns</h2>")
        parts += map(_picture, report.pictures)
    if report.patterns:
        parts.append("<h2>Missing together</h2><table><tr><th>rows</th><th>lacking</th></tr>")
        for names, count in report.patterns.items():
            parts.append(f"<tr><td>{count:,}</td><td>{escape(', '.join(names)) or 'nothing'}</td></tr>")
        parts.append("</table>")
    return inert("\n".join([*parts, "</body></html>\n"]))


# -- inside -----------------------------------------------------------------------------------------------------
def _finding(finding: Finding) -> str:
    of = f"{finding.count:,} of {finding.rows:,}" if finding.rows else ""
    mark = f'<td class="{finding.state}">{_MARKS[finding.state]} {finding.state}</td>'
    return f"<tr>{mark}<td>{escape(finding.column)}</td><td>{escape(finding.rule)}</td><td>{of}</td></tr>"


def _picture(picture: ColumnPicture) -> str:
    """Bars of one column, with the least and the greatest label under them."""
    most, count = max(*picture.heights, 1), len(picture.heights)
    step = WIDE / count
    bars = "".join(
        f'<rect x="{k * step + 0.5:.1f}" y="{HIGH - HIGH * height / most:.1f}" width="{max(step - 1, 0.5):.1f}" '
        f'height="{HIGH * height / most:.1f}"><title>{escape(label)}: {height:,}</title></rect>'
        for k, (label, height) in enumerate(zip(picture.labels, picture.heights, strict=True))
    )
    ends = (
        f'<text x="0" y="{HIGH + 12}">{escape(picture.labels[0])}</text>'
        f'<text x="{WIDE}" y="{HIGH + 12}" text-anchor="end">{escape(picture.labels[-1])}</text>'
    )
    said = escape(f"{picture.column}{f' ({picture.unit})' if picture.unit else ''}: {picture.missing:,} missing")
    svg = f'<svg role="img" aria-label="{said}" width="{WIDE}" height="{HIGH + 16}">{bars}{ends}</svg>'
    return f"<figure>{svg}<figcaption>{said}; the highest bar has {most:,} rows</figcaption></figure>"
