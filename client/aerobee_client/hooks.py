"""Application code that runs around every send and every message handler."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from aerobee_client.errors import ClientError
from aerobee_client.messages.message import Message, ReceivedMessage, SendResult

_log = logging.getLogger(__name__)


class Hooks:
    """Does nothing; override methods as needed. `connect(..., hooks=[MyHooks()])` installs it.

    Hooks run in the given order before an operation, and in reverse order after it. An exception in `before_send` fails
    the send; one in `before_handle` counts as a failure of the handler. Exceptions in `after_send` and `after_handle`
    are only logged: the operation is over.
    """

    def before_send(self, message: Message) -> Message:
        """The message to send: `message` or a replacement."""
        return message

    def after_send(self, message: Message, outcome: SendResult | ClientError) -> None:
        """The broker has stored `message`, or the send has failed."""

    def before_handle(self, message: ReceivedMessage) -> None:
        """A handler is about to receive `message`."""

    def after_handle(self, message: ReceivedMessage, error: BaseException | None) -> None:
        """The handler has returned, or raised `error`."""


def before_send(hooks: Sequence[Hooks], message: Message) -> Message:
    """`message` after all hooks. TypeError if one of them returns something else than a message."""
    for hook in hooks:
        changed = hook.before_send(message)
        if not isinstance(changed, Message):
            raise TypeError(f"{type(hook).__name__}.before_send returned {changed!r}; return the message to send")
        message = changed
    return message


def after_send(hooks: Sequence[Hooks], message: Message, outcome: SendResult | ClientError) -> None:
    """Call all hooks."""
    for hook in reversed(hooks):
        try:
            hook.after_send(message, outcome)
        except Exception:  # whatever the application's hook raises
            _log.exception("a hook failed after a send hook=%s topic=%s", type(hook).__name__, message.topic)


def after_handle(hooks: Sequence[Hooks], message: ReceivedMessage, error: BaseException | None) -> None:
    """Call all hooks."""
    for hook in reversed(hooks):
        try:
            hook.after_handle(message, error)
        except Exception:  # whatever the application's hook raises
            _log.exception("a hook failed after a handler hook=%s topic=%s", type(hook).__name__, message.topic)
