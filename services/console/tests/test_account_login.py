# SPDX-License-Identifier: Apache-2.0
"""Logins with an account, and the role that follows from the answers of brokers."""

import pytest

from cometmq.client.settings import ClientOptions
from cometmq.console.login import accounts, sessions
from cometmq.console.login.accounts import Refused, account_user, standing_user
from cometmq.console.login.roles import Role, User
from cometmq.insight.findings import findings
from cometmq.insight.snapshot import look
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.errors import AccessDenied, ConnectFailed
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.signature import SessionCredentials

from .test_on_a_suite import log_in

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
        return {}

    def _is_gone(self, code):
        return (
            self._kind == SILENT
            or (self._kind == BRIEFLY and self._credentials == RIGHT)
            or (self._kind == LATE and code == Code.UPDATE_BROKER_CONFIG)
        )


def set_up(monkeypatch, groups):
    """Let the console ask brokers that treat the account in these ways."""

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
    return ClientOptions(namesrv="n:9876")


async def login(monkeypatch, groups):
    options = set_up(monkeypatch, groups)
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


@pytest.mark.parametrize(
    ("groups", "role"),
    [
        ({"a": {0: ADMIN}}, Role.ADMIN),
        ({"a": {0: ADMIN}, "b": {0: CLERK}}, Role.VIEWER),
        # An outage takes no rights: operators are about to need them.
        ({}, Role.ADMIN),
        ({"a": {0: SILENT, 1: CLERK}}, Role.ADMIN),
    ],
)
async def test_a_session_has_the_role_that_masters_give_its_account_now(monkeypatch, groups, role):
    options, user = set_up(monkeypatch, groups), User("clerk", Role.ADMIN, "account")
    found = await standing_user(options, RIGHT, user, role=Role.VIEWER, log=NO_LOG)
    assert found == User("clerk", role, "account")
    viewer = User("clerk", Role.VIEWER, "account")
    found = await standing_user(options, RIGHT, viewer, role=Role.VIEWER, log=NO_LOG)
    assert found == viewer


async def test_logins_at_the_console_are_no_problems_of_the_cluster(desk):
    """The brokers refuse its questions about a wrong secret, an unknown account, and a clerk."""
    (master,) = (await desk.admin.masters()).values()
    await master.put_account(AclAccount(access_key="clerk-key", secret_key="clerk-secret"))
    for name, secret in (
        ("clerk-key", "wrong-secret"),
        ("nobody-key", "clerk-secret"),
        ("clerk-key", "clerk-secret"),
    ):
        answer = await log_in(desk, access_key=name, secret_key=secret)
        assert (answer.status_code == 303) is (secret == "clerk-secret" and name == "clerk-key")
    told = (it.text for it in findings(await look(desk.admin)))
    assert [it for it in told if "clerk-key" in it or "nobody-key" in it] == []
    await master.delete_account("clerk-key")


async def test_a_session_survives_the_name_servers(monkeypatch):
    async def lost(*_given):
        raise ConnectFailed("no name server answers")

    options, user = set_up(monkeypatch, {}), User("clerk", Role.ADMIN, "account")
    monkeypatch.setattr("cometmq.console.login.accounts.AdminClient.broker_groups", lost)
    with pytest.raises(ConnectFailed):
        await standing_user(options, RIGHT, user, role=Role.VIEWER, log=NO_LOG)


async def test_a_session_ends_soon_after_its_account(monkeypatch, desk):
    monkeypatch.setattr(sessions, "ASKED_AGAIN_MS", 0)
    (master,) = (await desk.admin.masters()).values()

    async def put(**changed):
        given = {"secret_key": "leaver-secret", "admin": True, **changed}
        await master.put_account(AclAccount(access_key="leaver-key", **given))

    async def status():
        return (await desk.web.get("/topic/create")).status_code

    await put()
    await log_in(desk, access_key="leaver-key", secret_key="leaver-secret")
    assert await status() == 200
    await put(admin=False)
    assert (await status(), (await desk.web.get("/")).status_code) == (403, 200)
    await put(secret_key="another-secret")
    ended = await desk.web.get("/topic/create")
    assert (ended.status_code, (await desk.web.get("/")).status_code) == (401, 303)
    assert "the brokers do not accept the account any more: log in again" in ended.text

    await put()
    await log_in(desk, access_key="leaver-key", secret_key="leaver-secret")
    assert await status() == 200
    await master.delete_account("leaver-key")
    assert (await status(), await status()) == (401, 303)


async def test_the_brokers_are_not_asked_about_an_account_for_each_page(monkeypatch, desk):
    await log_in(desk, access_key="chief-key", secret_key="chief-secret")

    async def never(*_given, **_more):
        raise AssertionError("asked again")

    monkeypatch.setattr("cometmq.console.login.routes.standing_user", never)
    assert (await desk.web.get("/topic/create")).status_code == 200
