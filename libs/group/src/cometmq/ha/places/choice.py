# SPDX-License-Identifier: Apache-2.0
"""Select the backend of a record from `groupRecord`, a setting of brokers and electors.

Only the selected backend is imported, because one and httpcore2 take 0.1 s.
"""

from pathlib import Path
from typing import Final, NoReturn

from cometmq.ha.places.file import FileRecord
from cometmq.ha.port import RecordPort
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.transport.tls_contexts import client_context

SETTING: Final = "groupRecord"
FORMS: Final = (
    "file:/ABSOLUTE/PATH, or etcd:HOST:PORT,HOST:PORT/KEY (etcd:https://... over TLS), or"
    " kubernetes:NAMESPACE/NAME (a Lease, in pods only)"
)


def open_record(
    place: str, *, tls: TlsSettings | None = None, login: tuple[str, str] | None = None
) -> RecordPort:
    """Return the record that `place` names, without reading it; or raise SettingsError.

    `tls` and `login` (user and password; an empty name means none) are those of etcd.
    """
    kind, _, rest = place.partition(":")
    if kind == "file":
        if not Path(rest).is_absolute():
            _refuse(place)
        return FileRecord(Path(rest))
    if kind == "kubernetes":
        return _in_kubernetes(place, rest)
    if kind != "etcd":
        _refuse(place)
    scheme, separator, address = rest.rpartition("://")
    endpoints, slash, key = address.partition("/")
    if (separator and scheme not in {"http", "https"}) or not (endpoints and slash and key):
        _refuse(place)
    user = login if login and login[0] else None
    context = client_context(tls or TlsSettings(auth_server=True)) if scheme == "https" else None
    from cometmq.ha.places.etcd import EtcdRecord  # noqa: PLC0415

    try:
        return EtcdRecord(endpoints.split(","), key, tls=context, login=user)
    except SettingsError as error:
        raise SettingsError(f"{SETTING}={place}: {error}") from error


def _in_kubernetes(place: str, rest: str) -> RecordPort:
    from cometmq.ha.places.kubernetes import (  # noqa: PLC0415
        KubernetesRecord,
        in_cluster,
        parse_place,
    )

    try:
        namespace, name = parse_place(rest)
    except ValueError:
        _refuse(place)
    try:
        return KubernetesRecord(in_cluster(), namespace, name)
    except SettingsError as error:
        raise SettingsError(f"{SETTING}={place}: {error}") from error


def _refuse(place: str) -> NoReturn:
    raise SettingsError(f"{SETTING}={place}: must be {FORMS}")
