# SPDX-License-Identifier: Apache-2.0
"""Settings of the console."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cometmq.remoting.setting_facts import PATH
from cometmq.runtime import tls_keys

PORT_DEFAULT: Final = 8088
_GUARD: Final = {"guard": True}
_ADDRESS: Final = {"form": "an HTTP address without a login, or empty"}


class BrowserKeys(tls_keys.ServerKeys, frozen=True, kw_only=True):
    """The TLS keys of the pages, which are plain HTTP by default."""

    mode: tls_keys.ServerMode = msgspec.field(default="disabled", name="tls.server.mode")


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    namesrv_addr: Annotated[
        str,
        Meta(
            description="Name servers as host:port, separated by semicolons.",
            extra={"env": "NAMESRV_ADDR"},
        ),
    ] = ""
    bind_address: Annotated[
        str, Meta(description="Address to listen on; if empty, all addresses.", extra=_GUARD)
    ] = "127.0.0.1"
    listen_port: Annotated[
        int, Meta(ge=0, le=65_535, description="Port of the pages; 0 picks a free port.")
    ] = PORT_DEFAULT
    prefix: Annotated[
        str,
        Meta(
            pattern=r"^(/[A-Za-z0-9._~-]+)*$",
            description="Path below which a proxy serves the pages, such as `/cometmq`.",
        ),
    ] = ""
    public_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/\s@]+)?$",
            description="Scheme, host and port under which browsers see the console behind a proxy,"
            " such as `https://mq.example.org`. With https, cookies are sent over TLS only. OIDC"
            " needs it.",
            extra={"form": "scheme, host and port, such as https://mq.example.org, or empty"},
        ),
    ] = ""
    allowed_hosts: Annotated[
        str,
        Meta(
            description="Host names that browsers may use, separated by commas; `*` allows all."
            " If empty: that of `publicUrl`, IP addresses and localhost, and all others unless the"
            " console listens on loopback only.",
            extra=_GUARD,
        ),
    ] = ""
    trusted_proxies: Annotated[
        str,
        Meta(
            description="Addresses of proxies whose `X-Forwarded-For` names the client, separated"
            " by commas; `*` trusts all.",
            extra=_GUARD,
        ),
    ] = ""
    docs_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/\s@]+(/\S*[^/\s])?)?$",
            description="Address of the documentation, to which findings link. If empty, they link"
            " to runbooks as plain text in the console.",
            extra={"form": "an HTTP address without a login and a slash at its end, or empty"},
        ),
    ] = ""
    descriptor_set: Annotated[
        str,
        PATH,
        Meta(
            description="File of `protoc --include_imports --descriptor_set_out`, for message"
            " bodies in Protobuf."
        ),
    ] = ""
    elector_config: Annotated[
        str,
        Meta(
            description="Settings files of electors, separated by semicolons, as `cometmq ha -c`"
            " takes them: admins may switch over the broker groups that they describe.",
            extra=_GUARD,
        ),
    ] = ""
    program_configs: Annotated[
        str,
        Meta(
            description="Settings files of programs that connect to the cluster, such as"
            " `txn-checker=FILE;exporter=FILE`: findings name certificates in their TLS files that"
            " expire. Those of `electorConfig` are included.",
            extra=_GUARD,
        ),
    ] = ""
    store_path_root_dir: Annotated[
        str,
        PATH,
        Meta(description="Folder for the history, the audit log and the generated token."),
    ] = "cometmq-console"

    # -- who may ------------------------------------------------------------------------------

    anonymous_role: Annotated[
        str,
        Meta(
            pattern="^(none|viewer|operator|admin)?$",
            description="Role of users who have not logged in: none, viewer, operator or admin. If"
            " empty: viewer, or none if the console has an account (`accessKey`), because its pages"
            " show what that account may read.",
            extra=_GUARD,
        ),
    ] = ""
    account_login: Annotated[
        bool,
        Meta(
            description="Accept the accounts of the cluster's access control. Their changes are"
            " sent with their own keys, so that the brokers decide too.",
            extra=_GUARD,
        ),
    ] = True
    account_role: Annotated[
        str,
        Meta(
            pattern="^(none|viewer|operator|admin)$",
            description="Role of accounts that are no administrators; administrators are admin.",
            extra=_GUARD,
        ),
    ] = "viewer"
    readable_topics: Annotated[
        str,
        Meta(
            description="Topics whose messages (bodies, keys, properties) users may read who did"
            " not log in with an account, by role: `viewer=logs-*,public;operator=*`. A role also"
            " reads what is named for lower ones; an admin reads everything. Dead letters are in"
            " `%DLQ%GROUP`. If empty: all. Of users with an account, the brokers ask its rights.",
            extra=_GUARD,
        ),
    ] = ""
    token_file: Annotated[
        str,
        PATH,
        Meta(
            description="File with a line `name role token` for each token; `sha256:` and the hex"
            " digest may replace a token. If empty, the console generates a token for an admin in"
            " its folder, and logs the path.",
            extra=_GUARD,
        ),
    ] = ""
    session_idle: Annotated[
        int, Meta(ge=1_000, description="A session ends after this time without a request, in ms.")
    ] = 1_800_000
    session_life: Annotated[
        int, Meta(ge=1_000, description="Longest life of a session, in ms.")
    ] = 43_200_000
    oidc_issuer: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/\s@]+(/\S*)?)?$",
            description="Issuer URL of an OpenID provider; needs the package cometmq-console[oidc]"
            " and `publicUrl`.",
            extra=_GUARD | _ADDRESS,
        ),
    ] = ""
    oidc_client_id: Annotated[
        str, Meta(description="Client id that the provider knows.", extra=_GUARD)
    ] = ""
    oidc_client_secret: Annotated[
        str, Meta(description="Secret of the client.", extra={"secret": True, **_GUARD})
    ] = ""
    oidc_scopes: Annotated[str, Meta(description="Scopes to ask for, separated by spaces.")] = (
        "openid profile email"
    )
    oidc_unconfirmed: Annotated[
        int,
        Meta(
            ge=60_000,
            description="The provider is asked every minute whether a user still has a role. If it"
            " does not answer, or gives no refresh token (many do only for the scope"
            " `offline_access`), the session ends after this time, in ms.",
        ),
    ] = 3_600_000
    oidc_name_claim: Annotated[
        str, Meta(description="Claim that holds the name shown and audited.", extra=_GUARD)
    ] = "preferred_username"
    oidc_role_claim: Annotated[
        str,
        Meta(
            description="Claim that holds the groups or roles of a user; dots lead into objects,"
            " as in `realm_access.roles`.",
            extra=_GUARD,
        ),
    ] = "groups"
    oidc_roles: Annotated[
        str,
        Meta(
            description="Roles by values of that claim: `mq-admins=admin;mq-ops=operator`; `*`"
            " stands for every user. The highest applies; without one, login is refused.",
            extra=_GUARD,
        ),
    ] = ""

    # -- the history -------------------------------------------------------------------------

    history_interval: Annotated[
        int,
        Meta(ge=1_000, description="Pause between two snapshots for the history, in ms."),
    ] = 15_000
    history_days: Annotated[
        int, Meta(ge=0, le=366, description="Days of history kept; 0 keeps none.")
    ] = 14
    history_mib_max: Annotated[
        int,
        Meta(ge=1, description="Size of the history, in MiB, at which the oldest part is deleted."),
    ] = 256
    prometheus_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/\s@]+(/\S*)?)?$",
            description="Prometheus that scrapes the brokers; if set, plots come from it. It must"
            " answer without a login.",
            extra=_ADDRESS,
        ),
    ] = ""
    request_timeout: Annotated[
        int, Meta(ge=1, description="Timeout of a request to a name server or broker, in ms.")
    ] = 3_000
    access_key: Annotated[
        str,
        Meta(
            description="Access key for brokers with access control; pages show what it may see,"
            " and changes of users without an own account are sent with it."
        ),
    ] = ""
    secret_key: Annotated[
        str, Meta(description="Secret key of the account.", extra={"secret": True})
    ] = ""
    audit_mib_max: Annotated[
        int,
        Meta(ge=1, description="Size of an audit file, in MiB; nine older files are kept."),
    ] = 16

    # -- TLS: `tls.server.*` for browsers, `tls.client.*` for brokers -------------------------

    tls_server: BrowserKeys = msgspec.field(default_factory=BrowserKeys)
    tls_client: tls_keys.ClientKeys = msgspec.field(default_factory=tls_keys.ClientKeys)
    tls_config_file: tls_keys.ConfigFile = tls_keys.CONFIG_FILE_FIELD
    admin_http_port: Annotated[
        int,
        Meta(
            ge=-1,
            le=65_535,
            description="Port for metrics and health checks; 0 picks a free port, -1 opens none.",
        ),
    ] = 5558
