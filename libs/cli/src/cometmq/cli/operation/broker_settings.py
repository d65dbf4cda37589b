# SPDX-License-Identifier: Apache-2.0
"""`cometmq config show` and `config diff`: settings of running brokers, and where they differ."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.connecting import DEFAULT_NAMESRV, Cluster, Namesrv, ask, wrong_usage
from cometmq.cli.output import AsJson, Cell, print_json, print_notes, print_rows
from cometmq.cli.say import say
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.insight.broker_settings import (
    Difference,
    Setting,
    differences,
    settings_of,
)
from cometmq.remoting.spelling import did_you_mean

COLUMNS: Final = ("Broker", "Setting", "Value", "Default", "Source")
UNKNOWN: Final = "unknown"
_CHANGED: Final = "what differs from the defaults: cometmq config show --changed"

Found = dict[str, list[Setting]]
"""The settings by broker."""


def show_settings(
    broker: Annotated[
        str | None, typer.Argument(help="NAME, NAME:ID or HOST:PORT; otherwise all brokers.")
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    *,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that do not have their default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show each setting of running brokers: its value, its default, and where it is set.

    The source is a line of a file, a variable, an option, the default, or a change while the broker
    ran. RocketMQ's own brokers tell only the values; --changed then shows all of them.

    \b
    EXAMPLES
      cometmq config show --changed
      cometmq config show broker-a:0 --json
    """
    clusters = ask(namesrv, lambda admin: _ask(admin, cluster, broker))
    rows: list[list[Cell]] = [
        [label, it.name, it.value, _default(it, as_json), it.source or _unknown(as_json)]
        for found in clusters.values()
        for label, settings in found.items()
        for it in settings
        if not changed or it.is_changed is not False
    ]
    print_rows(COLUMNS, rows, as_json=as_json, empty="every setting has its default")


def diff_settings(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the settings that differ between the brokers of a cluster, with a column per broker.

    Settings that are a broker's own, such as names, addresses and folders, are left out.

    \b
    EXAMPLES
      cometmq config diff
      cometmq config diff -c DefaultCluster --json
    """
    clusters = ask(namesrv, lambda admin: _ask(admin, cluster, None))
    found = {name: differences(brokers) for name, brokers in clusters.items()}
    if as_json:
        print_json([_as_object(name, it) for name, rows in found.items() for it in rows])
        return
    for name, rows in found.items():
        brokers = list(clusters[name])
        if len(brokers) < 2:
            print_notes([f"cluster {name} has one broker that tells its settings; {_CHANGED}"])
        elif not rows:
            print_notes(
                [f"all {len(brokers)} brokers of {name} have the same settings; {_CHANGED}"]
            )
        else:
            print_rows(
                ("Setting", *brokers),
                [[it.name, *(_shown(it, broker) for broker in brokers)] for it in rows],
                as_json=False,
                title=f"Cluster {name}" if len(found) > 1 else "",
            )


async def _ask(admin: CommandAdmin, cluster: str | None, wanted: str | None) -> dict[str, Found]:
    """Return the settings of brokers by cluster."""
    tables = (await admin.cluster()).cluster_addr_table
    groups = await admin.broker_groups(cluster)
    labels = {
        f"{name}:{broker_id}": one
        for name, group in groups.items()
        for broker_id, one in group.items()
    }
    chosen = labels if wanted is None else _chosen(labels, wanted)
    answers = await admin.ask_each(chosen.values(), settings_of)
    by_address = {one.address: settings for one, settings in answers}
    told = {
        label: by_address[one.address] for label, one in chosen.items() if one.address in by_address
    }
    clusters = {
        name: {label: told[label] for label in told if label.rpartition(":")[0] in names}
        for name, names in sorted(tables.items())
    }
    if not told:
        say("cometmq: no broker has answered with its settings", err=True)
        raise typer.Exit(1)
    return {name: found for name, found in clusters.items() if found}


def _chosen(labels: Mapping[str, BrokerAdmin], wanted: str) -> dict[str, BrokerAdmin]:
    found = {
        label: one for label, one in labels.items() if wanted in (label, one.name, one.address)
    }
    if not found:
        known: Sequence[str] = sorted(labels)
        raise wrong_usage(
            f"there is no broker {wanted}; the brokers are: {', '.join(known) or 'none'}"
            f"{did_you_mean(wanted, {it.name for it in labels.values()})}"
        )
    return found


def _unknown(as_json: bool) -> str | None:
    return None if as_json else UNKNOWN


def _default(it: Setting, as_json: bool) -> str | None:
    return it.default if it.source is not None else _unknown(as_json)


def _shown(it: Difference, broker: str) -> str | None:
    return it.settings[broker].shown if broker in it.settings else None


def _as_object(cluster: str, it: Difference) -> dict[str, object]:
    return {
        "cluster": cluster,
        "setting": it.name,
        "brokers": {
            broker: {"value": one.value, "default": one.default, "source": one.source}
            for broker, one in it.settings.items()
        },
    }
