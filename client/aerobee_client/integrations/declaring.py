"""Topics and groups that an integration needs: created unless they exist."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from aerobee_client.client import Client
from aerobee_client.errors import BadRequestError, UnsupportedError
from aerobee_proto import v2

_log = logging.getLogger(__name__)
_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]|_(?=x[0-9a-f]+_)")

TASKS = (v2.MessageType.NORMAL, v2.MessageType.DELAY)
"""The types of messages that a queue of tasks takes: now, or later."""


def stored_name(name: str) -> str:
    """`name` as a topic or group: other characters than letters, digits, `_` and `-` as `_xHEX_`. Different names stay
    different."""
    return _OTHER_CHARACTERS.sub(lambda found: f"_x{ord(found[0]):x}_", name)


async def declare_topic(
    client: Client, name: str, message_types: Iterable[v2.MessageType.ValueType], *, namespace: str = ""
) -> None:
    """Create a topic; one that exists stays as it is.

    An account without the right to create topics, and a server without that call, need a topic that exists: the first
    send or receive says so otherwise.
    """
    stored = f"{namespace}%{name}" if namespace else name
    try:
        await client.admin.create_topic(stored, message_types=message_types)
    except (BadRequestError, UnsupportedError) as error:  # it exists with another definition, or this is forbidden
        _log.debug("not created topic=%s error=%s", stored, error)


async def declare_group(client: Client, name: str, *, namespace: str = "") -> None:
    """Create a consumer group; one that exists stays as it is. Rights as for `declare_topic`."""
    stored = f"{namespace}%{name}" if namespace else name
    try:
        await client.admin.create_group(stored)
    except (BadRequestError, UnsupportedError) as error:
        _log.debug("not created group=%s error=%s", stored, error)
