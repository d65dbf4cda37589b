# SPDX-License-Identifier: Apache-2.0
"""A program's settings, merged from defaults, a file, the environment and the command line.

Later sources override earlier ones, and each value records its source.

Compatibility: names are RocketMQ's property names, so its files work unmodified. An unknown key is
never fatal; it is kept and returned, because a tool may read it. The exceptions are a key or
variable that nearly matches an access control or TLS setting, and RocketMQ's keys that mean safety
and are not served (`foreign.py`). An invalid value of a known key is fatal: one
line names the key, the value, the allowed values and the source. All faults are reported together,
along with probable mistakes that would not be fatal by themselves.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.spelling import closest, did_you_mean
from cometmq.remoting.visible import is_utf8
from cometmq.runtime import properties
from cometmq.runtime.files import at_home
from cometmq.runtime.redaction import HIDDEN, looks_secret, without_logins
from cometmq.runtime.settings.faults import Faults
from cometmq.runtime.settings.fields import (
    SettingsField,
    attributes_of,
    by_option,
    by_variable,
    fields_of,
)
from cometmq.runtime.settings.foreign import Foreign, foreign_of
from cometmq.runtime.settings.mistakes import (
    LINE_FORM,
    Mistakes,
    misspelt_keys,
    refuse_foreign,
    unread_variables,
)

S = TypeVar("S", bound=msgspec.Struct)

VALUE_CHARS_MAX: Final = 200
"""Maximum number of characters of an invalid value that its error shows, because errors are logged
and sent as answers.
"""

_NUMBERS = ("0", "1")
_INTEGER_END = 1 << 63  # as a Java long; the native path fails with larger limits


class Origin(NamedTuple):
    """The origin of a value: the kind of source, and the position in it."""

    kind: str
    place: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.place}".rstrip()


FILE = "file"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"
DEFAULT = Origin("default")
RUN_TIME = Origin("changed while running")

Given = dict[str, tuple[object, Origin]]


class Row(NamedTuple):
    """One setting as operators see it."""

    name: str
    value: str | None
    """None if it is unset."""
    default: str | None
    source: str


class Content(NamedTuple):
    """The content of a settings file."""

    values: Given
    without_sign: Mapping[str, str] = {}
    """The text of each line without `=` or `:`, by its key."""
    repeated: Mapping[str, list[str]] = {}
    """The places of each key that is given more than once."""


_EMPTY = Content({})


class Loaded(msgspec.Struct, Generic[S], frozen=True):
    """Validated settings, the origin of each value, and the keys of the file that are none."""

    value: S
    origins: Mapping[str, Origin]
    unknown: Mapping[str, str]
    has_known_key: bool = False
    """Whether the file has a key that is a setting of this program or of one that shares it."""
    mistakes: Mistakes = Mistakes()
    others: Collection[str] = ()
    """The settings that another program reads from the same file."""

    def updated(self, changes: Mapping[str, str], *, origin: Origin = RUN_TIME) -> "Loaded[S]":
        """Return new settings with all changes applied; an invalid change rejects all of them.

        As in RocketMQ, a key that is neither a setting nor in the file is ignored. Raise
        SettingsError for invalid values, and for settings that cannot change at run time.
        """
        fields = fields_of(type(self.value))
        given: Given = {}
        faults = Faults()
        unknown = dict(self.unknown)
        for name, raw in changes.items():
            faults.attempt(partial(foreign_of(type(self.value)).check, name, raw))
            if name in unknown:
                unknown[name] = raw
            field = fields.get(name)
            if field is None or _text(field.read(self.value)) == raw.strip():
                continue
            if field.is_mutable:
                given[name] = (raw, origin)
            else:
                faults.add(f"{name} cannot be changed while the program runs")
        value = _build(type(self.value), given, faults, base=self.value)
        origins = {**self.origins, **dict.fromkeys(given, origin)}
        return msgspec.structs.replace(self, value=value, origins=origins, unknown=unknown)

    def knows(self, name: str) -> bool:
        """Return whether the key is a setting, or an unknown key of the file."""
        return name in self.unknown or name in fields_of(type(self.value))

    def label(self, name: str) -> str:
        """Return the place where a value is set: an option, a variable, or a line of the file."""
        origin = self.origins.get(name, DEFAULT)
        if origin.kind in {COMMAND_LINE, ENVIRONMENT}:
            return origin.place
        if origin.kind == FILE:
            return f"{name} in {origin.place}"
        return f"{name} ({fields_of(type(self.value))[name].option})"

    def given(self, prefix: str) -> dict[str, str]:
        """Return the non-default settings whose names start with `prefix`, secrets included."""
        return {
            field.name: _text(field.read(self.value)) or ""
            for field in fields_of(type(self.value)).values()
            if field.name.startswith(prefix) and self.origins[field.name] != DEFAULT
        }

    def ineffective(self) -> dict[str, str]:
        """Return the changed settings that have no effect, each with the reason."""
        in_file = {FILE, RUN_TIME.kind}  # a change at run time is saved in the file
        foreign = foreign_of(type(self.value)).harmless
        kept = {name: f"{foreign[name]}." for name in self.unknown if name in foreign}
        return kept | {
            name: field.description
            for name, field in fields_of(type(self.value)).items()
            if field.is_ineffective
            and field.read(self.value) != field.default
            and not (name in self.others and self.origins[name].kind in in_file)
        }

    def changed_since(self, old: "Loaded[S]") -> set[str]:
        """Return the keys, known or not, whose values differ from those in `old`."""
        before, after = old.as_shown(), self.as_shown()
        return {name for name, value in after.items() if before.get(name) != value}

    def as_properties(self) -> str:
        """Render what `as_shown` returns as `.properties` text."""
        return properties.render(self.as_shown())

    def as_shown(self) -> dict[str, str]:
        """Return known and unknown keys with their values, without unset keys and secrets; logins
        in URLs are masked.

        An unknown key counts as a secret if its name is like that of one.
        """
        fields = [it for it in fields_of(type(self.value)).values() if not it.is_secret]
        known = {field.name: _text(field.read(self.value)) for field in fields}
        set_values = {name: text for name, text in known.items() if text is not None}
        shown = {name: text for name, text in self.unknown.items() if not looks_secret(name)}
        return {name: without_logins(text) for name, text in {**shown, **set_values}.items()}

    def as_saved_properties(self) -> str:
        """Render the settings to save: those from the file, and those changed at run time.

        Defaults are left out because they may change between versions. Values of options and
        variables are left out because every start sets them again.
        """
        fields = fields_of(type(self.value)).values()
        kept = {
            field.name: _text(field.read(self.value))
            for field in fields
            if self.origins[field.name].kind in {FILE, RUN_TIME.kind}
        }
        set_values = {name: text for name, text in kept.items() if text is not None}
        return properties.render({**self.unknown, **set_values})

    def rows(self) -> Iterator[Row]:
        """Yield every setting, then the unknown keys of the file; secrets are masked."""
        for field in fields_of(type(self.value)).values():
            text = _text(field.read(self.value))
            shown = HIDDEN if field.is_secret and text else text and without_logins(text)
            origin = self.origins[field.name]
            default = None if field.default is msgspec.NODEFAULT else _text(field.default)
            if field.default is msgspec.NODEFAULT and origin == DEFAULT:
                default = shown  # the machine decides it, as brokerName
            yield Row(field.name, shown, default, str(origin))
        guesses, prose = self.mistakes.misspelt, self.mistakes.prose
        for name, text in self.unknown.items():
            hint = f"; did you mean {guesses[name]}?" if name in guesses else ""
            if name in prose:
                hint = f"; {LINE_FORM}"
            shown = HIDDEN if looks_secret(name) and text else without_logins(text)
            yield Row(name, shown, None, f"unknown, kept{hint}")

    def as_table(self, only: Collection[str] | None = None) -> str:
        """Render `name=value  # source` lines for operators; secrets are masked.

        `only` names the settings to render; without it, all are rendered.
        """
        rows = [
            (f"{row.name}={row.value or ''}", row.source)
            for row in self.rows()
            if only is None or row.name in only
        ]
        width = min(60, max((len(setting) for setting, _ in rows), default=0))
        return "".join(f"{setting:<{width}}  # {source}\n" for setting, source in rows)


def load(  # noqa: PLR0913  # one parameter per source
    settings_type: type[S],
    *,
    prefix: str,
    file: Path | None = None,
    env: Mapping[str, str] | None = None,
    cli: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    is_part: bool = False,
    only: Collection[str] | None = None,
    others: Collection[str] = (),
) -> Loaded[S]:
    """Merge the values from all sources and validate them.

    - `env`: the environment; by default that of this process
    - `cli`: values by external name; `args`, options as for `parse_options`, override them
    - `options`: the program's option names by external name, where they differ from the default
    - `is_part`: the struct is only a part of the program's settings, so unknown names are not
      examined
    - `only`, `others`: for a file that two programs share: the keys that this program reads (by
      default all), and those that the other program reads

    Raise one SettingsError with a line for each fault.
    """
    fields = fields_of(settings_type)
    faults = Faults()
    content = (faults.attempt(lambda: _read_file(file)) if file is not None else None) or _EMPTY
    if only is not None:
        content = Content({name: it for name, it in content.values.items() if name in only})
    in_file, known, foreign = content.values, fields.keys() | set(others), foreign_of(settings_type)
    unknown = {name: given for name, given in in_file.items() if name not in fields}
    given = {name: value for name, value in in_file.items() if name in fields}
    variables = os.environ if env is None else env  # noqa: TID251  # the one place that reads it
    settable = by_variable(settings_type, prefix)
    mistakes = Mistakes()
    if not is_part:
        refuse_foreign(foreign, in_file, variables, prefix, faults)
        misspelt = misspelt_keys(unknown, known, fields, foreign, faults)
        misread = unread_variables(variables, prefix, settable, faults)
        mistakes = _mistakes(content, misspelt, misread, known, foreign)
    for variable, field in settable.items():
        if variable in variables:
            given[field.name] = (variables[variable], Origin(ENVIRONMENT, variable))
    for name, raw in {**(cli or {}), **_read_options(settings_type, args, faults)}.items():
        if name in fields:
            option = (options or {}).get(name, fields[name].option)
            given[name] = (raw, Origin(COMMAND_LINE, option))
        else:
            faults.add(f"{name}: unknown setting (from command line)")
    origins = {name: given[name][1] if name in given else DEFAULT for name in fields}
    try:
        value = _build(settings_type, given, faults)
    except SettingsError as error:
        raise SettingsError("\n".join([str(error), *mistakes.lines()])) from error
    return Loaded(
        value,
        origins,
        {name: str(raw) for name, (raw, _) in unknown.items()},
        has_known_key=any(name in known or name in foreign for name in in_file),
        mistakes=mistakes,
        others=frozenset(others),
    )


def parse_options(settings_type: type[msgspec.Struct], args: Sequence[str]) -> dict[str, str]:
    """Parse `--option value`, `--option=value` and `--switch` into external names and values."""
    faults = Faults()
    values = _read_options(settings_type, args, faults)
    faults.raise_all()
    return values


def _read_options(
    settings_type: type[msgspec.Struct], args: Sequence[str], faults: Faults
) -> dict[str, str]:
    accepted = by_option(settings_type)
    values: dict[str, str] = {}
    rest = list(args)
    while rest:
        option, has_value, text = rest.pop(0).partition("=")
        field = accepted.get(option)
        if not has_value and rest and not rest[0].startswith("--"):
            text, has_value = rest.pop(0), "="
        if field is None:
            faults.add(f"{option}: unknown option{did_you_mean(option, accepted)}")
        elif has_value or field.base is bool:
            values[field.name] = text if has_value else "true"
        else:
            faults.add(f"{option} needs a value: {field.expected}")
    return values


def _mistakes(
    content: Content,
    misspelt: Mapping[str, str],
    misread: Mapping[str, str],
    known: Collection[str],
    foreign: Foreign,
) -> Mistakes:
    places = {
        name: origin.place
        for name, (_, origin) in content.values.items()
        if name not in known and name not in foreign
    }
    prose = {
        name: text
        for name, text in content.without_sign.items()
        if name in places and closest(name, known) is None
    }
    return Mistakes(misspelt, places, prose, content.repeated, misread)


def _read_file(file: Path) -> Content:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {file}: {error.strerror}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # Java's default for .properties
    try:
        if file.suffix == ".toml":
            import tomllib  # noqa: PLC0415  # 0.1 MiB

            tables = tomllib.loads(text.removeprefix(properties.BYTE_ORDER_MARK))
            return _content(_flatten(tables, Origin(FILE, str(file))), {})
        found = list(properties.parse_lines(text))
    except ValueError as error:
        raise SettingsError(f"cannot read {file}: {error}") from error
    values = ((it.key, (it.value, Origin(FILE, f"{file}:{it.line}"))) for it in found)
    last = {it.key: it for it in found}
    without_sign = {key: f"{key} {it.value}".strip() for key, it in last.items() if not it.has_sign}
    return _content(values, without_sign)


def _content(
    pairs: Iterable[tuple[str, tuple[object, Origin]]], without_sign: Mapping[str, str]
) -> Content:
    """Collect the values of a file; if a key is repeated, the last one wins, as in RocketMQ."""
    values: Given = {}
    places: dict[str, list[str]] = {}
    for name, value in pairs:
        values[name] = value
        places.setdefault(name, []).append(value[1].place)
    repeated = {name: found for name, found in places.items() if len(found) > 1}
    return Content(values, without_sign, repeated)


def _flatten(
    table: Mapping[str, Any], origin: Origin
) -> Iterator[tuple[str, tuple[object, Origin]]]:
    """Flatten a TOML table; nested tables only group keys."""
    for name, raw in table.items():
        if isinstance(raw, dict):
            yield from _flatten(raw, origin)
        else:
            yield name, (raw, origin)


def _build(settings_type: type[S], given: Given, faults: Faults, *, base: S | None = None) -> S:
    """Convert the given values, take others from `base` or the defaults, and validate all.

    Raise one SettingsError for the faults found here and earlier. A struct is validated as a whole
    only if each of its values is valid.
    """
    values: dict[tuple[str, ...], object] = {}
    for field in fields_of(settings_type).values():
        if field.name in given:
            raw, origin = given[field.name]
            values[field.path] = faults.attempt(partial(_convert, field, raw, origin))
        elif base is not None:
            values[field.path] = field.read(base)
        elif field.is_required:
            faults.add(f"{field.name} must be set: {field.description or field.expected}")
    faults.raise_all()
    try:
        return cast("S", _assemble(settings_type, (), values))
    except ValueError as error:
        _, origin = given.get(str(error).partition(":")[0], (None, RUN_TIME))
        raise SettingsError(f"{error}{_source(origin)}") from error


def _assemble(
    struct_type: type[msgspec.Struct],
    path: tuple[str, ...],
    values: Mapping[tuple[str, ...], object],
) -> msgspec.Struct:
    """Construct a struct, its nested groups first; each `__post_init__` validates one struct."""
    arguments: dict[str, object] = {}
    for info in attributes_of(struct_type):
        here = (*path, info.name)
        if here in values:
            arguments[info.name] = values[here]
        elif isinstance(info.type, type) and issubclass(info.type, msgspec.Struct):
            arguments[info.name] = _assemble(info.type, here, values)
    return struct_type(**arguments)


def _convert(field: SettingsField, raw: object, origin: Origin) -> object:
    value = raw.strip() if isinstance(raw, str) else raw
    if field.base is str and not isinstance(value, str):
        value = str(value)  # TOML gives a number where text is expected, as in deleteWhen = 4
    if not is_utf8(str(value)):
        raise _invalid(field, value, origin, " in UTF-8")
    if field.base is bool and str(value) in _NUMBERS:
        raise _invalid(field, value, origin)  # msgspec reads 1 as true, RocketMQ as false
    try:
        converted: object = msgspec.convert(value, field.annotation, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid(field, value, origin) from error
    if isinstance(converted, int) and not -_INTEGER_END <= converted < _INTEGER_END:
        raise _invalid(field, value, origin, " of at most 64 bits")
    if field.is_path and isinstance(converted, str):
        return _at_home(field, converted, origin)
    return converted


def _at_home(field: SettingsField, path: str, origin: Origin) -> str:
    try:
        return at_home(path, f"{field.name}={path}")
    except SettingsError as error:
        raise SettingsError(f"{error}{_source(origin)}") from error


def _invalid(field: SettingsField, value: object, origin: Origin, more: str = "") -> SettingsError:
    shown = HIDDEN if field.is_secret else without_logins(str(value)).replace("\n", "\\n")
    if len(shown) > VALUE_CHARS_MAX:
        shown = f"{shown[:VALUE_CHARS_MAX]}..."
    return SettingsError(f"{field.name}={shown}: must be {field.expected}{more}{_source(origin)}")


def _source(origin: Origin) -> str:
    return "" if origin == RUN_TIME else f" (from {origin})"


def _text(value: object) -> str | None:
    """Format a value as RocketMQ does; None means that the value is unset."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
