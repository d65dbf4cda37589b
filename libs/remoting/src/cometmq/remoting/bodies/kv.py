# SPDX-License-Identifier: Apache-2.0
"""Key-value tables, and settings as lines of text."""

import msgspec


class KVTable(msgspec.Struct, gc=False, rename="camel"):
    """Names and values: a broker's run-time information, or one namespace of the name server."""

    table: dict[str, str] = {}


class KVConfigTable(msgspec.Struct, gc=False, rename="camel"):
    """All namespaces of the name server; also the content of kvConfig.json."""

    config_table: dict[str, dict[str, str]] = {}
