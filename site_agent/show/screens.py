"""The steward's screens: one page per question, calm, and with the next command at its end.

Every function takes a result and draws it on a console of at most 100 columns; nothing here computes a figure that is
not also in the command's ``--json`` answer. The one rule of taste: what is *not* covered stands as close to a number
as the number itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shared.plans.plan import Floors
from shared.privacy.stated import FLOW, shown_column, shown_delta, shown_epsilon, shown_price
from shared.terminal import one_line, table
from site_agent.decide.plan_facts import charged_words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from shared.wire.certificates import CertificateLife
    from site_agent.decide.airlock.overview import Earlier
    from site_agent.ledger.book import StatementLine
    from site_agent.release.checks import Check
    from site_agent.release.pipeline.opened import SealedRelease
    from site_agent.show.curve import PriceCurve
    from site_agent.show.preview import PlannedTerm

__all__ = [
    "budget",
    "cell",
    "certificate",
    "curve_page",
    "heading",
    "next_step",
    "note",
    "outbox",
    "plan_page",
    "planned",
    "release_page",
    "sentences",
    "settings",
]

ROWS = 8


def heading(out: Console, text: str, detail: str = "") -> None:
    """One bold line, its detail dim beside it."""
    from rich.text import Text

    out.print()
    out.print(Text.assemble((one_line(text), "bold"), ("   " + one_line(detail) if detail else "", "dim")))


def next_step(out: Console, *commands: str) -> None:
    """The last line of every page: what to do now."""
    from rich.text import Text

    out.print()
    for i, command in enumerate(commands):
        out.print(Text.assemble(("next  " if i == 0 else "      ", "dim"), (command, "cyan")), soft_wrap=True)


def note(out: Console, text: str) -> None:
    """A line in yellow, for what needs a second look."""
    from rich.text import Text

    out.print(Text(one_line(text), style="yellow"))


def certificate(life: CertificateLife | None) -> list[tuple[str, Text]]:
    """The row of a site's certificate, in yellow where it should have been renewed long ago; none before the first."""
    from rich.text import Text

    if life is None:
        return []
    return [("certificate", Text(life.words, style="yellow" if life.state in ("near", "over") else ""))]


def settings(out: Console, rows: Iterable[tuple[str, Any]]) -> None:
    """Names on the left, what they are on the right."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value if isinstance(value, Text) else Text(one_line(value)))
    out.print(grid)


def sentences(out: Console, lines: Sequence[str], *, mark: str = "·", style: str = "") -> None:
    """Sentences, each with a mark and a hanging indent."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for line in lines:
        grid.add_row(Text(mark, style=style or "dim"), Text(one_line(line)))
    out.print(grid)


def _trained_together(page: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Lines about a flow that several sites train, where the plan has one."""
    if page["training"]:
        said = page["training"]
        words = (
            f"{said['rounds']} times the weights of a flow after a few steps with noise, {said['steps']} steps in all"
        )
        return [("and in a training", words)]
    return (
        [("drawn through", f"the flow that several sites have trained: {page['flow'][:26]}…")] if page["flow"] else []
    )


def plan_page(out: Console, page: Mapping[str, Any], *, full: bool = False) -> None:
    """Print the page on which a steward decides about a plan; with `full`, everything that an approval agrees to.

    The items that no price covers, and so must be ticked, are on both.
    """
    state = f"approved by {page['approved_by']}" if page["approved_by"] else "not approved here"
    heading(out, f"{page['study']}: {page['title']}", f"version {page['version']} · {state}")
    if page["changes"]:
        heading(out, "Changed since the version that was approved here")
        out.print(table(("setting", "before", "now"), [[item or None for item in row] for row in page["changes"]]))
        out.print()
    out.print(one_line(page["purpose"]))
    out.print()
    settings(out, _leaving(page, full))
    heading(out, "Price, per person")
    settings(out, _priced(page, full))
    if page["charged"]["to_come"] and page["charged"]["last_affordable"] is None:
        note(out, "The budget allows none of the waves to come: nothing more could be released under this plan.")
    heading(out, "Covered by this price", f"posture {page['posture']}")
    sentences(out, page["covered"], mark="✓", style="green")
    heading(out, "Not covered by this price", f"posture {page['posture']}")
    more = [line for line in (page["training"] or {}).get("not_covered", ()) if line not in page["not_covered"]]
    sentences(out, [*page["not_covered"], *more], mark="✗", style="yellow")
    _member_keys(out, page)
    heading(out, "Columns")
    rows = []
    for column in page["columns"]:
        missing = {"refuse": "none allowed", "level": "released as a level", "complete_case": "row left out"}
        rows.append((column["name"], column["kind"], column["values"], missing[column["missing"]]))
    out.print(table(("column", "kind", "bounds or levels", "missing values"), rows))
    _floors(out, page, full)
    if not full:
        out.print("\n--full: each wave, who reads afterwards, what is charged, floors, hashes", style="dim")


def _member_keys(out: Console, page: Mapping[str, Any]) -> None:
    """The keys that the price rests on, where it rests on any, for two people to compare aloud."""
    if page["keys"]:
        heading(out, "Keys of the members")
        sentences(out, page["keys"]["said"], mark="✗", style="yellow")
        rows = [(one["site"], one["fingerprint"], _whose(one)) for one in page["keys"]["of"]]
        out.print(table(("member", "fingerprint of its key", ""), rows))


def _whose(key: Mapping[str, Any]) -> str:
    """What a steward has to do about one member's key. A key that was rotated stays in the plan of before."""
    if key["another"]:
        return "this site's name, another key"
    return "this site's own" if key["own"] else "compare it"


def _leaving(page: Mapping[str, Any], full: bool) -> list[tuple[str, str]]:
    """Rows on the data that leave, when, to whom, of whom; with `full` each wave, the later readers and the hashes."""
    counts = "counts" if page["training"] else "model, no counts"
    waves = page["waves"]
    often = "; ".join(f"wave {wave['number']}: {wave['opens']} to {wave['closes']}" for wave in waves)
    if not full and len(waves) > 1:
        often = f"{len(waves)} waves, {waves[0]['opens']} to {waves[-1]['closes']}"
    afterwards = page["afterwards"]
    if not full and page["retention"] is not None:
        afterwards = f"kept until {page['retention']['until']}, then deleted"
    hashes = [("plan hash", page["hash"]), ("dictionary hash", page["dictionary_hash"])]
    rows = f"{len(page['columns'])} columns of privatised rows, one row per person; no {counts}"
    return [
        ("what leaves", f"{page['figures']}; no row of anybody" if page["figures"] else rows),
        *_trained_together(page),
        ("how often", often),
        ("to whom", f"{page['recipient']}, and nobody else"),
        (
            "rows handed on",
            "analysts may download the rows" if page["row_download"] else "analysts cannot download rows",
        ),
        ("who is in it", page["eligibility"] or "not stated"),
        ("until", page["expires"]),
        ("afterwards", afterwards),
        *(hashes if full else []),
    ]


def _priced(page: Mapping[str, Any], full: bool) -> list[tuple[str, str]]:
    """Rows on the price per person; past charges only with `full`, or if there are any or the budget is too small."""
    price, charged, rows = page["price"], page["charged"], []
    if page["training"]:
        whole = shown_price(page["training"]["epsilon"], delta=price["delta"])
        rows.append(("the training", f"{whole}, whole, before round 1"))
    total = shown_price(price["all_waves"], price["epsilon_given"], delta=price["delta"])
    if price["epsilon"] is not None:
        total += f", of a budget of {shown_epsilon(price['cap'])}"
    rows.append(("one wave", shown_price(price["epsilon"], price["epsilon_given"], delta=price["delta"])))
    rows.append(("in words", price["translation"]))  # of one wave, so it stands by its price
    rows.append(("all of it" if page["training"] else "all waves", total))
    fresh = not charged["epsilon"] and charged["to_come"] and charged["last_affordable"] == charged["to_come"][-1]
    if full or not fresh:
        if price["epsilon"] is not None:
            so_far = shown_price(charged["epsilon"], charged["epsilon_given"], delta=price["delta"])
            rows.append(("charged so far", f"{so_far}, by every version of the plan"))
        rows.append(("with what comes", charged_words(page)))
    rows += [(f"seen by {who}", f"ε = {shown_epsilon(epsilon)}") for who, epsilon in price["seen_by"].items()]
    return rows


def _floors(out: Console, page: Mapping[str, Any], full: bool) -> None:
    """The floors with `full`; without, what of them a steward would not expect."""
    floors, local = page["floors"], page["posture"] == "local"
    if full:
        heading(out, "Floors in force", "the stricter of the plan's and this site's")
        audit = (
            f" · attack AUC at most {floors['membership_auc']:g} · own-row linkage at most "
            f"{floors['own_row_linkage']:g}, {floors['extreme_linkage']:g} among outliers"
        )
        line = f"at least {floors['persons']:g} persons · signed by {floors['approvals']:g} of its approvers"
        out.print(line + (audit if local else ""))
        if page["quasi_identifiers"]:
            least = (
                f" of at least {floors['minimum_k']:g} persons" if local and floors["minimum_k"] else " counted here"
            )
            out.print(f"each combination of {', '.join(page['quasi_identifiers'])}{least}")
    if page["approval"] == "before":
        out.print(
            "A release is approved before it is drawn (site-agent standing add); nobody sees it before it leaves."
        )
    elif not local:
        out.print("Checks and attacks that read records are shown to the approver. They refuse nothing.")
    usual = Floors()
    audited = ("membership_auc", "own_row_linkage", "extreme_linkage")
    if local and any(floors[name] > getattr(usual, name) for name in audited):
        wide = ", ".join(f"{getattr(usual, name):g}" for name in audited)
        note(out, f"The limits of the attack audit are wider than usual ({wide}).")


def release_page(
    out: Console,
    release: SealedRelease,
    *,
    changes: Sequence[Sequence[str]] = (),
    earlier: Sequence[Earlier] = (),
    rows: int = ROWS,
) -> None:
    """A sealed release as its approver must see it: the very rows, size, checks, audit, price.

    Args:
        changes: settings of the plan that have changed since: setting, then, now.
        earlier: the study's earlier releases, beside it.
    """
    hold, receipt = release.hold, release.receipt
    lines = "figures" if release.holds_figures else "rows"
    heading(out, f"{hold.study}, wave {hold.wave}", f"release {hold.release_id[:8]} · {hold.state.replace('_', ' ')}")
    settings(
        out,
        (
            ("what", "synthetic / privatised, not patient records"),
            ("by", receipt.mechanism.replace("_", " ") + f", of {receipt.n} persons"),
            *([("for", f"{receipt.hospitals} hospitals under one steward's agreement")] if receipt.hospitals else []),
            *([("mapped by", f"mappings/{hold.study}.toml, {receipt.mapping[:16]}…")] if receipt.mapping else []),
            (
                "size",
                f"{len(release.table)} {lines}, {release.table.shape[1]} columns, {hold.bundle_bytes:,} bytes",
            ),
            ("to", receipt.recipient),
            (
                "price",
                shown_price(receipt.stated_epsilon, receipt.given, delta=receipt.delta)
                + (
                    ""
                    if receipt.stated_study_epsilon is None
                    else f"; the study's cap is ε = {shown_price(receipt.stated_study_epsilon, receipt.given)}"
                ),
            ),
            ("in words", receipt.stated_translation),
            ("bytes", f"SHA-256 {hold.bundle_sha256[:32]}…"),
            ("made by", hold.author),
            ("approvals", f"{len(hold.approvals)} of {hold.approvals_needed}"),
        ),
    )
    heading(
        out,
        f"The {lines}",
        f"first {min(rows, len(release.table))} of {len(release.table)}; outbox show --rows N for more",
    )
    for part in _pages(release.table.columns, out.width):
        shown = release.table[list(part)].head(rows)
        out.print(table(part, [[cell(v) for v in row] for row in shown.itertuples(index=False)]))
    heading(out, "Checks", "stay here")
    out.print(_check_table(release.checks))
    for check in release.warnings:
        note(out, f"! {check.name}: {check.detail} (tick it with --tick {check.name})")
    for check in release.notable:
        note(out, f"→ {check.name}: {check.detail or 'the rule does not hold'} (to be known; it decides nothing)")
    if release.audit:
        heading(out, "Attacks we tried", "stay here")
        sentences(out, release.audit.get("sentences", ()))
    heading(out, "Not covered")
    sentences(out, receipt.not_covered, mark="✗", style="yellow")
    if receipt.posture != "local" and hold.state in ("held", "sent_back"):
        out.print(
            "Nothing above that was found in records decides, and your own choice by it is not in the price: a release "
            "that is rejected because of what it shows of a record tells of that record. Each further draw is charged."
        )
    _then_and_now(out, changes, earlier)


def _then_and_now(out: Console, changes: Sequence[Sequence[str]], earlier: Sequence[Earlier]) -> None:
    """The earlier releases of the study beside this one, and what has changed in its plan."""
    if earlier:
        heading(out, "Beside the earlier releases of this study")
        cells = [
            (
                one.release_id[:8],
                one.wave,
                one.state.replace("_", " "),
                f"{one.rows} → {one.rows_now}",
                "; ".join([*(f"+ {name}" for name in one.added), *(f"− {name}" for name in one.removed), *one.shifts]),
            )
            for one in earlier
        ]
        out.print(table(("release", "wave", "state", "rows", "what differs most"), cells, right=("wave",)))
    if changes:
        heading(out, "The plan has changed since")
        out.print(table(("setting", "then", "now"), [[item or None for item in row] for row in changes]))


def planned(out: Console, terms: Sequence[PlannedTerm]) -> None:
    """The planned analyses on the real rows and on the sealed ones, on the analysis scale."""
    if not terms:
        return
    heading(out, "Planned analyses", "estimate (standard error) on the analysis scale; stays here")
    rows = [
        (
            f"{one.name}: {one.term}" if one.term else one.name,
            *("–" if side is None else f"{side[0]:.4g} ({side[1]:.2g})" for side in (one.real, one.released)),
            one.reason if one.moved is None else f"{one.moved:+.2f} standard errors",
        )
        for one in terms
    ]
    out.print(
        table(("term", "real rows", "these sealed rows", "moved"), rows, right=("real rows", "these sealed rows"))
    )
    out.print("Their rows are no patients: the error beside a released estimate is what its rows say, not the truth.")


def _check_table(checks: Sequence[Check]) -> Table:
    """Each rule with what was found and what may be."""
    from rich.text import Text

    marks = {"passed": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "bold red"), "note": ("·", "cyan")}
    lines = [
        (
            Text("→", "yellow") if check.notable else Text(*marks[check.outcome]),
            Text.assemble(
                check.rule, (f"\n{check.detail}" if check.outcome == "passed" and check.detail else "", "dim")
            ),
            None if check.measured is None else f"{check.measured:g}",
            None if check.threshold is None else f"{_side(check)} {check.threshold:g}",
        )
        for check in checks
    ]
    return table(("", "rule", "found", "may be"), lines, right=("found", "may be"))


def _side(check: Check) -> str:
    """On which side of its limit a count is good; a count of persons alone may be too low."""
    return "at least" if check.name == "persons" else "at most"


def outbox(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Every sealed release, one line each."""
    if not rows:
        out.print("The outbox is empty.")
        return
    head, prices = shown_column({row["release_id"]: (row["epsilon"], row["epsilon_given"]) for row in rows})
    out.print(
        table(
            ("release", "study", "wave", "state", "approvals", head, "sealed"),
            [
                (
                    row["release_id"][:8],
                    row["study"],
                    row["wave"],
                    row["state"].replace("_", " "),
                    f"{row['approvals']} of {row['approvals_needed']}",
                    prices[row["release_id"]],
                    row["day"],
                )
                for row in rows
            ],
            right=("wave", head),
        )
    )


def budget(out: Console, lines: Sequence[StatementLine], totals: Sequence[Mapping[str, Any]]) -> None:
    """Like a bank statement: each charge, the running total, the cap; beside it what no ε covers."""
    from rich.text import Text

    if not lines:
        out.print("Nothing has been charged.")
        return
    for total in totals:
        mine = [line for line in lines if line.study == total["study"]]
        heading(out, f"Budget of {total['study']}", f"per person, at δ = {shown_delta(total['delta'])}")
        states = {"held": "reserved", "sealed": "sealed", "delivered": "delivered", "burnt": "burnt, stays charged"}
        charge, charges = shown_column(
            {line.release_id: (line.epsilon, line.epsilon_given) for line in mine}, "charge ε"
        )
        sums = {line.release_id: (line.total, line.total_given) for line in mine if line.total is not None}
        running, running_sums = shown_column(sums, "total ε (RDP)")
        out.print(
            table(
                ("date", "wave", "release", charge, running, "state"),
                [
                    (
                        line.date,
                        line.wave or "training",
                        line.release_id[:8],
                        charges[line.release_id],
                        running_sums.get(line.release_id, "–"),
                        Text(
                            "delivered, taken back"
                            if line.detail.startswith("taken back")
                            else line.detail
                            if line.detail in ("training", "trained")
                            else states[line.state],
                            style="yellow" if line.state == "burnt" else "",
                        ),
                    )
                    for line in mine
                ],
                right=("wave", charge, running),
            )
        )
        if running_sums:
            out.print(
                "charge: that release alone, by its exact curve. total: all charges so far composed by RDP, a bound "
                "that holds however waves are decided on and may lie above the exact price, also for one.",
                style="dim",
            )
        if total["epsilon"] is not None:
            share = min(1.0, total["epsilon"] / total["cap"]) if total["cap"] else 1.0
            filled = round(40 * share)
            bar = Text.assemble(("█" * filled, "cyan"), ("░" * (40 - filled), "dim"))
            spent = shown_price(total["epsilon"], total["epsilon_given"])
            bar.append(f"  ε = {spent}, of {shown_epsilon(total['cap'])}")
            out.print(bar)
        if apart := total["open"]:
            out.print(f"{apart} of {total['releases']} charges are in no total: {total['open_words']}")
        uncovered = list(dict.fromkeys(sentence for line in mine for sentence in line.uncovered))
        if uncovered:
            heading(out, "Not in this total, because no ε covers it")
            sentences(out, uncovered, mark="✗", style="yellow")


def curve_page(out: Console, curve: PriceCurve) -> None:
    """The curve of w as a table, what it is not beside it."""
    whose = "made-up values" if curve.made_up else f"{curve.n:,} records"
    heading(out, f"{curve.study}: what a weight w buys, and what it costs", f"{whose}; stays here")
    rows = [
        (
            f"{point.w:.3g}" + (" ← plan" if point.w == curve.planned else ""),
            shown_price(point.epsilon, "" if point.epsilon is not None else FLOW),
            f"{point.bound:.1%}",
            f"{point.hits.value:.1%} ({point.hits.low:.1%} to {point.hits.high:.1%})",
            f"{point.own_row.value:.1%}",
            f"{point.distance_auc.value:.2f}",
            None if point.error is None else f"{point.error:.1%}",
        )
        for point in curve.points
    ]
    names = ("w", f"true ε given {FLOW}", "bound", "holder of the flow", "own row", "AUC", "estimates off")
    out.print(table(names, rows, right=names[1:]))
    out.print(
        f"Bound and holder of the flow: patients recognised at 1 % false alarms. Estimates off: median relative error "
        f"of {len(curve.points[0].errors)} planned terms over {curve.draws} draws."
    )
    sentences(out, curve.sentences())


def _pages(names: Iterable[str], width: int) -> list[tuple[str, ...]]:
    """Columns in groups that fit side by side."""
    pages: list[tuple[str, ...]] = []
    now: list[str] = []
    used = 2
    for name in names:
        need = max(len(name), 8) + 2
        if now and used + need > width:
            pages.append(tuple(now))
            now, used = [], 2
        now.append(name)
        used += need
    return [*pages, tuple(now)] if now else pages


def cell(value: Any) -> Any:
    """A value of a released table as people read it; None where it is missing."""
    if value is None or str(value) in ("<NA>", "nan"):
        return None
    return f"{value:.6g}" if isinstance(value, float) else value
