"""Which address shows which page, and which form does what."""

from __future__ import annotations

from typing import Final

from aerobee_broker.console.pages import (
    broker,
    browser,
    clients,
    dead_letters,
    groups,
    messages,
    overview,
    search,
    sending,
    topics,
    waiting,
)
from aerobee_broker.console.visit import Page

PAGES: Final[tuple[tuple[str, Page], ...]] = (
    ("/", overview.show),
    ("/me", overview.rights),
    ("/search", search.show),
    ("/topics", topics.show_all),
    ("/topics/{name}", topics.show),
    ("/topics/{name}/messages", browser.show),
    ("/topics/{name}/tail", browser.show_tail),
    ("/topics/{name}/tail/events", browser.follow),
    ("/topics/{name}/send", sending.show),
    ("/topics/{name}/{queue:int}/{offset:int}", messages.show),
    ("/topics/{name}/{queue:int}/{offset:int}/body", messages.download),
    ("/topics/{name}/id/{message_id}", messages.show_by_id),
    ("/groups", groups.show_all),
    ("/groups/{name}", groups.show),
    ("/groups/{name}/reset", groups.show_reset),
    ("/dead-letters", dead_letters.show_all),
    ("/dead-letters/{name}", dead_letters.show),
    ("/dead-letters/{name}/export", dead_letters.export),
    ("/dead-letters/{name}/{offset:int}", dead_letters.show_one),
    ("/delayed", waiting.show_delayed),
    ("/transactions", waiting.show_transactions),
    ("/clients", clients.show_all),
    ("/clients/{name}", clients.show),
    ("/store", broker.show_store),
    ("/settings", broker.show_settings),
    ("/accounts", broker.show_accounts),
    ("/changes", broker.show_changes),
)

ACTIONS: Final[tuple[tuple[str, Page, Page], ...]] = (
    ("/topics", topics.create, topics.show_all),
    ("/topics/{name}/update", topics.update, topics.show),
    ("/topics/{name}/delete", topics.delete, topics.show),
    ("/topics/{name}/purge", topics.purge, topics.show),
    ("/topics/{name}/send", sending.send, sending.show),
    ("/groups", groups.create, groups.show_all),
    ("/groups/{name}/update", groups.update, groups.show),
    ("/groups/{name}/delete", groups.delete, groups.show),
    ("/groups/{name}/reset", groups.reset, groups.show_reset),
    ("/dead-letters/{name}/resend", dead_letters.resend, dead_letters.show),
    ("/dead-letters/{name}/delete", dead_letters.delete, dead_letters.show),
    ("/dead-letters/{name}/{offset:int}/edited", dead_letters.resend_edited, dead_letters.show_one),
    ("/delayed", waiting.recall, waiting.show_delayed),
    ("/transactions", waiting.decide, waiting.show_transactions),
    ("/clients/{name}/reconnect", clients.reconnect, clients.show),
    ("/clients/{name}/disconnect", clients.disconnect, clients.show),
    ("/clients/{name}/stacks", clients.show_stacks, clients.show),
    ("/clients/{name}/try", clients.try_message, clients.show),
    ("/settings", broker.change_setting, broker.show_settings),
)
"""Each with the page that is shown again when the broker refuses it."""
