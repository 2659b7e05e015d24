"""Code of the application that runs around every send, and around every handler of a consumer."""

from __future__ import annotations

from collections.abc import Sequence

from aerobee_client.errors import ClientError
from aerobee_client.message import Message, ReceivedMessage, SendResult


class Hooks:
    """Does nothing; override what you need. `connect(..., hooks=[MyHooks()])` uses it.

    They run in the order given before, and in the opposite order after. An exception in `before_send` fails the send,
    one in `before_handle` counts as a failure of the handler; `after_send` and `after_handle` must not raise.
    """

    def before_send(self, message: Message) -> Message:
        """The message to send instead of `message`, or the same."""
        return message

    def after_send(self, message: Message, outcome: SendResult | ClientError) -> None:
        """The broker has stored `message`, or it was given up."""

    def before_handle(self, message: ReceivedMessage) -> None:
        """A handler is about to get `message`."""

    def after_handle(self, message: ReceivedMessage, error: BaseException | None) -> None:
        """The handler has returned, or raised `error`."""


def before_send(hooks: Sequence[Hooks], message: Message) -> Message:
    """`message` as all hooks want it."""
    for hook in hooks:
        message = hook.before_send(message)
    return message


def after_send(hooks: Sequence[Hooks], message: Message, outcome: SendResult | ClientError) -> None:
    """Tell all hooks."""
    for hook in reversed(hooks):
        hook.after_send(message, outcome)
