"""Definition of a demo study: its tables, its plans, its hospitals' steps, and its questions.

A new study is a subclass of `Play` in a module of its own, named in `coordinator.demo.catalogue.PLAYS`.
"""

from __future__ import annotations

import datetime as dt
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from shared.errors import ParameterError

if TYPE_CHECKING:
    import pandas as pd

    from coordinator.answers.queries import PooledAnswer
    from coordinator.demo.stage import DemoStage
    from coordinator.pooling.pool import PooledResult
    from shared.estimands.answer import Estimate
    from shared.plans.plan import StudyPlan

__all__ = [
    "BASELINE",
    "REAL",
    "STUDIES",
    "DemoAnswer",
    "DemoOptions",
    "Play",
    "SideBySide",
    "around",
    "beside_real",
    "in_files",
    "pooled_real",
    "setting",
]

STUDIES = Path(__file__).resolve().parent / "studies"
"""The shipped plans: a link to `deploy/studies`, and files of the package where it was installed."""
Prices = Mapping[str, tuple[float | None, str]]
REAL, BASELINE = "real records", "released, w = 0"


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of the demo, from the command line.

    Args:
        study: a name of `coordinator.demo.catalogue.PLAYS`.
        seed, scale, sites: of simulated tables: the seed, the share of their sizes, and how many hospitals.
        data: folder of the hospitals' own files.
        epsilon: in place of the plan's.
    """

    study: str
    seed: int = 1
    scale: float = 1.0
    sites: int | None = None
    data: Path | None = None
    epsilon: float | None = None


class Play(ABC):
    """One study of the demo.

    `shipped` names the file of its plan in deploy/studies, where that is not the study's name. `needs` are modules that
    not everybody installs. `covers` ends the sentence "ε at the plan's δ, …" below a figure. `figure_each`: arms with a
    price of their own have a figure each, beside the one of all.
    """

    shipped: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    covers: str = "every record covered"
    figure_each: ClassVar[bool] = True

    def __init__(self, options: DemoOptions) -> None:
        self.options = options

    @property
    def text(self) -> str:
        """The study's plan, as it is shipped."""
        return (STUDIES / f"{self.shipped or self.options.study}.toml").read_text(encoding="utf-8")

    @abstractmethod
    def tables(self, folder: Path) -> dict[str, Path]:
        """The hospitals' tables, written below `folder` or found: hospital name to file. Raises: ParameterError."""

    def plans(self, today: dt.date) -> dict[str, str]:
        """Name of a study to its plan (TOML) with a calendar around `today`; the one that is shown comes first."""
        return {setting(self.text, "study").strip('"'): around(self.text, today)}

    def steps(self, stage: DemoStage) -> int:
        """Number of steps that `act` reports."""
        return len(stage.tables) * (2 + 2 * len(stage.plans))

    def act(self, stage: DemoStage, everywhere: Callable[[Callable[[str], None]], None]) -> None:
        """Run the study once the coordinator serves; `everywhere` has all hospitals do the same, a few at a time."""

        def hospital(site: str) -> None:
            stage.join(site)
            stage.release(site)

        everywhere(hospital)

    def add_data(self, stage: DemoStage, site: str, study: str) -> None:
        """A hospital says where its table is."""
        added = stage.agent(site, "data", "add", str(stage.tables[site]), "--as", study)
        if added["not_mapped"]:  # columns of the file that the study does not use
            stage.agent(site, "data", "map", study, "--ignore-rest")

    @abstractmethod
    def answers(self, stage: DemoStage) -> dict[str, DemoAnswer]:
        """Answers by short names that are good for files."""

    @abstractmethod
    def unit(self, answer: DemoAnswer) -> str:
        """Label of an answer's axis."""

    @property
    @abstractmethod
    def note(self) -> str:
        """Footnote of the table of answers."""


@dataclass(frozen=True, kw_only=True)
class DemoAnswer:
    """One question, pooled three ways.

    Args:
        title, question, term: of the figure; the formula; what is pooled of it.
        arms: label to pooled result; the released one first.
        epsilon, posture: per site, of the released arm; a posture also of the other, where it has another. A price is
            ε and what it takes as given (`shared.privacy.stated`).
        others: price per site, of an arm with a price of its own.
        together: per site, the price of all its releases in its one account; none where there is one release.
    """

    title: str
    question: str
    term: str
    arms: Mapping[str, PooledResult]
    epsilon: Prices
    posture: Mapping[str, str]
    others: Mapping[str, Prices] = field(default_factory=dict)
    together: Prices = field(default_factory=dict)

    def priced(self, label: str) -> Prices:
        """Price per site of an arm."""
        return self.others.get(label, self.epsilon)

    @property
    def apart(self) -> tuple[str, ...]:
        """Arms beside the first whose price stands in a column of its own."""
        return tuple(label for label in self.others if label != BASELINE)


class SideBySide(Play):
    """Plans of the same questions, beside the real records.

    `focus` are the terms that the study is about; the others are adjusted for.
    """

    focus: ClassVar[tuple[str, ...]]

    def __init__(self, options: DemoOptions) -> None:
        super().__init__(options)
        self._begun: dict[tuple[str, str, str], Callable[[], Any]] = {}

    @abstractmethod
    def labels(self, plans: Sequence[StudyPlan]) -> tuple[str, ...]:
        """Names of the plans' releases, in order."""

    def act(self, stage: DemoStage, everywhere: Callable[[Callable[[str], None]], None]) -> None:
        """The last study first: its answer is the dearest, and is computed while hospitals release under the others."""
        self.ask(stage)

        def hospital(site: str, *, study: str, joins: bool) -> None:
            if joins:
                stage.join(site)
            stage.release(site, study)

        for place, study in enumerate(reversed(stage.plans)):
            everywhere(partial(hospital, study=study, joins=not place))
            self.ask(stage, study)

    def ask(self, stage: DemoStage, *studies: str) -> None:
        """Begin every planned question about the releases of these studies, and about the real records, once each."""
        from shared.plans.plan import StudyPlan

        plans = {study: StudyPlan.from_toml(text) for study, text in stage.plans.items()}
        shown = next(iter(plans.values()))
        for formula in shown.estimands.values():
            for term in self.focus:
                work: dict[str, Callable[[], Any]] = {REAL: partial(pooled_real, stage.tables, shown, formula, term)}
                for study in studies:
                    if formula in plans[study].estimands.values():
                        work[study] = partial(answer_of, stage.hub, study, formula, term)
                for of, piece in work.items():
                    if (of, formula, term) not in self._begun:
                        self._begun[of, formula, term] = stage.aside.begin(piece)

    def answers(self, stage: DemoStage) -> dict[str, DemoAnswer]:
        """Every planned question and focus term: pooled from each plan's releases and from the real records."""
        from shared.plans.plan import StudyPlan

        self.ask(stage, *reversed(stage.plans))
        plans = [StudyPlan.from_toml(text) for text in stage.plans.values()]
        labels = dict(zip(stage.plans, self.labels(plans), strict=True))
        shown, *others = labels
        # A person stands in every release: what they say of one person together is in the hospital's own account.
        together: dict[str, tuple[float | None, str]] = {}
        if any(labels[study] != BASELINE for study in others):
            accounts = stage.accounts().items()
            together = {site: (account["epsilon"], account["epsilon_given"]) for site, account in accounts}
        asked = [(name, formula, term) for name, formula in plans[0].estimands.items() for term in self.focus]
        answers: dict[str, DemoAnswer] = {}
        for name, formula, term in asked:
            of: dict[str, PooledAnswer] = {
                label: self._begun[study, formula, term]()
                for study, label in labels.items()
                if (study, formula, term) in self._begun
            }
            result: PooledResult = self._begun[REAL, formula, term]()
            first = of[labels[shown]]
            key = f"{name}_{re.sub(r'[^a-z0-9]+', '', term)}" if len(self.focus) > 1 else name
            postures: dict[str, dict[str, None]] = {source.site: {} for source in first.sources}
            for answer in of.values():
                for source in answer.sources:
                    postures.setdefault(source.site, {})[source.posture] = None
            answers[key] = DemoAnswer(
                title=first.title,
                question=formula,
                term=term,
                arms={**{label: answer.result for label, answer in of.items()}, REAL: result},
                epsilon={source.site: source.price for source in first.sources},
                posture={source.site: " / ".join(postures[source.site]) for source in first.sources},
                others={
                    label: {source.site: source.price for source in answer.sources}
                    for label, answer in of.items()
                    if label != labels[shown]
                },
                together=together,
            )
        return answers


def around(text: str, today: dt.date) -> str:
    """The text of a plan with a calendar around today."""
    start, end = today.replace(month=1, day=1), today.replace(year=today.year + 1, month=12, day=31)
    for name, value in (("expires", end), ("opens", start), ("closes", end)):
        text = re.sub(rf"^{name} = \S+", f"{name} = {value}", text, flags=re.MULTILINE)
    return text


def setting(text: str, name: str) -> str:
    """Value of `name` in the text of a plan. Raises: ParameterError."""
    found = re.search(rf"^{name} = (\S+)", text, flags=re.MULTILINE)
    if found is None:
        raise ParameterError(f"the plan must set {name} on a line of its own", given="none")
    return found[1]


def answer_of(hub: Path, study: str, formula: str, term: str) -> PooledAnswer:
    """Pooled answer of the coordinator with this home, from the releases of wave 1."""
    from coordinator.answers.queries import ask
    from coordinator.answers.release_selection import holding
    from coordinator.config import CoordinatorConfig
    from coordinator.store.store import Store

    with closing(Store.open(hub, CoordinatorConfig.load(hub).store)) as store:
        return ask(store, holding(store, study, 1), formula, term=term)


def beside_real(
    stage: DemoStage, real: Callable[[StudyPlan, str], PooledResult], *, label: str = "", term: str = ""
) -> dict[str, DemoAnswer]:
    """Every planned question of a study of one plan, pooled from the releases and from the real records.

    Args:
        real: pools the real records, given the plan and a formula.
        label: of the releases' arm; the title of the release where left out.
        term: what is pooled of a question; its first term where left out.
    """
    from shared.plans.plan import StudyPlan

    [(study, text)] = stage.plans.items()
    plan = StudyPlan.from_toml(text)
    found: dict[str, DemoAnswer] = {}
    for name, formula in plan.estimands.items():
        answer = answer_of(stage.hub, study, formula, term)
        found[name] = DemoAnswer(
            title=f"{plan.title}: {name}",
            question=formula,
            term=answer.term,
            arms={label or plan.release.title: answer.result, REAL: real(plan, formula)},
            epsilon={source.site: source.price for source in answer.sources},
            posture={source.site: source.posture for source in answer.sources},
        )
    return found


def in_files(folder: Path, tables: Mapping[str, pd.DataFrame]) -> dict[str, Path]:
    """Tables by name, each written as a CSV file below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / f"{name}.csv" for name in tables}
    for name, path in files.items():
        tables[name].to_csv(path, index=False)
    return files


def pooled_real(tables: Mapping[str, Path], plan: StudyPlan, formula: str, term: str) -> PooledResult:
    """Pool the real tables: possible here only because they are simulated or public."""
    import pandas as pd

    from coordinator.pooling.pool import pool_estimates
    from shared.estimands.answer import estimate, parse_estimand

    question = parse_estimand(formula)
    rows: list[Estimate] = []
    for site, path in sorted(tables.items()):
        source = pd.read_csv(path, dtype="string")
        known = [column.name for column in plan.dictionary.columns if column.name in source.columns]
        table = plan.dictionary.check(source[known])
        rows += estimate(table[list(plan.dictionary.names)], question, study=plan.study, site=site, wave=1)
    return pool_estimates([row for row in rows if row.term == term])
