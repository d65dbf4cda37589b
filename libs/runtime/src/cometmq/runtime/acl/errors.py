# SPDX-License-Identifier: Apache-2.0
"""Errors in accounts and account files, and refusals of requests.

Compatibility: the messages are copied from RocketMQ 4.9.4's AclException, because users search for
them. A refusal also cites the line of RocketMQ's source that refuses the request.
"""

from pathlib import Path

from cometmq.remoting.errors import ServerError, SettingsError


class AclFileError(SettingsError):
    """An account file cannot be used."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(text)
        self.path = path


class AclError(ValueError):
    """An account, a permission or an address pattern is invalid."""


def refused(reason: str, place: str) -> ServerError:
    """Return the error for a request that is not allowed."""
    return ServerError(
        f"org.apache.rocketmq.acl.common.AclException: {reason}, "
        f"org.apache.rocketmq.acl.plain.PlainPermissionManager.{place}"
    )


def no_access_key() -> ServerError:
    """Return the refusal of a request without an access key."""
    return refused("No accessKey is configured", "validate(PlainPermissionManager.java:663)")


def unknown_access_key(access_key: str) -> ServerError:
    """Return the refusal of an access key that no account has."""
    reason = f"No acl config for {access_key}"
    return refused(reason, "validate(PlainPermissionManager.java:667)")


def wrong_signature(access_key: str) -> ServerError:
    """Return the refusal of a request whose signature does not fit."""
    reason = f"Check signature failed for accessKey={access_key}"
    return refused(reason, "validate(PlainPermissionManager.java:683)")


def not_admin(code: int, access_key: str) -> ServerError:
    """Return the refusal of a request that needs an administrator."""
    reason = f"Need admin permission for request code={code}, but accessKey={access_key} is not"
    return refused(reason, "checkPerm(PlainPermissionManager.java:580)")


def no_permission(resource: str, *, is_default: bool) -> ServerError:
    """Return the refusal of a request that needs a right."""
    line = 605 if is_default else 610
    return refused(
        f"No default permission for {resource}", f"checkPerm(PlainPermissionManager.java:{line})"
    )


def too_old(access_key: str, age_ms: int, age_ms_max: int) -> ServerError:
    """Return the refusal of a request that was signed too long ago."""
    side = f"{age_ms} ms old" if age_ms > 0 else f"{-age_ms} ms ahead of the broker's clock"
    return ServerError(
        f"the request signed with accessKey={access_key} is {side}; aclSignedAgeMax allows"
        f" {age_ms_max} ms: compare the clocks of both machines"
    )


def wrong_keys(access_key: str | None, secret_key: str | None) -> str:
    """Return the text about keys that are missing or too short."""
    keys = f"accessKey={_shown(access_key)} and secretKey={_shown(secret_key)}"
    return f"The {keys} cannot be null and length should longer than 6"


def wrong_resource(resource: str) -> str:
    """Return the text about a right without the form NAME=RIGHT."""
    return (
        f"Parse Resource format error for {resource}.\n"
        "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
    )


def wrong_permission(resource: str) -> str:
    """Return the text about an unknown permission."""
    return (
        f"Parse resource permission error for {resource}.\n"
        "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
    )


def _shown(text: str | None) -> str:
    return "null" if text is None else text
