# SPDX-License-Identifier: Apache-2.0
"""Settings of the console."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cometmq.remoting.setting_facts import GUARD, PATH, SECRET, Positive, form, variable
from cometmq.runtime import tls_keys

PORT_DEFAULT: Final = 8088
_ADDRESS: Final = form("an HTTP address without a login, or empty")


class BrowserKeys(tls_keys.ServerKeys, frozen=True, kw_only=True):
    """The TLS keys of the pages, which are plain HTTP by default."""

    mode: tls_keys.ServerMode = msgspec.field(default="disabled", name="tls.server.mode")


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    namesrv_addr: Annotated[
        str, variable("NAMESRV_ADDR"), "Name servers as host:port, separated by semicolons."
    ] = ""
    bind_address: Annotated[str, GUARD, "Address to listen on; if empty, all addresses."] = (
        "127.0.0.1"
    )
    listen_port: Annotated[
        int, Meta(ge=0, le=65_535), "Port of the pages; 0 picks a free port."
    ] = PORT_DEFAULT
    prefix: Annotated[
        str,
        Meta(pattern=r"^(/[A-Za-z0-9._~-]+)*$"),
        "Path below which a proxy serves the pages, such as `/cometmq`.",
    ] = ""
    public_url: Annotated[
        str,
        Meta(pattern=r"^(https?://[^/\s@]+)?$"),
        form("scheme, host and port, such as https://mq.example.org, or empty"),
        "Scheme, host and port under which browsers see the console behind a proxy, such as"
        " `https://mq.example.org`. With https, cookies are sent over TLS only. OIDC needs "
        "it.",
    ] = ""
    allowed_hosts: Annotated[
        str,
        GUARD,
        "Host names that browsers may use, separated by commas; `*` allows all. If empty: "
        "that of `publicUrl`, IP addresses and localhost, and all others unless the console"
        " listens on loopback only.",
    ] = ""
    trusted_proxies: Annotated[
        str,
        GUARD,
        "Addresses of proxies whose `X-Forwarded-For` names the client, separated by "
        "commas; `*` trusts all.",
    ] = ""
    docs_url: Annotated[
        str,
        Meta(pattern=r"^(https?://[^/\s@]+(/\S*[^/\s])?)?$"),
        form("an HTTP address without a login and a slash at its end, or empty"),
        "Address of the documentation, to which findings link. If empty, they link to "
        "runbooks as plain text in the console.",
    ] = ""
    descriptor_set: Annotated[
        str,
        PATH,
        "File of `protoc --include_imports --descriptor_set_out`, for message bodies in Protobuf.",
    ] = ""
    elector_config: Annotated[
        str,
        GUARD,
        "Settings files of electors, separated by semicolons, as `cometmq ha -c` takes "
        "them: admins may switch over the broker groups that they describe.",
    ] = ""
    program_configs: Annotated[
        str,
        GUARD,
        "Settings files of programs that connect to the cluster, such as "
        "`txn-checker=FILE;exporter=FILE`: findings name certificates in their TLS files "
        "that expire. Those of `electorConfig` are included.",
    ] = ""
    store_path_root_dir: Annotated[
        str, PATH, "Folder for the history, the audit log and the generated token."
    ] = "cometmq-console"

    # -- who may ------------------------------------------------------------------------------

    anonymous_role: Annotated[
        str,
        Meta(pattern="^(none|viewer|operator|admin)?$"),
        GUARD,
        "Role of users who have not logged in: none, viewer, operator or admin. If empty: "
        "viewer, or none if the console has an account (`accessKey`), because its pages "
        "show what that account may read.",
    ] = ""
    account_login: Annotated[
        bool,
        GUARD,
        "Accept the accounts of the cluster's access control. Their changes are sent with "
        "their own keys, so that the brokers decide too.",
    ] = True
    account_role: Annotated[
        str,
        Meta(pattern="^(none|viewer|operator|admin)$"),
        GUARD,
        "Role of accounts that are no administrators; administrators are admin.",
    ] = "viewer"
    readable_topics: Annotated[
        str,
        GUARD,
        "Topics whose messages (bodies, keys, properties) users may read who did not log in"
        " with an account, by role: `viewer=logs-*,public;operator=*`. A role also reads "
        "what is named for lower ones; an admin reads everything. Dead letters are in "
        "`%DLQ%GROUP`. If empty: all. Of users with an account, the brokers ask its rights.",
    ] = ""
    token_file: Annotated[
        str,
        PATH,
        GUARD,
        "File with a line `name role token` for each token; `sha256:` and the hex digest "
        "may replace a token. If empty, the console generates a token for an admin in its "
        "folder, and logs the path.",
    ] = ""
    session_idle: Annotated[
        int, Meta(ge=1_000), "A session ends after this time without a request, in ms."
    ] = 1_800_000
    session_life: Annotated[int, Meta(ge=1_000), "Longest life of a session, in ms."] = 43_200_000
    oidc_issuer: Annotated[
        str,
        Meta(pattern=r"^(https?://[^/\s@]+(/\S*)?)?$"),
        GUARD,
        _ADDRESS,
        "Issuer URL of an OpenID provider; needs the package cometmq-console[oidc] and "
        "`publicUrl`.",
    ] = ""
    oidc_client_id: Annotated[str, GUARD, "Client id that the provider knows."] = ""
    oidc_client_secret: Annotated[str, GUARD, SECRET, "Secret of the client."] = ""
    oidc_scopes: Annotated[str, "Scopes to ask for, separated by spaces."] = "openid profile email"
    oidc_unconfirmed: Annotated[
        int,
        Meta(ge=60_000),
        "The provider is asked every minute whether a user still has a role. If it does not"
        " answer, or gives no refresh token (many do only for the scope `offline_access`), "
        "the session ends after this time, in ms.",
    ] = 3_600_000
    oidc_name_claim: Annotated[str, GUARD, "Claim that holds the name shown and audited."] = (
        "preferred_username"
    )
    oidc_role_claim: Annotated[
        str,
        GUARD,
        "Claim that holds the groups or roles of a user; dots lead into objects, as in "
        "`realm_access.roles`.",
    ] = "groups"
    oidc_roles: Annotated[
        str,
        GUARD,
        "Roles by values of that claim: `mq-admins=admin;mq-ops=operator`; `*` stands for "
        "every user. The highest applies; without one, login is refused.",
    ] = ""

    # -- the history -------------------------------------------------------------------------

    history_interval: Annotated[
        int, Meta(ge=1_000), "Pause between two snapshots for the history, in ms."
    ] = 15_000
    history_days: Annotated[int, Meta(ge=0, le=366), "Days of history kept; 0 keeps none."] = 14
    history_mib_max: Annotated[
        Positive, "Size of the history, in MiB, at which the oldest part is deleted."
    ] = 256
    prometheus_url: Annotated[
        str,
        Meta(pattern=r"^(https?://[^/\s@]+(/\S*)?)?$"),
        _ADDRESS,
        "Prometheus that scrapes the brokers; if set, plots come from it. It must answer "
        "without a login.",
    ] = ""
    request_timeout: Annotated[
        Positive, "Timeout of a request to a name server or broker, in ms."
    ] = 3_000
    access_key: Annotated[
        str,
        "Access key for brokers with access control; pages show what it may see, and "
        "changes of users without an own account are sent with it.",
    ] = ""
    secret_key: Annotated[str, SECRET, "Secret key of the account."] = ""
    audit_mib_max: Annotated[
        Positive, "Size of an audit file, in MiB; nine older files are kept."
    ] = 16

    # -- TLS: `tls.server.*` for browsers, `tls.client.*` for brokers -------------------------

    tls_server: BrowserKeys = msgspec.field(default_factory=BrowserKeys)
    tls_client: tls_keys.ClientKeys = msgspec.field(default_factory=tls_keys.ClientKeys)
    tls_config_file: tls_keys.ConfigFile = tls_keys.CONFIG_FILE_FIELD
    admin_http_port: Annotated[
        int,
        Meta(ge=-1, le=65_535),
        "Port for metrics and health checks; 0 picks a free port, -1 opens none.",
    ] = 5558
