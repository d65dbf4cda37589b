# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an account, a file of accounts, or a request.

Compatibility: the words are those of RocketMQ 4.9.4's AclException, which people search for; a
refused request also names the place in RocketMQ where it is refused.
"""

from cometmq.remoting.errors import ServerError, SettingsError


class AclFileError(SettingsError):
    """A file of accounts cannot be used."""


class AclError(ValueError):
    """An account, a permission or an address pattern is wrong."""


def refused(reason: str, place: str) -> ServerError:
    """Return the answer to a request that is not allowed."""
    return ServerError(
        f"org.apache.rocketmq.acl.common.AclException: {reason}, "
        f"org.apache.rocketmq.acl.plain.PlainPermissionManager.{place}"
    )


def no_access_key() -> ServerError:
    """Answer to a request that is not signed."""
    return refused("No accessKey is configured", "validate(PlainPermissionManager.java:663)")


def unknown_access_key(access_key: str) -> ServerError:
    """Answer to a request of nobody we know."""
    reason = f"No acl config for {access_key}"
    return refused(reason, "validate(PlainPermissionManager.java:667)")


def wrong_signature(access_key: str) -> ServerError:
    """Answer to a request with another signature than ours."""
    reason = f"Check signature failed for accessKey={access_key}"
    return refused(reason, "validate(PlainPermissionManager.java:683)")


def not_admin(code: int, access_key: str) -> ServerError:
    """Answer to an order that only administrators may give."""
    reason = f"Need admin permission for request code={code}, but accessKey={access_key} is not"
    return refused(reason, "checkPerm(PlainPermissionManager.java:580)")


def no_permission(resource: str, *, is_default: bool) -> ServerError:
    """Answer to a request for a topic or group that the account may not use so."""
    line = 605 if is_default else 610
    return refused(
        f"No default permission for {resource}", f"checkPerm(PlainPermissionManager.java:{line})"
    )


def wrong_keys(access_key: str | None, secret_key: str | None) -> str:
    """Say that an account's names are too short."""
    keys = f"accessKey={_shown(access_key)} and secretKey={_shown(secret_key)}"
    return f"The {keys} cannot be null and length should longer than 6"


def wrong_resource(resource: str) -> str:
    """Say that a permission has no name or no right."""
    return (
        f"Parse Resource format error for {resource}.\n"
        "The expected resource format is 'Res=Perm'. For example: topicA=SUB"
    )


def wrong_permission(resource: str) -> str:
    """Say that a permission's right is unknown."""
    return (
        f"Parse resource permission error for {resource}.\n"
        "The expected permissions are 'SUB' or 'PUB' or 'SUB|PUB' or 'PUB|SUB'."
    )


def _shown(text: str | None) -> str:
    return "null" if text is None else text
