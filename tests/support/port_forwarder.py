"""A port that forwards to another, as a container's mapped port, a tunnel or a load balancer does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class PortForwarder:
    """Forwards connections on `endpoint` to another address, in its own thread. `forwarded_port` makes one."""

    def __init__(self, target: str, delay_seconds: float = 0.0) -> None:
        self._delay_seconds = delay_seconds  # of a connection's first bytes, like a slow link or a busy machine
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._loses_answers = False
        self._answer_bytes_left: int | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="port-forwarder")
        self._thread.start()
        serving = asyncio.start_server(self._connect, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(20)
        host, port = self._server.sockets[0].getsockname()
        self.endpoint = f"{host}:{port}"

    def lose_answers(self) -> None:
        """From now on discard what the target sends, like a network that fails in one direction."""
        self._loses_answers = True

    def hold_answers_after(self, size: int) -> None:
        """Forward about this many further bytes of what the target sends, and hold the rest back, like a slow link."""
        self._answer_bytes_left = size

    def move(self, target: str) -> None:
        """Forward to another address from now on, like a virtual address after a fail-over."""
        self._target = target
        self.reset()

    def reset(self) -> None:
        """Break all connections; new ones work in both directions."""
        self._answer_bytes_left = None
        asyncio.run_coroutine_threadsafe(self._break(), self._loop).result(20)
        self._loses_answers = False

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        there_writer: asyncio.StreamWriter | None = None
        try:
            await asyncio.sleep(self._delay_seconds)
            host, _, port = self._target.rpartition(":")
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(
                self._copy(reader, there_writer, answers=False), self._copy(there_reader, writer, answers=True)
            )
        except ConnectionError:
            writer.close()
        except asyncio.CancelledError:
            for each in (writer, there_writer):
                if each is not None:
                    each.transport.abort()  # a peer that is paused takes no more bytes, so close would wait
            # not re-raised: asyncio would log it
        finally:
            self._connections.discard(task)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await reader.read(65536):
                if answers and self._loses_answers:
                    continue
                while answers and self._answer_bytes_left is not None and self._answer_bytes_left <= 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # until `reset`, from another thread
                if answers and self._answer_bytes_left is not None:
                    self._answer_bytes_left -= len(data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # one side has closed; now the other is closed
        finally:
            writer.close()

    async def _break(self) -> None:
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _stop(self) -> None:
        self._server.close()
        await self._break()
        await self._server.wait_closed()


@contextmanager
def forwarded_port(target: str, delay_seconds: float = 0.0) -> Iterator[PortForwarder]:
    """A port that forwards to `target` until the end of the block."""
    forwarder = PortForwarder(target, delay_seconds)
    try:
        yield forwarder
    finally:
        forwarder.stop()
