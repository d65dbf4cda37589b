# SPDX-License-Identifier: Apache-2.0
"""One account file: parses YAML text into accounts, and writes changes back to the text.

Compatibility: keys, types and layout follow RocketMQ's plain_acl.yml, so RocketMQ can read files
written here. Unknown keys and the comments before the first key are kept; RocketMQ loses them.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.visible import visible_line
from cometmq.runtime.acl.accounts import Account
from cometmq.runtime.acl.addresses import Addresses
from cometmq.runtime.acl.errors import AclError
from cometmq.runtime.acl.spelling import FILE_KEYS, Number, doubtful_keys, doubts_of_account

ACCOUNTS_MAX: Final = 10_000
"""Maximum number of accounts that administrators may add to a file."""
DEPTH_MAX: Final = 32
"""Accounts are nested 4 deep. PyYAML's C loader calls itself for each level, and the program dies
at some 20,000 levels."""

_ACCOUNTS: Final = "accounts"
_WHITE: Final = "globalWhiteRemoteAddresses"
_VERSION: Final = "dataVersion"
_ACCESS_KEY: Final = "accessKey"
_INT: Final = "tag:yaml.org,2002:int"


class Content(NamedTuple):
    """The content of an account file, with warnings about it."""

    accounts: list[Account]
    white_addresses: list[Addresses]
    version: DataVersion | None
    doubts: list[str]
    """Warnings about keys and words that do not have the effect that they seem to have."""


class Document:
    """An account file's keys and values; raises AclError if the text is not an account file."""

    def __init__(self, text: str) -> None:
        import yaml  # noqa: PLC0415  # 13 ms that brokers without accounts save

        self._head = _leading_comments(text)
        try:
            _check_depth(text)
            values = yaml.load(text, _loader())  # noqa: S506  # a safe loader
        except yaml.YAMLError as error:
            raise AclError(_one_line(error)) from error
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise AclError("not a mapping of keys to values")
        self._values: dict[str, Any] = values

    def read(self) -> Content:
        """Return the content of the file; raise AclError, with one line, if any part is invalid."""
        try:
            return self._read()
        except AclError as error:  # it quotes values, which may have control characters
            raise AclError(visible_line(str(error))) from error

    def _read(self) -> Content:
        texts = _texts(self._values.get(_WHITE), _WHITE) or []
        version = _items(self._values.get(_VERSION), _VERSION)
        accounts = [_account(values) for values in self._accounts()]
        doubts = list(doubtful_keys(self._values, FILE_KEYS))
        for account, values in zip(accounts, self._accounts(), strict=True):
            doubts += doubts_of_account(values, account.config, _text(values.get("admin")))
        return Content(
            accounts,
            [Addresses(text) for text in texts],
            _data_version(version[0]) if version else None,
            doubts,
        )

    def put_account(self, config: AclAccount) -> None:
        """Add an account, or change the given fields of an existing one; raise AclError if there
        are too many.
        """
        accounts = self._accounts()
        old = next((it for it in accounts if _key_of(it) == config.access_key), None)
        if old is None and len(accounts) >= ACCOUNTS_MAX:
            raise AclError(f"there are {ACCOUNTS_MAX} accounts already")
        kept = [it for it in accounts if _key_of(it) != config.access_key]
        self._values[_ACCOUNTS] = [*kept, {**(old or {}), **_given(config)}]

    def remove_account(self, access_key: str) -> None:
        """Remove an account if it exists."""
        self._values[_ACCOUNTS] = [it for it in self._accounts() if _key_of(it) != access_key]

    def set_white_addresses(self, texts: Sequence[str]) -> None:
        """Replace the addresses that need no account."""
        self._values[_WHITE] = list(texts)

    def text(self, version: DataVersion) -> str:
        """Return the text of the file, with its version replaced."""
        import yaml  # noqa: PLC0415  # 13 ms that brokers without accounts save

        self._values[_VERSION] = [{"counter": version.counter, "timestamp": version.timestamp}]
        return self._head + str(
            yaml.dump(
                self._values,
                Dumper=_dumper(),
                default_flow_style=False,
                sort_keys=False,
                allow_unicode=True,
            )
        )

    def _accounts(self) -> list[dict[str, Any]]:
        return _items(self._values.get(_ACCOUNTS), _ACCOUNTS)


@cache
def _loader() -> Any:
    """Return a safe loader that returns a `Number` for an integer that is not written in plain
    decimal.
    """
    import yaml  # noqa: PLC0415  # as above

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    def construct_object(self: Any, node: Any, deep: bool = False) -> Any:
        try:
            return base.construct_object(self, node, deep)
        except (ValueError, KeyError, AttributeError) as error:  # PyYAML's, for a 13th month
            problem = "looks like a number or date but is none: put it in quotes"
            raise yaml.constructor.ConstructorError(
                problem=problem, problem_mark=node.start_mark
            ) from error

    loader: Any = type("Loader", (base,), {"construct_object": construct_object})
    loader.add_constructor(_INT, _number)
    return loader


def _check_depth(text: str) -> None:
    import yaml  # noqa: PLC0415  # as above

    depth = 0
    for event in yaml.parse(text, _loader()):
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                raise AclError(
                    f"line {event.start_mark.line + 1}: nested more than {DEPTH_MAX} deep"
                )
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1


@cache
def _dumper() -> Any:
    """Return a safe dumper that writes a `Number` like other integers."""
    import yaml  # noqa: PLC0415  # as above

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    dumper: Any = type("Dumper", (base,), {})
    dumper.add_representer(Number, base.represent_int)
    return dumper


def _number(loader: Any, node: Any) -> int:
    number: int = loader.construct_yaml_int(node)
    return number if str(number) == node.value else Number(number)


def _leading_comments(text: str) -> str:
    head = []
    for line in text.splitlines(keepends=True):
        if line.strip() and not line.startswith("#"):
            break
        head.append(line)
    return "".join(head)


def _one_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark is not None else str(problem)


def _items(value: Any, name: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise AclError(f"{name} is not a list of mappings")
    return value


def _texts(value: Any, name: str) -> list[str] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise AclError(f"{name} is not a list")
    return [_text(item) or "" for item in value]


def _text(value: Any) -> str | None:
    """Return a scalar as the string that Java reads, because YAML parses some keys as numbers;
    raise AclError for other values.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    raise AclError(f"{_shown(value)} is not a text: put it in quotes")


def _key_of(values: Mapping[str, Any]) -> str | None:
    return _text(values.get(_ACCESS_KEY))


def _shown(value: Any) -> str:
    """Return a value for a message; aliases in a collection may expand to any size."""
    return f"a {type(value).__name__}" if isinstance(value, (list, dict, set)) else repr(value)


def _account(values: Mapping[str, Any]) -> Account:
    key = values.get(_ACCESS_KEY)
    try:
        return Account(
            AclAccount(
                access_key=_key_of(values) or "",
                admin=_text(values.get("admin")) == "true",
                default_group_perm=_text(values.get("defaultGroupPerm")),
                default_topic_perm=_text(values.get("defaultTopicPerm")),
                group_perms=_texts(values.get("groupPerms"), "groupPerms"),
                secret_key=_text(values.get("secretKey")),
                topic_perms=_texts(values.get("topicPerms"), "topicPerms"),
                white_remote_address=_text(values.get("whiteRemoteAddress")),
            )
        )
    except AclError as error:
        raise AclError(
            f"account {key if isinstance(key, str) else _shown(key)}: {error}"
        ) from error


def _given(config: AclAccount) -> dict[str, Any]:
    """Return the values that a request sets, by the key of the file, in RocketMQ's order."""
    values: dict[str, Any] = {
        _ACCESS_KEY: config.access_key,
        "secretKey": config.secret_key,
        "whiteRemoteAddress": config.white_remote_address,
        "admin": config.admin,
        "defaultTopicPerm": config.default_topic_perm or None,
        "defaultGroupPerm": config.default_group_perm or None,
        "topicPerms": config.topic_perms,
        "groupPerms": config.group_perms,
    }
    return {name: value for name, value in values.items() if value is not None}


def _data_version(values: Mapping[str, Any]) -> DataVersion:
    counter, timestamp = values.get("counter", 0), values.get("timestamp", 0)
    if not isinstance(counter, int) or not isinstance(timestamp, int):
        raise AclError(f"{_VERSION} needs numbers: counter, timestamp")
    return DataVersion(counter=counter, timestamp=timestamp)
