# SPDX-License-Identifier: Apache-2.0
"""Reads credentials from a file in the format of RocketMQ's `conf/tools.yml`.

This is a separate module so that only programs that read such a file import a YAML parser.
"""

from pathlib import Path
from typing import Final

import yaml

from cometmq.client.errors import InvalidArgument
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.spelling import did_you_mean

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
        values = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  # makes only texts
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidArgument(f"credentials {path}: not a YAML file") from error
    given = values if isinstance(values, dict) else {}
    found = [given.get(key) or "" for key in KEYS]
    if not all(isinstance(value, str) for value in found):
        raise InvalidArgument(f"credentials {path}: the values are texts")
    access_key, secret_key, token = (value.strip() for value in found)
    if not access_key or not secret_key:
        unknown = "".join(did_you_mean(key, KEYS) for key in given if key not in KEYS)
        raise InvalidArgument(f"credentials {path}: accessKey or secretKey is missing{unknown}")
    return SessionCredentials(access_key, secret_key, token)
