"""Hostile input against a real broker: no attack stalls it, fills it, or leaves something behind.

`make test` runs the attacks that end within seconds, and a few drawn ones with fixed seeds. With
AEROBEE_HOSTILE_ROUNDS (`make test-hostile`) all are run and many are drawn. Figures are processor time and memory,
which do not depend on other processes of the machine.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from aerobee_broker.clients.accounts import Accounts
from aerobee_broker.config.peers import PeersConfig
from aerobee_broker.grpc_methods import SERVICES
from aerobee_broker.remoting_wire.frame import FrameFormatError, FrameReader
from aerobee_broker.remoting_wire.signature import signed_parts
from aerobee_broker.services.standard_services import HEALTH, REFLECTION
from aerobee_client import Credentials
from aerobee_client.testing import run_broker
from tests.support import seeds
from tests.support.broker_process import peer_arguments, peers_section
from tests.support.client_certificates import ClientAuthority
from tests.support.hostile_input import ATTACKER, ATTACKER_SECRET, NAMED, Attack, drawn, drawn_in_tls
from tests.support.hostile_judge import Certificate, Verdict, judge, judge_name_server, prepare
from tests.support.hostile_messages import METHODS, drawn_request
from tests.support.name_server import name_server_process
from tests.support.ports import free_ports

pytestmark = pytest.mark.timeout(3600)

ROUNDS = int(os.environ.get("AEROBEE_HOSTILE_ROUNDS", "1"))
SEED = seeds.seed("AEROBEE_HOSTILE_SEED")
DRAWN = 2 if ROUNDS == 1 else 50 * ROUNDS
DRAWN_IN_TLS = 2 if ROUNDS == 1 else 12 * ROUNDS
SHORT = {
    "parts of the largest frame",
    "a header of commas",
    "settings of many open calls",
    "many settings",
    "pipelined calls",
    "empty messages on a stream",
    "producer groups",
    "tiny remoting frames",
    "records of a byte over many TLS connections",
    "updates of TLS keys",
    "replicas that do not read",
    "every gRPC method",
    "subscriptions that are listed",
    "a heartbeat of empty lists",
    "a compressed registration of bare keys to a broker",
}
"""The attacks of `make test`."""


def attacks() -> Iterator[Attack]:
    for attack in NAMED:
        if ROUNDS > 1 or attack.name in SHORT:
            yield attack
    for number in range(DRAWN):
        yield drawn(SEED + number)
    for number in range(DRAWN_IN_TLS):
        yield drawn_in_tls(SEED + number)


@pytest.mark.parametrize("attack", tuple(attacks()), ids=str)
async def test_an_attack_does_no_harm(tmp_path: Path, attack: Attack, capsys: pytest.CaptureFixture[str]) -> None:
    """Another client is answered meanwhile, memory and steps stay below their bounds, and the gauges return."""
    verdict = await (judged_name_server if attack.target == "namesrv" else judged)(tmp_path, attack)
    with capsys.disabled():
        print(f"\nhostile: {verdict}", flush=True)
    assert not verdict.harm, str(verdict)


async def judged(tmp_path: Path, attack: Attack) -> Verdict:
    """What the attack does to a broker."""
    arguments, credentials = ["--dev"], None
    remoting, replicas = (f"127.0.0.1:{port}" for port in free_ports(2))
    certificate = None
    if attack.target in ("replicas", "remoting"):
        arguments += ["--role", "master", "--listen-remoting", remoting, "--listen-replicas", replicas]
        if attack.is_signed or attack.records is not None:
            peers, config = PeersConfig(access_key=ATTACKER, secret_key_file=_secret(tmp_path)), tmp_path / "peers.toml"
            if attack.records is not None:
                peers, certificate = _in_tls(tmp_path, peers)
            config.write_text(f'{peers_section(peers)}access_key = "{ATTACKER}"\n')
            arguments += ["--config", str(config)]
    elif attack.has_accounts:
        accounts = tmp_path / "accounts.toml"
        text = '[accounts.shop]\nsecret_key = "of the shop"\nadmin = true\n'
        if attack.is_signed:
            everything = 'publish = ["*"]\nconsume = ["*"]\ngroups = ["*"]\n'
            text += f'[accounts.{ATTACKER}]\nsecret_key = "{ATTACKER_SECRET}"\n{everything}'
        accounts.write_text(text)
        accounts.chmod(0o600)
        arguments += ["--accounts", str(accounts)]
        credentials = Credentials("shop", "of the shop")
    with run_broker(tmp_path, arguments) as broker:
        addresses = {"replicas": replicas, "remoting": remoting, "metrics": broker.metrics}
        address = addresses.get(attack.target, "")
        await prepare(broker, credentials)
        verdict = await judge(broker, attack, address=address, credentials=credentials, certificate=certificate)
        assert await asyncio.to_thread(broker.stop) == 0
        assert "Traceback" not in broker.log_text(), broker.log_text()[-6000:]
    return verdict


async def judged_name_server(tmp_path: Path, attack: Attack) -> Verdict:
    """What the attack does to `aerobee namesrv`."""
    log = tmp_path / "namesrv.log"
    peers, certificate = PeersConfig(secret_key_file=_secret(tmp_path)), None
    if attack.records is not None:
        peers, certificate = _in_tls(tmp_path, peers)
    proves = attack.is_signed or attack.records is not None
    arguments = ["--access-key", ATTACKER, *peer_arguments(peers)] if proves else []
    with name_server_process(tmp_path / "namesrv", log, arguments) as (address, pid):
        verdict = await judge_name_server(address, pid, log, attack, certificate=certificate)
    assert "Traceback" not in log.read_text(), log.read_text()[-6000:]
    return verdict


def _in_tls(directory: Path, peers: PeersConfig) -> tuple[PeersConfig, Certificate]:
    """The same with a certificate of the cluster, and the attacker's."""
    authority = ClientAuthority.create(directory / "cluster.crt")
    certificate, key = authority.issue("broker", "CN=broker")
    in_tls = replace(peers, certificate=certificate, key=key, authorities=authority.file)
    return in_tls, authority.issue("attacker", "CN=attacker")


def _secret(directory: Path) -> Path:
    file = directory / "secret"
    file.write_text(ATTACKER_SECRET)
    return file


@pytest.mark.skipif(ROUNDS == 1, reason="seconds; set AEROBEE_HOSTILE_ROUNDS=2")
async def test_a_signed_attack_reaches_the_log(tmp_path: Path) -> None:
    """The port for replicas takes the attacker's proof, so what is drawn comes to what lies behind it."""
    found = (drawn(number) for number in range(1000))
    attack = next(each for each in found if each.target == "replicas" and each.is_signed)
    verdict = await judged(tmp_path, attack)
    assert verdict.proofs == attack.connections
    assert not verdict.harm, str(verdict)


@pytest.fixture(scope="module")
def first_drawn() -> list[Attack]:
    """The first ones, which take seconds to draw."""
    return [drawn(number) for number in range(60)]


def test_signed_attacks_are_drawn_for_each_protocol(first_drawn: list[Attack]) -> None:
    """Before and after authentication, of each port but that of metrics; the same ones for a seed."""
    signed = [attack for attack in first_drawn if attack.is_signed]
    assert 5 < len(signed) < len(first_drawn)
    assert all(attack.has_accounts for attack in signed)
    targets, number = {attack.target for attack in signed}, len(first_drawn)
    while targets != {"broker", "namesrv", "replicas"}:
        assert number < 200
        attack, number = drawn(number), number + 1
        targets |= {attack.target} if attack.is_signed else set()
    for mark in (b"MQv2-HMAC-SHA1", b"AccessKey"):
        assert any(mark in b"".join(attack.sent(0)) for attack in signed)
        assert not any(mark in b"".join(attack.sent(0)) for attack in first_drawn if not attack.is_signed)


def test_every_method_is_drawn_with_valid_and_invalid_requests() -> None:
    """Those of all services of the broker; the same ones for a seed."""
    assert {method.containing_service.full_name for method in METHODS} == {*SERVICES, HEALTH, REFLECTION[0]}
    for method in METHODS:
        kind = GetMessageClass(method.input_type)
        first, outcomes = drawn_request(random.Random(0), method.input_type, ("name",)), Counter[bool]()
        assert first == drawn_request(random.Random(0), method.input_type, ("name",))
        for seed in range(40):
            outcomes[parses(kind, drawn_request(random.Random(seed), method.input_type, ("name",)))] += 1
            if outcomes[True] > 5 and outcomes[False] > 5:
                break
        assert outcomes[True] > 5, (method.full_name, outcomes)
        assert outcomes[False] > 5 or not method.input_type.fields, (method.full_name, outcomes)


def parses(kind: type[Message], request: bytes) -> bool:
    try:
        kind.FromString(request)
    except DecodeError:
        return False
    return True


def test_signatures_of_drawn_attacks_are_valid(tmp_path: Path, first_drawn: list[Attack]) -> None:
    """Otherwise every signed attack would be refused before it reaches what it attacks."""
    file = tmp_path / "accounts.toml"
    file.write_text(f'[accounts.{ATTACKER}]\nsecret_key = "{ATTACKER_SECRET}"\n')
    file.chmod(0o600)
    accounts, checked = Accounts(file), 0
    for attack in chain(first_drawn, map(drawn, range(len(first_drawn), 100))):
        if checked > 2:
            break
        sent = b"".join(attack.sent(0))
        if attack.is_signed and b"AccessKey" in sent:
            with suppress(FrameFormatError):  # some have lengths that do not fit
                for command in FrameReader().feed(sent)[:1]:
                    assert accounts.of_content(*signed_parts(command)).access_key == ATTACKER
                    checked += 1
    assert checked > 2
