"""The wire is closed: every message survives the round trip, and nothing unknown gets in."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys

import pytest
from stage.both_sides.wire_values import ACCEPTED, APART, DIGEST, KEPT, VALUES

from shared.base.canonical import canonical_json
from shared.base.keys import SigningKey
from shared.errors import SchemaRefusal
from shared.proto import collection_pb2 as pb
from shared.proto.generate import generated
from shared.wire import messages as wire
from shared.wire import site_messages
from shared.wire.messages import decode, encode
from shared.wire.signed_messages import AnchorHead, EnrolmentRequest
from shared.wire.site_messages import (
    AnchorReceipt,
    Chunk,
    Enrolment,
    Offered,
    OfferRequest,
    SignedDocument,
    StudyRequest,
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_every_message_survives_the_round_trip(value):
    data = encode(value)
    assert decode(type(value), data) == value
    assert encode(decode(type(value), data)) == data


def test_every_message_of_the_service_is_in_the_round_trip():
    used = {kind for method in wire.COLLECTION.values() for kind in (method.request, method.reply)}
    assert used == {type(value) for value in VALUES}


def test_the_methods_are_those_of_the_proto_file():
    service = pb.DESCRIPTOR.services_by_name["Collection"]
    assert service.full_name == wire.SERVICE
    assert set(service.methods_by_name) == set(wire.COLLECTION)
    for name, method in wire.COLLECTION.items():
        described = service.methods_by_name[name]
        assert (described.client_streaming, described.server_streaming) == (method.stream, False)
        for kind, message in ((method.request, described.input_type), (method.reply, described.output_type)):
            assert wire._MESSAGES[kind].DESCRIPTOR is message


def test_no_method_lets_the_coordinator_start_work_or_send_code():
    """The service's methods are known one by one; a new one must be argued for here."""
    assert set(wire.COLLECTION) == {
        "Enrol",
        "FetchPlan",
        "Anchor",
        "Offer",
        "Upload",
        "Status",
        "Withdraw",
        "Growth",
        "RevokeStanding",
        # The site's own next certificate, and words of the authority that a site checks before it believes them.
        "Renew",
        "Authorities",
        # Reads of the coordinator's log, and a report of what the coordinator itself had signed.
        "Watch",
        "ReportGap",
        # Asked and answered by a site whose people approved the training, every round of it charged before the first;
        # what comes is numbers for the flow that the plan describes.
        "NextRound",
        "UploadRound",
        # What a clock says, signed, for what the site's says.
        "Clock",
        # The largest release that is taken, for a site to know before it charges one.
        "Limits",
        # Who takes part: signed statements of site and leads, each exchanged for the others'.
        "Membership",
    }


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_field_that_nobody_reads_is_refused(value):
    unknown = b"\xfa\x07\x04abcd"  # field 127, four bytes
    with pytest.raises(SchemaRefusal, match="known fields"):
        decode(type(value), encode(value) + unknown)


def test_a_field_that_nobody_reads_is_refused_inside_a_message_too():
    inner = pb.AcceptanceReply.FromString(encode(ACCEPTED) + b"\xfa\x07\x04abcd")
    with pytest.raises(SchemaRefusal, match="known fields"):
        decode(Offered, pb.OfferReply(acceptance=inner).SerializeToString())


@pytest.mark.parametrize("kind", [Enrolment, Offered], ids=lambda kind: kind.__name__)
def test_an_answer_without_an_outcome_is_refused(kind):
    with pytest.raises(SchemaRefusal):
        decode(kind, b"")


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_no_truncation_of_a_message_is_anything_but_a_refusal_or_a_message(value):
    data = encode(value)
    for cut in range(len(data)):
        with contextlib.suppress(SchemaRefusal):
            assert isinstance(decode(type(value), data[:cut]), type(value))


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (StudyRequest(study="heart"), {"study": "../heart"}),
        (StudyRequest(study="heart"), {"study": ""}),
        (site_messages.RoundRequest(study="heart"), {"flow": "../heart"}),
        (ACCEPTED, {"bundle_sha256": DIGEST[:-1]}),
        (ACCEPTED, {"log_root": DIGEST.upper()}),
        (ACCEPTED, {"accepted_day": "yesterday"}),
        (ACCEPTED, {"wave": 0}),
        (ACCEPTED, {"log_index": -1}),
        (Offered(), {"offset": 5, "acceptance": ACCEPTED}),
        (Chunk(bundle_sha256=DIGEST, offset=0, data=b"x"), {"data": b""}),
        (Chunk(bundle_sha256=DIGEST, offset=0, data=b"x"), {"data": bytes((1 << 20) + 1)}),
        (Chunk(bundle_sha256=DIGEST, offset=0, data=b"x"), {"bundle_sha256": "x"}),
        (KEPT, {"log_index": None}),
        (APART, {"code": "E_MADE_UP"}),
        (APART, {"state": "withdrawn"}),
        (Enrolment(state="pending", fingerprint="x"), {"certificate_pem": "y"}),
        (Enrolment(state="pending", fingerprint="x"), {"state": "maybe"}),
        (AnchorReceipt(seq=0, head=DIGEST, index=0), {"head": "0"}),
        (SignedDocument(envelope=b"x"), {"envelope": bytes((4 << 20) + 1)}),
        (OfferRequest(envelope=b"x"), {"envelope": b""}),
        (OfferRequest(envelope=b"x"), {"standing": b""}),
    ],
)
def test_an_impossible_value_is_refused_when_it_is_made(value, change):
    with pytest.raises(SchemaRefusal):
        dataclasses.replace(value, **change)


def test_secrets_do_not_stand_in_a_text_form():
    assert "t" * 43 not in repr(VALUES[0])
    assert "PEM" not in repr(VALUES[2])


@pytest.mark.parametrize(
    "body",
    [
        {"seq": True},
        {"seq": -1},
        {"seq": 2},
        {"seq": "1"},
        {"after": 1},
        {"after": -1},
        {"after": 2},
        {"after": False},
        {"site": "no/rth"},
        {"head": "x"},
        {"head": 1},
        {"links": []},
        {"links": [DIGEST, DIGEST]},
        {"links": [DIGEST.upper()]},
        {"links": [7]},
        {"links": None},
        {"more": 1},
    ],
)
def test_an_anchor_has_exactly_its_five_fields_and_a_link_per_entry(body):
    good = {"site": "north", "seq": 1, "head": DIGEST, "after": 0, "links": [DIGEST]}
    read = AnchorHead.from_bytes(canonical_json(good))
    assert read == AnchorHead(site="north", seq=1, head=DIGEST, after=0, links=(DIGEST,))
    assert AnchorHead.from_bytes(read.to_bytes()) == read
    with pytest.raises(SchemaRefusal):
        AnchorHead.from_bytes(canonical_json({**good, **body}))
    for name in good:
        with pytest.raises(SchemaRefusal):
            AnchorHead.from_bytes(canonical_json({key: value for key, value in good.items() if key != name}))
    with pytest.raises(SchemaRefusal):
        AnchorHead.from_bytes(b"[]")


def test_an_enrolment_names_different_keys_only():
    release, steward = SigningKey.generate().public, SigningKey.generate().public
    good = EnrolmentRequest(site="north", csr_pem="x", release_key=release, approvers={"steward": steward})
    assert EnrolmentRequest.from_bytes(canonical_json(good.to_canonical())) == good
    for approvers in ({}, {"steward": release}, {"one": steward, "two": steward}, {"": steward}):
        with pytest.raises(SchemaRefusal):
            dataclasses.replace(good, approvers=approvers)
    for body in ([], {}, {**good.to_canonical(), "role": "admin"}, {**good.to_canonical(), "approvers": {"a": 1}}):
        with pytest.raises(SchemaRefusal):
            EnrolmentRequest.from_bytes(canonical_json(body))


def test_the_committed_generated_code_is_not_stale():
    pytest.importorskip("grpc_tools")
    for path, text in generated().items():
        assert path.read_text() == text, f"{path.name} is stale: run make proto"
    command = [sys.executable, "-m", "shared.proto.generate", "--check"]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize("token", ["", "t" * 257, "schlüssel"])
def test_an_enrolment_carries_a_short_token(token):
    with pytest.raises(SchemaRefusal, match="a token must be short text"):
        site_messages.EnrolRequest(token=token, envelope=b"{}")
