"""What the web answers beside the analysts' service: how a question reads before it is asked, and figures of an answer.

An analyst's own end does both by itself (`coordinator.analyst`); a browser cannot. Neither is a look at the data, and
neither is a line of the record: a check reads the plan alone, a figure the document of an answer that was given.
"""

from __future__ import annotations

import tempfile
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from coordinator.answers import resolving
from shared.base.canonical import canonical_json
from shared.errors import ParameterError
from shared.terminal import plain
from shared.wire.analyst_messages import Document, ExplainRequest, FigureRequest, QueryRequest, RowsChunk
from shared.wire.message_limits import CHUNK_BYTES
from shared.wire.transport import Call

if TYPE_CHECKING:
    from coordinator.analyst.result import Result, ResultOrigin
    from coordinator.services.analysis import AnalysisService
    from coordinator.services.analysts import Analyst
    from coordinator.store.store import Store

__all__ = ["DerivedDocuments", "figure"]

DRAWN = 256  # figures that are kept in memory
FIGURE = "coordinator.web.beside:figure"


class DerivedDocuments:
    """Checks and figures. Safe for many threads.

    Args:
        service: the analysts' service, whose gates, workers and answers these are.
        store: the coordinator's store.
    """

    def __init__(self, service: AnalysisService, store: Store) -> None:
        self._service, self._store = service, store
        self._guard = threading.Lock()
        self._drawn: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()

    def forget(self) -> None:
        """Leave no figure in memory."""
        with self._guard:
            self._drawn = OrderedDict()

    def check(self, call: Call, request: QueryRequest) -> Document:
        """A question in one spelling, and the planned analysis that it is. Raises: ParameterError, as the question."""
        self._service.admitted(call, request.study)
        store = self._store
        plan = store.plan(request.study).plan
        asked = resolving.question(request.kind, request.formula, request.options)
        found, planned = resolving.resolve(plan, asked, lack=lambda name: resolving.lacking(store, request.study, name))
        label = request.label or ("confirmatory" if planned else "exploratory")
        said = {"estimand": str(found), "planned": planned, "label": label, "kind": found.kind}
        return Document(json=canonical_json(plain(said)))

    def figure(self, call: Call, request: FigureRequest) -> Iterator[RowsChunk]:
        """A figure of a result that was given, or its table.

        Raises: ParameterError (no such figure), StateRefusal (no such result, or taken back), EstimateRefusal.
        """
        who = self._service.admitted(call, request.study)
        # The answer is looked up each time: one that was deleted, or an end of the study, ends its figures too.
        document = self._service.kept(ExplainRequest(study=request.study, result_id=request.result_id))
        call.digest = document["result"]
        place = (document["result"], request.kind, request.suffix)
        with self._guard:
            known = self._drawn.get(place)
        if known is None:
            known = self._draw(document, request, who, call)
            with self._guard:
                self._drawn[place] = known
                while len(self._drawn) > DRAWN:
                    self._drawn.popitem(last=False)
        for start in range(0, len(known), CHUNK_BYTES):
            yield RowsChunk(data=known[start : start + CHUNK_BYTES])

    def _draw(self, document: Mapping[str, Any], request: FigureRequest, who: Analyst, call: Call) -> bytes:
        with tempfile.TemporaryDirectory(prefix="tributary-figure-") as folder:
            path = Path(folder) / f"figure.{request.suffix}"
            given = {"document": document, "kind": request.kind, "path": f"{path}"}
            self._service.computed(FIGURE, given, who, call)
            return path.read_bytes()


def figure(given: Mapping[str, Any]) -> None:
    """Write a figure of an answer, or the table of its sites, to a file; read from its document alone, in a worker.

    Args:
        given: ``document`` (the answer), ``kind`` (of `Result.forest`, ``curve`` or ``table``) and ``path``.
    Raises: ParameterError (no such figure); IntegrityRefusal (another number than the one that was given).
    """
    from coordinator.analyst.result import Result

    def again(**_: Any) -> Result:
        raise ParameterError("a figure must be of the answer as it was given", given="another")

    # A figure asks nothing of the study that its answer is of.
    result, path = Result(cast("ResultOrigin", None), given["document"], again), Path(given["path"])
    if given["kind"] in ("table", "curve"):
        result.export(path, given["kind"])
    else:
        result.forest(path, given["kind"])
