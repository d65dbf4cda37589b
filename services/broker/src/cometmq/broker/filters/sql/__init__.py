# SPDX-License-Identifier: Apache-2.0
"""SQL92 filters: an expression becomes a function of a message's properties."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from cometmq.broker.filters.sql.errors import SqlError
from cometmq.broker.filters.sql.evaluate import Values, matcher
from cometmq.broker.filters.sql.nodes import comparison_count
from cometmq.broker.filters.sql.parser import CHARS_MAX, parse

__all__ = ["CHARS_MAX", "EXPRESSION_TYPE", "SqlError", "SqlFilter", "compile_sql"]

EXPRESSION_TYPE: Final = "SQL92"
CACHE_SIZE_MAX: Final = 1_000


class SqlFilter:
    """A compiled expression; it never changes, so all subscriptions to it share it."""

    __slots__ = ("comparison_count", "expression", "matches_values", "names")

    def __init__(self, expression: str) -> None:
        """Use `compile_sql` instead, which compiles an expression once."""
        node = parse(expression)
        self.expression = expression
        self.comparison_count = max(1, comparison_count(node))
        self.names: tuple[str, ...]
        self.matches_values: Callable[[Values], bool]
        self.names, self.matches_values = matcher(node)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Tell whether a message with these properties is wanted."""
        return self.matches_values([properties.get(name) for name in self.names])


@lru_cache(maxsize=CACHE_SIZE_MAX)
def compile_sql(expression: str) -> SqlFilter:
    """Return the filter that an expression states; raise SqlError with what is wrong with it."""
    return SqlFilter(expression)
