# SPDX-License-Identifier: Apache-2.0
"""Settings of the elector; settings that brokers of a group share have the same names."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cometmq.ha.places.choice import FORMS
from cometmq.remoting.setting_facts import GUARD, PATH, SECRET, Positive
from cometmq.runtime import tls_keys

EXAMPLE: Final = "0=10.0.0.1:10913;1=10.0.0.2:10913"


class ControlKeys(tls_keys.ClientKeys, frozen=True, kw_only=True):
    enable: Annotated[
        bool, GUARD, "Connect to the control ports over TLS; servers are verified."
    ] = msgspec.field(default=False, name="tls.enable")
    auth_server: tls_keys.AuthServer = msgspec.field(default=True, name="tls.client.authServer")


class ElectorSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All settings of an elector, and of `cometmq ha`."""

    broker_name: Annotated[str, "Name of the broker group, as in the settings of its brokers."] = ""
    group_record: Annotated[
        str, f"Location of the group's record, as in the settings of its brokers: {FORMS}."
    ] = ""
    control_members: Annotated[
        str,
        "All brokers of the group as brokerId=HOST:CONTROLPORT, separated by"
        f" semicolons: {EXAMPLE}.",
    ] = ""
    leaving_members: Annotated[
        str,
        "Ids of brokers being removed from the group, separated by semicolons; keep them in "
        "controlMembers until they have left the in-sync set.",
    ] = ""
    min_in_sync: Annotated[
        Positive, "Number of copies that must stay in sync when a broker is removed."
    ] = 1
    renew_deadline_mills: Annotated[
        int,
        Meta(ge=500, le=600_000),
        "The brokers' renewDeadlineMills. The elector waits 1.3 times as long before replacing a "
        "master whose only fault is that it does not renew the record.",
    ] = 6_000
    heard_within_mills: Annotated[
        int,
        Meta(ge=50, le=60_000),
        "How long a master may be silent, in ms, before it is replaced if its slaves have also "
        "lost it.",
    ] = 1_500
    poll_interval_mills: Annotated[
        int, Meta(ge=50, le=60_000), "Interval between rounds when nothing changes, in ms."
    ] = 500
    status_timeout_mills: Annotated[
        int, Meta(ge=50, le=60_000), "Timeout of a status request, in ms."
    ] = 500
    etcd_user: Annotated[str, "etcd user name, if etcd has users."] = ""
    etcd_password: Annotated[str, SECRET, "Password of the etcd user."] = ""
    control_tls_name: Annotated[
        str,
        "Host name in the brokers' certificates, if it differs from the hosts in controlMembers.",
    ] = ""
    group_key_file: Annotated[
        str,
        PATH,
        "File with the key of the group, as the brokers' groupKeyFile. Brokers then have to prove "
        "that they know it, and the calls of this program prove it to them. A changed file takes "
        "effect without a restart.",
    ] = ""
    tls_client: ControlKeys = msgspec.field(default_factory=ControlKeys)
    tls_config_file: tls_keys.ConfigFile = tls_keys.CONFIG_FILE_FIELD
    bind_address: Annotated[str, "Local address of the HTTP port; if empty, all addresses."] = ""
    admin_http_port: Annotated[
        int,
        Meta(ge=-1, le=65_535),
        "Port for metrics and health checks; 0 picks a free port, -1 opens none.",
    ] = -1
