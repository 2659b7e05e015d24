"""Items 94 to 97: accounts and signatures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.config import AuthConfig
from aerobee_broker.errors import UnauthorizedError
from aerobee_broker.remoting.permissions import Permissions
from aerobee_broker.remoting_wire.codes import Answer, Request
from aerobee_broker.remoting_wire.frame import Command, FrameReader
from aerobee_store import MessageStore, StoreConfig
from aerobee_store.tables.java_json import dumps
from tests.support import golden_remoting
from tests.support.accounts_file import write_accounts
from tests.support.remoting_client import (
    RemotingClient,
    heartbeat_body,
    pull_fields,
    remoting_broker,
    send_fields,
    signed,
)

_ACCOUNTS = """
[accounts.shop]
secret_key = "shop-secret"
publish = ["Orders"]
[accounts.billing]
secret_key = "billing-secret"
consume = ["Orders"]
groups = ["Billing"]
producer_groups = ["Billing_producer"]
[accounts.operator]
secret_key = "operator-secret"
admin = true
"""


@pytest.fixture
async def signing(tmp_path: Path) -> AsyncIterator[RemotingClient]:
    """A connection to a broker with accounts."""
    accounts = write_accounts(tmp_path / "accounts.toml", _ACCOUNTS)
    async with remoting_broker(tmp_path / "store", auth=AuthConfig(accounts=accounts)) as (_, client):
        yield client


async def test_c094_golden_signatures(tmp_path: Path) -> None:
    """Signatures of Java clients are accepted; with another body, field or key they are not."""
    text = '[accounts.AKtest]\nsecret_key = "SKsecret123"\nadmin = true\n'
    file = write_accounts(tmp_path / "accounts.toml", text)
    store = MessageStore.open(StoreConfig.tiny(tmp_path / "store"))
    permissions = Permissions(Accounts(file), store, lambda client_id: None)
    count = 0
    for golden in golden_remoting.frames():
        if not golden.is_signed or not golden.is_request:
            continue
        [request] = FrameReader().feed(golden.data)
        permissions.check(request)
        for wrong in (
            Command(request.code, fields=request.fields, body=request.body + b"x"),
            Command(request.code, fields={**request.fields, "more": "x"}, body=request.body),
            Command(request.code, fields={**request.fields, "AccessKey": "other"}, body=request.body),
        ):
            wrong.version = request.version
            with pytest.raises(UnauthorizedError):
                permissions.check(wrong)
        count += 1
    store.close()
    assert count > 2


async def test_c095_wrong_signatures(signing: RemotingClient) -> None:
    """A missing or wrong signature or an unknown key: 16, and the request has no effect."""
    good = signed("shop", send_fields("Orders"), b"x")
    for fields in (send_fields("Orders"), {**good, "Signature": "AAAA"}, {**good, "AccessKey": "nobody"}):
        assert (await signing.call(Request.SEND_MESSAGE_V2, fields, b"x")).code == Answer.NO_PERMISSION
    route = signed("operator", {"topic": "Orders"})
    assert (await signing.call(Request.GET_ROUTE_INFO_BY_TOPIC, route)).code == Answer.TOPIC_NOT_EXIST
    assert (await signing.call(Request.SEND_MESSAGE_V2, good, b"x")).code == 0


async def test_c096_a_field_that_old_clients_do_not_sign(signing: RemotingClient) -> None:
    """Old clients add it after signing; newer ones sign it."""
    query: dict[str, object] = {"topic": "Orders", "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 9}
    query["_UNIQUE_KEY_QUERY"] = "true"
    unsigned = signed("operator", query, leave_out="_UNIQUE_KEY_QUERY")
    for version, code in ((399, Answer.QUERY_NOT_FOUND), (401, Answer.NO_PERMISSION)):
        assert (await signing.call(Request.QUERY_MESSAGE, unsigned, version=version)).code == code
    whole = signed("operator", query)
    assert (await signing.call(Request.QUERY_MESSAGE, whole, version=401)).code == Answer.QUERY_NOT_FOUND


async def test_c097_permissions_of_accounts(signing: RemotingClient) -> None:
    """One account sends, one consumes, and only the operator may do everything else."""
    sends = send_fields("Orders")
    assert (await signing.call(Request.SEND_MESSAGE_V2, signed("shop", sends, b"x"), b"x")).code == 0
    other = send_fields("Other")
    assert (await signing.call(Request.SEND_MESSAGE_V2, signed("shop", other, b"x"), b"x")).code == 16
    assert (await signing.call(Request.SEND_MESSAGE_V2, signed("billing", sends, b"x"), b"x")).code == 16
    pull = pull_fields("Orders", group="Billing")
    assert (await signing.call(Request.PULL_MESSAGE, signed("billing", pull))).code == 0
    assert (await signing.call(Request.PULL_MESSAGE, signed("shop", pull))).code == 16
    stranger = pull_fields("Orders", group="Shipping")
    assert (await signing.call(Request.PULL_MESSAGE, signed("billing", stranger))).code == 16
    view: dict[str, object] = {"offset": 0}
    assert (await signing.call(Request.VIEW_MESSAGE_BY_ID, signed("shop", view))).code == 16
    assert (await signing.call(Request.VIEW_MESSAGE_BY_ID, signed("billing", view))).code == 0
    for group, code in (("Billing", 0), ("Shipping", 16)):
        body = dumps(heartbeat_body("c", group, "Orders"), pretty=False)
        assert (await signing.call(Request.HEART_BEAT, signed("billing", {}, body), body)).code == code
    lists: dict[str, object] = {}
    assert (await signing.call(Request.GET_BROKER_CLUSTER_INFO, signed("shop", lists))).code == 16
    assert (await signing.call(Request.GET_BROKER_CLUSTER_INFO, signed("operator", lists))).code == 0
