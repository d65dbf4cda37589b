# SPDX-License-Identifier: Apache-2.0
"""Logs in with an account of the cluster's access control: the brokers check its signature."""

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.console.login.roles import Role, User
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.errors import AccessDenied, CometError
from cometmq.remoting.log import Log
from cometmq.remoting.signature import SessionCredentials


class Refused(Exception):
    """A login is refused; the text may be shown to the user."""


async def account_user(
    options: ClientOptions, credentials: SessionCredentials, *, role: Role, log: Log
) -> User:
    """Return the user of an account; `role` is for one that is no administrator.

    Every broker that can be reached must accept the signature, and at least one must answer. Raise
    Refused otherwise, also for a cluster without access control, because its brokers accept
    any signature.
    """
    if not credentials.access_key or not credentials.secret_key:
        raise Refused("give an access key and a secret key")
    wrong = SessionCredentials(credentials.access_key, credentials.secret_key + "-")
    if await _is_accepted(options, wrong, log):
        raise Refused(
            "the brokers accept any signature from here (no access control, or a white-listed"
            " address), so they cannot check an account: use a token"
        )
    if not await _is_accepted(options, credentials, log):
        raise Refused("no such account, or the secret key is wrong")
    is_admin = await _is_admin(options, credentials, log)
    return User(credentials.access_key, Role.ADMIN if is_admin else role, "account")


async def _is_accepted(options: ClientOptions, credentials: SessionCredentials, log: Log) -> bool:
    """Return whether brokers accept a signature; RUNTIME_INFO needs no right beyond it."""
    answered = 0
    async with AdminClient(options=with_account(options, credentials), log=log) as admin:
        for group in (await admin.broker_groups()).values():
            for broker in group.values():
                try:
                    await broker.runtime_info()
                except AccessDenied:
                    return False
                except CometError:
                    continue
                answered += 1
    if not answered:
        raise Refused("no broker answers, so nobody can check the account: try again later")
    return True


async def _is_admin(options: ClientOptions, credentials: SessionCredentials, log: Log) -> bool:
    """Return whether all brokers treat an account as an administrator.

    A change of no settings is a request that also RocketMQ grants to administrators only.
    """
    async with AdminClient(options=with_account(options, credentials), log=log) as admin:
        for broker in (await admin.masters()).values():
            try:
                await broker.invoke(Code.UPDATE_BROKER_CONFIG)
            except AccessDenied:
                return False
            except CometError:
                continue
    return True


def with_account(options: ClientOptions, credentials: SessionCredentials) -> ClientOptions:
    """Return the options of the console with another account."""
    return msgspec.structs.replace(options, credentials=credentials)
