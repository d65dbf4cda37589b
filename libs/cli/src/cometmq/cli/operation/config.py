# SPDX-License-Identifier: Apache-2.0
"""`cometmq config`: settings files before programs read them, and settings of running brokers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.connecting import DEFAULT_NAMESRV, Cluster, Namesrv, ask, wrong_usage
from cometmq.cli.lazy import App
from cometmq.cli.option_sets import arg, opt
from cometmq.cli.output import AsJson, Cell, as_objects, print_json, print_notes, print_rows
from cometmq.cli.say import say
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.insight.broker_settings import Difference, Setting, differences, settings_of
from cometmq.remoting.errors import CometError, SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.spelling import did_you_mean
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.programs import COMMANDS
from cometmq.runtime.settings import Loaded, load
from cometmq.runtime.settings.fields import fields_of
from cometmq.runtime.settings.foreign import Foreign, foreign_of
from cometmq.runtime.settings.mistakes import refuse_wrong_file

SETTINGS: Final = ("Broker", "Setting", "Value", "Default", "Source")
UNKNOWN: Final = "unknown"
_CHANGED: Final = "what differs from the defaults: cometmq config show --changed"

Found = dict[str, list[Setting]]
"""The settings by broker."""


def show_settings(
    broker: Annotated[str | None, arg("NAME, NAME:ID or HOST:PORT; otherwise all brokers.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    cluster: Cluster = None,
    *,
    changed: Annotated[
        bool, opt("--changed", "Only settings that do not have their default.")
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
        [label, it.name, it.value, _default(it, as_json), it.source or _untold(as_json)]
        for found in clusters.values()
        for label, settings in found.items()
        for it in settings
        if not changed or it.is_changed is not False
    ]
    print_rows(SETTINGS, rows, as_json=as_json, empty="every setting has its default")


def diff_settings(
    namesrv: Namesrv = DEFAULT_NAMESRV, cluster: Cluster = None, *, as_json: AsJson = False
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


def _untold(as_json: bool) -> str | None:
    return None if as_json else UNKNOWN


def _default(it: Setting, as_json: bool) -> str | None:
    return it.default if it.source is not None else _untold(as_json)


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


PROGRAMS: Final = {"broker": COMMANDS["broker"], **COMMANDS}  # it counts where others are equal
COLUMNS: Final = ("Level", "Finding")
ERROR: Final = "error"
WARNING: Final = "warning"
NOTE: Final = "note"
_FOR_OTHERS: Final = 0o077

app = App("Check settings files, and compare the settings of running brokers.")


app.command("show")(show_settings)
app.command("diff")(diff_settings)


@app.command()
def check(
    file: Annotated[Path, arg("Settings file.", exists=True, dir_okay=False)],
    program: Annotated[str | None, opt("--program", f"One of {', '.join(PROGRAMS)}.")] = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Check a settings file: wrong values, unknown or repeated keys, secrets that others can read.

    The program is the one that most keys belong to, and among equals the one that the file is named
    after, unless it is given. The checks are those of a start. Errors keep the program
    from starting (exit status 2); warnings are probably mistakes (1); notes are harmless (0).

    \b
    EXAMPLES
      cometmq config check /etc/cometmq/broker.conf
      cometmq config check my.conf --program namesrv --json
    """
    if program is not None and program not in PROGRAMS:
        raise wrong_usage(f"--program {program!r}: must be one of {', '.join(PROGRAMS)}")
    name = program or _program_of(file)
    rows = _findings(name, file)
    if as_json:
        facts = {"file": str(file), "program": name}
        print_json({**facts, "findings": as_objects(COLUMNS, rows)})
    else:
        print_rows(COLUMNS, rows, as_json=False, title=f"{file}: settings of cometmq {name}")
        if not rows:
            say("Nothing is wrong.")
    levels = {row[0] for row in rows}
    if ERROR in levels:
        raise typer.Exit(2)
    if WARNING in levels:
        raise typer.Exit(1)


def _keys(file: Path) -> frozenset[str]:
    """Return the keys of a file; the struct of any program reads all of them."""
    try:
        loaded = load(
            PROGRAMS["exporter"].settings_type(), prefix="", file=file, env={}, is_part=True
        )
    except SettingsError:
        return frozenset()
    given = {name for name, origin in loaded.origins.items() if origin.kind == "file"}
    return frozenset(given | loaded.unknown.keys())


def _program_of(file: Path) -> str:
    """Return the program that most keys of a file belong to, or else the file's name; the broker if
    none does.
    """
    keys = _keys(file)
    counts = {
        name: (
            len(keys & program.own_keys),
            name in file.name,
            sum(it in _known(name) or it in _foreign(name) for it in keys),
        )
        for name, program in PROGRAMS.items()
        if _is_installed(name)
    }
    return max(counts, key=lambda name: counts[name])


def _is_installed(program: str) -> bool:
    try:
        PROGRAMS[program].settings_type()
    except ModuleNotFoundError:  # the elector needs the extra [ha]
        return False
    return True


def _known(program: str) -> frozenset[str]:
    return frozenset(fields_of(PROGRAMS[program].settings_type()))


def _foreign(program: str) -> Foreign:
    return foreign_of(PROGRAMS[program].settings_type())


def _check_as_a_start_does(program: str, loaded: Loaded[Any], file: Path) -> None:
    """Raise CometError or OSError if the program would not start with these settings."""
    more: dict[str, Any] = {"config_path": file} if program == "broker" else {}
    app = PROGRAMS[program].app_type()
    app(
        loaded, log=NO_LOG, clock=SystemClock(), admin=AdminHttp(log=NO_LOG), **more
    ).check_settings()


def _findings(program: str, file: Path) -> list[list[Cell]]:
    settings = PROGRAMS[program].settings_type()
    try:
        loaded = load(settings, prefix=PROGRAMS[program].prefix, file=file, env={})
        refuse_wrong_file(program, loaded, file)
        _check_as_a_start_does(program, loaded, file)
    except (CometError, OSError) as error:
        return [[ERROR, line] for line in str(error).splitlines()]
    rows: list[list[Cell]] = [[WARNING, line] for line in loaded.mistakes.lines()]
    rows += _unknown(program, loaded)
    rows += [
        [NOTE, f"{name} has no effect: {reason}"] for name, reason in loaded.ineffective().items()
    ]
    secrets = [
        field.name
        for field in fields_of(settings).values()
        if field.is_secret and loaded.origins[field.name].kind == "file"
    ]
    mode = file.stat().st_mode & 0o777
    if secrets and mode & _FOR_OTHERS:
        rows.append([
            WARNING,
            f"other users can read {', '.join(secrets)} (mode {mode:04o}): chmod 600 {file}",
        ])  # fmt: skip
    return rows


def _unknown(program: str, loaded: Loaded[Any]) -> list[list[Cell]]:
    """Return the unknown keys that `mistakes` does not name, each with a program that has it."""
    mistakes = loaded.mistakes
    rows: list[list[Cell]] = []
    for name in loaded.unknown.keys() - mistakes.misspelt.keys() - mistakes.prose.keys():
        if name in _foreign(program):
            continue
        owners = [
            it for it in PROGRAMS if it != program and _is_installed(it) and name in _known(it)
        ]
        whose = f"; it is a setting of cometmq {owners[0]}" if owners else ""
        hint = "" if owners else did_you_mean(name, _known(program))
        rows.append([NOTE, f"{name} is no setting of cometmq {program}, and is kept{whose}{hint}"])
    return sorted(rows, key=str)
