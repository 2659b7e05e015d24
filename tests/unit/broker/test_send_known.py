"""Requests with one message of a known layout: read without protobuf, stored by the template of an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest
from google.protobuf.message import DecodeError

from aerobee_broker.config import LimitsConfig
from aerobee_broker.messages.message_mapping import to_store_message
from aerobee_broker.messages.wire_fields import read_varint, varint
from aerobee_broker.processors.sending import send_known
from aerobee_broker.processors.sending.send_known import SendKnown, SendReader
from aerobee_proto import v2
from aerobee_store import StoreConfig
from aerobee_store.records.properties import BORN_HOST
from aerobee_store.records.record import Draft
from tests.support.wire_messages import LIMITS, NOW, PEER, compressed, one_by_one, parse, read, records_of, request_of
from tests.unit.broker.test_send_alike import ODD, alike
from tests.unit.broker.test_send_alike import STAYS as STAYS_ALIKE


def refuse(data: bytes) -> NoReturn:
    raise AssertionError("read by protobuf")


def fresh(number: int) -> v2.Message:
    """A message as SDKs send it; all have one layout."""
    message = alike(number + 1)[number]
    message.system_properties.tag = "t"
    return message


def taught(*requests: bytes, property_crc: bool = True) -> SendReader:
    """A reader that knows the layouts of these requests, with their templates."""
    reader = SendReader()
    for data in requests:
        read(data, reader)
        records_of(read(data, reader), property_crc=property_crc)
    return reader


QUEUE = b"\x68\x05"  # the field queue_id, which Java's client sends
STAYS: dict[str, Callable[[v2.Message], object]] = {
    **STAYS_ALIKE,
    "trace": lambda message: setattr(message.system_properties, "trace_context", f"00-{message.body[0]:032}-01"),
    "namespace": lambda message: setattr(message.topic, "resource_namespace", "shop"),
    "queue": lambda message: message.system_properties.MergeFromString(QUEUE),
    "bytes as body": lambda message: setattr(message, "body", bytes(range(256)) * 3),
}


@pytest.mark.parametrize("property_crc", [True, False])
@pytest.mark.parametrize("change", STAYS)
def test_the_record_is_that_of_the_whole_message(change: str, property_crc: bool) -> None:
    first, second = fresh(1), fresh(2)
    for message in (first, second):
        STAYS[change](message)
    second.body += b"longer"
    reader = taught(request_of([first]), property_crc=property_crc)
    data = request_of([second])
    found = read(data, reader)
    assert isinstance(found, SendKnown)
    record = records_of(found, property_crc=property_crc)
    assert record == one_by_one(data, property_crc=property_crc)
    assert found.messages[0].layout.topic == second.topic
    assert found.otherwise() == parse(data)


def test_protobuf_reads_the_first_message_of_a_layout_only() -> None:
    reader = taught(request_of([fresh(1)]))
    found = read(request_of([fresh(2)]), reader, refuse)
    assert isinstance(found, SendKnown)
    assert [word.decode() for word in found.messages[0].words] == [f"01{2:030X}", "k0002", "all"]


def test_an_index_key_for_the_id_and_each_key() -> None:
    found = read(request_of([fresh(2)]), taught(request_of([fresh(1)])))
    assert isinstance(found, SendKnown)
    message = found.messages[0].templated("orders", 0, PEER, NOW, LIMITS, StoreConfig(directory=Path("unused")))
    assert message is not None
    assert message.index_keys == (f"01{2:030X}", "k0002", "all")


@pytest.mark.parametrize("change", sorted(ODD.keys() - {"group"}))
def test_unusual_messages_are_stored_as_the_whole_message_or_left_to_protobuf(change: str) -> None:
    """Whether an earlier message was usual, or unusual in the same way."""
    usual, odd = fresh(1), fresh(2)
    for message in (usual, odd):
        message.user_properties.pop("näme")
        message.system_properties.body_encoding = v2.Encoding.IDENTITY
    ODD[change](odd)
    data = request_of([odd])
    for reader in (taught(request_of([usual])), taught(data), taught(request_of([usual]), data, data)):
        found = records_of(read(data, reader))
        assert found is None or found == one_by_one(data)


def in_order(number: int, group: str = "group-1") -> v2.Message:
    message = fresh(number)
    message.system_properties.message_type = v2.MessageType.FIFO
    message.system_properties.message_group = group
    return message


def test_a_message_of_a_group() -> None:
    """The group is a property, but no key of the index."""
    found = read(request_of([in_order(2, "group-2")]), taught(request_of([in_order(1)])), refuse)
    assert isinstance(found, SendKnown)
    assert (found.messages[0].layout.kind, found.messages[0].message_group) == (v2.MessageType.FIFO, "group-2")
    made = found.messages[0].templated("orders", 3, PEER, NOW, LIMITS, StoreConfig(directory=Path("unused")))
    assert made is not None
    stored = to_store_message(in_order(2, "group-2"), "orders", 3, PEER, NOW)
    assert made.template.properties(made) == dict(stored.properties)
    assert made.index_keys == (f"01{2:030X}", "k0002", "all")


@pytest.mark.parametrize("group", ["group 1", "group-\x01", "gröup1", "       "])
def test_an_unusual_group_is_left_to_protobuf(group: str) -> None:
    assert len(group.encode()) == len("group-1")
    found = read(request_of([in_order(2, group)]), taught(request_of([in_order(1)])))
    assert isinstance(found, v2.SendMessageRequest)


def test_one_message_of_another_peer_has_its_host() -> None:
    """The address of the connection is in the record, and the host that the client names only if it differs."""
    first, second = fresh(1), fresh(2)
    for message in (first, second):
        message.system_properties.born_host = "10.7.7.7"
    reader = taught(request_of([first]))
    found = read(request_of([second]), reader)
    assert isinstance(found, SendKnown)
    store = StoreConfig(directory=Path("unused"))
    names = []
    for peer in (PEER, ("10.7.7.7", 1), ("::1", 7)):
        made = found.messages[0].templated("orders", 0, peer, NOW, LIMITS, store)
        assert made is not None
        assert made.born_host == peer
        draft = Draft(to_store_message(second, "orders", 0, peer, NOW), store_host=store.store_host, property_crc=True)
        assert made.template.encode(made, 1, 2, 3) == draft.encode(1, 2, 3)
        names.append(BORN_HOST in made.template.properties(made))
    assert names == [True, False, True]


def test_new_limits_hold_for_known_layouts() -> None:
    reader = taught(request_of([fresh(1)]))
    found = read(request_of([fresh(2)]), reader)
    assert records_of(found) is not None
    assert isinstance(found, SendKnown)
    limits, store = LimitsConfig(user_property_count_max=1), StoreConfig(directory=Path("x"))
    assert found.messages[0].templated("orders", 0, PEER, NOW, limits, store) is None


def test_a_number_of_another_size_is_left_to_protobuf() -> None:
    """The bytes of the nanoseconds may be several fields, of which protobuf takes the last."""
    first = fresh(1)
    first.system_properties.born_timestamp.nanos = 999_999_999
    data = request_of([first])
    number = varint(999_999_999)
    fields = b"\x05\x08\x07\x10\x09"
    assert data.count(number) == 1
    assert len(number) == len(fields)
    assert not isinstance(read(data.replace(number, fields), taught(data)), SendKnown)


def test_an_empty_body_is_left_to_protobuf() -> None:
    first = fresh(1)
    first.body = b"b"
    usual = request_of([first])
    assert usual.endswith(b"\x22\x01b")
    size, begin = read_varint(usual, 1)
    empty = usual[:1] + varint(size - 1) + usual[begin:-2] + b"\x00"
    assert parse(empty).messages[0].system_properties == first.system_properties
    assert not isinstance(read(empty, taught(usual)), SendKnown)


def test_sizes_of_six_bytes_are_left_to_protobuf() -> None:
    """It refuses them, so they must be refused with any layout."""
    usual = request_of([fresh(1)])
    reader = taught(usual)
    size, begin = read_varint(usual, 1)
    body = usual.index(b"\x22\x14" + b"\x01" * 20)
    message = usual[begin : body + 1] + b"\x94\x80\x80\x80\x80\x00" + usual[body + 2 :]
    for data in (b"\x0a" + varint(len(message)) + message, usual[:1] + _in_six_bytes(size) + usual[begin:]):
        with pytest.raises(DecodeError):
            parse(data)
        assert read(data, reader, lambda data: v2.SendMessageRequest()) in (None, v2.SendMessageRequest())


def _in_six_bytes(number: int) -> bytes:
    return bytes((number >> 7 * place & 0x7F) | 0x80 for place in range(5)) + b"\x00"


def test_the_queue_that_a_client_names_may_differ() -> None:
    """Java's client names one; the broker chooses itself."""
    first, second = fresh(1), fresh(2)
    first.system_properties.queue_id, second.system_properties.queue_id = 3, 7
    data = request_of([second])
    assert records_of(read(data, taught(request_of([first])), refuse)) == one_by_one(data)


def test_messages_with_very_many_fields_have_no_layout() -> None:
    """A layout's memory is bounded by the number of its fields."""
    message = fresh(1)
    message.system_properties.keys.extend(f"k{number}" for number in range(send_known._FIELDS_MAX))
    assert isinstance(read(request_of([message]), taught(request_of([message]))), v2.SendMessageRequest)


def test_clients_at_many_addresses_share_a_template() -> None:
    found = read(request_of([fresh(2)]), taught(request_of([fresh(1)])), refuse)
    assert isinstance(found, SendKnown)
    store = StoreConfig(directory=Path("unused"), body_size_max=1000)
    templates = set()
    for number in range(20):
        made = found.messages[0].templated("orders", 0, (f"10.0.0.{number}", 1), NOW, LIMITS, store)
        assert made is not None
        templates.add(id(made.template))
    assert len(templates) == 1


def test_sizes_must_cover_the_whole_request() -> None:
    """A wrong size of the body or of the message is left to protobuf."""
    usual = request_of([fresh(1)])
    reader = taught(usual)
    body = usual.index(b"\x22\x14" + b"\x01" * 20)
    for data in (usual + b"\x01", usual[:-1], usual[: body + 1] + b"\x13" + usual[body + 2 :], usual[: body + 1]):
        found = read(data, reader, lambda data: v2.SendMessageRequest())
        assert not isinstance(found, SendKnown)
        begin = data[:1] + varint(len(data) - 3) + data[3:]
        assert not isinstance(read(begin, reader, lambda data: v2.SendMessageRequest()), SendKnown) or begin == data


def test_known_layouts_are_bounded() -> None:
    """Neither topics, nor constants, nor sizes that all differ make the reader grow."""
    reader = SendReader()
    for number in range(5000):
        message = fresh(0)
        message.topic.name = f"topic{number % 1200}"
        message.system_properties.tag = f"tag{number}"
        message.system_properties.message_id = "i" * (number % 50 + 1)
        read(request_of([message]), reader)
    geometries = [geometry for known in reader._known.values() for geometry in known]
    assert sum(len(geometry.layouts) for geometry in geometries) == reader._layout_count
    assert len(reader._known) <= reader._layout_count <= send_known._LAYOUTS_IN_ALL


@pytest.mark.parametrize("kind", ["tag", "topic", "size"])
def test_layouts_that_all_differ_are_not_all_learned(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """To learn costs more than to read, so only some are, whatever the messages differ in."""
    layout_of = Mock(side_effect=send_known._layout_of)
    monkeypatch.setattr(send_known, "_layout_of", layout_of)
    reader = SendReader()
    for number in range(800):
        message = fresh(0)
        if kind == "tag":
            message.system_properties.tag = f"tag{number:04}"
        elif kind == "topic":
            message.topic.name = f"topic{number}"
        else:
            message.system_properties.message_id = "i" * (number + 1)
        read(request_of([message]), reader)
    assert layout_of.call_count <= (800 + send_known._CREDIT_MAX) // send_known._LEARNING_COST


def test_new_layouts_replace_the_oldest() -> None:
    """Those of the topics that were known first."""
    reader = SendReader()
    requests = []
    for number in range(send_known._LAYOUTS_IN_ALL + 20):
        message = fresh(0)
        message.topic.name = f"topic{number}"
        requests.append(request_of([message]))
        for _ in range(send_known._LEARNING_COST):
            read(requests[-1], reader)
    known = [isinstance(read(data, reader), SendKnown) for data in (requests[-1], requests[20], requests[19])]
    assert known == [True, True, False]


def test_a_layout_beside_many_known_ones_is_learned_at_once() -> None:
    """Producers of one topic, each with its own host."""
    reader = SendReader()
    for producer in range(40):
        message = fresh(0)
        message.system_properties.born_host = f"10.0.0.{producer:02}"
        for _ in range(send_known._LEARNING_COST):
            read(request_of([message]), reader)
        assert isinstance(read(request_of([message]), reader, refuse), SendKnown)
    for producer in range(40):
        message = fresh(1)
        message.system_properties.born_host = f"10.0.0.{producer:02}"
        assert isinstance(read(request_of([message]), reader, refuse), SendKnown)


def test_a_layout_that_no_template_can_store_is_left_to_protobuf() -> None:
    message = fresh(1)
    message.system_properties.message_type = v2.MessageType.TRANSACTION
    data = request_of([message])
    reader = taught(data)
    assert records_of(read(data, reader)) is None
    assert isinstance(read(data, reader), v2.SendMessageRequest)


def test_a_body_that_is_not_compressed_after_others() -> None:
    """The template's first message was checked as a whole; the bodies of later ones, too."""
    first, later = fresh(1), fresh(2)
    compressed(first)
    compressed(later)
    reader = taught(request_of([first]))
    assert records_of(read(request_of([later]), reader)) is not None
    later.body = b"xx" + later.body[2:]
    assert isinstance(read(request_of([later]), reader), SendKnown)
    assert records_of(read(request_of([later]), reader)) is None
