# SPDX-License-Identifier: Apache-2.0
"""SQL92 filters: compiles an expression into a function of a message's properties.

Importing Lark and building the parser take 45 ms, a quarter of a broker's startup time, and many
brokers never see an expression. So the parser is imported on a thread: before the broker serves if
its settings enable expressions (`load_parser`), otherwise for the first expression
(`compiling.py`).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Final

from cometmq.broker.filters.sql.evaluate import Values, matcher
from cometmq.broker.filters.sql.nodes import CHARS_MAX, Node, check_length, comparison_count
from cometmq.broker.filters.sql.program import Program, program_of
from cometmq.remoting.sql.errors import SqlError

__all__ = [
    "CHARS_MAX",
    "EXPRESSION_TYPE",
    "Program",
    "SqlError",
    "SqlFilter",
    "compile_sql",
    "compiling",
    "forget_compiled",
    "is_compiled",
    "load_parser",
]

EXPRESSION_TYPE: Final = "SQL92"
CACHE_CHARS_MAX: Final = 1 << 20
"""Total characters of cached expressions; each takes about 75 bytes once compiled."""
_EXPRESSION_COST: Final = 64  # of one cached expression beside its characters


class SqlFilter:
    """A compiled expression; it is immutable, so that subscriptions can share it."""

    __slots__ = (
        "__weakref__", "comparison_count", "expression", "matches_values", "names", "program"
    )  # fmt: skip

    def __init__(self, expression: str, node: Node | None = None) -> None:
        """Call `compile_sql` instead, which caches filters; `node` is the parsed expression."""
        if node is None:
            from cometmq.broker.filters.sql.parser import parse  # noqa: PLC0415  # 45 ms, see above

            node = parse(expression)
        self.expression = expression
        self.program: Program | None = program_of(node)
        """The expression encoded for native code; None for uncommon expressions."""
        self.comparison_count = max(1, comparison_count(node))
        self.names: tuple[str, ...]
        self.matches_values: Callable[[Values], bool]
        self.names, self.matches_values = matcher(node)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties matches."""
        return self.matches_values([properties.get(name) for name in self.names])


class _Compiled:
    """A cache of recently used expressions: maps each to its filter or its error message."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, SqlFilter | str] = OrderedDict()
        self._cost = 0

    def __contains__(self, expression: str) -> bool:
        return expression in self._found

    def clear(self) -> None:
        self._found.clear()
        self._cost = 0

    def get(self, expression: str) -> SqlFilter | str:
        found = self._found.get(expression)
        if found is not None:
            self._found.move_to_end(expression)
            return found
        found = _compile(expression)
        self.put(expression, found)
        return found

    def put(self, expression: str, found: SqlFilter | str) -> None:
        if len(expression) > CHARS_MAX or expression in self._found:
            return  # longer expressions are refused without parsing
        self._found[expression] = found
        self._cost += len(expression) + _EXPRESSION_COST
        while self._cost > CACHE_CHARS_MAX:
            oldest, _ = self._found.popitem(last=False)
            self._cost -= len(oldest) + _EXPRESSION_COST


_compiled: Final = _Compiled()


def _compile(expression: str) -> SqlFilter | str:
    try:
        check_length(expression)  # without the parser
        return SqlFilter(expression)
    except SqlError as error:
        return str(error)


def forget_compiled() -> None:
    """Empty the cache. Tests that compare two brokers in one process call this between them."""
    _compiled.clear()


def load_parser() -> None:
    """Import the parser ahead of its use; call this on a thread."""
    import_module("cometmq.broker.filters.sql.parser")


def compile_sql(expression: str) -> SqlFilter:
    """Return the filter for an expression; raise SqlError if it is invalid."""
    found = _compiled.get(expression)
    if isinstance(found, str):
        raise SqlError(found)
    return found


def compiling(expression: str) -> Iterator[None]:
    """Compile an expression in steps into the cache of `compile_sql`."""
    from cometmq.broker.filters.sql.parser import parsing  # noqa: PLC0415  # 45 ms, see above

    try:
        node = yield from parsing(expression)
        _compiled.put(expression, SqlFilter(expression, node))
    except SqlError as error:
        _compiled.put(expression, str(error))


def is_compiled(expression: str) -> bool:
    """Return whether the cache of `compile_sql` contains the expression."""
    return expression in _compiled
