# SPDX-License-Identifier: Apache-2.0
"""Key-value configuration by namespace, stored in a file.

Compatibility: the file is RocketMQ's kvConfig.json, `{"configTable":{"NS":{"k":"v"}}}`; the
previous version is kept beside it as `.bak`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from cometmq.remoting.bodies.dialect import decode_file, encode_json
from cometmq.remoting.bodies.kv import KVConfigTable, KVTable
from cometmq.remoting.errors import RemoteProtocolError, SettingsError

EMPTY_MAX: Final = 16
EMPTY_CHARS_MAX: Final = 255


class KvConfig:
    def __init__(self, table: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._table = {namespace: dict(values) for namespace, values in (table or {}).items()}
        self.count = sum(map(len, self._table.values()))
        """The number of key-values."""
        self.size = sum(
            _size(namespace, key, value)
            for namespace, values in self._table.items()
            for key, value in values.items()
        )
        """Length of all namespaces, keys and values as JSON. It is bounded in this form because
        escapes make an answer up to six times as long as its texts.
        """
        self._encoded: dict[str, bytes] = {}

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def put(self, namespace: str, key: str, value: str) -> None:
        self.size += self.growth(namespace, key, value)
        self._encoded.pop(namespace, None)
        values = self._table.setdefault(namespace, {})
        self.count += key not in values
        values[key] = value

    def growth(self, namespace: str, key: str, value: str) -> int:
        """Return the number of bytes that a value would add; negative if it is shorter."""
        old = self.get(namespace, key)
        return _size(namespace, key, value) - (0 if old is None else _size(namespace, key, old))

    def delete(self, namespace: str, key: str) -> None:
        values = self._table.get(namespace, {})
        old = values.pop(key, None)
        if old is None:
            return
        self._encoded.pop(namespace, None)
        self.count -= 1
        self.size -= _size(namespace, key, old)
        if not values:
            self._forget_empty()

    def _forget_empty(self) -> None:
        """Drop empty namespaces except the last EMPTY_MAX, because no request deletes a namespace.

        RocketMQ keeps all of them.
        """
        empty = [name for name, values in self._table.items() if not values]
        kept = {name for name in empty[-EMPTY_MAX:] if len(name) <= EMPTY_CHARS_MAX}
        for name in empty:
            if name not in kept:
                del self._table[name]

    def namespace(self, namespace: str) -> Mapping[str, str]:
        return self._table.get(namespace, {})

    def encode_namespace(self, namespace: str) -> bytes:
        """Return a namespace as the body of an answer; the body is empty if there are no
        key-values.

        The body is cached until the namespace changes, because each registration is answered with
        one, and encoding a large namespace takes milliseconds.
        """
        values = self._table.get(namespace)
        if not values:
            return b""
        found = self._encoded.get(namespace)
        if found is None:
            found = self._encoded[namespace] = msgspec.json.encode(KVTable(values))
        return found

    def encode(self) -> bytes:
        return msgspec.json.encode(KVConfigTable(self._table))


def _size(*texts: str) -> int:
    return sum(len(encode_json(text)) - len('""') for text in texts)


def load_kv_config(path: Path) -> KvConfig:
    """Read the file, or its `.bak` if the file is missing or damaged.

    The table is empty if neither file exists. If only damaged files are left, raise SettingsError,
    because a start with an empty table would overwrite the saved configuration.
    """
    damage = ""
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            return KvConfig(decode_file(KVConfigTable, candidate.read_bytes()).config_table)
        except FileNotFoundError:
            continue
        except RemoteProtocolError as error:
            damage = damage or f"{candidate} is damaged ({error}); repair or remove it"
    if damage:
        raise SettingsError(damage)
    return KvConfig()
