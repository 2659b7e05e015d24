"""Selects and asks the producer for a missing decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

from aerobee_broker.clients.accounts import Accounts, Right
from aerobee_broker.clients.registry import Client, ClientRegistry
from aerobee_broker.messages.message_mapping import to_wire_message
from aerobee_broker.recent import Recent
from aerobee_broker.tables.topics import split_stored_name
from aerobee_proto import v2
from aerobee_store import Record
from aerobee_store.records import properties as p
from aerobee_store.records.decimals import INT32_MAX, decimal

_SENDERS_PER_TOPIC_MAX: Final = 16
_TOPICS_MAX: Final = 10_000
REMOTING_SENDER: Final = "remoting "
"""Prefix of sender names of the remoting protocol. No client id has a space at this position."""
_BACKLOG_MAX: Final = 32  # unread commands of a client: half of what its stream holds before it drops some


class Producers:
    """The producers that can be asked. Event loop only."""

    def __init__(self, clients: ClientRegistry, accounts: Accounts | None = None) -> None:
        """`accounts`: a check contains the message, so only accounts that may send to its topic get one."""
        self._clients = clients
        self._accounts = accounts
        self._senders: Recent[str, Recent[str, None]] = Recent(_TOPICS_MAX)  # topic -> client ids, latest last
        self.ask_by_group: Callable[[Record, str, str, int], bool] | None = None
        """Asks a producer of the remoting protocol: half message, topic, transaction id, number of earlier checks;
        False if there is none."""

    def sent(self, topic: str, client_id: str) -> None:
        """Note that this client sends transactional messages to the topic (stored name), so it can answer for them."""
        if client_id.startswith(REMOTING_SENDER):
            return  # any producer of its group can, and the message names the group
        senders = self._senders.get(topic)
        if senders is None:
            senders = self._senders[topic] = Recent(_SENDERS_PER_TOPIC_MAX)
        senders[client_id] = None

    def answers_for(self, client: Client, topic: str) -> bool:
        """Whether `choose` may name this client for any message of the topic."""
        named = topic in client.topics or client.client_id in self._senders.get(topic, ())
        return named and self._may_see(client, topic)

    def _may_see(self, client: Client, topic: str) -> bool:
        if self._accounts is None:
            return True
        return client.account is not None and self._accounts.may(client.account.access_key, Right.PUBLISH, topic)

    def choose(self, topic: str, sender: str | None, number: int) -> Client | Literal["busy"] | None:
        """The producer for check number `number` (from 0); "busy" if all read too slowly now, None if there is none.

        First the sender, then producers that listed the topic, beginning with those that send such messages to it, then
        others that send them. Each check asks the next one, because a living producer may not answer.
        """
        if sender is not None and sender.startswith(REMOTING_SENDER):
            return None
        get = self._clients.get
        senders: Mapping[str, None] = self._senders.get(topic, {})
        listed = self._clients.producers_of(topic)
        listed.sort(key=lambda client: client.client_id not in senders)
        others = [get(client_id) for client_id in senders]
        found = {
            client.client_id: client
            for client in (get(sender) if sender else None, *listed, *reversed(others))
            if client is not None and client.stream is not None and self._may_see(client, topic)
        }
        if not found:
            return None
        candidates = list(found.values())
        first = number % len(candidates)
        for client in (*candidates[first:], *candidates[:first]):
            if client.stream is not None and client.stream.backlog < _BACKLOG_MAX:
                return client
        return "busy"

    def ask(self, client: Client, half: Record, topic: str, transaction_id: str) -> bool:
        """Send the command, with the message as for a consumer; False if the client has just disconnected."""
        namespace, name = split_stored_name(topic)
        message = to_wire_message(half, v2.Resource(resource_namespace=namespace, name=name))
        system = message.system_properties
        system.message_type = v2.MessageType.TRANSACTION
        system.queue_id = decimal(half.properties.get(p.REAL_QUEUE_ID), INT32_MAX) or 0
        immunity = decimal(half.properties.get(p.CHECK_IMMUNITY_TIME_SECONDS), INT32_MAX)
        if immunity is not None:
            system.orphaned_transaction_recovery_duration.seconds = immunity
        command = v2.RecoverOrphanedTransactionCommand(message=message, transaction_id=transaction_id)
        return client.command(v2.TelemetryCommand(recover_orphaned_transaction_command=command))
