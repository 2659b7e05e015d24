"""A small program: it places orders, reminds customers of unpaid ones after a day, and sends invoices."""

from __future__ import annotations

import time

from aerobee_client import Client, Message, PushConsumer, ReceivedMessage

DAY_SECONDS = 24 * 3600


async def place_order(client: Client, number: str, *, now_ms: int | None = None) -> str:
    """Store the order, and a reminder for tomorrow; the handle takes the reminder back when the customer pays."""
    producer = client.producer()
    await producer.send(Message(topic="orders", body=number.encode(), keys=(number,)))
    due = (now_ms or int(time.time() * 1000)) + DAY_SECONDS * 1000
    reminder = await producer.send(Message(topic="reminders", body=number.encode(), delivery_timestamp=due))
    return reminder.recall_handle


async def pay(client: Client, recall_handle: str) -> None:
    """No reminder is needed any more."""
    await client.producer().recall("reminders", recall_handle)


def invoicing(client: Client, sent: list[str]) -> PushConsumer:
    """Sends an invoice for each order; orders whose number is not known yet are tried again."""

    async def send_invoice(message: ReceivedMessage) -> None:
        number = message.body.decode()
        if number == "unknown" and message.delivery_attempt == 1:
            raise LookupError(number)
        sent.append(number)

    return client.push_consumer("invoicing", "orders", send_invoice)
