# SPDX-License-Identifier: Apache-2.0
"""Decides who may read the messages of a topic: bodies, keys and properties.

The brokers decide about users who logged in with an account of the cluster. For all others, the
setting `readableTopics` names topics by role.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from cometmq.client.admin import AdminClient
from cometmq.console.login.accounts import with_account
from cometmq.console.login.roles import Role, User, role_of
from cometmq.console.login.sessions import Session
from cometmq.remoting.errors import AccessDenied, CometError, SettingsError
from cometmq.remoting.log import Log

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
