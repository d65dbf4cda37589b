# SPDX-License-Identifier: Apache-2.0
"""Reads credentials from a file in the format of RocketMQ's `conf/tools.yml`.

This is a separate module so that only programs that read such a file import a YAML parser.
"""

from pathlib import Path
from typing import Any, Final

import yaml

from cometmq.client.errors import InvalidArgument
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.spelling import closest

KEYS: Final = ("accessKey", "secretKey", "securityToken")


def credentials_from_file(path: str | Path) -> SessionCredentials:
    """Return the `accessKey`, `secretKey` and optional `securityToken` from a YAML file.

    Raise InvalidArgument on failure; its message names the file and never contains a secret.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidArgument(f"credentials {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"credentials {path}: not a YAML file") from error
    except (RuntimeError, ValueError) as error:  # an unknown home directory, a zero byte
        raise InvalidArgument(f"credentials {path!r}: {error}") from error
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidArgument(f"credentials {path}: not a YAML file") from error
    except (ValueError, KeyError, AttributeError) as error:  # PyYAML's, for a 13th month
        raise InvalidArgument(
            f"credentials {path}: a value looks like a number or date but is none: quote it"
        ) from error
    if not isinstance(values, dict):
        raise InvalidArgument(f"credentials {path}: accessKey and secretKey are missing")
    access_key, secret_key, token = (_text(path, values, name) for name in KEYS)
    if not access_key or not secret_key:
        raise InvalidArgument(
            f"credentials {path}: accessKey or secretKey is missing{_nearest(values)}"
        )
    return SessionCredentials(access_key, secret_key, token)


def _nearest(values: dict[str, Any]) -> str:
    """Return a suggestion if a key of the file resembles one that the file lacks."""
    missing = [key for key in KEYS if key not in values]
    for key in values:
        if key not in KEYS and (nearest := closest(str(key), missing)):
            return f"; the key {key} is unknown: did you mean {nearest}?"
    return ""


def _text(path: str | Path, values: dict[str, Any], name: str) -> str:
    """Convert numbers to text as RocketMQ does, because YAML parses some keys as numbers."""
    value = values.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidArgument(f"credentials {path}: {name} is not text: quote it")
    return str(value).strip()
