# SPDX-License-Identifier: Apache-2.0
"""Reads who a client is from a file: RocketMQ's `conf/tools.yml`.

Apart from the options, so that only programs which read such a file import a YAML parser.
"""

from pathlib import Path
from typing import Any

import yaml

from cometmq.client.errors import InvalidArgument
from cometmq.remoting.signature import SessionCredentials


def credentials_from_file(path: str | Path) -> SessionCredentials:
    """Return the `accessKey`, `secretKey` and, if there is one, `securityToken` of a YAML file.

    Raises InvalidArgument, which names the file and never shows a secret.
    """
    try:
        values = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"credentials {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"credentials {path}: no YAML file") from error
    if not isinstance(values, dict):
        raise InvalidArgument(f"credentials {path}: no accessKey and secretKey in it")
    access_key, secret_key, token = (
        _text(path, values, name) for name in ("accessKey", "secretKey", "securityToken")
    )
    if not access_key or not secret_key:
        raise InvalidArgument(f"credentials {path}: accessKey or secretKey is missing")
    return SessionCredentials(access_key, secret_key, token)


def _text(path: str | Path, values: dict[str, Any], name: str) -> str:
    """Return a value as RocketMQ reads it: YAML makes numbers of some keys."""
    value = values.get(name)
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidArgument(f"credentials {path}: {name} is no text, put it in quotes")
    return str(value).strip()
