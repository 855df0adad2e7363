"""A first study plan, commented, with one column of every kind: what `coordinator plan new` writes."""

from __future__ import annotations

import datetime as dt

from shared.plans.plan import StudyPlan

__all__ = ["template"]


def template(study: str, *, coordinator: str, today: dt.date, file: str = "study.toml") -> str:
    """A commented study.toml that passes `review`, with one column of every kind.

    Args:
        file: its file name, for the commands in its comments.

    >>> StudyPlan.from_toml(template("stroke", coordinator="tributary", today=dt.date(2026, 1, 1))).study
    'stroke'
    """
    waves = []
    for number in (1, 2, 3, 4):
        opens = today + dt.timedelta(days=30 + 91 * (number - 1))
        waves.append(f"[[waves]]\nnumber = {number}\nopens = {opens}\ncloses = {opens + dt.timedelta(days=28)}\n")
    text = _TEMPLATE.replace("@STUDY@", study).replace("@COORDINATOR@", coordinator).replace("@FILE@", file)
    last = today + dt.timedelta(days=548)
    text = text.replace("@KEPT@", f"{last + dt.timedelta(days=5 * 365)}")
    text = text.replace("@EXPIRES@", f"{last}").replace("@WAVES@", "\n".join(waves))
    StudyPlan.from_toml(text)  # a name that is not a plain word is refused here, before a file is written
    return text


_TEMPLATE = """\
# Study plan. Edit it, then:
#   coordinator plan check @FILE@     every line green, or with its fix
#   coordinator plan cost @FILE@      what each wave costs a person
#   coordinator plan sign @FILE@      from then on its hash is its name; sites approve that hash

study = "@STUDY@"                # a plain word
version = 1                      # only grows; every new version is approved again at every site
title = "One line that says what the study is"
purpose = "What the releases are for, in words a data steward can hold against the ethics approval."
coordinator = "@COORDINATOR@"    # the only recipient (name in coordinator.toml)
expires = @EXPIRES@             # sites refuse to act on the plan after this day
# Which records the flow may be fitted on. local: on the released ones, and ε does not cover that fit; holdout: on
# persons who are then never released; public: on none; private: on all, by training with noise (needs [private]).
posture = "local"
# By this rule the number of rows is public. Write it so that a site can apply it without judgement.
eligibility = "Everyone admitted with a first event between two dates, aged 18 or over."
row_download = false             # may analysts download the released rows?

# What becomes of the releases. After the day the coordinator deletes bundles and answers by itself, and can prove it;
# the log and every receipt stay.
[retention]
until = @KEPT@
keep = "The releases and the answers made of them, so that what was published can be checked."
readers = "The study lead, and analysts with a token of the study."

# Latent Noise Injection: each record's latent is scaled by sqrt(w), and N(0, 1 - w) is added.
# w near 0 protects, w near 1 keeps detail. 0.8 is the paper's setting and no meaningful formal guarantee.
[release]
mechanism = "latent_noise"
w = 0.005
# epsilon = 6.0                  # in place of w: what one release may cost at the budget's δ; w is solved from it
# radius = 4.5                   # norm to which latents are clipped; left out: from the number of columns
# carry = "died"                 # releases every true value of an event or binary column: no guarantee; posture local
# shrink = 2.0                   # pulls latents of unusual records in further than that; the price is w's and R's

# What one person may be charged by this study, all waves together.
[budget]
epsilon = 8.0
delta = 1e-6                     # must be below 1 / (10 n) at every site

# Disclosure floors: a site may tighten them, never loosen them.
[floors]
persons = 50                     # fewest persons in a release
rare_level = 10                  # a level with fewer rows is a warning the approver ticks
membership_auc = 0.55            # membership attack: highest AUC that passes
own_row_linkage = 0.05           # share of records whose nearest released row is their own
extreme_linkage = 0.20           # the same among the most extreme records
approvals = 1                    # people who must sign a release at the site
# minimum_k = 10                 # persons who must share each combination of the columns below; posture local

# What others may know of a patient: column, and the width of the bands in which values count as one; 1 of levels.
# Each site counts who shares a combination with few, before anything is charged (docs/operators-manual.md).
# [quasi_identifiers]
# age = 10
# sex = 1

# How large the study is expected to be. Nobody is held to it: plan check and plan cost warn by it where there are too
# many sites for their size, or too few, for the paper's theorem on pooled answers.
# [expected]
# sites = 12
# persons = 900                  # of an average site

@WAVES@
# Planned analyses, name to formula over columns: mean, ols, logistic, risk_ratio, cox and others (docs/estimands.md).
# age/10 reports the effect of ten years; a column of words is a factor, as in R, and C(stage) makes one of numbers.
[estimands]
treatment = "logistic(died) ~ treated + age/10 + C(sex)"
survival = "cox(time, died) ~ treated + age/10"
pressure = "mean(sbp)"

# The dictionary: the only source of bounds and levels. Bounds are public knowledge (physiology, the protocol), never
# a look at the records. A value outside is refused at the site.
[dictionary]
name = "@STUDY@"
version = 1

# The identifier: checked for repeats at the site, never released. Leave it out where every row is its own person.
[dictionary.columns.person]
kind = "person"
label = "patient"

# Follow-up on [0, upper], with its 0/1 event.
[dictionary.columns.time]
kind = "time"
label = "time to death or end of follow-up"
unit = "days"
upper = 365
event = "died"
decimals = 0

[dictionary.columns.died]
kind = "event"
label = "death from any cause"

[dictionary.columns.treated]
kind = "binary"                  # two levels; 0 and 1 unless you list others
label = "thrombolysis"

[dictionary.columns.age]
kind = "integer"
label = "age at admission"
unit = "years"
lower = 18
upper = 110

[dictionary.columns.sex]
kind = "binary"
label = "sex"
levels = ["female", "male"]

[dictionary.columns.sbp]
kind = "continuous"
label = "systolic blood pressure at admission"
unit = "mmHg"
lower = 50
upper = 300
decimals = 0
missing = "level"                # "not measured" is released like any other value, and covered by ε
missing_codes = [999]            # source values that mean "missing"

[dictionary.columns.severity]
kind = "ordered"                 # levels in order
label = "stroke severity"
levels = ["minor", "moderate", "severe"]

[dictionary.columns.smoking]
kind = "nominal"                 # levels in a public order that means nothing
label = "smoking"
levels = ["never", "former", "current"]
missing = "level"
"""
