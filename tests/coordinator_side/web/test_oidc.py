"""Sign-in by a provider: the certified oidc-provider of npm, run here, and tokens that must not be believed."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import httpx
import pytest
from stage.browser.oidc import (
    provider,  # noqa: F401
    signed_in,
)
from stage.browser.web_stage import WEB, web_stage
from stage.coordinator_side.doors import installed, lacking
from stage.processes.ports import free_port

from coordinator.analyst.access import sign_in
from coordinator.analyst.remote import connect
from coordinator.store import schema as db
from coordinator.store.store import Store
from coordinator.web.sign_in.device import DeviceSignIns
from coordinator.web.sign_in.kept import SignInStore
from coordinator.web.sign_in.provider import BEGUN, Person, Provider
from coordinator.web.sign_in.sessions import COOKIE, IDLE, OF_ONE, UNCONFIRMED, Sessions
from shared.errors import AccessRefusal, NetworkRefusal, RateRefusal, StateRefusal


def some_store() -> SignInStore:
    return SignInStore(Store.open(Path(tempfile.mkdtemp(prefix="tributary-oidc-"))))


def made(provider, **settings) -> Provider:
    given = {"client_id": "tributary", "client_secret": "tributary-secret", "kept": some_store(), **settings}
    return Provider(issuer=provider[0], redirect=provider[1], **given)


def begun(asked: Provider, who: str = "analyst:cvd") -> tuple[str, dict[str, str]]:
    cookie, place = asyncio.run(asked.begin())
    return cookie, signed_in(place, who)


@pytest.fixture(scope="module")
def token(provider):
    """(an ID token of the provider, its keys, its nonce)."""
    asked, kept = made(provider), {}
    fetched = asked._fetched

    async def keeping(url, form=None):
        found = await fetched(url, form)
        kept["token" if form is not None else "keys"] = found
        return found

    asked._fetched = keeping
    cookie, given = begun(asked)
    nonce = asked._kept.find("begun", cookie).content["nonce"]
    asyncio.run(asked.finish(cookie, given))
    return kept["token"]["id_token"], kept["keys"], nonce


def test_whoever_signs_in_has_the_role_and_the_studies_that_the_provider_says(provider):
    asked = made(provider)
    found = asyncio.run(asked.finish(*begun(asked, "lead:cvd")))
    assert (found.name, found.role, found.studies) == ("lead.cvd", "lead", ("cvd",))
    assert found.until > time.time()


def test_a_sign_in_is_good_once_and_in_its_own_browser(provider):
    asked = made(provider)
    cookie, given = begun(asked)
    with pytest.raises(AccessRefusal, match="this browser began"):
        asyncio.run(asked.finish("another browser", given))
    asyncio.run(asked.finish(cookie, given))
    with pytest.raises(AccessRefusal, match="once"):
        asyncio.run(asked.finish(cookie, given))
    other, _ = asyncio.run(asked.begin())
    with pytest.raises(AccessRefusal, match="once"):
        asyncio.run(asked.finish(other, given))


def test_a_sign_in_that_was_begun_long_ago_or_refused_or_mixed_up_gives_nothing(provider):
    now = [time.time()]
    asked = made(provider, now=lambda: now[0])
    cookie, given = begun(asked)
    now[0] += 601
    with pytest.raises(AccessRefusal, match="a moment ago"):
        asyncio.run(asked.finish(cookie, given))
    for changed in ({"error": "access_denied"}, {"iss": "https://elsewhere.org"}, {"code": "invented"}):
        asked = made(provider)
        cookie, place = asyncio.run(asked.begin())
        answer = {"state": dict(httpx.URL(place).params)["state"], "code": "x", **changed}
        with pytest.raises(AccessRefusal):
            asyncio.run(asked.finish(cookie, answer))


def test_a_role_that_nobody_knows_lets_nobody_in(provider):
    asked = made(provider)
    with pytest.raises(AccessRefusal, match="one role"):
        asyncio.run(asked.finish(*begun(asked, "admin:cvd")))


@pytest.mark.parametrize(("seconds", "good"), [(0, True), (-50, True), (-120, False), (3640, True), (3700, False)])
def test_a_token_counts_between_its_times_with_a_minute_for_clocks_that_differ(provider, token, seconds, good):
    claims = json.loads(base64.urlsafe_b64decode(token[0].split(".")[1] + "=="))
    assert claims["exp"] - claims["iat"] == 3600
    asked = made(provider, now=lambda: claims["iat"] + seconds)
    if good:
        assert asked._person(*token).role == "analyst"
    else:
        with pytest.raises(AccessRefusal, match="token must be right"):
            asked._person(*token)


def test_a_token_for_another_client_nonce_or_key_is_not_believed(provider, token):
    signed, keys, nonce = token
    for asked, given in (
        (made(provider, client_id="another"), (signed, keys, nonce)),
        (made(provider), (signed, keys, "another")),
        (made(provider), (signed[:-8] + "AAAAAAAA", keys, nonce)),
        (made(provider), (signed, {"keys": []}, nonce)),
        (made(provider), (None, keys, nonce)),
        (made(("https://elsewhere.org", provider[1])), (signed, keys, nonce)),
    ):
        with pytest.raises(AccessRefusal):
            asked._person(*given)
    head, body, _ = signed.split(".")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    with pytest.raises(AccessRefusal):
        made(provider)._person(f"{unsigned}.{body}.", keys, nonce)
    assert head


def test_a_provider_that_is_not_there_or_names_itself_otherwise_is_said_so(provider):
    with pytest.raises(NetworkRefusal, match="must answer"):
        asyncio.run(made((f"http://127.0.0.1:{free_port()}", provider[1])).begin())
    with pytest.raises(NetworkRefusal, match="name itself"):
        asyncio.run(made((f"{provider[0]}/", provider[1])).begin())


# -- whether it still holds ---------------------------------------------------------------------------------------
def taken_back(provider, *tokens: str) -> None:
    """Revoke tokens at the provider, as whoever closes an account there does."""
    for token in tokens:
        form = {"token": token, "client_id": "tributary"}
        done = httpx.post(f"{provider[0]}/token/revocation", data=form, auth=("tributary", "tributary-secret"))
        assert done.status_code == 200


def test_a_sign_in_that_the_provider_takes_back_ends_at_the_next_question_to_it(provider):
    asked, sessions = made(provider), Sessions(some_store())
    found = asyncio.run(asked.finish(*begun(asked)))
    cookie = sessions.enter(found.name, found.role, "", found)
    assert found.access not in repr(found)
    asyncio.run(sessions.confirm(asked.confirmed))
    assert sessions.find(cookie) is not None
    taken_back(provider, found.access, found.refresh)
    asyncio.run(sessions.confirm(asked.confirmed))
    assert sessions.find(cookie) is None


def test_without_introspection_userinfo_is_asked_and_an_access_token_that_ended_is_renewed(provider):
    asked = made(provider)
    found = asyncio.run(asked.finish(*begun(asked)))
    asked._known = {name: place for name, place in asked._known.items() if name != "introspection_endpoint"}
    assert asyncio.run(asked.confirmed(found)) is found
    renewed = asyncio.run(asked.confirmed(dataclasses.replace(found, access="one that ended")))
    assert renewed.access not in ("", found.access)
    assert (renewed.serial, renewed.role, renewed.studies) == (found.serial, found.role, found.studies)
    taken_back(provider, renewed.access)
    with pytest.raises(AccessRefusal, match="still know"):
        asyncio.run(asked.confirmed(dataclasses.replace(renewed, refresh="")))
    with pytest.raises(AccessRefusal, match="let you in"):
        asyncio.run(asked.confirmed(dataclasses.replace(renewed, until=0.0, refresh="invented")))


def test_a_session_that_the_provider_cannot_be_asked_about_is_believed_for_five_minutes(provider):
    now = [0.0]
    sessions, away = Sessions(some_store(), lambda: now[0]), made((f"http://127.0.0.1:{free_port()}", provider[1]))
    found = Person(serial="1", name="ada", role="analyst", studies=("cvd",), until=time.time() + 999, access="x")
    cookie = sessions.enter("ada", "analyst", "", found)
    now[0] = UNCONFIRMED
    asyncio.run(sessions.confirm(away.confirmed))
    assert sessions.find(cookie) is not None
    now[0] += 1
    assert sessions.find(cookie) is None

    async def confirmed(person):
        return person

    asyncio.run(sessions.confirm(confirmed))
    assert sessions.find(cookie) is not None


# -- several processes --------------------------------------------------------------------------------------------
@pytest.fixture(params=["sqlite", "postgresql"])
def two(request, tmp_path):
    """What two processes that serve one coordinator have of its sign-ins."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").database(f"signed{abs(hash(tmp_path)):x}")
    stores = [Store(url, tmp_path) for _ in range(2)]
    yield [SignInStore(one) for one in stores]
    for one in stores:
        one.close()


def test_a_sign_in_holds_at_every_process_and_what_ends_it_at_one_ends_it_at_all(two):
    now = [time.time()]
    one, other = (Sessions(kept, lambda: now[0]) for kept in two)
    cookie = one.enter("ada", "analyst", "t0ken")
    found = other.find(cookie)
    assert (found.name, found.role, found.token, found.csrf) == ("ada", "analyst", "t0ken", one.find(cookie).csrf)
    now[0] += IDLE - 1
    assert other.find(cookie), "a page at one process keeps it from ending at the other"
    now[0] += IDLE - 1
    assert one.find(cookie)
    other.leave(cookie)
    assert one.find(cookie) is None
    cookie = other.enter("ada", "analyst", "t0ken", program=True)
    assert one.find(cookie) is None
    assert one.find(cookie, program=True).token == "t0ken"
    others = [(one, other)[k % 2].enter("ada", "analyst", "t") for k in range(OF_ONE + 1)]
    assert one.find(others[0]) is None
    assert all(other.find(cookie) for cookie in others[1:])


def test_who_is_asked_about_is_asked_about_by_one_process_and_the_answer_counts_for_all(two):
    now, asked = [1000.0], []
    one, other = (Sessions(kept, lambda: now[0]) for kept in two)
    ada = Person(serial="1", name="ada", role="analyst", studies=("cvd",), until=time.time() + 999, refresh="first")
    cookie = one.enter("ada", "analyst", "", ada)
    assert other.find(cookie).person == ada

    async def renewed(person):
        asked.append(person.refresh)
        await other.confirm(never, since=30)  # while this one waits for the provider
        return dataclasses.replace(person, role="lead", refresh="second")

    async def never(person):
        raise AssertionError("a refresh token would be used twice")

    now[0] += 60
    asyncio.run(one.confirm(renewed, since=30))
    asyncio.run(other.confirm(never, since=30))
    assert asked == ["first"]
    assert (other.find(cookie).role, other.find(cookie).person.refresh) == ("lead", "second")

    async def gone(person):
        raise AccessRefusal("the provider must still know the sign-in", given="one that it took back")

    now[0] += 60
    asyncio.run(other.confirm(gone, since=30))
    assert one.find(cookie) is None


def test_nobody_who_reads_the_database_can_sign_in_or_learn_a_secret(two):
    kept, other = two
    sessions = Sessions(kept)
    ada = Person(serial="1", name="ada", role="analyst", studies=("cvd",), until=time.time() + 999, access="acc-3ss")
    cookies = [sessions.enter("ada", "analyst", "t0ken-3", who) for who in (None, ada)]
    rows = other._store.read(lambda c: c.execute(db.sign_ins.select()).all())
    assert len(rows) == 2
    for row in rows:
        held = repr(tuple(row)).encode() + bytes(row.sealed)
        for secret in (*cookies, "t0ken-3", "acc-3ss", sessions.find(cookies[0]).csrf):
            assert secret.encode() not in held
        assert sessions.find(row.place) is None
    # What somebody wrote there without the cookie opens nothing.
    swapped = {rows[0].place: rows[1].sealed, rows[1].place: rows[0].sealed}
    for place, sealed in swapped.items():
        other._store.write(
            lambda c, place=place, sealed=sealed: c.execute(
                db.sign_ins.update().where(db.sign_ins.c.place == place).values(sealed=sealed)
            )
        )
    assert [sessions.find(cookie) for cookie in cookies] == [None, None]


def test_a_sign_in_may_begin_at_one_process_and_end_at_the_other_once(provider, two):
    here, there = (made(provider, kept=kept) for kept in two)
    cookie, given = begun(here)
    assert asyncio.run(there.finish(cookie, given)).name == "analyst.cvd"
    with pytest.raises(AccessRefusal, match="once"):
        asyncio.run(here.finish(cookie, given))
    now = [time.time()]
    devices = [
        DeviceSignIns(asked, Sessions(kept), dict, kept, lambda: now[0])
        for asked, kept in zip((here, there), two, strict=True)
    ]
    begun_there = asyncio.run(devices[1].begin("10.0.0.1"))
    signed_in(begun_there["verification_uri_complete"], "analyst:cvd")
    given = asyncio.run(devices[0].ask(begun_there["sign_in"]))
    assert Sessions(two[1]).find(given["token"], program=True).person.name == "analyst.cvd"


# -- without a browser --------------------------------------------------------------------------------------------
def test_a_program_waits_while_a_person_signs_in_elsewhere_and_its_token_is_a_session(provider):
    now = [0.0]
    asked, sessions = made(provider), Sessions(some_store())
    house = {"address": "hub:1", "server_name": "hub", "ca_pem": "", "witness": ""}
    device = DeviceSignIns(asked, sessions, lambda: house, some_store(), lambda: now[0])
    begun = asyncio.run(device.begin("10.0.0.1"))
    assert asyncio.run(device.ask(begun["sign_in"])) is None
    signed_in(begun["verification_uri_complete"], "analyst:cvd")
    assert asyncio.run(device.ask(begun["sign_in"])) is None, "the provider is asked no more often than it says"
    now[0] += begun["interval"]
    given = asyncio.run(device.ask(begun["sign_in"]))
    assert (given["name"], given["role"], given["studies"]) == ("analyst.cvd", "analyst", ["cvd"])
    assert sessions.find(given["token"], program=True)
    with pytest.raises(AccessRefusal, match="one that waits"):
        asyncio.run(device.ask(begun["sign_in"]))
    for _ in range(8):
        begun = asyncio.run(device.begin("10.0.0.1"))
    with pytest.raises(RateRefusal):
        asyncio.run(device.begin("10.0.0.1"))
    now[0] += begun["expires_in"] + 1
    with pytest.raises(AccessRefusal, match="one that waits"):
        asyncio.run(device.ask(begun["sign_in"]))
    with pytest.raises(StateRefusal, match="must know a provider"):
        asyncio.run(DeviceSignIns(None, sessions, dict, some_store()).begin(""))


def from_r(url, ca, person, library) -> str:
    """What R is that waits while the person signs in elsewhere: name, role, studies."""
    library.mkdir()
    installed(library)
    script = f"""say <- function(text) {{ cat(text, "\\n"); flush(stdout()) }}
    hub <- tributarymeta::sign_in({url!r}, ca = {f"{ca}"!r}, say = say)
    cat(hub$analyst, hub$role, tributarymeta::studies(hub)$study, sep = ", ")"""
    given = {**os.environ, "R_LIBS": f"{library}", "LC_ALL": "C.UTF-8"}
    with subprocess.Popen(["Rscript", "-e", script], env=given, stdout=subprocess.PIPE, text=True) as session:
        line = session.stdout.readline()
        assert "and sign in there. The code is " in line
        person(line)
        return session.stdout.read()


def test_a_browser_that_signed_in_reads_what_its_role_may_and_nothing_else(provider, tmp_path):
    address = provider[1].removeprefix("https://").partition("/")[0]
    (tmp_path / "secret").write_text("tributary-secret\n")
    web = {**WEB, "listen": address, "address": address, "issuer": provider[0], "client_id": "tributary"}
    web |= {
        "client_secret": f"{tmp_path / 'secret'}",
        "role_claim": "tributary_role",
        "studies_claim": "tributary_studies",
    }
    stage = web_stage(tmp_path / "hub").start(web=web)
    try:
        with stage.web() as client:
            assert "Sign in with your hospital" in client.get("/sign-in").text
            away = client.get("/sign-in/away")
            assert f"{BEGUN}=" in away.headers["set-cookie"]
            given = signed_in(away.headers["location"], "reader:cvd")
            back = client.get("/sign-in/back", params=given)
            assert back.status_code == 200
            assert f"{COOKIE}=" in back.headers["set-cookie"]
            page = client.get("/studies/cvd/ask")
            assert page.status_code == 200
            assert client.get("/studies/lungs").status_code == 403
            form = {"csrf": re.search(r'name="csrf" value="([^"]+)"', page.text)[1], "formula": "adjusted"}
            assert "E_ROLE" in client.post("/studies/cvd/ask", data={**form, "planned": "adjusted"}).text
            assert client.get("/sign-in/back", params=given).status_code == 401
            # From a notebook: one sign-in, good on both ports and no cookie.
            ca, told = tmp_path / "ca.pem", []
            ca.write_text(stage.authority.ca_pem)

            def person(line):
                told.append(line)
                signed_in(re.search(r"http\S+", line)[0], "analyst:cvd")

            given = sign_in.signed_in(stage.url, ca=ca, say=person)
            with connect(given) as connection:
                assert (len(told), list(connection), connection.followed is not None) == (1, ["cvd"], True)
                assert connection["cvd"].planned("adjusted").document["k"] == 3
            with stage.web(given.token) as program:
                assert program.get("/v1/studies").json()["analyst"] == "analyst.cvd"
            if not lacking():
                assert from_r(stage.url, ca, person, tmp_path / "library") == "analyst.cvd, analyst, cvd"
            client.cookies.set(COOKIE, given.token)
            assert client.get("/").status_code == 303
    finally:
        stage.running.stop(0.2)
        stage.store.close()
