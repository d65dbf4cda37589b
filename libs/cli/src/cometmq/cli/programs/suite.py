# SPDX-License-Identifier: Apache-2.0
"""The settings of a suite in one process: one file, and one TLS and account configuration."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from cometmq.broker.copies.members import is_loopback
from cometmq.broker.instances import instance
from cometmq.broker.settings import BrokerSettings
from cometmq.cli.programs.children import Options
from cometmq.namesrv.settings import NamesrvSettings, load_namesrv
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.addresses import host_port
from cometmq.remoting.transport.settings import TlsMode
from cometmq.remoting.transport.tls_contexts import as_given
from cometmq.runtime.acl.accounts import Account
from cometmq.runtime.files import at_home
from cometmq.runtime.programs import PROGRAMS
from cometmq.runtime.settings import COMMAND_LINE, DEFAULT, ENVIRONMENT, FILE, Loaded, Origin, load
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.settings.fields import fields_of
from cometmq.runtime.settings.mistakes import Mistakes
from cometmq.runtime.tls_keys import USE_TLS, client_tls, server_tls
from cometmq.runtime.variables import unread_line
from cometmq.txn_checker.settings import TxnCheckerSettings

S = TypeVar("S", bound=msgspec.Struct)

BROKER_OPTIONS: Final = {
    "brokerIP1": "--host", "listenPort": "--broker-port", "storePathRootDir": "--data",
}  # fmt: skip
NAMESRV_OPTIONS: Final = {
    "listenPort": "--namesrv-port", "kvConfigPath": "--data", "configStorePath": "--data",
}  # fmt: skip
"""The options of `standalone` that error messages name instead of these settings."""

DECIDED: Final = {
    **BROKER_OPTIONS,
    "bindAddress": "--host",
    "namesrvAddr": "--namesrv-port",
    "adminHttpPort": "--http-port",
}
NAMESRV_DECIDED: Final = {
    **NAMESRV_OPTIONS, "bindAddress": "--host", "adminHttpPort": "--http-port",
}  # fmt: skip
CHECKER_DECIDED: Final = {
    "storePathRootDir": "--data", "namesrvAddr": "--namesrv-port", "adminHttpPort": "--http-port",
}  # fmt: skip
"""Settings that `standalone` sets through its options. If an option is given, it overrides the file
and the environment. If not, the ports given by the broker's settings and the name server's
variable are used; other settings that differ from the option's default are refused.
"""

CHECKER_KEYS: Final = frozenset(fields_of(TxnCheckerSettings)) - {
    *CHECKER_DECIDED, "bindAddress", "accessKey", "secretKey",
}  # fmt: skip
"""Settings that the txn-checker reads from the broker's file. It has an account of its own, because
the file's `accessKey` is the account at name servers.
"""

BROKER_PREFIX: Final = PROGRAMS["broker"].prefix
NAMESRV_PREFIX: Final = PROGRAMS["namesrv"].prefix
CHECKER_PREFIX: Final = PROGRAMS["txn-checker"].prefix

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = ""  # only if the user names a host of the network


DATA_DEFAULT: Final = Path("cometmq-data")
NAMESRV_PORT_DEFAULT: Final = 9876
BROKER_PORT_DEFAULT: Final = 10911
HTTP_PORT_DEFAULT: Final = 8080
CONSOLE_PORT: Final = 8088


class Suite(NamedTuple):
    """The settings of a standalone process."""

    data: Path
    host: str
    http_port: int
    http_setting: str
    """The option or setting that gives the HTTP port."""
    namesrv: Loaded[NamesrvSettings]
    broker: Loaded[BrokerSettings]
    broker_file: Path
    txn_checker: Loaded[TxnCheckerSettings]
    own_account: Account | None
    overruled: dict[str, str]
    """Settings in the file, and variables, that a given option overrides."""

    @property
    def needs_tls(self) -> bool:
        """Return whether plaintext connections are refused."""
        return self.broker.value.tls_server.mode == TlsMode.ENFORCING

    def namesrv_address(self, port: int) -> str:
        """Return the address at which the programs of the suite reach the name server."""
        return host_port(self.namesrv.value.bind_address or LOOPBACK, port)

    def mistakes(self) -> list[str]:
        """Return a sentence for each probable mistake in the file and in variables."""
        guesses: dict[str, list[str]] = {}
        for loaded in (self.broker, self.namesrv, self.txn_checker):
            for name, guess in loaded.mistakes.unread.items():
                guesses.setdefault(name, []).append(guess)
        in_file = msgspec.structs.replace(self.broker.mistakes, unread={})
        return in_file.lines() + [unread_line(name, found) for name, found in guesses.items()]


def load_suite(config: Path | None, options: Options) -> Suite:
    """Load the settings of all programs; raise SettingsError if they are invalid.

    The broker's file also serves as the suite's file: its TLS keys apply to the name server and to
    the connections between the programs, and `CHECKER_KEYS` to the txn-checker, too.
    """
    data = str(options.data or DATA_DEFAULT)
    folder = Path(at_home(data, f"--data {data}")).resolve()
    host = options.host or LOOPBACK
    addresses = {"bindAddress": _bind_address(host), "brokerIP1": host}
    file = config or folder / "broker.conf"
    read = file if config is not None or file.exists() else None
    given, variables, checker_variables = _load_given(read)
    broker_options = {
        **addresses,
        **_port_option(options.broker_port, given, BROKER_PORT_DEFAULT),
        "storePathRootDir": str(folder / "store"),
    }
    namesrv_options = {
        "bindAddress": addresses["bindAddress"],
        **_port_option(options.namesrv_port, variables, NAMESRV_PORT_DEFAULT),
        "kvConfigPath": str(folder / "namesrv" / "kvConfig.json"),
        "configStorePath": str(folder / "namesrv" / "namesrv.properties"),
    }
    http_port, http_setting = _http_port(options.http_port, given)
    port = namesrv_options.get("listenPort", variables.value.listen_port)
    common = {
        "namesrvAddr": host_port(addresses["bindAddress"] or LOOPBACK, int(port)),
        "adminHttpPort": str(http_port),
    }
    checker_options = {"storePathRootDir": str(folder / "txn-checker")}
    overruled = {
        **_overruled(given, DECIDED, broker_options | common),
        **_overruled(variables, NAMESRV_DECIDED, namesrv_options | common),
        **_overruled(checker_variables, CHECKER_DECIDED, checker_options | common),
    }
    _refuse_overruled(overruled, options, given.mistakes)
    broker = _load_broker(read, broker_options)
    tls = broker.given("tls.") | broker.given(USE_TLS)
    namesrv_tls = {name: text for name, text in tls.items() if name in fields_of(NamesrvSettings)}
    tls_labels = {name: broker.label(name) for name in tls}
    namesrv = load_namesrv(None, namesrv_options | namesrv_tls, NAMESRV_OPTIONS | tls_labels)
    own_account = None
    if broker.value.acl_enable:  # its secret never leaves the processes of the suite
        own_account = account_of(f"standalone-{secrets.token_hex(4)}", secrets.token_hex(16))
    checker = _load_checker(read, folder, tls, tls_labels, own_account)
    return Suite(
        folder, host, http_port, http_setting, namesrv, broker, file, checker, own_account,
        {place: it.option for place, it in overruled.items()},
    )  # fmt: skip


def console_settings(suite: Suite, namesrv_port: str) -> dict[str, str]:
    """Return the settings of the console, without its port: the cluster, its folder and TLS.

    The console is not imported here, because it may never be opened. The variables
    `COMETMQ_CONSOLE_*` give its other settings.
    """
    found = {
        "namesrvAddr": suite.namesrv_address(int(namesrv_port)),
        "bindAddress": suite.namesrv.value.bind_address,
        "storePathRootDir": str(suite.data / "console"),
        "adminHttpPort": "-1",
    }
    if suite.own_account is not None:
        found["accessKey"] = suite.own_account.access_key
        found["secretKey"] = suite.own_account.config.secret_key or ""
    tls = suite.broker.given("tls.") if suite.needs_tls else {}
    kept = ("tls.server.", "tls.client.", "tls.config.file", "tls.test.mode.enable", "tls.enable")
    return found | {name: text for name, text in tls.items() if name.startswith(kept)}


def instance_of(suite: Suite, number: int) -> Loaded[BrokerSettings]:
    """Return the settings of one of the brokers of a suite, with its HTTP port."""
    name, option = "adminHttpPort", DECIDED["adminHttpPort"]
    value = msgspec.structs.replace(suite.broker.value, admin_http_port=suite.http_port)
    origins = suite.broker.origins
    if suite.http_setting == option:
        origins = {**origins, name: Origin(COMMAND_LINE, option)}
    return instance(msgspec.structs.replace(suite.broker, value=value, origins=origins), number)


def with_namesrv(loaded: Loaded[S], address: str) -> Loaded[S]:
    """Return the settings of a program with the name server of the suite."""
    origin = Origin(COMMAND_LINE, DECIDED["namesrvAddr"])
    return loaded.updated({"namesrvAddr": address}, origin=origin)


def _bind_address(host: str) -> str:
    """Return where to listen: a host on loopback does not open the ports to the network."""
    if not is_loopback(host):
        return EVERYWHERE
    return LOOPBACK if host == "localhost" else host.strip("[]")


def _load_given(
    file: Path | None,
) -> tuple[Loaded[BrokerSettings], Loaded[NamesrvSettings], Loaded[TxnCheckerSettings]]:
    """Load the settings of all programs, ignoring the options of `standalone`."""
    faults = Faults()
    broker = faults.attempt(
        lambda: load(BrokerSettings, prefix=BROKER_PREFIX, file=file, others=CHECKER_KEYS)
    )
    namesrv = faults.attempt(lambda: load(NamesrvSettings, prefix=NAMESRV_PREFIX))
    checker = faults.attempt(
        lambda: load(TxnCheckerSettings, prefix=CHECKER_PREFIX, file=file, only=CHECKER_KEYS)
    )
    faults.raise_all()
    assert broker is not None
    assert namesrv is not None
    assert checker is not None
    return broker, namesrv, checker


def _port_option(port: int | None, loaded: Loaded[S], default: int) -> dict[str, str]:
    """Return the listenPort to load; empty if a file or a variable sets it and no option does."""
    if port is None and loaded.origins["listenPort"] != DEFAULT:
        return {}
    return {"listenPort": str(default if port is None else port)}


def _http_port(port: int | None, loaded: Loaded[BrokerSettings]) -> tuple[int, str]:
    """Return the HTTP port, and the option or setting that determines it."""
    if port is None and loaded.origins["adminHttpPort"] != DEFAULT:
        return loaded.value.admin_http_port, loaded.label("adminHttpPort")
    return HTTP_PORT_DEFAULT if port is None else port, "--http-port"


# -- settings that options override -----------------------------------------------------------


class Overruled(NamedTuple):
    """A setting in a file, or a variable, that `standalone` does not use."""

    option: str
    text: str
    """The setting, its value, and where it is set."""


def _overruled(
    loaded: Loaded[S], options: Mapping[str, str], decided: Mapping[str, str]
) -> dict[str, Overruled]:
    """Return the settings from a file or the environment that differ from those of `standalone`, by
    name or variable.

    Only COMETMQ_* variables count; NAMESRV_ADDR is meant for clients. A file that the broker
    has saved contains the overriding values, which are not conflicts.
    """
    fields = fields_of(type(loaded.value))
    found: dict[str, Overruled] = {}
    for name in options.keys() & decided.keys():
        origin, value = loaded.origins[name], str(fields[name].read(loaded.value))
        is_own = origin.kind == ENVIRONMENT and origin.place.startswith("COMETMQ_")
        if (origin.kind == FILE or is_own) and value != decided[name]:
            text = f"{origin.place}={value}" if is_own else f"{name}={value} in {origin.place}"
            found[origin.place if is_own else name] = Overruled(options[name], text)
    return dict(sorted(found.items()))


def _refuse_overruled(
    overruled: Mapping[str, Overruled], options: Options, mistakes: Mistakes
) -> None:
    """Raise SettingsError for settings that the default of an option would override."""
    given = options.given()
    lines = [
        f"{text}: {_REASONS[option]}; give {option}, or remove this setting"
        for option, text in overruled.values()
        if option not in given
    ]
    if lines:
        raise SettingsError("\n".join([*lines, *mistakes.lines()]))


_REASONS: Final = {
    "--host": "standalone takes its addresses from --host",
    "--data": "standalone keeps its files in the folder of --data",
    "--namesrv-port": "standalone uses its own name server, at --namesrv-port",
    "--http-port": "the programs of standalone share one HTTP port",
}


def _load_broker(file: Path | None, options: dict[str, str]) -> Loaded[BrokerSettings]:
    """Load the broker's settings; if plaintext is refused, its own connections use TLS too."""

    def read(options: dict[str, str]) -> Loaded[BrokerSettings]:
        return load(
            BrokerSettings,
            prefix=BROKER_PREFIX,
            file=file,
            cli=options,
            options=BROKER_OPTIONS,
            others=CHECKER_KEYS,
        )

    broker = read(options)
    if broker.value.tls_server.mode == TlsMode.ENFORCING:
        broker = read({**options, "tls.enable": "true"})
    client = client_tls(broker.value, broker.label)
    server = server_tls(broker.value, broker.label)
    if client.enable and server.need_client_auth == "require" and client.cert_path is None:
        given = as_given(server, "tls.server.need.client.auth", "require")
        raise SettingsError(
            f"{given}: the programs of standalone also connect to each other over TLS; set"
            " tls.client.certPath and tls.client.keyPath"
        )
    return broker


def _load_checker(
    file: Path | None,
    folder: Path,
    tls: dict[str, str],
    tls_labels: dict[str, str],
    account: Account | None,
) -> Loaded[TxnCheckerSettings]:
    """Load the txn-checker's settings; without its own account, it uses the account of the
    process."""

    def read(options: dict[str, str]) -> Loaded[TxnCheckerSettings]:
        return load(
            TxnCheckerSettings,
            prefix=CHECKER_PREFIX,
            file=file,
            only=CHECKER_KEYS,
            cli=options,
            options={"storePathRootDir": "--data", **tls_labels},
        )

    known = fields_of(TxnCheckerSettings)
    options = {name: text for name, text in tls.items() if name in known}
    options["storePathRootDir"] = str(folder / "txn-checker")
    checker = read(options)
    if account is None or checker.value.access_key:
        return checker
    keys = {"accessKey": account.access_key, "secretKey": account.config.secret_key or ""}
    return read({**options, **keys})


def account_of(name: str, secret: str) -> Account:
    """Return an administrator's account."""
    return Account(AclAccount(name, secret_key=secret, admin=True))
