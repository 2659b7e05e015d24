"""Options and blocking forms of the client's classes: none is missing, and each does what the coroutine does."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

import aerobee_client
from aerobee_client import ClientError, Producer, PullConsumer, PushConsumer, blocking, connect
from aerobee_client.blocking.loop_thread import LoopThread
from aerobee_client.client import ConnectOptions
from aerobee_client.producer import ProducerOptions
from aerobee_client.pull_consumer import PullConsumerOptions
from aerobee_client.push_consumer import PushConsumerOptions
from tests.support.blocking_wrappers import CLASSES, OUTPUT, Wrapped, generated


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


@pytest.mark.parametrize(
    ("options", "function", "others"),
    [
        (ProducerOptions, Producer.__init__, {"hooks"}),
        (PushConsumerOptions, PushConsumer.__init__, {"hooks"}),
        (PullConsumerOptions, PullConsumer.__init__, set[str]()),
        (ConnectOptions, connect, {"namespace"}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_options_are_the_keyword_arguments(options: type, function: Callable[..., object], others: set[str]) -> None:
    """Every keyword argument is an option, with the same type; hooks and namespace are given in another way."""
    arguments = inspect.signature(function).parameters.values()
    wanted = {each.name: each.annotation for each in arguments if each.kind is each.KEYWORD_ONLY}
    got = {name: each.__forward_arg__ for name, each in options.__annotations__.items()}
    assert got == {name: annotation for name, annotation in wanted.items() if name not in others}


def test_the_blocking_classes_are_made_of_the_others() -> None:
    """The file that is checked in is the one that the generator makes."""
    assert OUTPUT.read_text(encoding="utf-8") == generated()


@pytest.mark.parametrize("made", CLASSES, ids=lambda made: made.name)
def test_every_public_method_has_a_blocking_form(made: Wrapped) -> None:
    """Also those that are written by hand. The two left out are how a transaction talks to its producer."""
    public = {name for name in vars(getattr(aerobee_client, made.name)) if not name.startswith("_")}
    assert public - {"send_half", "end_half"} <= set(dir(getattr(blocking, f"Blocking{made.name}")))


def test_an_iterator_that_is_left_early_is_closed(loop_thread: LoopThread) -> None:
    """Its `finally` runs in the thread of the loop."""
    closed = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            asyncio.get_running_loop()
            closed.append(True)

    iterator = loop_thread.iterate(numbers())
    assert next(iterator) == 1
    iterator.close()  # type: ignore[attr-defined]  # a generator, which `for` closes in the same way
    assert closed == [True]
    assert list(loop_thread.iterate(numbers())) == [1, 2]


def test_a_block_sees_its_value_and_its_end_sees_the_error(loop_thread: LoopThread) -> None:
    """An error of the block reaches the asynchronous context, and then the caller."""
    seen: list[str] = []

    @asynccontextmanager
    async def context() -> AsyncIterator[int]:
        try:
            yield 7
            seen.append("no error")
        except ValueError as error:
            seen.append(str(error))
            raise

    with loop_thread.entered(context()) as value:
        assert value == 7
    with pytest.raises(ValueError, match="of the block"), loop_thread.entered(context()):
        raise ValueError("of the block")
    assert seen == ["no error", "of the block"]


def test_a_closed_client_says_so() -> None:
    """Calls after the end are refused with the next step, and close may be repeated."""
    client = blocking.connect("127.0.0.1:1")
    client.close()
    client.close()
    with pytest.raises(ClientError, match="make a new one"):
        client.admin.list_topics()
