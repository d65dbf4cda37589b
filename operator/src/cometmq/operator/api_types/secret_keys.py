# SPDX-License-Identifier: Apache-2.0
"""Keys of the Secrets that specs name, and what may be wrong with them."""

from enum import StrEnum
from typing import Final

TLS_CERTIFICATE: Final = "tls.crt"
TLS_KEY: Final = "tls.key"
TLS_TRUST: Final = "ca.crt"
"""Keys of a Secret of the type kubernetes.io/tls, as cert-manager writes it."""

GROUP_KEY_FILE: Final = "group.key"

ACL_FILE: Final = "plain_acl.yml"

ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"  # noqa: S105  # the name of a key
"""Keys of a Secret with an account; the suite's chart reads the same ones."""


class SecretReason(StrEnum):
    """Reasons of conditions: why a Secret cannot be used."""

    MISSING = "SecretMissing"
    INCOMPLETE = "SecretIncomplete"
    UNUSABLE = "SecretUnusable"
    FORBIDDEN = "SecretForbidden"
