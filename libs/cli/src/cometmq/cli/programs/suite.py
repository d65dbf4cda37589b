# SPDX-License-Identifier: Apache-2.0
"""The settings of a suite in one process: one file, and one TLS and account configuration."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from cometmq.broker.acl.accounts import Account
from cometmq.broker.settings import BrokerSettings
from cometmq.namesrv.settings import NamesrvSettings, load_namesrv
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.settings import TlsMode
from cometmq.runtime.settings import ENVIRONMENT, FILE, Loaded, load
from cometmq.runtime.settings_faults import Faults
from cometmq.runtime.settings_fields import fields_of
from cometmq.runtime.tls_keys import USE_TLS, client_tls, server_tls
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
    **BROKER_OPTIONS, "bindAddress": "--host", "namesrvAddr": "--namesrv-port",
}  # fmt: skip
NAMESRV_DECIDED: Final = {**NAMESRV_OPTIONS, "bindAddress": "--host"}
CHECKER_DECIDED: Final = {"storePathRootDir": "--data", "namesrvAddr": "--namesrv-port"}
"""Settings that options of `standalone` decide, regardless of the file and the environment."""

BROKER_PREFIX: Final = "COMETMQ_BROKER"
NAMESRV_PREFIX: Final = "COMETMQ_NAMESRV"
CHECKER_PREFIX: Final = "COMETMQ_TXN_CHECKER"

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = ""  # only if the user names a different host


class Ports(NamedTuple):
    """The ports of a standalone process; if `http` is -1, there is no HTTP port."""

    namesrv: int
    broker: int
    http: int


class Suite(NamedTuple):
    """The settings of a standalone process."""

    data: Path
    host: str
    http_port: int
    namesrv: Loaded[NamesrvSettings]
    broker: Loaded[BrokerSettings]
    broker_file: Path
    txn_checker: Loaded[TxnCheckerSettings]
    own_account: Account | None
    overruled: dict[str, str]
    """Settings in the file, and variables, that have no effect, each with the option to use
    instead.
    """

    @property
    def needs_tls(self) -> bool:
        """Return whether plaintext connections are refused."""
        return self.broker.value.tls_server_mode == TlsMode.ENFORCING


def load_suite(data: Path, host: str, config: Path | None, ports: Ports) -> Suite:
    """Load the settings of all programs; raise SettingsError if they are invalid.

    The broker's file also serves as the suite's file: its TLS keys apply to the name server and to
    the connections between the programs, too.
    """
    folder = data.expanduser().resolve()
    bind = LOOPBACK if host == LOOPBACK else EVERYWHERE
    file = config or folder / "broker.conf"
    options = {
        "bindAddress": bind,
        "brokerIP1": host,
        "listenPort": str(ports.broker),
        "storePathRootDir": str(folder / "store"),
    }
    read = file if config is not None or file.exists() else None
    own_namesrv = {"namesrvAddr": f"{LOOPBACK}:{ports.namesrv}"}
    given, variables, checker_variables = _load_given(read)
    overruled = _overruled(given, DECIDED, options | own_namesrv)
    broker = _load_broker(read, options)
    tls = broker.given("tls.") | broker.given(USE_TLS)
    namesrv_options = {
        "bindAddress": bind,
        "listenPort": str(ports.namesrv),
        "kvConfigPath": str(folder / "namesrv" / "kvConfig.json"),
        "configStorePath": str(folder / "namesrv" / "namesrv.properties"),
    }
    overruled |= _overruled(variables, NAMESRV_DECIDED, namesrv_options)
    namesrv_tls = {name: text for name, text in tls.items() if name in fields_of(NamesrvSettings)}
    namesrv = load_namesrv(None, namesrv_options | namesrv_tls, NAMESRV_OPTIONS)
    checker_options = {"storePathRootDir": str(folder / "txn-checker"), **own_namesrv}
    overruled |= _overruled(checker_variables, CHECKER_DECIDED, checker_options)
    own_account = _new_account() if broker.value.acl_enable else None
    checker = _load_checker(folder, tls, own_account)
    return Suite(folder, host, ports.http, namesrv, broker, file, checker, own_account, overruled)


def _load_given(
    file: Path | None,
) -> tuple[Loaded[BrokerSettings], Loaded[NamesrvSettings], Loaded[TxnCheckerSettings]]:
    """Load the settings of all programs without the options of `standalone`."""
    faults = Faults()
    broker = faults.attempt(lambda: load(BrokerSettings, prefix=BROKER_PREFIX, file=file))
    namesrv = faults.attempt(lambda: load(NamesrvSettings, prefix=NAMESRV_PREFIX))
    checker = faults.attempt(lambda: load(TxnCheckerSettings, prefix=CHECKER_PREFIX))
    faults.raise_all()
    assert broker is not None
    assert namesrv is not None
    assert checker is not None
    return broker, namesrv, checker


def _overruled(
    loaded: Loaded[S], options: Mapping[str, str], decided: Mapping[str, str]
) -> dict[str, str]:
    """Return the settings from a file or the environment that `standalone` options override.

    Only COMETMQ_* variables count; NAMESRV_ADDR is meant for clients. A file that the broker
    has saved contains the overriding values, which are not conflicts.
    """
    fields = fields_of(type(loaded.value))
    found: dict[str, str] = {}
    for name, option in options.items():
        origin = loaded.origins[name]
        is_own = origin.kind == ENVIRONMENT and origin.place.startswith("COMETMQ_")
        is_other = str(fields[name].read(loaded.value)) != decided[name]
        if (origin.kind == FILE or is_own) and is_other:
            found[origin.place if is_own else name] = option
    return found


def _load_broker(file: Path | None, options: dict[str, str]) -> Loaded[BrokerSettings]:
    """Load the broker's settings; if plaintext is refused, its own connections use TLS too."""

    def read(options: dict[str, str]) -> Loaded[BrokerSettings]:
        return load(
            BrokerSettings, prefix=BROKER_PREFIX, file=file, cli=options, options=BROKER_OPTIONS
        )

    broker = read(options)
    if broker.value.tls_server_mode == TlsMode.ENFORCING:
        broker = read({**options, "tls.enable": "true"})
    client, server = client_tls(broker.value), server_tls(broker.value)
    if client.enable and server.need_client_auth == "require" and client.cert_path is None:
        raise SettingsError(
            "tls.server.need.client.auth=require: the programs of standalone also connect to "
            "each other over TLS; set tls.client.certPath and tls.client.keyPath"
        )
    return broker


def _load_checker(
    folder: Path, tls: dict[str, str], account: Account | None
) -> Loaded[TxnCheckerSettings]:
    """Load the txn-checker's settings; without its own account, it uses the account of the
    process."""

    def read(options: dict[str, str]) -> Loaded[TxnCheckerSettings]:
        return load(
            TxnCheckerSettings,
            prefix=CHECKER_PREFIX,
            cli=options,
            options={"storePathRootDir": "--data"},
        )

    known = fields_of(TxnCheckerSettings)
    options = {name: text for name, text in tls.items() if name in known}
    options["storePathRootDir"] = str(folder / "txn-checker")
    checker = read(options)
    if account is None or checker.value.access_key:
        return checker
    keys = {"accessKey": account.access_key, "secretKey": account.config.secret_key or ""}
    return read({**options, **keys})


def _new_account() -> Account:
    """Return an administrator account whose secret never leaves this process."""
    name, secret = f"standalone-{secrets.token_hex(4)}", secrets.token_hex(16)
    return Account(AclAccount(name, secret_key=secret, admin=True))
