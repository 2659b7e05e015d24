"""The blocking API has the arguments of the asynchronous one, with the same types and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest

from aerobee_client import Client, blocking, connect


@pytest.mark.parametrize(
    ("face", "behind"),
    [
        (blocking.connect, connect),
        (blocking.BlockingClient.producer, Client.producer),
        (blocking.BlockingClient.simple_consumer, Client.simple_consumer),
        (blocking.BlockingClient.push_consumer, Client.push_consumer),
        (blocking.BlockingClient.pull_consumer, Client.pull_consumer),
    ],
    ids=lambda function: function.__qualname__,
)
def test_the_arguments_are_the_same(face: Callable[..., object], behind: Callable[..., object]) -> None:
    """Names, kinds, types and defaults of all arguments are equal."""
    assert list(inspect.signature(face).parameters.values()) == list(inspect.signature(behind).parameters.values())
