"""The JSON interface: each operation of `coordinator.web.interface.operations`, answered by the analysts' service.

A call passes the same gates as over gRPC, in the same order: its size, its token, the token's rate, its form, then
what the service looks at. The document that the service gives is sent as the bytes that it is: the same digits whoever
asks. A refusal is a problem document, and is said before the first byte of a file.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import logging
import threading
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Match, Route

from coordinator.web.interface.beside import DerivedDocuments
from coordinator.web.interface.jobs import ENDED, Job, Jobs
from coordinator.web.interface.openapi import document
from coordinator.web.interface.operations import API, FILES, JOBS, OPERATIONS, SIGN_IN, Operation
from coordinator.web.interface.places import Places
from coordinator.web.interface.problems import PROBLEM, problem, problem_kind
from shared import software_version
from shared.base.canonical import canonical_json, parse_json
from shared.errors import (
    AccessRefusal,
    NetworkRefusal,
    RateRefusal,
    Refusal,
    SchemaRefusal,
    TooLarge,
    UnknownMethod,
    UsageRefusal,
)
from shared.terminal import plain
from shared.wire import protocol
from shared.wire.analyst_messages import Document
from shared.wire.door import CallLimits, Decision, Door, GuardedConnection
from shared.wire.message_limits import ASKED_CAP, ASKED_LONGEST
from shared.wire.site_messages import LogView
from shared.wire.transport import Call

if TYPE_CHECKING:
    from starlette.requests import Request

    from coordinator.services.analysis import AnalysisService
    from coordinator.services.analysts import Analyst
    from coordinator.store.store import Store
    from coordinator.web.sign_in.device import DeviceSignIns

__all__ = ["Api", "connection_of"]

JSON = "application/json"
BEARER = "Bearer "
SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""Content security policy of a figure opened by itself: its lines have styles, and no script of it runs."""
_log = logging.getLogger("tributary.transport")
Endpoint = Callable[["Request"], Awaitable[Response]]


def connection_of(request: Request) -> GuardedConnection | None:
    """The connection of a request, where a door stands before the server."""
    return request.scope.get("state", {}).get("connection")


class Api:
    """HTTP interface below ``/v1``.

    Args:
        service: the analysts' service. store: the coordinator's store. today: gives the UTC date.
        places: threads that answer.
        limits: limits on the calls of one caller.
        device: sign-ins of programs without a browser.
        door: counts wrong tokens by address; None where no call comes from outside.
        observe: called with the decision on each call, on the loop's thread.
    """

    def __init__(
        self,
        service: AnalysisService,
        store: Store,
        *,
        today: Callable[[], dt.date],
        places: Places,
        limits: CallLimits,
        device: DeviceSignIns,
        door: Door | None = None,
        observe: Callable[[Decision], None] | None = None,
    ) -> None:
        self.service, self.places, self.jobs, self.derived = (
            service,
            places,
            Jobs(),
            DerivedDocuments(service, store, today),
        )
        self._device = device
        self._limits, self._door, self._observe = limits, door, observe or (lambda _: None)

    def routes(self) -> list[Route]:
        """The routes of the interface."""
        about_jobs = {"begin": self._begin, "job": self._job, "events": self._events, "cancel": self._cancel}
        routes = [
            Route(one.path, self._endpoint(one, functools.partial(self._answered, one)), methods=[one.verb])
            for one in OPERATIONS
        ]
        routes += [
            Route(one.path, self._endpoint(one, functools.partial(about_jobs[one.name], one)), methods=[one.verb])
            for one in JOBS
        ]
        for one, answer in zip(SIGN_IN, (self._sign_in, self._signed_in), strict=True):
            routes.append(Route(one.path, self._endpoint(one, functools.partial(answer, one)), methods=[one.verb]))
        return [
            *routes,
            Route(f"/{API}", self._version),
            Route(f"/{API}/openapi.json", self._openapi),
            Route(f"/{API}/problems/{{code}}", self._problem_kind),
        ]

    # -- one call -----------------------------------------------------------------------------------------------
    def _endpoint(self, one: Operation, answer: Callable[..., Awaitable[Response]]) -> Endpoint:
        """Endpoint of an operation: `answer` is called with the request and, where a token is required, the caller."""

        async def endpoint(request: Request) -> Response:
            connection, who = connection_of(request), None
            try:
                try:
                    protocol.require_common(list(request.headers.items()), protocol.SPOKEN)
                except NetworkRefusal as refusal:
                    return self._refused(refusal, None, one.name, connection, 400)
                if one.open:
                    if connection is not None:
                        connection.proved(f"address {connection.address}", named=False)
                    response = await answer(request)
                else:
                    who = await self.identified(request)
                    if connection is not None:
                        connection.proved(who.serial)
                    response = await answer(request, who)
            except Refusal as refusal:
                return self._refused(refusal, who, one.name, connection)
            except Exception as caught:
                _log.error("unexpected %s", type(caught).__name__)
                broken = Refusal("The coordinator could not answer", next_step="Ask the study lead to look at its log.")
                return self._refused(broken, who, one.name, connection)
            if connection is not None:
                connection.forgive()
            response.headers[protocol.PROTOCOL_KEY] = protocol.SPOKEN.text
            return response

        return endpoint

    def _refused(
        self,
        refusal: Refusal,
        who: Analyst | None,
        name: str,
        connection: GuardedConnection | None,
        status: int | None = None,
    ) -> Response:
        outside = who is None and isinstance(refusal, AccessRefusal)
        if who is None and self._door is not None and connection is not None:
            address = connection.address
            now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            line = f"{now} {address} {name} {refusal.code} -"
            self._door.log_refusal("refused", address, name, refusal.code, text=line)
            self._observe(Decision(method=name.capitalize(), code=refusal.code, seconds=0.0))
        if connection is not None and (who is None or isinstance(refusal, SchemaRefusal)):
            connection.strike()
        said = problem(refusal, 401 if outside else status)
        headers = {protocol.PROTOCOL_KEY: protocol.SPOKEN.text}
        if outside:
            headers["www-authenticate"] = 'Bearer realm="tributary"'
        if said["status"] in (429, 503):
            headers["retry-after"] = "5"
        return JSONResponse(said, status_code=said["status"], headers=headers, media_type=PROBLEM)

    async def identified(self, request: Request, token: str = "") -> Analyst:
        """Analyst of a request's token, within the rate limit. Raises: AccessRefusal, RateRefusal."""
        shown = request.headers.getlist("authorization")
        if not token and len(shown) == 1 and shown[0].startswith(BEARER):
            token = shown[0].removeprefix(BEARER)
        connection = connection_of(request)
        door = self._door
        known = door is None or connection is None or connection.named or door.may_guess(connection.address)
        if not known:
            raise RateRefusal(
                "an address must not show many wrong tokens", given="too many", next_step="Try again in a minute."
            )
        try:
            return await self.places.looked_up(functools.partial(self.service.identify, token))
        except AccessRefusal:
            if door is not None and connection is not None:
                door.guessed(connection.address)
            raise

    async def body(self, request: Request) -> bytes:
        """The body of a call. Raises: TooLarge, NetworkRefusal (not there in time)."""
        data = bytearray()

        async def read() -> None:
            async for part in request.stream():
                data.extend(part)
                if len(data) > ASKED_CAP:
                    raise TooLarge(f"a message must have at most {ASKED_CAP} bytes")

        try:
            await asyncio.wait_for(read(), self._limits.first)
        except TimeoutError:
            raise NetworkRefusal("a whole message must arrive in time", given="a part of one") from None
        return bytes(data)

    async def _read(self, one: Operation, request: Request) -> Any:
        body: Any = None
        if one.verb == "POST":
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != JSON:
                raise SchemaRefusal(f"the body must be {JSON}", given=repr(kind[:40]))
            body = parse_json(await self.body(request), cap=ASKED_CAP)
        query = dict(request.query_params)
        if len(query) != len(request.query_params.multi_items()):
            raise SchemaRefusal("a setting must be given once", given="one twice")
        return one.read(request.path_params, query, body)

    async def handled(self, request: Request | None, one: Operation, asked: Any, who: Analyst, **further: Any) -> Any:
        """Result of the service's handler of an operation; `Call.left` becomes true once the client has disconnected.

        Args:
            further: further fields of `Call`.
        """
        gone = threading.Event()
        call = Call(peer=who, **{"left": gone.is_set, **further})
        handler = getattr(self.derived if hasattr(self.derived, one.name) else self.service, one.name)
        watching = None if request is None else asyncio.create_task(_until_left(request, gone))
        begun, code = time.monotonic(), "ok"
        try:
            with self.places.room(who.serial) as caller:
                work = self.places.worked(caller, functools.partial(handler, call, asked))
                found = await asyncio.wait_for(work, ASKED_LONGEST + self._limits.idle)
                if isinstance(found, Iterator):
                    found = await self._first(caller, found)
            return found
        except Exception as error:
            code = error.code if isinstance(error, Refusal) else Refusal.code
            raise
        finally:
            gone.set()
            self._decided(call, one.name.capitalize(), code, time.monotonic() - begun)
            if watching is not None:
                watching.cancel()

    def _decided(self, call: Call, name: str, code: str, seconds: float) -> None:
        """Tell, and write, what became of a call that was worked on, as the other ports do."""
        site, digest = call.peer.site, call.digest[:12]
        said = {"peer": site, "method": name, "code": code, "digest": digest, "seconds": round(seconds, 4)}
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        _log.info("%s %s %s %s %s", now, site, name, code, digest or "-", extra={"call": said})
        self._observe(Decision(method=name, code=code, seconds=seconds))

    async def _first(self, caller: Any, parts: Iterator[Any]) -> AsyncIterator[bytes]:
        """A stream whose first part is there: what is refused is refused before it."""
        begun = await self.places.worked(caller, lambda: next(parts, None))

        async def rest() -> AsyncIterator[bytes]:
            part = begun
            try:
                while part is not None:
                    yield part.data
                    part = await self.places.worked(caller, lambda: next(parts, None))
            finally:
                await self.places.looked_up(parts.close)  # type: ignore[attr-defined]

        return rest()

    # -- operations ---------------------------------------------------------------------------------------------
    async def _answered(self, one: Operation, request: Request, who: Analyst) -> Response:
        asked = await self._read(one, request)
        found = await self.handled(request, one, asked, who)
        if one.stream:
            return self.file(request, found, (one.gives or {}).get(getattr(asked, "suffix", ""), one.reply))
        data = found.json if isinstance(found, Document) else canonical_json(_view(found))
        return Response(data, media_type=JSON)

    def file(self, request: Request, parts: AsyncIterator[bytes], kind: str) -> Response:
        """A file of this media type; a drawing in lines is compressed for who takes it so.

        Nothing else is: in a page or a document a secret stands beside texts of others, whose length would tell of it.
        """
        if kind != FILES["svg"]:
            return StreamingResponse(parts, media_type=kind)
        headers = {"content-security-policy": SVG_POLICY, "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"], parts = "gzip", _compressed(parts)
        return StreamingResponse(parts, media_type=kind, headers=headers)

    # -- getting a token ------------------------------------------------------------------------------------------
    async def _sign_in(self, one: Operation, request: Request) -> Response:
        await self._read(one, request)
        connection = connection_of(request)
        begun = await self._device.begin("" if connection is None else connection.address)
        return Response(canonical_json(begun), media_type=JSON)

    async def _signed_in(self, one: Operation, request: Request) -> Response:
        found = await self._device.ask((await self._read(one, request)).sign_in)
        if found is None:
            return Response(canonical_json({"state": "waiting"}), status_code=202, media_type=JSON)
        return Response(canonical_json(found), media_type=JSON)

    # -- jobs ---------------------------------------------------------------------------------------------------
    async def _begin(self, one: Operation, request: Request, who: Analyst) -> Response:
        asked = await self._read(one, request)
        job = self.begin(who, asked)
        return self._job_response(job, 202, {"location": f"/{API}/jobs/{job.id}"})

    def begin(self, who: Analyst, asked: Any) -> Job:
        """Begin a question as a job. Raises: RateRefusal."""
        query = next(one for one in OPERATIONS if one.name == "query")
        loop = asyncio.get_running_loop()

        async def work(job: Job) -> bytes:
            found = await self.handled(
                None,
                query,
                asked,
                who,
                left=job.gone.is_set,
                begun=lambda: loop.call_soon_threadsafe(job.become, "computing"),
            )
            return bytes(found.json)

        return self.jobs.begin(who, asked.study, work)

    async def _job(self, one: Operation, request: Request, who: Analyst) -> Response:
        return self._job_response(self.jobs.of(who, (await self._read(one, request)).job))

    async def _cancel(self, one: Operation, request: Request, who: Analyst) -> Response:
        job = self.jobs.of(who, (await self._read(one, request)).job)
        self.jobs.cancel(job)
        return self._job_response(job)

    def _job_response(self, job: Job, status: int = 200, headers: dict[str, str] | None = None) -> Response:
        return Response(canonical_json(said_of(job)), status_code=status, media_type=JSON, headers=headers)

    async def _events(self, one: Operation, request: Request, who: Analyst) -> Response:
        job = self.jobs.of(who, (await self._read(one, request)).job)
        return self.events(job)

    def events(self, job: Job) -> StreamingResponse:
        """A job's states as server-sent events."""

        async def lines() -> AsyncIterator[bytes]:
            async for state in self.jobs.watched(job):
                if not state:
                    yield b": nothing has changed\n\n"
                    continue
                said = {name: value for name, value in said_of(job).items() if name != "answer"}
                yield b"event: %s\ndata: %s\n\n" % (state.encode(), canonical_json(said))

        return StreamingResponse(lines(), media_type="text/event-stream")

    # -- about the interface ------------------------------------------------------------------------------------
    async def _version(self, request: Request) -> Response:
        said = {"api": API, "version": software_version(), "protocol": protocol.SPOKEN.text}
        return JSONResponse({**said, "openapi": f"/{API}/openapi.json"})

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(document())

    async def _problem_kind(self, request: Request) -> Response:
        with suppress(KeyError):
            return JSONResponse(problem_kind(request.path_params["code"]))
        return await self.unknown(request)

    async def unknown(self, request: Request, _: Exception | None = None) -> Response:
        """The answer at an address that there is none of."""
        refusal = UnknownMethod(
            f"the address must be one of version {API} of the interface",
            given=repr(request.url.path[:80]),
            next_step=f"See /{API}/openapi.json; a client of another version is to be updated.",
        )
        return self._refused(refusal, None, "unknown", connection_of(request))

    async def wrong_verb(self, request: Request, _: Exception | None = None) -> Response:
        """The answer to a verb that the address does not take, with those that it takes on any of its routes."""
        there = [one for one in request.app.routes if one.matches(request.scope)[0] is not Match.NONE]
        allowed = ", ".join(sorted({verb for one in there for verb in one.methods}))
        refusal = UsageRefusal(
            "the verb must be one that the address takes",
            given=repr(request.method[:20]),
            next_step=f"It takes {allowed}.",
        )
        response = self._refused(refusal, None, "unknown", connection_of(request), 405)
        response.headers["allow"] = allowed
        return response


def _view(view: LogView) -> dict[str, Any]:
    """The log as plain values: signed words as the text that they are, hashes as digits."""
    shown: dict[str, Any] = plain(view)
    shown["head"] = view.head.decode()
    for entry, one in zip(shown["entries"], view.entries, strict=True):
        entry["entry"] = one.entry.decode()
    for entry, back in zip(shown["restored"], view.restored, strict=True):
        entry["entry"]["entry"] = back.entry.entry.decode()
    return shown


def said_of(job: Job) -> dict[str, Any]:
    """A job as plain values, its answer with it once it is done."""
    said: dict[str, Any] = {"job": job.id, "study": job.study, "state": job.state, "seconds": job.seconds}
    if job.state == "done" and job.answer is not None:
        answer = parse_json(job.answer, cap=16 << 20)
        said |= {"result": answer["result"], "answer": answer}
    elif job.state in ENDED and job.refusal is not None:
        said["problem"] = problem(job.refusal)
    return said


async def _compressed(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same, as gzip has it."""
    press = zlib.compressobj(wbits=31)
    async for part in parts:
        yield press.compress(part)
    yield press.flush()


async def _until_left(request: Request, gone: threading.Event) -> None:
    """Set `gone` once the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
