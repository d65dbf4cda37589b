# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands for name servers: KV values, settings, write permissions."""

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin.frame import Family, Force, Namesrv, ask_namesrvs, exit_if_any, print_done
from cometmq.cli.mqadmin.group_settings import NAMESRV, refuse_unknown
from cometmq.cli.output import AsJson, print_json
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient
from cometmq.client.admin.namesrv import NamesrvAdmin
from cometmq.client.errors import BrokerMissing
from cometmq.remoting.errors import CometError

app = Family()

Namespace = Annotated[str, typer.Option("-s", "--namespace", help="Namespace of the value.")]
Key = Annotated[str, typer.Option("-k", "--key", help="Name.")]
Value = Annotated[str, typer.Option("-v", "--value", help="New value.")]
BrokerName = Annotated[str, typer.Option("-b", "--brokerName", help="Name of the broker.")]


@app.named("updateKvConfig")
def update_kv_config(
    namespace: Namespace,
    key: Key,
    value: Value,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Set a value on every name server."""

    async def question(admin: AdminClient) -> None:
        await admin.namesrv.put_kv(namespace.strip(), key.strip(), value.strip())

    ask(namesrv, question)
    facts = {"namespace": namespace.strip(), "key": key.strip(), "value": value.strip()}
    print_done("create or update kv config to namespace success.", facts, as_json=as_json)


@app.named("deleteKvConfig")
def delete_kv_config(
    namespace: Namespace, key: Key, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False
) -> None:
    """Delete a value from every name server."""

    async def question(admin: AdminClient) -> None:
        await admin.namesrv.delete_kv(namespace.strip(), key.strip())

    ask(namesrv, question)
    facts = {"namespace": namespace.strip(), "key": key.strip()}
    print_done("delete kv config from namespace success.", facts, as_json=as_json)


@app.named("wipeWritePerm")
def wipe_write_perm(
    broker: BrokerName, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False
) -> None:
    """Stop producers from sending to a broker, for maintenance."""
    answers = ask_namesrvs(namesrv, lambda one: _counted(one, one.wipe_write_perm, broker))
    _print_perms("wipe", broker, *answers, as_json=as_json)


@app.named("addWritePerm")
def add_write_perm(
    broker: BrokerName, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False
) -> None:
    """Allow sends to a broker again."""
    answers = ask_namesrvs(namesrv, lambda one: _counted(one, one.add_write_perm, broker))
    _print_perms("add", broker, *answers, as_json=as_json)


async def _counted(
    namesrv: NamesrvAdmin, change: Callable[[str], Awaitable[int]], broker: str
) -> tuple[int, list[str]]:
    """Change a broker's topics; return how many changed and, if none did, the known brokers."""
    count = await change(broker)
    return count, [] if count else sorted((await namesrv.cluster()).broker_addr_table)


def _print_perms(
    verb: str,
    broker: str,
    counts: dict[str, tuple[int, list[str]]],
    failures: dict[str, CometError],
    *,
    as_json: bool,
) -> None:
    lines = [
        f"{verb} write perm of broker[{broker}] in name server[{address}] OK, {count}"
        for address, (count, _) in counts.items()
    ]
    facts = [{"name_server": address, "topics": count} for address, (count, _) in counts.items()]
    if counts:
        print_done("\n".join(lines), facts, as_json=as_json)
    unknown: dict[str, CometError] = {
        address: BrokerMissing(
            f"no broker {broker} is registered here, so nothing was changed; the brokers are:"
            f" {', '.join(known) or 'none'}"
        )
        for address, (count, known) in counts.items()
        if not count
    }
    exit_if_any(failures | unknown)


@app.named("getNamesrvConfig")
def get_namesrv_config(namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False) -> None:
    """Show the settings of every name server."""
    found, failures = ask_namesrvs(namesrv, lambda one: one.config())
    if as_json and found:
        print_json(found)
    elif not as_json:
        for address, config in found.items():
            say(f"============{address}============")
            for key, value in config.items():
                say(f"{key:<50}=  {value}")
    exit_if_any(failures)


@app.named("updateNamesrvConfig")
def update_namesrv_config(
    key: Key,
    value: Value,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Change a setting of every name server."""
    key, value = key.strip(), value.strip()

    async def question(admin: AdminClient) -> list[str]:
        if not force:
            for one in admin.namesrv.each():
                refuse_unknown(key, one.address, await one.config(), NAMESRV)
        await admin.namesrv.update_config({key: value}, is_forced=True)
        return sorted(admin.namesrv.addresses)

    addresses = ask(namesrv, question)
    places = ", ".join(addresses)
    text = f"update name server config success![{places}]\n{key} : {value}"
    facts = {"name_servers": addresses, "key": key, "value": value}
    print_done(text, facts, as_json=as_json)
