# SPDX-License-Identifier: Apache-2.0
"""Settings of a broker group with failover; without `groupRecord` none of them has an effect."""

from typing import Annotated

from msgspec import Meta

from cometmq.broker.settings.accepted import AcceptedSettings
from cometmq.remoting.setting_facts import GUARD, PATH, SECRET, Positive


class CopiesSettings(AcceptedSettings, frozen=True, kw_only=True, rename="camel"):
    """Settings that make a broker a member of a group whose roles change at run time."""

    group_record: Annotated[
        str,
        "Location of the group's consensus record: file:/PATH for brokers on one host; "
        "etcd:HOST:PORT,HOST:PORT/KEY, or etcd:https://HOST:PORT/KEY over TLS; or, in a pod, "
        "kubernetes:NAMESPACE/NAME for a Lease. If empty, the broker has the fixed role given by "
        "brokerRole.",
    ] = ""
    etcd_user: Annotated[str, "etcd user name, if etcd has users."] = ""
    etcd_password: Annotated[str, SECRET, "Password of the etcd user."] = ""
    group_members: Annotated[
        str,
        "All brokers of the group as brokerId=HOST:LISTENPORT, separated by semicolons; add "
        "/HALISTENPORT if it is not the next port.",
    ] = ""
    group_address: Annotated[
        str,
        "HOST:PORT that always leads to the group's master, such as a virtual address that "
        "roleHook moves, or the Service of the operator. The master registers it with the name "
        "servers instead of its own address, and every message names it as its store, so clients "
        "need no new route after a failover. If empty, the master's own address.",
    ] = ""
    role_hook: Annotated[
        str,
        PATH,
        GUARD,
        "Program that the broker runs after each change of its role, with the role (master, "
        "slave, fenced or stopped), the epoch and brokerName as arguments. It should move the "
        "virtual address of the group: add it for master, remove it for any other role. It is run "
        "again until it succeeds. Elections do not wait for it.",
    ] = ""
    group_key_file: Annotated[
        str,
        PATH,
        GUARD,
        "File with the key that the members of the group, its electors and administrators prove "
        "to each other: a line of at least 32 bytes, as printed by `openssl rand -base64 32`. The "
        "first key proves, all lines are accepted; lines with # are comments. A changed file "
        "takes effect without a restart. If empty, any program that reaches haListenPort can "
        "speak as a member.",
    ] = ""
    group_key_required: Annotated[
        bool,
        GUARD,
        "With a key, talk only to members that prove it. Set it to false while the key is "
        "introduced, until every member has it.",
    ] = True
    min_in_sync: Annotated[
        Positive,
        "Number of copies, including the master's, that must be in sync for the master to accept "
        "messages.",
    ] = 1
    renew_deadline_mills: Annotated[
        int,
        Meta(ge=500, le=600_000),
        "If a master has not renewed the record for this many milliseconds, and its copies are "
        "also silent, it fences itself. The elector waits longer.",
    ] = 6_000
    heard_within_mills: Annotated[
        int,
        Meta(ge=300, le=60_000),
        "A copy counts as following if it was heard from within this many milliseconds.",
    ] = 1_500
    frozen_master_mills: Annotated[
        int,
        Meta(ge=0, le=600_000),
        "If a master stands still for longer than this, or is stopped by SIGSTOP, while another "
        "copy is in sync, the kernel ends its process (SIGKILL): connections of clients would "
        "hang otherwise. Use it only where a supervisor starts the broker again, and not below "
        "heardWithinMills, after which an elector may replace the master. 0: never.",
    ] = 0
    replica_lag_timeout_mills: Annotated[
        int,
        Meta(ge=100, le=600_000),
        "Milliseconds after which a lagging copy leaves the in-sync set.",
    ] = 10_000
    switchover_timeout_mills: Annotated[
        int,
        Meta(ge=10, le=60_000),
        "How long, in milliseconds, a master holds back requests during a planned switchover "
        "before it gives up.",
    ] = 2_000
    hand_over_linger_mills: Annotated[
        int,
        Meta(ge=0, le=600_000),
        "How long, in milliseconds, the old master forwards requests after handing over before it "
        "stops. If its address disappears with it, as in a pod, give clients time to learn the "
        "new master's address; they ask for routes every 30 s.",
    ] = 0
    control_port: Annotated[
        int,
        Meta(ge=-1, le=65_535),
        "Port of the control API, which electors and `cometmq ha` call; 0 picks a free port, -1 "
        "opens none. Without it, this broker cannot be elected.",
    ] = -1
    control_bind_address: Annotated[
        str,
        "Local address of the control API. Any client that reaches it can depose a master, so "
        "open it to other machines only with tls.server.need.client.auth=require.",
    ] = "127.0.0.1"
