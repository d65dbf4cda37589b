# SPDX-License-Identifier: Apache-2.0
"""Carries out the plan of an import: all brokers at the same time, the rows of a broker in their
order.

Each row has an outcome of its own. If a broker does not answer, its remaining rows are not tried.
The same import can be repeated, because rows without a difference are left alone.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.insight.definitions.form import AccountEntry, AddressesEntry, GroupEntry, TopicEntry
from cometmq.insight.definitions.planning import NAMESRV, Plan, Row
from cometmq.insight.definitions.state import State, group_config, topic_config
from cometmq.insight.words import counted, listed
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.errors import CometError, ConnectFailed, TransportError

NAMED_MAX: Final = 10
SECRET_CHARS_MIN: Final = 7


class Incomplete(ClientError):
    """Only a part of an import was done; the message names the rest."""


class Outcome(StrEnum):
    """The result of importing a row."""

    DONE = "done"
    FAILED = "failed"
    UNSURE = "perhaps done"
    UNTRIED = "not tried"


class Imported(msgspec.Struct, frozen=True):
    """A row, and the result of importing it."""

    row: Row
    outcome: Outcome
    reason: str = ""


def read_secrets(lines: Iterable[str], source: str) -> dict[str, str]:
    """Return the secret keys in lines of `ACCESS_KEY SECRET_KEY`; raise InvalidArgument."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) != 2:
            raise InvalidArgument(f"line {number} of {source} must be ACCESS_KEY SECRET_KEY")
        if len(words[1]) < SECRET_CHARS_MIN:
            raise InvalidArgument(f"line {number} of {source}: the secret key is too short")
        found[words[0]] = words[1]
    return found


def check_secrets(plan: Plan, secrets: Mapping[str, str]) -> None:
    """Raise InvalidArgument if a secret key is missing."""
    lacking = [name for name in plan.lacking if name not in secrets]
    if lacking:
        raise InvalidArgument(
            f"nothing was changed: the secret keys of {listed(lacking)} are missing; brokers do not"
            " show them, and each change of an account must have its key"
        )


async def carry_out(
    admin: AdminClient,
    state: State,
    plan: Plan,
    secrets: Mapping[str, str],
    *,
    done: Callable[[Imported], None] = lambda _: None,
) -> list[Imported]:
    """Make the changes of a plan, and return the outcome of each; refused rows are left out.

    `done` is called with each outcome as it happens. Raise InvalidArgument before the first change
    if a secret key is missing.
    """
    check_secrets(plan, secrets)
    places: dict[str, list[Row]] = {}
    for row in plan.changes:
        places.setdefault(row.place, []).append(row)
    found: dict[int, Imported] = {}

    async def change(place: str, rows: Sequence[Row]) -> None:
        silence = ""
        for row in rows:
            it = Imported(row, Outcome.UNTRIED, silence)
            if not silence:
                it = await _changed(admin, state, row, secrets)
                if it.outcome is Outcome.UNSURE or it.reason.startswith(_DOWN):
                    silence = f"{place} did not answer"
            found[id(row)] = it
            done(it)

    namesrv = places.pop(NAMESRV, [])
    async with asyncio.TaskGroup() as tasks:
        for place, rows in places.items():
            tasks.create_task(change(place, rows))
    await change(NAMESRV, namesrv)
    return [found[id(row)] for row in plan.changes]


_DOWN: Final = "down: "


async def _changed(
    admin: AdminClient, state: State, row: Row, secrets: Mapping[str, str]
) -> Imported:
    try:
        await _change(admin, state, row, secrets)
    except ConnectFailed as error:
        return Imported(row, Outcome.FAILED, f"{_DOWN}{error}")
    except TransportError as error:
        return Imported(row, Outcome.UNSURE, str(error))
    except CometError as error:
        return Imported(row, Outcome.FAILED, str(error) or type(error).__name__)
    return Imported(row, Outcome.DONE)


async def _change(admin: AdminClient, state: State, row: Row, secrets: Mapping[str, str]) -> None:
    match row.after:
        case str(config):
            await admin.set_order_config(row.name, config)
        case TopicEntry() as topic:
            await _broker(admin, state, row).create_topic(topic_config(topic))
        case GroupEntry() as group:
            await _broker(admin, state, row).create_group(group_config(group))
        case AccountEntry() as account:
            told = state.secrets.get((row.place, row.name))
            given = _account(account, secrets.get(row.name) or told)
            await _broker(admin, state, row).put_account(given)
        case AddressesEntry() as addresses:
            await _broker(admin, state, row).set_white_addresses(addresses.global_white_addrs)
        case _:
            raise AssertionError(row.kind)


def _broker(admin: AdminClient, state: State, row: Row) -> BrokerAdmin:
    """Return the client of a row's broker, made by `admin`, whose account may differ from the one
    that read the state.
    """
    return admin.broker(state.masters[row.place].address, name=row.place)


def _account(entry: AccountEntry, secret: str | None) -> AclAccount:
    return AclAccount(
        access_key=entry.access_key,
        admin=entry.admin,
        default_group_perm=entry.default_group_perm,
        default_topic_perm=entry.default_topic_perm,
        group_perms=list(entry.group_perms) or None,
        secret_key=secret,
        topic_perms=list(entry.topic_perms) or None,
        white_remote_address=entry.white_remote_address or None,
    )


def summary(imported: Sequence[Imported]) -> str:
    """Return what was done and what was not, in one sentence."""
    done = sum(it.outcome is Outcome.DONE for it in imported)
    text = f"{counted(done, 'definition')} imported"
    for outcome in (Outcome.FAILED, Outcome.UNSURE, Outcome.UNTRIED):
        rows = [it for it in imported if it.outcome is outcome]
        if rows:
            names = listed([f"{it.row.kind} {it.row.name} at {it.row.place}" for it in rows],
                           NAMED_MAX)  # fmt: skip
            text += f"; {len(rows):,} {outcome}: {names} ({rows[0].reason})"
    return text


def is_whole(imported: Sequence[Imported]) -> bool:
    """Return whether everything was done."""
    return all(it.outcome is Outcome.DONE for it in imported)
