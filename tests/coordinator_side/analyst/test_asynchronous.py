"""The analysts' connection for asynchronous programs: the same answers, several calls under way at once."""

# ruff: noqa: F811  (a fixture is imported by its name)
from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import threading

import pytest
from stage.browser.web_stage import stage  # noqa: F401

from coordinator.analyst.asynchronous import AsyncStudy, connect_async
from coordinator.analyst.questions import KindMethods, Questions
from coordinator.analyst.remote import Pass, Study, connect
from shared.errors import ParameterError
from shared.estimands.kinds import KINDS
from shared.wire.transport import SERVER_NAME

FORMULA = "Surv(time, cvd) ~ sbp/10 + age/10"


@pytest.fixture(scope="module")
def given(stage) -> Pass:
    return Pass(
        address=f"127.0.0.1:{stage.running.analysts_port}",
        server_name=SERVER_NAME,
        ca_pem=stage.authority.ca_pem,
        name="amy",
        role="analyst",
        studies=("cvd",),
        expires=(dt.datetime.now(dt.UTC).date() + dt.timedelta(days=9)).isoformat(),
        token=stage.admit("amy"),
    )


def test_questions_that_are_awaited_together_have_the_answers_that_they_have_alone(given):
    async def asked():
        async with connect_async(given) as hub:
            cvd = hub["cvd"]
            together = (
                cvd.cox(FORMULA),
                cvd.mean("sbp"),
                cvd.planned("adjusted"),
                cvd.dictionary("sbp"),
                hub.studies(),
            )
            found = await asyncio.gather(*together)
            again = await cvd.result(found[0].id)
            with pytest.raises(ParameterError):
                await cvd.cox("Surv(time, cvd) ~ weight")
            return [*found, again]

    found = [one.document for one in asyncio.run(asked())]
    with connect(given) as connection:
        cvd = connection["cvd"]
        alone = [
            cvd.cox(FORMULA),
            cvd.mean("sbp"),
            cvd.planned("adjusted"),
            cvd.dictionary("sbp"),
            connection.studies(),
        ]
        assert found == [one.document for one in (*alone, alone[0])]


def test_calls_are_under_way_at_once_and_not_more_than_are_allowed(given):
    at_once, most, together = [0], [0], threading.Barrier(3, timeout=20)

    def work(k):
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        together.wait()
        at_once[0] -= 1
        return k

    async def run():
        async with connect_async(given, at_once=3) as hub:
            return await asyncio.gather(*(hub.call(work, k) for k in range(9)))

    assert asyncio.run(run()) == list(range(9))
    assert most == [3]


def test_every_question_can_be_awaited():
    asks = {name for name, value in vars(Questions).items() if callable(value) and not name.startswith("_")}
    assert {kind for kind, known in KINDS.items() if known.asks} <= asks
    assert asks <= {name for name in vars(AsyncStudy) if inspect.iscoroutinefunction(getattr(AsyncStudy, name))}


def test_what_an_editor_lists_is_there():
    listed = {*KindMethods.__annotations__}
    assert listed <= {*vars(Questions)}
    assert listed <= {*vars(AsyncStudy)}


def test_help_of_a_question_shows_its_formula_and_its_options():
    asked = [str(inspect.signature(method)) for method in (Study.km, AsyncStudy.km, Study.correlation)]
    km = "(self, formula: 'str', *, at, term: 'str' = '', **how: 'Any') -> 'Result'"
    assert asked == [km, km, "(self, *columns: 'str', structure='pearson', term: 'str' = '', **how: 'Any') -> 'Result'"]
