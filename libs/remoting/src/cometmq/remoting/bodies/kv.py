# SPDX-License-Identifier: Apache-2.0
"""Tables of texts, and settings as lines of text."""

import msgspec


class KVTable(msgspec.Struct, gc=False, rename="camel"):
    """Names and values: run-time facts of a broker, one namespace of the name server."""

    table: dict[str, str] = {}


class KVConfigTable(msgspec.Struct, gc=False, rename="camel"):
    """All namespaces of the name server: the file kvConfig.json."""

    config_table: dict[str, dict[str, str]] = {}
