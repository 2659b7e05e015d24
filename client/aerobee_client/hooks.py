"""Application code that runs around every send and every message handler."""

from __future__ import annotations

from collections.abc import Sequence

from aerobee_client.errors import ClientError
from aerobee_client.message import Message, ReceivedMessage, SendResult


class Hooks:
    """Does nothing; override methods as needed. `connect(..., hooks=[MyHooks()])` installs it.

    Hooks run in the given order before an operation, and in reverse order after it. An exception in `before_send` fails
    the send; one in `before_handle` counts as a failure of the handler. `after_send` and `after_handle` must not raise.
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
    """`message` after all hooks."""
    for hook in hooks:
        message = hook.before_send(message)
    return message


def after_send(hooks: Sequence[Hooks], message: Message, outcome: SendResult | ClientError) -> None:
    """Call all hooks."""
    for hook in reversed(hooks):
        hook.after_send(message, outcome)
