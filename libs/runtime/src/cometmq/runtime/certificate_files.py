# SPDX-License-Identifier: Apache-2.0
"""Finds when the certificates expire that the settings file of another program names, for example
an elector's file.
"""

from pathlib import Path

import msgspec

from cometmq.remoting.transport.certificate import first_expiry_of
from cometmq.runtime import tls_keys
from cometmq.runtime.settings import load


class _Tls(msgspec.Struct, frozen=True, kw_only=True):
    tls_client: tls_keys.ClientKeys = msgspec.field(default_factory=tls_keys.ClientKeys)
    tls_config_file: tls_keys.ConfigFile = tls_keys.CONFIG_FILE_FIELD


def expiries_named_in(file: Path) -> dict[str, float]:
    """Return when the first certificate in each TLS file of a client program expires, in seconds
    since 1970, by setting; empty if the program connects without TLS.

    Files that cannot be read are left out. Raise SettingsError if the settings file cannot be used.
    """
    loaded = load(_Tls, prefix="", file=file, env={}, is_part=True)
    tls = tls_keys.client_tls(loaded.value, loaded.label)
    if not tls.enable:
        return {}
    found: dict[str, float] = {}
    for name, path in (("certPath", tls.cert_path), ("trustCertPath", tls.trust_cert_path)):
        if path is None:
            continue
        try:
            expiry_s = first_expiry_of(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if expiry_s is not None:
            found[f"tls.client.{name}"] = expiry_s
    return found
