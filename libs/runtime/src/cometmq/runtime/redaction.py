# SPDX-License-Identifier: Apache-2.0
"""Hides secrets in settings and in lines of logs, for everything that leaves a machine."""

import re
from typing import Final

HIDDEN: Final = "******"
SECRET_NAME: Final = re.compile(
    r"secret|passw|passphrase|pwd|token|credential|key|signature|authenticationuser|exporterheader",
    re.IGNORECASE,
)
_SECRET_IN_URL: Final = re.compile(r"(?<=://)[^/\s]+(?=@)")
_IN_TEXT: Final = re.compile(
    r"""(?ix) (["']?[\w.-]*(?:secret|passw|passphrase|pwd|token|credential|accesskey|access_key
    |signature|authorization)[\w.-]*["']?\s*[:=]\s*) (?:bearer\s+)? ("[^"]*"|'[^']*'|[^\s,;}]+)"""
)
_PEM: Final = re.compile(
    r"-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END [^-]*-----|\Z)", re.DOTALL
)


def looks_secret(name: str) -> bool:
    """Return whether a setting of this name may be a secret."""
    return SECRET_NAME.search(name) is not None


def without_logins(text: str) -> str:
    """Return a text in which the user names and passwords in URLs are hidden."""
    return _SECRET_IN_URL.sub(HIDDEN, text)


def redacted_setting(name: str, value: str) -> str:
    """Return the value of a setting, hidden if it may be a secret."""
    if looks_secret(name) and value:
        return HIDDEN
    return redacted_text(value)


def redacted_text(text: str) -> str:
    """Return a text in which the values of passwords, tokens, keys and signatures are hidden, where
    their names precede them.
    """
    text = without_logins(_PEM.sub(HIDDEN, text))
    return _IN_TEXT.sub(lambda found: f"{found[1]}{HIDDEN}", text)
