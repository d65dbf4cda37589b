# SPDX-License-Identifier: Apache-2.0
"""Facts about the fields of a settings struct: names, bounds, descriptions, mutability.

A settings type is a frozen `msgspec.Struct`. Its groups are fields whose type is another struct,
and the external names of all groups together form one flat namespace, as in RocketMQ's files.

Facts beyond the type are declared in `Annotated`: the bounds and a `pattern` in a `Meta`, and the
description as a text (or in a `Meta`). Other facts have names in `cometmq.remoting.setting_facts`;
those names are `Meta.extra` with the keys `mutable`, `secret`, `guard`, `path`, `env`, `form`,
`ineffective`.
"""

import enum
import functools
import re
import textwrap
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, get_args, get_origin

import msgspec

_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WRAPPER = textwrap.TextWrapper(96, initial_indent="    ", subsequent_indent="    ")
_CHOICE = re.compile(r"\^\((\w+(?:\|\w*)+)\)\$")


class SettingsField(NamedTuple):
    """One setting: its external name and its path in the struct."""

    name: str
    path: tuple[str, ...]
    annotation: Any
    base: Any
    metas: tuple[msgspec.Meta, ...]
    description: str
    is_required: bool
    default: Any
    facts: Mapping[str, object]
    """What `Meta.extra` declares."""
    is_mutable: bool
    """Whether the setting may change at run time."""
    is_secret: bool
    """Whether the value must not be shown."""
    is_guard: bool
    """Whether the setting protects the program from its peers."""
    is_path: bool
    """Whether the value is a path, which may begin with a home folder."""
    is_ineffective: bool
    """Whether the setting has no effect, whatever its value."""

    @property
    def snake_name(self) -> str:
        """Return the external name in snake_case, the stem of variable and option names."""
        return _snake_name(self.name)

    @property
    def option(self) -> str:
        """Return the command line option."""
        return "--" + self.snake_name.replace("_", "-")

    @property
    def expected(self) -> str:
        """Describe the allowed values, in words that can follow "must be"."""
        return str(self.facts.get("form") or _expected(self.base, self.metas))

    def read(self, settings: msgspec.Struct) -> Any:
        """Return the value of this field in `settings`."""
        value: Any = settings
        for attribute in self.path:
            value = getattr(value, attribute)
        return value

    def variables(self, prefix: str) -> tuple[str, ...]:
        """Return the environment variables for this setting; later ones take precedence."""
        own = variable_of(prefix, self.name)
        other = self.facts.get("env")
        return (str(other), own) if other else (own,)


@functools.cache  # a broker's settings have 200 names, each asked for several times
def _snake_name(name: str) -> str:
    return _WORD_STARTS.sub("_", name).replace(".", "_").replace("-", "_").lower()


def variable_of(prefix: str, name: str) -> str:
    """Return the environment variable of a setting with this external name."""
    return f"{prefix}_{_snake_name(name).upper()}"


@functools.cache
def fields_of(settings_type: type[msgspec.Struct]) -> Mapping[str, SettingsField]:
    """Return all fields by external name, in declaration order."""
    table: dict[str, SettingsField] = {}
    for field in _walk(settings_type, ()):
        assert field.name not in table, f"two settings are named {field.name}"
        table[field.name] = field
    return table


@functools.cache
def by_variable(settings_type: type[msgspec.Struct], prefix: str) -> Mapping[str, SettingsField]:
    """Return all fields by environment variable."""
    return {
        variable: field
        for field in fields_of(settings_type).values()
        for variable in field.variables(prefix)
    }


@functools.cache
def by_option(settings_type: type[msgspec.Struct]) -> Mapping[str, SettingsField]:
    """Return all fields by command line option."""
    return {field.option: field for field in fields_of(settings_type).values()}


@functools.cache
def attributes_of(struct_type: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields and groups of one struct; msgspec resolves their types at each call."""
    return msgspec.structs.fields(struct_type)


def describe(settings_type: type[msgspec.Struct]) -> str:
    """Return a text for terminals: what each setting does, its values and its default."""
    lines = []
    for field in fields_of(settings_type).values():
        notes = [field.expected]
        if field.default is not msgspec.NODEFAULT:
            notes.append(f"default {_shown(field.default)}")
        notes += ["changeable while it runs"] * field.is_mutable
        lines += [f"{field.name}: {', '.join(notes)}", *_WRAPPER.wrap(field.description), ""]
    return "\n".join(lines)


def _shown(value: object) -> str:
    value = value.value if isinstance(value, enum.Enum) else value
    return str(value).lower() if isinstance(value, bool) else str(value) or "(empty)"


def _walk(struct_type: type[msgspec.Struct], path: tuple[str, ...]) -> Iterator[SettingsField]:
    for info in attributes_of(struct_type):
        base, facts = split_hint(info.type)
        here = (*path, info.name)
        if isinstance(base, type) and issubclass(base, msgspec.Struct):
            yield from _walk(base, here)
            continue
        metas = tuple(it for it in facts if isinstance(it, msgspec.Meta))
        texts = (it if isinstance(it, str) else getattr(it, "description", None) for it in facts)
        text = next(filter(None, texts), "")
        extra = dict(ChainMap(*(dict(it.extra) for it in metas if it.extra)))
        known = ("mutable", "secret", "guard", "path", "ineffective")
        yield SettingsField(
            *(info.encode_name, here, info.type, base, metas, text, info.required, info.default),
            extra,
            *(bool(extra.get(it)) for it in known),
        )


def split_hint(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split a type into its base type and its facts; look inside optional types, too."""
    if get_origin(annotation) is Annotated:
        inner, *facts = get_args(annotation)
        base, inner_facts = split_hint(inner)
        return base, (*inner_facts, *facts)
    members = [member for member in get_args(annotation) if member is not type(None)]
    if len(members) == 1 and type(None) in get_args(annotation):
        return split_hint(members[0])
    return annotation, ()


def _expected(base: Any, metas: tuple[msgspec.Meta, ...]) -> str:
    if isinstance(base, type) and issubclass(base, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in base)
    if base is bool:
        return "true or false"
    if base in {int, float}:
        words = "an integer" if base is int else "a number"
        return f"{words} {_bounds(metas)}".rstrip()
    pattern = next((meta.pattern for meta in metas if meta.pattern), None)
    if pattern:
        choice = _CHOICE.fullmatch(pattern)
        if choice is None:
            return f"text matching {pattern}"
        choices = choice[1].split("|")
        shown = ", ".join(filter(None, choices))
        return f"one of {shown}" + (", or empty" if "" in choices else "")
    return "non-empty text" if any(meta.min_length for meta in metas) else "text"


def _bounds(metas: tuple[msgspec.Meta, ...]) -> str:
    low = next((meta.ge for meta in metas if meta.ge is not None), None)
    high = next((meta.le for meta in metas if meta.le is not None), None)
    if low is not None and high is not None:
        return f"{low}..{high}"
    above = next((meta.gt for meta in metas if meta.gt is not None), None)
    below = next((meta.lt for meta in metas if meta.lt is not None), None)
    signs = ((">=", low), ("<=", high), (">", above), ("<", below))
    return " and ".join(f"{sign} {bound}" for sign, bound in signs if bound is not None)
