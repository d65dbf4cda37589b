# SPDX-License-Identifier: Apache-2.0
"""What the answers of brokers make of an account."""

import pytest

from cometmq.client.settings import ClientOptions
from cometmq.console.login import accounts
from cometmq.console.login.accounts import Refused, account_user
from cometmq.console.login.roles import Role
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.errors import AccessDenied, ConnectFailed
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.signature import SessionCredentials

RIGHT = SessionCredentials("clerk", "secret")

ADMIN, CLERK, STRANGER, OPEN, SILENT = "admin", "clerk", "stranger", "open", "silent"
"""How a broker treats the account; an open one accepts any signature."""
BRIEFLY, LATE = "gone after the wrong signature", "gone before the question about administrators"


class Broker:
    def __init__(self, address, kind, credentials):
        self.address = address
        self._kind, self._credentials = kind, credentials

    async def invoke(self, code):
        if self._is_gone(code):
            raise ConnectFailed(f"{self.address} is gone")
        if self._kind == OPEN:
            return
        if self._kind == STRANGER or self._credentials != RIGHT:
            raise AccessDenied("the signature is wrong")
        if code == Code.UPDATE_BROKER_CONFIG and self._kind != ADMIN:
            raise AccessDenied("no administrator")

    async def runtime_info(self):
        await self.invoke(Code.GET_BROKER_RUNTIME_INFO)

    def _is_gone(self, code):
        return (
            self._kind == SILENT
            or (self._kind == BRIEFLY and self._credentials == RIGHT)
            or (self._kind == LATE and code == Code.UPDATE_BROKER_CONFIG)
        )


async def login(monkeypatch, groups):
    class Admin:
        def __init__(self, *, options, **_more):
            self._credentials = options.credentials

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_error):
            pass

        async def broker_groups(self):
            return {
                name: {
                    at: Broker(f"{name}-{at}", it, self._credentials) for at, it in group.items()
                }
                for name, group in groups.items()
            }

        async def masters(self):
            return {name: it[0] for name, it in (await self.broker_groups()).items() if 0 in it}

    monkeypatch.setattr(accounts, "AdminClient", Admin)
    options = ClientOptions(namesrv="n:9876")
    return await account_user(options, RIGHT, role=Role.VIEWER, log=NO_LOG)


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        ({"a": {0: ADMIN}}, Role.ADMIN),
        ({"a": {0: CLERK}}, Role.VIEWER),
        ({"a": {0: ADMIN}, "b": {0: CLERK}}, Role.VIEWER),
        ({"a": {0: ADMIN}, "b": {0: SILENT, 1: ADMIN}}, Role.ADMIN),
        # During a failover only slaves answer, or only slaves are in the routes.
        ({"a": {0: SILENT, 1: CLERK}}, Role.VIEWER),
        ({"a": {1: CLERK}}, Role.VIEWER),
        ({"a": {1: ADMIN}}, Role.VIEWER),
        ({"a": {0: LATE, 1: CLERK}}, Role.VIEWER),
        # A broker that accepts any signature says nothing about an account.
        ({"a": {0: OPEN, 1: CLERK}}, Role.VIEWER),
        ({"a": {0: OPEN}, "b": {0: LATE}}, Role.VIEWER),
        ({"a": {0: OPEN}, "b": {0: ADMIN}}, Role.ADMIN),
    ],
)
async def test_only_a_master_that_checks_accounts_makes_an_administrator(monkeypatch, groups, role):
    user = await login(monkeypatch, groups)
    assert (user.name, user.role, user.how) == ("clerk", role, "account")


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ({}, "no broker answers"),
        ({"a": {0: SILENT}}, "no broker answers"),
        ({"a": {0: OPEN}, "b": {0: SILENT}}, "accept any signature"),
        ({"a": {0: OPEN}, "b": {0: BRIEFLY}}, "no broker answers"),
        ({"a": {0: ADMIN}, "b": {0: STRANGER}}, "no such account"),
    ],
)
async def test_an_account_that_no_broker_can_check_is_refused(monkeypatch, groups, why):
    with pytest.raises(Refused, match=why):
        await login(monkeypatch, groups)
