# SPDX-License-Identifier: Apache-2.0
"""The key-value file is RocketMQ's, and damaged files are never overwritten silently."""

import json

import pytest

from cometmq.namesrv.kv_config import KvConfig, load_kv_config
from cometmq.remoting.errors import SettingsError


def test_no_file_is_an_empty_table(tmp_path):
    assert load_kv_config(tmp_path / "kvConfig.json").namespace("N") == {}


def test_a_table_is_read_from_its_file(tmp_path):
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"N":{"k":"v\u00e4rde"}}}')
    kv_config = load_kv_config(path)
    assert kv_config.get("N", "k") == "v\u00e4rde"
    assert kv_config.get("N", "other") is None
    assert kv_config.get("M", "k") is None


def test_encoded_table_is_read_back(tmp_path):
    kv_config = KvConfig()
    kv_config.put("N", "k", "v")
    kv_config.put("N", "l", "w")
    kv_config.delete("N", "l")
    kv_config.delete("M", "l")
    assert json.loads(kv_config.encode()) == {"configTable": {"N": {"k": "v"}}}
    (tmp_path / "kvConfig.json").write_bytes(kv_config.encode())
    assert load_kv_config(tmp_path / "kvConfig.json").namespace("N") == {"k": "v"}


def test_a_namespace_is_encoded_once_per_change():
    kv_config = KvConfig({"N": {"k": "v"}, "M": {"l": "w"}})
    first = kv_config.encode_namespace("N")
    assert json.loads(first) == {"table": {"k": "v"}}
    kv_config.put("M", "m", "x")
    assert kv_config.encode_namespace("N") is first
    kv_config.put("N", "k", "changed")
    assert json.loads(kv_config.encode_namespace("N")) == {"table": {"k": "changed"}}
    kv_config.delete("N", "k")
    assert kv_config.encode_namespace("N") == b""
    assert json.loads(kv_config.encode_namespace("M")) == {"table": {"l": "w", "m": "x"}}


@pytest.mark.parametrize("damaged", [b"", b"{", b"\xff\xfe", b'{"configTable":7}'])
def test_backup_replaces_a_damaged_or_missing_file(tmp_path, damaged):
    path = tmp_path / "kvConfig.json"
    (tmp_path / "kvConfig.json.bak").write_text('{"configTable":{"N":{"k":"old"}}}')
    assert load_kv_config(path).get("N", "k") == "old"
    path.write_bytes(damaged)
    assert load_kv_config(path).get("N", "k") == "old"


def test_damage_without_a_backup_is_an_error(tmp_path):
    path = tmp_path / "kvConfig.json"
    path.write_bytes(b"{")
    with pytest.raises(SettingsError, match=r"kvConfig\.json is damaged"):
        load_kv_config(path)
