# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands for name servers: KV values, settings, write permissions."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from cometmq.cli.mqadmin.frame import Family, Force, Reply, ask_each, failures, sections
from cometmq.cli.mqadmin.group_settings import NAMESRV, refuse_unknown
from cometmq.cli.option_sets import opt
from cometmq.client.admin import AdminClient
from cometmq.client.admin.namesrv import NamesrvAdmin
from cometmq.client.errors import BrokerMissing

app = Family()

Namespace = Annotated[str, opt("-s", "--namespace", "Namespace of the value.")]
Key = Annotated[str, opt("-k", "--key", "Name.")]
Value = Annotated[str, opt("-v", "--value", "New value.")]
BrokerName = Annotated[str, opt("-b", "--brokerName", "Name of the broker.")]


@app.asks("updateKvConfig")
async def _update_kv_config(
    admin: AdminClient, namespace: Namespace, key: Key, value: Value
) -> Reply:
    facts = {"namespace": namespace.strip(), "key": key.strip(), "value": value.strip()}
    await admin.namesrv.put_kv(*facts.values())
    return Reply("create or update kv config to namespace success.", facts)


@app.asks("deleteKvConfig")
async def _delete_kv_config(admin: AdminClient, namespace: Namespace, key: Key) -> Reply:
    facts = {"namespace": namespace.strip(), "key": key.strip()}
    await admin.namesrv.delete_kv(*facts.values())
    return Reply("delete kv config from namespace success.", facts)


@app.asks("wipeWritePerm")
async def _wipe_write_perm(admin: AdminClient, broker: BrokerName) -> Reply:
    return await _with_perm(admin, "wipe", NamesrvAdmin.wipe_write_perm, broker)


@app.asks("addWritePerm")
async def _add_write_perm(admin: AdminClient, broker: BrokerName) -> Reply:
    return await _with_perm(admin, "add", NamesrvAdmin.add_write_perm, broker)


async def _with_perm(
    admin: AdminClient,
    verb: str,
    change: Callable[[NamesrvAdmin, str], Awaitable[int]],
    broker: str,
) -> Reply:
    async def changed(one: NamesrvAdmin) -> tuple[int, list[str]]:
        count = await change(one, broker)
        return count, [] if count else sorted((await one.cluster()).broker_addr_table)

    counts, failed = await ask_each(admin.namesrv.each(), changed)
    lines = [
        f"{verb} write perm of broker[{broker}] in name server[{address}] OK, {count}"
        for address, (count, _) in counts.items()
    ]
    facts = [{"name_server": address, "topics": count} for address, (count, _) in counts.items()]
    failed += failures({
        address: BrokerMissing(
            f"no broker {broker} is registered here, so nothing was changed; the brokers are:"
            f" {', '.join(known) or 'none'}"
        )
        for address, (count, known) in counts.items()
        if not count
    })  # fmt: skip
    return Reply("\n".join(lines), facts or None, failed)


@app.asks("getNamesrvConfig")
async def _get_namesrv_config(admin: AdminClient) -> Reply:
    found, failed = await ask_each(admin.namesrv.each(), lambda one: one.config())
    return Reply(sections(found), found or None, failed)


@app.asks("updateNamesrvConfig")
async def _update_namesrv_config(
    admin: AdminClient, key: Key, value: Value, *, force: Force = False
) -> Reply:
    key, value = key.strip(), value.strip()
    if not force:
        for one in admin.namesrv.each():
            refuse_unknown(key, one.address, await one.config(), NAMESRV)
    await admin.namesrv.update_config({key: value}, is_forced=True)
    addresses = sorted(admin.namesrv.addresses)
    text = f"update name server config success![{', '.join(addresses)}]\n{key} : {value}"
    return Reply(text, {"name_servers": addresses, "key": key, "value": value})
