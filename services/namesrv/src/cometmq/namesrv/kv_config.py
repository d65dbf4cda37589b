# SPDX-License-Identifier: Apache-2.0
"""Key-value configuration by namespace, stored in a file.

Compatibility: the file is RocketMQ's kvConfig.json, `{"configTable":{"NS":{"k":"v"}}}`; the
previous version is kept beside it as `.bak`.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.kv import KVConfigTable
from cometmq.remoting.errors import RemoteProtocolError, SettingsError


class KvConfig:
    def __init__(self, table: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._table = {namespace: dict(values) for namespace, values in (table or {}).items()}

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        self._table.setdefault(namespace, {})[key] = value

    def delete(self, namespace: str, key: str) -> None:
        self._table.get(namespace, {}).pop(key, None)

    def namespace(self, namespace: str) -> Mapping[str, str]:
        return self._table.get(namespace, {})

    def encode(self) -> bytes:
        return msgspec.json.encode(KVConfigTable(self._table))


def load_kv_config(path: Path) -> KvConfig:
    """Read the file, or its `.bak` if the file is missing or damaged.

    The table is empty if neither file exists. If only damaged files are left, raise SettingsError,
    because starting with an empty table would overwrite the operator's configuration.
    """
    damage = ""
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            return KvConfig(decode_json(KVConfigTable, candidate.read_bytes()).config_table)
        except FileNotFoundError:
            continue
        except RemoteProtocolError as error:
            damage = damage or f"{candidate} is damaged ({error}); repair or remove it"
    if damage:
        raise SettingsError(damage)
    return KvConfig()
