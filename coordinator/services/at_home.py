"""A lead's questions on the coordinator's own machine: the same studies and answers, without a server and a token.

    study = open_home("/var/lib/tributary-coordinator", name="ada")["heart"]

The service that answers analysts runs in this process, upon the home's store. It has the limits of the settings, and
each question is a line of the study's record under the name that is given. Who may read the home may read all of it;
so a lead's role asks no more than the system's own permissions do.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.analyst.remote import Connection
from shared.errors import ParameterError, StateRefusal, require

if TYPE_CHECKING:
    from coordinator.services.analysis import AnalysisService
    from coordinator.services.analysts import Analyst

__all__ = ["open_home"]

LONGEST = 64
"""Letters of a name in the record."""


def open_home(home: str | Path, *, name: str) -> Connection:
    """The studies of a coordinator's home, asked in this process.

    Args:
        home: the coordinator's folder, as `coordinator init` made it.
        name: name of the person who asks, for the record.
    Raises: ParameterError (a name); StateRefusal (no home there); PackageRefusal (a client's install has no store).
    """
    require("sqlalchemy", "pyarrow", part="coordinator")
    if not isinstance(name, str) or not name.isprintable() or not 0 < len(name.strip()) <= LONGEST:
        raise ParameterError(f"who asks must be named in 1 to {LONGEST} letters", given=repr(name)[:80])
    return _Home(name.strip(), _InProcess(Path(home), name.strip()))


class _Home(Connection):
    def require_followed(self) -> Any:
        raise StateRefusal(
            "the log must be read by its own verb on the coordinator's machine",
            given="a home",
            next_step="Run coordinator log verify.",
        )


class _InProcess:
    """Carries questions to the service in this process."""

    def __init__(self, home: Path, name: str) -> None:
        from coordinator.config import CoordinatorConfig
        from coordinator.store.store import Store

        config = CoordinatorConfig.load(home)
        self._name, self._settings, self._quotas = name, config.analysis_settings, config.quotas
        self._store = Store.open(config.home, config.store, config.bundles)
        self._closed = False

    @cached_property
    def _service(self) -> AnalysisService:
        from coordinator.services.analysis import AnalysisService
        from shared.base.clock import utc_now

        # Limits on tokens are for strangers; those on a single question hold here, too.
        settings = replace(self._settings, rate=0, a_day=0)
        return AnalysisService(self._store, settings, quotas=self._quotas, today=lambda: utc_now().date())

    def _lead(self) -> Analyst:
        from coordinator.services.analysts import Analyst

        studies = tuple(sorted({stored.plan.study for stored in self._store.plans()}))
        return Analyst(role="lead", site=self._name, serial=f"home:{self._name}", studies=studies)

    def call(self, method: str, request: Any, *, timeout: float) -> Any:
        """Reply of the service's method, whose own time limits apply in place of `timeout`."""
        from shared.wire.transport import Call

        if self._closed:
            raise StateRefusal("a home must be open to be asked", given="closed", next_step="Open it again.")
        return self._service.handlers[method](Call(peer=self._lead()), request)

    def close(self) -> None:
        """End the processes that compute, and close the store."""
        self._closed = True
        if "_service" in self.__dict__:
            self._service.close()
        self._store.close()
