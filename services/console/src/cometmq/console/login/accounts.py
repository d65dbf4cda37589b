# SPDX-License-Identifier: Apache-2.0
"""Logs in with an account of the cluster's access control: the brokers check its signature."""

from asyncio import TaskGroup
from collections.abc import Awaitable, Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from typing import Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.figures import read_figures
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.settings import ClientOptions
from cometmq.console.login.roles import Role, User, role_of
from cometmq.console.login.sessions import Session
from cometmq.insight.rules.clients import SIGNATURE_PROBE
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.errors import AccessDenied, CometError, SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.signature import SessionCredentials

SETTING: Final = "readableTopics"
_NO_KEY: Final = "cometmq-console-asks-for-the-right"


class ReadingRights:
    """The topics that each role may read."""

    def __init__(self, text: str) -> None:
        """Parse `viewer=logs-*,public;operator=*`; raise SettingsError for anything else."""
        self._patterns = patterns_of(text)

    def why_not(self, user: User, topic: str) -> str:
        """Return why a user without an account of the cluster may not read a topic; empty if the
        user may.
        """
        named = [it for role, its in self._patterns.items() if role <= user.role for it in its]
        is_open = user.role is Role.ADMIN or not self._patterns
        if is_open or any(fnmatchcase(topic, it) for it in named):
            return ""
        return (
            f"the role {user.role.name.lower()} may not read messages of {topic}: {SETTING} does"
            " not name it"
        )


def patterns_of(text: str) -> Mapping[Role, Sequence[str]]:
    """Return the patterns by role; raise SettingsError for a word that is no role."""
    found: dict[Role, Sequence[str]] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        word, equals, names = part.partition("=")
        if not equals:
            raise SettingsError(f"{SETTING}: {part!r} is not ROLE=TOPIC,TOPIC")
        found[role_of(word, SETTING)] = [it.strip() for it in names.split(",") if it.strip()]
    return found


async def account_why_not(reader: AdminClient, session: Session, topic: str, log: Log) -> str:
    """Return why the account of a session may not read messages of a topic; empty if it may.

    Every broker that answers must allow it, and at least one must answer: the messages are read
    with the console's own account, perhaps from a slave whose master is gone.

    The right is checked by a search for a key that no message has. RocketMQ's brokers check the
    right for this request, too, but not for a request by position in the log.
    """
    assert session.credentials is not None, "the user logged in with an account"
    options = with_account(reader.options, session.credentials)
    answered = False
    async with AdminClient(options=options, log=log) as admin:
        for group in (await admin.broker_groups()).values():
            for broker in group.values():
                try:
                    await broker.query(topic, _NO_KEY, count_max=1, begin_ms=0, end_ms=0)
                except AccessDenied as error:
                    user = session.user.name
                    return f"the account {user} may not read messages of {topic}: {error}"
                except CometError:
                    continue
                answered = True
    if answered:
        return ""
    return f"no broker answers whether {session.user.name} may read messages of {topic}"


STANDING_TIMEOUT_MS: Final = 1_000
"""How long a page waits for each broker when it checks the account of a session again."""


class Refused(Exception):
    """A login is refused; the text may be shown to the user."""


async def account_user(
    options: ClientOptions, credentials: SessionCredentials, *, role: Role, log: Log
) -> User:
    """Return the user of an account; `role` is for one that is no administrator.

    Only brokers that refuse a wrong signature can check an account. Raise Refused unless at least
    one such broker answers, and all that answer accept the account.

    The account is an administrator if at least one master treats it as one, and no master refuses.
    Slaves do not count, because their accounts may be older.
    """
    if not credentials.access_key or not credentials.secret_key:
        raise Refused("give an access key and a secret key")
    wrong = SessionCredentials(credentials.access_key, credentials.secret_key + "-")
    taken = await _answers(options, wrong, _as_anybody, log)
    checking = {address for address, is_accepted in taken.items() if not is_accepted}
    if taken and not checking:
        raise Refused(
            "the brokers accept any signature from here (no access control, or a white-listed"
            " address), so they cannot check an account: use a token"
        )
    known = await _answers(options, credentials, _as_account, log)
    if not all(known.values()):
        raise Refused("no such account, or the secret key is wrong")
    if not checking & known.keys():
        raise Refused("no broker answers, so nobody can check the account: try again later")
    ruled = await _answers(options, credentials, _as_admin, log, masters_only=True)
    is_admin = all(ruled.values()) and bool(checking & ruled.keys())
    return User(credentials.access_key, Role.ADMIN if is_admin else role, "account")


async def standing_user(
    options: ClientOptions, credentials: SessionCredentials, user: User, *, role: Role, log: Log
) -> User:
    """Return the user of a session with the role that the account has now; `role` applies if it is
    no longer an administrator.

    Raise Refused if a broker denies the account. If brokers do not answer, the user keeps the role,
    because operators need the console most during an outage. An account that has become an
    administrator has to log in again.
    """
    options = msgspec.structs.replace(
        options, api_timeout_ms=min(options.api_timeout_ms, STANDING_TIMEOUT_MS)
    )
    if not all((await _answers(options, credentials, _as_account, log)).values()):
        raise Refused("the brokers do not accept the account any more: log in again")
    if user.role <= role:
        return user
    ruled = await _answers(options, credentials, _as_admin, log, masters_only=True)
    return user if all(ruled.values()) else User(user.name, role, user.how)


async def _answers(
    options: ClientOptions,
    credentials: SessionCredentials,
    question: Callable[[BrokerAdmin], Awaitable[object]],
    log: Log,
    *,
    masters_only: bool = False,
) -> dict[str, bool]:
    """Return whether brokers grant a question, by address; leave out those without an answer."""
    found: dict[str, bool] = {}

    async def ask(broker: BrokerAdmin) -> None:
        try:
            await question(broker)
        except AccessDenied:
            found[broker.address] = False
        except CometError:
            return
        else:
            found[broker.address] = True

    async with AdminClient(options=with_account(options, credentials), log=log) as admin:
        groups = (await admin.broker_groups()).values()
        async with TaskGroup() as tasks:
            for broker_id, broker in chain.from_iterable(it.items() for it in groups):
                if broker_id == MASTER_ID or not masters_only:
                    tasks.create_task(ask(broker))
    return found


async def _as_anybody(broker: BrokerAdmin) -> None:
    """Raise AccessDenied if a broker does not accept the signature; its refusal is no finding."""
    await broker.invoke(SIGNATURE_PROBE)


async def _as_account(broker: BrokerAdmin) -> Mapping[str, str]:
    """Return a broker's statistics, which need a valid signature only."""
    try:
        await _as_anybody(broker)
    except AccessDenied:
        raise
    except CometError:  # RocketMQ's answer without delayed messages; the next one counts
        pass
    return await broker.runtime_info()


async def _as_admin(broker: BrokerAdmin) -> None:
    """Raise AccessDenied unless a broker treats the account as an administrator.

    A CometMQ broker shows its accounts to administrators only, without secrets; RocketMQ's shows
    them to everybody, so there the question is a change without content.
    """
    is_ours = bool(read_figures(await _as_account(broker)).send_path)  # only CometMQ tells it
    await broker.invoke(
        Code.GET_BROKER_CLUSTER_ACL_CONFIG if is_ours else Code.UPDATE_BROKER_CONFIG
    )


async def check_admin(admin: AdminClient, broker_name: str) -> None:
    """Raise AccessDenied unless a broker's master treats the client's account as an administrator;
    raise another error if no master answers.
    """
    master = (await admin.masters_to_change(names=[broker_name]))[broker_name]
    await master.invoke(Code.UPDATE_BROKER_CONFIG)


def with_account(options: ClientOptions, credentials: SessionCredentials) -> ClientOptions:
    """Return the options of the console with another account."""
    return msgspec.structs.replace(options, credentials=credentials)
