"""A data dictionary as REDCap exports it."""

from __future__ import annotations

import csv
import io

from shared.plans.redcap import HEADER

FIELDS = [
    ("record_id", "text", "Record ID", "", "", "", "", "", "", ""),
    ("name", "text", "Name", "", "", "", "", "y", "y", ""),
    ("birth", "text", "Date of birth", "", "date_ymd", "", "", "", "y", ""),
    ("age", "text", "Age at admission (years)", "", "integer", "18", "110", "", "y", ""),
    ("sbp", "text", "Systolic pressure (mmHg)", "", "number_1dp", "50", "300", "", "", "LOINC:8480-6 OMOP:3004249"),
    ("lab", "text", "Laboratory number", "", "number", "", "", "", "y", ""),
    ("sex", "radio", "Sex", "1, Male | 2, Female", "", "", "", "", "y", ""),
    ("smoke", "dropdown", "Smoking", "0, never | 1, former | 2, current", "", "", "", "", "y", ""),
    ("dm", "yesno", "Diabetes", "", "", "", "", "", "y", ""),
    ("meds", "checkbox", "Drugs", "A, Aspirin | B, Betablocker", "", "", "", "", "y", ""),
    ("pain", "slider", "Pain", "none | | worst", "", "", "", "", "y", ""),
    ("note", "notes", "Note", "", "", "", "", "", "", ""),
]


def redcap(rows=FIELDS) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(HEADER)
    for name, kind, label, choices, validation, lower, upper, identifier, required, annotation in rows:
        first = [name, "form", "", kind, label, choices, "", validation, lower, upper, identifier, "", required]
        writer.writerow([*first, *[""] * 4, annotation])
    return "\ufeff" + out.getvalue()
