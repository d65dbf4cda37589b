# SPDX-License-Identifier: Apache-2.0
"""The import of a file of definitions: what each definition becomes, and how it is carried out.

All brokers are changed at the same time, the definitions of a broker in their order; each has an
outcome of its own. If a broker does not answer, its others are not tried. The same import can be
repeated, because equal definitions are left alone.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET

from cometmq.client.admin import AdminClient
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import check_group, check_topic
from cometmq.insight.changes.change import Change, Consequence, Done, Only, Plan, arg, bad
from cometmq.insight.definitions import (
    AccountEntry,
    AddressesEntry,
    Definitions,
    Entry,
    GroupEntry,
    State,
    TopicEntry,
    decode,
    is_reserved_group,
    name_of,
    read_state,
)
from cometmq.insight.words import command, counted, listed
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    TopicConfig,
    queue_excess,
)
from cometmq.remoting.errors import CometError, ConnectFailed, TransportError

NAMESRV: Final = "name servers"
"""The place of definitions that are stored on name servers."""
NAMED_MAX: Final = 10
ROWS_MAX: Final = 500
SECRET_CHARS_MIN: Final = 7
_DOWN: Final = "down: "


class Incomplete(ClientError):
    """Only a part of an import was done; the message names the rest."""


class Fate(StrEnum):
    """What an import makes of a definition."""

    CREATED = "created"
    CHANGED = "changed"
    EQUAL = "equal"
    REFUSED = "refused"


class Outcome(StrEnum):
    """The result of importing a definition."""

    DONE = "done"
    FAILED = "failed"
    UNSURE = "perhaps done"
    UNTRIED = "not tried"


class Row(msgspec.Struct, frozen=True):
    """One definition at one broker, or at the name servers."""

    kind: str
    """topic, order, group, account or addresses."""
    name: str
    place: str
    fate: Fate
    text: str
    """What changes, or why nothing does."""
    after: Entry | str
    needs_secret: bool = False
    """Whether the change needs the secret key of its account."""
    before: str = ""
    """The settings that change, as they are."""

    @property
    def is_change(self) -> bool:
        """Whether the import would create or change something."""
        return self.fate in {Fate.CREATED, Fate.CHANGED}


class Imported(msgspec.Struct, frozen=True):
    """A definition, and the result of importing it."""

    row: Row
    outcome: Outcome
    reason: str = ""


# -- the plan -------------------------------------------------------------------------------------


def compared(state: State, wanted: Definitions) -> list[Row]:
    """Return what an import makes of each definition of a file (pure)."""
    return [
        *_usable(state, [*_rows(state, "topic", wanted.topics, state.topics)]),
        *_order_rows(state, wanted),
        *_rows(state, "group", wanted.groups, state.groups),
        *_rows(state, "account", wanted.accounts, state.accounts),
        *_rows(state, "addresses", wanted.addresses, state.addresses),
    ]


def _rows(
    state: State, kind: str, entries: Sequence[Entry], tables: Mapping[str, Mapping[str, Entry]]
) -> Iterator[Row]:
    for entry in entries:
        name, after = name_of(entry), msgspec.structs.replace(entry, brokers=UNSET)
        if isinstance(after, AccountEntry):
            perms = {it: tuple(sorted(getattr(after, it))) for it in ("topic_perms", "group_perms")}
            after = msgspec.structs.replace(after, **perms)
        for broker in sorted(state.masters) if entry.brokers is UNSET else entry.brokers:
            before = tables.get(broker, {}).get(name)
            if before == after:
                yield Row(kind, name, broker, Fate.EQUAL, "", after)
            elif reason := _refusal(state, broker, before, after):
                yield Row(kind, name, broker, Fate.REFUSED, reason, after)
            elif before is None:
                needs = _needs_secret(state, broker, after)
                yield Row(kind, name, broker, Fate.CREATED, described(after), after, needs)
            else:
                changes = _changes(before, after)
                text = "; ".join(f"{it} {was} -> {now}" for it, (was, now) in changes.items())
                old = "; ".join(f"{it} {was}" for it, (was, _) in changes.items())
                needs = _needs_secret(state, broker, after)
                yield Row(kind, name, broker, Fate.CHANGED, text, after, needs, old)


def _needs_secret(state: State, broker: str, after: Entry) -> bool:
    is_account = isinstance(after, AccountEntry)
    return is_account and (broker, name_of(after)) not in state.secrets


def _usable(state: State, rows: Sequence[Row]) -> Iterator[Row]:
    """Refuse the rows that give a topic more queues, on all brokers together, than clients
    accept.
    """
    counts: dict[str, dict[str, int]] = {row.name: {} for row in rows if row.is_change}
    for broker, topics in state.topics.items():
        for name in counts.keys() & topics.keys():
            counts[name][broker] = _queue_count(topics[name])
    before = {name: sum(of_topic.values()) for name, of_topic in counts.items()}
    for row in rows:
        if row.is_change:
            counts[row.name][row.place] = _queue_count(row.after)
    for row in rows:
        count = sum(counts.get(row.name, {}).values())
        reason = queue_excess(row.name, count)
        if row.is_change and reason and count > before[row.name]:
            yield msgspec.structs.replace(row, fate=Fate.REFUSED, text=reason)
        else:
            yield row


def _queue_count(topic: Entry | str) -> int:
    assert isinstance(topic, TopicEntry)
    return max(topic.read_queue_nums, topic.write_queue_nums)


def _order_rows(state: State, wanted: Definitions) -> Iterator[Row]:
    for name, config in sorted(wanted.order_config.items()):
        before = state.order_config.get(name)
        fate = Fate.CREATED if before is None else Fate.CHANGED
        text = f"orderConfig {_shown(before)} -> {config}"
        if before == config:
            fate, text = Fate.EQUAL, ""
        elif reason := _unchosen(check_topic, name):
            fate, text = Fate.REFUSED, reason
        yield Row("order", name, NAMESRV, fate, text, config, before=before or "")


def _refusal(state: State, broker: str, before: Entry | None, after: Entry) -> str:
    """Return why an entry cannot be imported; empty if it can."""
    if broker not in state.masters:
        return f"this cluster has no broker {broker}; it has {', '.join(sorted(state.masters))}"
    if isinstance(after, TopicEntry):
        return _topic_refusal(state, before if isinstance(before, TopicEntry) else None, after)
    if isinstance(after, GroupEntry):
        return _unchosen(check_group, after.group_name) or _group_refusal(after)
    if broker in state.silent:
        return f"the broker does not tell its accounts: {state.silent[broker]}"
    return _cleared(before, after)


def _topic_refusal(state: State, before: TopicEntry | None, after: TopicEntry) -> str:
    name, read, write = after.topic_name, after.read_queue_nums, after.write_queue_nums
    if before is None and (reason := _unchosen(check_topic, name)):
        return reason
    if state.is_reserved_topic(name):
        return "servers create this topic themselves"
    if before is not None and read < before.read_queue_nums:
        return (
            f"consumers would lose queues ({before.read_queue_nums} -> {read}): lower them with"
            f" {command('topic alter', name)}"
        )
    if write > read:
        return f"producers would send to {write} queues, and consumers read {read}"
    return ""


def _unchosen(check: Callable[[str], None], name: str) -> str:
    """Return why clients may not choose a name; empty if they may."""
    try:
        check(name)
    except InvalidArgument as error:
        return str(error)
    return ""


def _group_refusal(after: GroupEntry) -> str:
    if is_reserved_group(after.group_name):
        return "servers and tools create this group themselves"
    negative = [it for it in ("retry_max_times", "retry_queue_nums", "broker_id")
                if getattr(after, it) < 0]  # fmt: skip
    return f"{_camel(negative[0])} must not be negative" if negative else ""


def _cleared(before: Entry | None, after: Entry) -> str:
    """Return the rights that the file would remove from an account; requests can replace rights,
    but not remove them.
    """
    for name in ("topic_perms", "group_perms", "white_remote_address"):
        is_account = isinstance(before, AccountEntry)
        if is_account and getattr(before, name) and not getattr(after, name):
            return (
                f"RocketMQ's requests cannot clear {_camel(name)}: delete the account first"
                f" ({command('mqadmin deleteAccessConfig', options=('-a', name_of(after)))})"
            )
    return ""


def _changes(before: Entry, after: Entry) -> dict[str, tuple[str, str]]:
    return {
        _camel(name): (_shown(getattr(before, name)), _shown(getattr(after, name)))
        for name in after.__struct_fields__
        if getattr(before, name) != getattr(after, name)
    }


def described(entry: Entry) -> str:
    """Return the settings of an entry in a few words."""
    match entry:
        case TopicEntry():
            kind = ", ordered" if entry.order else ""
            counts = f"{entry.read_queue_nums}/{entry.write_queue_nums}"
            return f"{counts} queues, perm {entry.perm}{kind}"
        case GroupEntry():
            state = "" if entry.consume_enable else ", may not consume"
            return f"retryMaxTimes {entry.retry_max_times}{state}"
        case AccountEntry():
            who = "administrator; " if entry.admin else ""
            text = f"{who}topics {entry.default_topic_perm}, groups {entry.default_group_perm}"
            rights = ", ".join([*entry.topic_perms, *entry.group_perms])
            white = entry.white_remote_address.strip()
            open_to = f"all rights without a signature from {white}" if white else ""
            return "; ".join(it for it in (text, rights, open_to) if it)
        case AddressesEntry():
            return ", ".join(entry.global_white_addrs) or "none"
        case _:
            raise AssertionError(entry)


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "nothing" if value is None else str(value)


# -- the import -----------------------------------------------------------------------------------


def read_secrets(lines: Iterable[str], source: str) -> dict[str, str]:
    """Return the secret keys in lines of `ACCESS_KEY SECRET_KEY`; raise InvalidArgument."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if len(words) != 2 or len(words[1]) < SECRET_CHARS_MIN:
            raise InvalidArgument(
                f"line {number} of {source} must be ACCESS_KEY SECRET_KEY, of {SECRET_CHARS_MIN}"
                " characters or more"
            )
        found[words[0]] = words[1]
    return found


def lacking(rows: Iterable[Row]) -> list[str]:
    """Return the accounts whose secret key is needed."""
    return sorted({row.name for row in rows if row.is_change and row.needs_secret})


async def carry_out(
    admin: AdminClient, state: State, rows: Iterable[Row], secrets: Mapping[str, str]
) -> list[Imported]:
    """Make the changes, and return the outcome of each.

    Raise InvalidArgument before the first change if a secret key is missing.
    """
    if missing := [name for name in lacking(rows) if name not in secrets]:
        raise InvalidArgument(
            f"nothing was changed: the secret keys of {listed(missing)} are missing; brokers do not"
            " show them, and each change of an account must have its key"
        )
    places: dict[str, list[Row]] = {}
    for row in rows:
        if row.is_change:
            places.setdefault(row.place, []).append(row)
    found: list[Imported] = []

    async def change(place: str, rows: Sequence[Row]) -> None:
        silence = ""
        for row in rows:
            it = Imported(row, Outcome.UNTRIED, silence)
            if not silence:
                it = await _changed(admin, state, row, secrets)
                if it.outcome is Outcome.UNSURE or it.reason.startswith(_DOWN):
                    silence = f"{place} did not answer"
            found.append(it)

    namesrv = places.pop(NAMESRV, [])
    async with asyncio.TaskGroup() as tasks:
        for place, its in places.items():
            tasks.create_task(change(place, its))
    await change(NAMESRV, namesrv)
    return found


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
    if isinstance(row.after, str):
        await admin.set_order_config(row.name, row.after)
        return
    broker = admin.broker(state.masters[row.place].address, name=row.place)
    fields = msgspec.structs.asdict(row.after)
    del fields["brokers"]
    match row.after:
        case TopicEntry():
            await broker.create_topic(TopicConfig(**fields))
        case GroupEntry():
            await broker.create_group(SubscriptionGroupConfig(**fields))
        case AccountEntry():
            secret = secrets.get(row.name) or state.secrets.get((row.place, row.name))
            lists = {it: list(fields[it]) or None for it in ("topic_perms", "group_perms")}
            address = fields["white_remote_address"] or None
            account = {**fields, **lists, "white_remote_address": address, "secret_key": secret}
            await broker.put_account(AclAccount(**account))
        case AddressesEntry():
            await broker.set_white_addresses(row.after.global_white_addrs)
        case _:
            raise AssertionError(row.kind)


def summary(imported: Sequence[Imported]) -> str:
    """Return what was done and what was not, in one sentence."""
    done = sum(it.outcome is Outcome.DONE for it in imported)
    text = f"{counted(done, 'definition')} imported"
    for outcome in (Outcome.FAILED, Outcome.UNSURE, Outcome.UNTRIED):
        rows = [it for it in imported if it.outcome is outcome]
        if rows:
            names = [f"{it.row.kind} {it.row.name} at {it.row.place}" for it in rows]
            text += f"; {len(rows):,} {outcome}: {listed(names, NAMED_MAX)} ({rows[0].reason})"
    return text


class ImportDefinitions(Change, frozen=True, kw_only=True):
    """Create and change what a file defines; leave everything else as it is, and delete nothing.

    The whole file is checked before the first change, and the differences are shown. If anything is
    refused, nothing is changed, unless --skip-refused is given. Each change has its own outcome; an
    import that a broker has interrupted can be repeated, because equal definitions are left alone.

    \b
    EXAMPLES
      cometmq definitions import cluster.json --dry-run
      cometmq definitions import cluster.json --secrets keys.txt --yes
    """

    name = "definitions.import"
    is_new = True
    is_long = True

    file: Annotated[str, arg("What an export has written, whole or in part.", "Definitions, as"
                             " JSON", is_file=True)]  # fmt: skip
    skip_refused: Annotated[bool, arg("Import the rest if something is refused.")] = False
    secrets: Annotated[
        str,
        arg("Lines ACCESS_KEY SECRET_KEY, for accounts that are created or changed: brokers do not"
            " show them.", only=Only.FORMS),
    ] = ""  # fmt: skip

    def command(self, **_others: Any) -> str:
        """Return the command without the content of the file."""
        return "cometmq definitions import FILE"

    async def _plan(self, admin: AdminClient) -> Plan:
        wanted = decode(self.file.encode())
        state = await read_state(admin)
        rows = compared(state, wanted)
        counts = Counter(str(row.fate) for row in rows)
        changes = [row for row in rows if row.is_change]
        refused = [row for row in rows if row.fate is Fate.REFUSED]
        sentence = ", ".join(f"{counts[it]:,} {it}" for it in Fate)
        reasons = [f"{it.kind} {it.name} at {it.place}: {it.text}" for it in refused]
        why = f"{counted(len(refused), 'definition')} refused: {'; '.join(reasons[:NAMED_MAX])}"

        async def perform(admin: AdminClient) -> Done:
            secrets = read_secrets(self.secrets.splitlines(), "the secret keys")
            found = await carry_out(admin, state, rows, secrets)
            outcomes = [
                {"kind": it.row.kind, "name": it.row.name, "at": it.row.place,
                 "outcome": it.outcome, "reason": it.reason}
                for it in found
            ]  # fmt: skip
            if not all(it.outcome is Outcome.DONE for it in found):
                raise Incomplete(f"{summary(found)}. Import the file again for the rest.")
            return Done(f"{summary(found)}.", outcomes)

        shown = [
            {"kind": it.kind, "name": it.name, "place": it.place, "fate": it.fate, "text": it.text}
            for it in rows
            if it.fate is not Fate.EQUAL
        ]
        needed = lacking(rows)
        label = f"Secret keys of {listed(needed)}: a line ACCESS_KEY SECRET_KEY each"
        return Plan(
            f"import definitions: {sentence}",
            "definitions",
            [f"{it.kind} {it.name} at {it.place}: {it.before or 'nothing'}" for it in changes],
            [f"{it.kind} {it.name} at {it.place}: {it.text}" for it in changes],
            perform,
            [
                Consequence(
                    f"{counted(len(changes), 'change')} at brokers and name servers, one after"
                    " another; a change that fails does not undo the others, and is named."
                ),
                *([bad(f"{why}.")] if refused else []),
            ],
            refusal=f"{why}; mend the file, or import the rest (--skip-refused)"
            if refused and not self.skip_refused
            else "",
            idle="" if changes else "the cluster is already like this",
            at=sorted({it.place for it in changes}),
            preview={**counts, "changes": [f"{it.kind} {it.name} at {it.place}" for it in changes]},
            compared=[[it.kind, it.name, it.place, it.fate, it.text] for it in rows],
            details={"rows": shown[:ROWS_MAX], "left_out": max(0, len(shown) - ROWS_MAX)},
            labels={"secrets": label} if needed else {},
            leads_to="/definitions",
        )


CHANGES: Final = (ImportDefinitions,)
