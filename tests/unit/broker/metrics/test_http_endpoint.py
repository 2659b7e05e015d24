"""The HTTP port for metrics and health, with a plain client."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from wsgiref.types import WSGIApplication

import pytest

from aerobee_broker.config import Address
from aerobee_broker.metrics import http_endpoint, http_server
from aerobee_broker.metrics.http_endpoint import HttpEndpoint
from aerobee_broker.metrics.reserved_descriptors import ReservedDescriptors


class Probe:
    """An endpoint whose answers the test sets."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.text = ""
        self.endpoint = HttpEndpoint(Address("127.0.0.1", 0), self, self)
        self.address = self.endpoint.start()

    async def render(self) -> list[bytes]:
        return [b"a_metric ", b"1\n"]

    def unreadiness(self) -> str | None:
        return self.reason

    def note(self) -> str:
        return self.text

    def fetch(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        request = urllib.request.Request(f"http://{self.address}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    async def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        return await asyncio.to_thread(self.fetch, path, method)


@pytest.fixture
async def probe() -> AsyncIterator[Probe]:
    probe = Probe()
    yield probe
    await probe.endpoint.stop()


async def test_metrics_health_and_readiness(probe: Probe) -> None:
    """All paths answer 200. When not ready, /readyz answers 503 with the reason and /healthz still 200."""
    assert await probe.get("/metrics") == (200, b"a_metric 1\n")
    assert await probe.get("/healthz") == (200, b"ok\n")
    assert await probe.get("/readyz") == (200, b"ready\n")
    probe.text = "the disk is full"
    assert await probe.get("/readyz") == (200, b"ready; the disk is full\n")
    probe.reason = "draining"
    assert await probe.get("/readyz") == (503, b"draining\n")
    assert (await probe.get("/healthz"))[0] == 200


async def test_other_requests(probe: Probe) -> None:
    """Other paths and methods are refused; HEAD has no body."""
    assert (await probe.get("/"))[0] == 404
    assert (await probe.get("/metrics", "POST"))[0] == 405
    assert await probe.get("/healthz", "HEAD") == (200, b"")


async def test_headers_of_a_request_are_bounded(probe: Probe) -> None:
    """Within the limit of each line they could take megabytes; a request with a usual header is answered."""
    reader, writer = await asyncio.open_connection(probe.address.host, probe.address.port)
    writer.write(
        b"GET /healthz HTTP/1.1\r\n" + b"x: " + b"a" * (http_server._HEAD_SIZE_MAX - 100) + b"\r\n" + b"y: b\r\n" * 50
    )
    async with asyncio.timeout(60):
        assert b" 431 " in await reader.readline()
    writer.close()
    assert await probe.get("/healthz") == (200, b"ok\n")


async def test_metrics_are_made_for_a_few_at_a_time(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of peers that do not read would take megabytes each. Health is answered meanwhile."""
    monkeypatch.setattr(http_server, "_SCRAPE_WAIT_SECONDS", 0.01)
    assert (await probe.get("/metrics"))[0] == 200
    text = [b"#" * (1 << 20)] * 32

    async def render() -> list[bytes]:
        return text

    monkeypatch.setattr(probe, "render", render)
    unread = [
        await asyncio.open_connection(probe.address.host, probe.address.port) for _ in range(http_server._SCRAPES_MAX)
    ]
    for _, writer in unread:
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(60):
        while (await probe.get("/metrics", "HEAD"))[0] != 503:  # noqa: ASYNC110 - until both have it
            await asyncio.sleep(0.01)
    assert await probe.get("/healthz") == (200, b"ok\n")
    for _, writer in unread:
        writer.transport.abort()
    async with asyncio.timeout(60):
        while (await probe.get("/metrics", "HEAD"))[0] != 200:  # noqa: ASYNC110 - until one is free
            await asyncio.sleep(0.01)


async def test_a_peer_that_reads_slowly_does_not_keep_its_metrics(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer ends after a time, however often the peer reads a little."""
    monkeypatch.setattr(http_server, "_ANSWER_SECONDS", -1.0)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        await probe.get("/metrics")


async def test_a_failed_scrape_names_its_cause_in_the_log(
    probe: Probe, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer refers to the log; the next scrape works again."""

    async def fail() -> list[bytes]:
        raise OSError("no such file")

    with monkeypatch.context() as patch:
        patch.setattr(probe, "render", fail)
        status, text = await probe.get("/metrics")
    assert status == 500
    assert b"log" in text
    assert "no such file" in caplog.text
    assert (await probe.get("/metrics"))[0] == 200


async def test_a_cancelled_scrape_is_answered(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop cancels its tasks when the process stops."""

    async def cancelled() -> list[bytes]:
        raise asyncio.CancelledError

    monkeypatch.setattr(probe, "render", cancelled)
    assert (await probe.get("/metrics"))[0] == 503


async def test_a_hung_event_loop_is_reported(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint answers 503 while the event loop hangs."""
    monkeypatch.setattr(http_endpoint, "LOOP_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(http_endpoint, "METRICS_TIMEOUT_SECONDS", 0.05)
    with ThreadPoolExecutor() as threads:
        answers = list(threads.map(probe.fetch, ("/healthz", "/readyz", "/metrics")))  # blocks the loop
    assert [status for status, _ in answers] == [503, 503, 503]
    assert (await probe.get("/healthz"))[0] == 200


async def test_a_first_request_without_free_descriptors(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the server's modules cannot be loaded, each reserved descriptor is tried, and then a later request."""
    server = http_server.HttpServer
    tries: list[ReservedDescriptors] = []

    def make(listener: socket.socket, application: WSGIApplication, reserved: ReservedDescriptors) -> object:
        tries.append(reserved)
        if len(tries) < 7:  # more often than there are reserved descriptors
            raise OSError(errno.EMFILE, "no descriptor")
        assert not reserved.give_up_one(), "all of them were given up"
        return server(listener, application, reserved)

    monkeypatch.setattr(http_server, "HttpServer", make)
    assert await probe.get("/healthz") == (200, b"ok\n")
    assert len(tries) == 7


async def test_stop_frees_the_port(probe: Probe) -> None:
    """Another endpoint can listen on the port afterwards. Stopping twice is harmless."""
    await probe.endpoint.stop()
    await probe.endpoint.stop()
    again = HttpEndpoint(probe.address, probe, probe)
    assert again.start() == probe.address
    await again.stop()


async def test_a_port_in_use(probe: Probe) -> None:
    """The second endpoint on a port fails with the cause."""
    with pytest.raises(OSError, match="in use"):
        HttpEndpoint(probe.address, probe, probe).start()
