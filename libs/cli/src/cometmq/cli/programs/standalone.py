# SPDX-License-Identifier: Apache-2.0
"""`cometmq standalone`: name server, broker and txn-checker in one process, and further brokers.

The programs still speak the remoting protocol over loopback, so what works here also works in
separate processes.
"""

import asyncio
import shutil
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import msgspec
import typer

from cometmq.broker.instances import INSTANCES_MAX
from cometmq.broker.opening import acl_path
from cometmq.broker.registration.addresses import choose_ports, explicit_ha_port, is_own_address
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.start_checks import check_environment, check_settings
from cometmq.cli.access import is_said
from cometmq.cli.lazy import App, imports_of
from cometmq.cli.option_sets import opt
from cometmq.cli.output import print_notes
from cometmq.cli.programs.children import (
    PORT_OPTION,
    BrokerOrder,
    Options,
    Serving,
    Siblings,
    WaitingConsole,
)
from cometmq.cli.programs.running import (
    ConfigFile,
    LogJson,
    LogLevel,
    configure_log,
    exit_on_bad_settings,
    warn_unknown,
)
from cometmq.cli.programs.suite import (
    BROKER_PORT_DEFAULT,
    CONSOLE_PORT,
    DATA_DEFAULT,
    HTTP_PORT_DEFAULT,
    LOOPBACK,
    NAMESRV_PORT_DEFAULT,
    Suite,
    console_settings,
    instance_of,
    load_suite,
    with_namesrv,
)
from cometmq.cli.say import say
from cometmq.cli.streams import OutputFailed
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.addresses import host_port
from cometmq.runtime import logging
from cometmq.runtime.acl.accounts import Account
from cometmq.runtime.admin_http import AdminHttp
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.places import check_port, prepare_folder
from cometmq.runtime.process.garbage import no_collections
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.service import Stop, run
from cometmq.runtime.settings import Loaded
from cometmq.runtime.settings.mistakes import refuse_wrong_file
from cometmq.store.layout import Layout
from cometmq.store.os_disk import OsDisk

if TYPE_CHECKING:
    from cometmq.broker.app import BrokerApp
    from cometmq.namesrv.app import NamesrvApp
    from cometmq.txn_checker.app import TxnCheckerApp

FIRST_ROUND_WAIT_MS = 2_000
DEFAULT_NAMESRV = "127.0.0.1:9876"  # of the other commands

app = App()

Data = Annotated[Path, opt("--data", "Folder of messages and settings.")]
Host = Annotated[
    str, opt("Address for clients; if it is not on loopback, the network reaches the ports.")
]
NamesrvPort = Annotated[int, opt("Port of the name server.", min=0, max=65535)]
BrokerPort = Annotated[
    int, opt("Port of the broker, which also takes N-2 and N+1.", min=0, max=65535)
]
HttpPort = Annotated[int, opt("Metrics, health; -1: none.", min=-1, max=65535)]
Brokers = Annotated[
    int,
    opt(
        "Processes of brokers; the N-th has ports 10 * (N - 1) higher, -N after its name.",
        min=1,
        max=INSTANCES_MAX,
    ),
]

ConsolePort = Annotated[int, opt("Or on this one; 0 is any.", min=-1, max=65535)]
Console = Annotated[bool, opt("--console", f"The console on its usual port, {CONSOLE_PORT}.")]


@app.command()
def standalone(  # noqa: PLR0913, PLR0917  # one parameter per option
    ctx: typer.Context,
    data: Data = DATA_DEFAULT,
    host: Host = LOOPBACK,
    namesrv_port: NamesrvPort = NAMESRV_PORT_DEFAULT,
    broker_port: BrokerPort = BROKER_PORT_DEFAULT,
    http_port: HttpPort = HTTP_PORT_DEFAULT,
    brokers: Brokers = 1,
    config: ConfigFile = None,
    *,
    console: Console = False,
    console_port: ConsolePort = -1,
    log_level: LogLevel = "warning",
    log_json: LogJson = None,
) -> None:
    """Run name server, broker and txn-checker in one process, until Ctrl-C.

    They continue with the data in the folder. Without -c, its broker.conf counts. listenPort and
    adminHttpPort of the file win over the defaults.

    \b
    EXAMPLE
      cometmq standalone --data /tmp/mq
    """
    with exit_on_bad_settings():
        values = Options(data, host, namesrv_port, broker_port, http_port)._asdict().items()
        given = {name: value for name, value in values if is_said(ctx, name)}
        options = Options(**given)
        suite = load_suite(config, options)
        refuse_wrong_file("broker", suite.broker, suite.broker_file)
        if suite.broker.value.listen_port == 0:
            raise SettingsError(
                f"{suite.broker.label('listenPort')}: give a port other than 0: the broker also"
                " listens two below it and one above it, so it cannot take any free one"
            )
        for number in range(1, brokers + 1):
            instance_of(suite, number)  # raises if its settings or ports are wrong
    log = configure_log("standalone", level=log_level, json=log_json)
    warn_unknown(suite.broker, log)
    if suite.overruled:
        log.warning("settings.overruled", use=suite.overruled, file=str(suite.broker_file))

    orders = [
        BrokerOrder(
            number=number,
            config=config,
            options=options,
            account=_keys(suite.own_account),
            log_level=log_level,
            log_json=log_json,
        )
        for number in range(2, brokers + 1)
    ]
    page_port = CONSOLE_PORT if console and not is_said(ctx, "console_port") else console_port
    page = Page(page_port, log_level, log_json)
    with imports_of("standalone"):  # not before: the help page needs none of it
        for name in ("namesrv", "broker"):
            PROGRAMS[name].app_type()

    async def main(stop: Stop) -> None:
        await _serve(suite, orders, page, stop, log)

    sys.exit(run(main, log=log))


def _keys(account: Account | None) -> tuple[str, str] | None:
    if account is None:
        return None
    return account.access_key, account.config.secret_key or ""


class Page(NamedTuple):
    """The console of a suite."""

    port: int
    """The port of the pages; -1 means that there is no console."""
    log_level: str
    log_json: bool | None


async def _serve(suite: Suite, orders: list[BrokerOrder], page: Page, stop: Stop, log: Log) -> None:
    """Start the programs in the order of their dependencies, print the banner, and stop them in
    reverse order.
    """
    other_ports = [(page.port, PORT_OPTION)]
    for order in orders:
        other_ports += _ports_of(instance_of(suite, order.number), order.number)
    _check_environment(suite, other_ports, log)
    check_port(suite.namesrv.value.bind_address, page.port, setting=PORT_OPTION)
    prepare_folder(suite.data, setting="--data")
    clock = SystemClock()
    admin = AdminHttp(log=log)
    namesrv_app: type[NamesrvApp] = PROGRAMS["namesrv"].app_type()
    broker_app: type[BrokerApp] = PROGRAMS["broker"].app_type()
    async with AsyncExitStack() as started:
        started.push_async_callback(admin.stop)
        namesrv = namesrv_app(suite.namesrv, log=logging.get("namesrv"), clock=clock, admin=admin)
        await _begin(namesrv, started)
        port = namesrv.addresses[0].rpartition(":")[2]
        broker = broker_app(
            with_namesrv(instance_of(suite, 1), suite.namesrv_address(int(port))),
            log=logging.get("broker"),
            clock=clock,
            admin=admin,
            config_path=suite.broker_file,
            own_account=suite.own_account,
        )
        await _begin(broker, started)
        orders = [msgspec.structs.replace(it, namesrv_port=int(port)) for it in orders]
        siblings = Siblings(orders, log=log)
        started.push_async_callback(siblings.stop)
        others = await siblings.start(stop)
        # The broker already accepts messages while the checker's modules (mainly the client's) are
        # imported, which takes an eighth of the CPU time of the start.
        checker_app = await asyncio.to_thread(_import_checker)
        checker = checker_app(
            with_namesrv(suite.txn_checker, suite.namesrv_address(int(port))),
            log=logging.get("txn-checker"),
            clock=clock,
            admin=admin,
        )
        await _begin(checker, started)
        await checker.wait_for_first_round(FIRST_ROUND_WAIT_MS)
        if suite.http_port >= 0:
            host = suite.namesrv.value.bind_address
            await admin.start(suite.http_port, host=host, setting=suite.http_setting)
        console = await _console(suite, page, port, started, log)
        stop.serving()
        process = broker.broker.process
        slaves = host_port(process.host, broker.broker.settings.ha_listen_port)
        lines = banner(
            suite, process.host, int(port), [*broker.addresses, slaves], admin,
            path=process.send_path, others=others, console=console,
        )  # fmt: skip
        say(lines)
        print_notes([*suite.mistakes(), *_left_out(suite, 1 + len(others))])
        await stop.wait()
        _say("stopping ...")
    _say(f"stopped; the data stays in {suite.data}")


async def _begin(app: "NamesrvApp | BrokerApp | TxnCheckerApp", started: AsyncExitStack) -> None:
    await app.start()
    started.push_async_callback(app.stop)


async def _console(
    suite: Suite, page: Page, namesrv_port: str, started: AsyncExitStack, log: Log
) -> list[str]:
    """Listen for browsers; return the lines about the console for the banner."""
    if page.port < 0:
        return []
    console = WaitingConsole(suite.namesrv.value.bind_address, page.port, log=log)
    started.push_async_callback(console.stop)
    settings = console_settings(suite, namesrv_port)
    console.start(settings, log_level=page.log_level, log_json=page.log_json)
    token = await asyncio.to_thread(_token, suite.data / "console", log)
    url = f"{'https' if suite.needs_tls else 'http'}://{host_port(suite.host, console.port)}/"
    what = "changes" if suite.own_account is None else "pages"
    return [f"  console      {url} ({what} need the token, the last word in {token})"]


def _token(folder: Path, log: Log) -> Path:
    """Return the file with the token of the console, which exists before the first visit."""
    from cometmq.console.login.tokens import (  # noqa: PLC0415  # only for a console
        GENERATED,
        own_token,
    )

    try:
        return own_token(folder)
    except OSError as error:  # the console tries again; a suite runs also while the disk is full
        log.warning("token.missing", path=str(folder / GENERATED), error=str(error))
        return folder / GENERATED


def _left_out(suite: Suite, brokers: int) -> list[str]:
    """Return a line if the folder has the messages of a broker that does not run now."""
    folder = Path(f"{suite.broker.value.store_path_root_dir}-{brokers + 1}")
    line = (
        f"{folder} has the messages of another broker, which does not run: start with --brokers"
        f" {brokers + 1} to serve them"
    )
    return [line] if folder.is_dir() else []


def _import_checker() -> "type[TxnCheckerApp]":
    with no_collections():
        module = import_module("cometmq.txn_checker.app")
    return cast("type[TxnCheckerApp]", module.TxnCheckerApp)


def _say(text: str) -> None:
    """Print a line; ignore write errors, because Ctrl-C also ends a `tee` that reads the output."""
    with suppress(OutputFailed):  # the end of the command reports it
        say(text)


def _ports_of(broker: Loaded[BrokerSettings], number: int) -> list[tuple[int, str]]:
    ports = choose_ports(broker.value.listen_port, "", ha_port=explicit_ha_port(broker))
    found = (ports.main, ports.vip or 0, ports.ha, broker.value.admin_http_port)
    return [(port, f"broker {number} of --brokers") for port in found]


def _check_environment(suite: Suite, others: list[tuple[int, str]], log: Log) -> None:
    """Reject unusable ports or an unusable address before any folder is created; `others` are ports
    of other servers of the suite.
    """
    namesrv, broker = suite.namesrv.value, suite.broker.value
    check_settings(suite.broker)
    OsDisk().check_unlocked(Layout(broker).lock)
    check_port(namesrv.bind_address, namesrv.listen_port, setting=suite.namesrv.label("listenPort"))
    ha_port = explicit_ha_port(suite.broker)
    check_environment(
        suite.broker,
        choose_ports(broker.listen_port, "", ha_port=ha_port),
        # Without haListenPort, the port is the one after the broker's.
        ha_setting=None
        if ha_port
        else f"{suite.broker.label('listenPort')}, or haListenPort in {suite.broker_file}",
        others=[
            (namesrv.listen_port, suite.namesrv.label("listenPort")),
            (suite.http_port, suite.http_setting),
            *others,
        ],
    )
    check_port(namesrv.bind_address, suite.http_port, setting=suite.http_setting)
    if not is_own_address(suite.host.strip("[]")):
        log.warning("address.foreign", host=suite.host)


def banner(  # noqa: PLR0913  # everything that it shows
    suite: Suite,
    host: str,
    port: int,
    broker: Sequence[str],
    admin: AdminHttp,
    *,
    path: str,
    others: Sequence[Serving] = (),
    console: Sequence[str] = (),
) -> str:
    """Return the addresses of everything running and the commands to try next.

    The last element of `broker` is the address for slaves; `path` says whether sends use the
    native or the Python path; `others` are the further brokers, and `console` the lines about the
    console.
    """
    namesrv = host_port(host, port)
    *clients, slaves = broker
    lines = [
        "CometMQ is running; Ctrl-C stops it.",
        f"  name server  {namesrv}",
        f"  broker       {' and '.join(clients)} (advertised to clients)",
        f"  slaves       {slaves} (haListenPort)",
    ]
    for number, other in enumerate(others, start=2):
        slaves = host_port(host, other.ha_port)
        title = f"broker {number}"
        lines.append(f"  {title:<12} {' and '.join(other.addresses)}; slaves {slaves}")
    lines.append(f"  data         {suite.data}")
    lines.append(f"  message path {path}")
    if suite.http_port >= 0:
        http = [admin.port, *(other.http_port for other in others)]
        urls = [f"http://{host_port(host, number)}/metrics" for number in http if number > 0]
        lines.append(f"  metrics      {' and '.join(urls)}")
    lines += console
    option = "" if namesrv == DEFAULT_NAMESRV else f" -n {namesrv}"
    command = program() + (" --tls" if suite.needs_tls else "")
    if suite.needs_tls and suite.broker.value.tls_server.need_client_auth == "require":
        command += " --tls-config FILE"
    if suite.own_account is not None:
        command += " --credentials FILE"
        lines.append(f"  accounts     {acl_path(suite.broker.value, suite.broker_file)}")
    lines += [
        f"Give RocketMQ clients the name server address {namesrv}, or type in another terminal:",
        f"  {command} produce{option} hello 'Hello, world'",
        f"  {command} consume{option} hello --from first",
        f"  {command} cluster{option}",
    ]
    return "\n".join(lines)


def program() -> str:
    """Return the name of this program if the shell finds it, or else its path."""
    return "cometmq" if shutil.which("cometmq") is not None else sys.argv[0]
