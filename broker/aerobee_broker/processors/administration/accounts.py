"""Accounts as operators see them: who calls, and what each account may do. Secret keys are never shown."""

from __future__ import annotations

from aerobee_broker.clients.accounts import Account, Accounts
from aerobee_broker.clients.registry import Client
from aerobee_broker.processors.administration.wire import OK, page_of
from aerobee_proto import admin_v1


class AccountAdministration:
    """One method per RPC."""

    def __init__(self, accounts: Accounts | None) -> None:
        """`accounts` is None if the broker requires none."""
        self._accounts = accounts

    async def who_am_i(self, _: admin_v1.WhoAmIRequest, client: Client) -> admin_v1.WhoAmIResponse:
        account = None if client.account is None else _account_to_wire(client.account)
        return admin_v1.WhoAmIResponse(status=OK, accounts_required=self._accounts is not None, account=account)

    async def list_accounts(self, request: admin_v1.ListAccountsRequest, _: Client) -> admin_v1.ListAccountsResponse:
        accounts = {} if self._accounts is None else {each.access_key: each for each in self._accounts.all()}
        page, token = page_of(list(accounts), request.page_size, request.page_token)
        shown = [_account_to_wire(accounts[access_key]) for access_key in page]
        return admin_v1.ListAccountsResponse(status=OK, accounts=shown, next_page_token=token)


def _account_to_wire(account: Account) -> admin_v1.Account:
    return admin_v1.Account(
        access_key=account.access_key,
        admin=account.admin,
        view=account.view,
        cluster=account.cluster,
        publish=account.publish.patterns,
        consume=account.consume.patterns,
        groups=account.groups.patterns,
        producer_groups=account.producer_groups.patterns,
        certificate=account.certificate or "",
        signs=account.secret_key is not None,
    )
