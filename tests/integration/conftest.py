"""The broker that most files here use, and what talks to it.

A file whose broker differs gives `broker_arguments` or `broker_settings`, both with scope "module", or a broker of its
own. `aerobee_broker` is one that a test may stop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from aerobee_client import connect
from aerobee_client.client import Client
from aerobee_client.testing import BrokerProcess
from tests.support.official_sdks import OfficialSdk
from tests.support.sdk_program import SdkProgram
from tests.support.shell import Shell
from tests.support.unharmed_broker import unharmed_broker

StartProgram = Callable[..., SdkProgram]


@pytest.fixture(scope="module")
def broker_arguments() -> Sequence[str]:
    """Arguments of `aerobee serve`."""
    return ("--dev",)


@pytest.fixture(scope="module")
def broker_settings() -> Mapping[str, object]:
    """Settings, by their names with sections."""
    return {}


@pytest.fixture(scope="module")
def broker(
    tmp_path_factory: pytest.TempPathFactory, broker_arguments: Sequence[str], broker_settings: Mapping[str, object]
) -> Iterator[BrokerProcess]:
    """One broker for the tests of a file, each of which uses topics and groups of its own. It ends without an error and
    has logged none, whatever they did."""
    with unharmed_broker(tmp_path_factory.mktemp("aerobee"), broker_arguments, broker_settings) as running:
        yield running


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    """A client of the broker."""
    async with connect(broker.endpoint) as connected:
        yield connected


@pytest.fixture
async def channel(broker: BrokerProcess) -> AsyncIterator[Any]:
    """A channel of grpcio to the broker."""
    async with grpc.aio.insecure_channel(broker.endpoint) as channel:
        yield channel


@pytest.fixture
def shell(broker: BrokerProcess) -> Shell:
    """The command line, for the broker."""
    return Shell(broker.endpoint)


@pytest.fixture
def start_program(tmp_path: Path) -> Iterator[StartProgram]:
    """Starts a program of an SDK: `start_program(sdk, name, endpoint, **options)`. All end with the test."""
    with ExitStack() as programs:

        def start(sdk: OfficialSdk, name: str, endpoint: str, **options: Any) -> SdkProgram:
            home = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
            return programs.enter_context(sdk.program(name, home, endpoint=endpoint, **options))

        yield start
