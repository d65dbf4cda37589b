# SPDX-License-Identifier: Apache-2.0
"""Parses an expression into a tree of nodes."""

from collections.abc import Generator
from typing import Final

from lark import Token as Leaf
from lark import Transformer, v_args

from cometmq.broker.filters.sql import nodes
from cometmq.broker.filters.sql.nodes import Node
from cometmq.remoting.sql import parser

_SYMBOLS: Final = {"GREATER": ">", "GREATER_EQUAL": ">=", "LESS": "<", "LESS_EQUAL": "<="}


@v_args(inline=True)
class _Build(Transformer[Leaf, Node]):
    """Creates the nodes; each method is named after a grammar rule."""

    either = staticmethod(lambda left, _, right: nodes.logic("||", left, right))
    both = staticmethod(lambda left, _, right: nodes.logic("&&", left, right))
    equal = staticmethod(lambda left, _, right: nodes.equal(left, right))
    unequal = staticmethod(lambda left, _, right: nodes.invert(nodes.equal(left, right)))
    is_null = staticmethod(lambda operand, *_: nodes.is_null(operand))
    is_not_null = staticmethod(lambda operand, *_: nodes.invert(nodes.is_null(operand)))
    compare = staticmethod(
        lambda left, word, right: nodes.ordered(_SYMBOLS[word.type], left, right)
    )
    between = staticmethod(lambda value, _, low, __, high: nodes.between(value, low, high))
    not_between = staticmethod(
        lambda value, _, __, low, ___, high: nodes.not_between(value, low, high)
    )
    texts = staticmethod(lambda *texts: tuple(nodes.unquoted(leaf.value) for leaf in texts))
    within = staticmethod(lambda value, _, texts: nodes.within(value, texts, is_negated=False))
    not_within = staticmethod(
        lambda value, _, __, texts: nodes.within(value, texts, is_negated=True)
    )
    search = staticmethod(
        lambda value, word, leaf: nodes.search(
            word.type, value, nodes.unquoted(leaf.value), is_negated=False
        )
    )
    not_search = staticmethod(
        lambda value, _, word, leaf: nodes.search(
            word.type, value, nodes.unquoted(leaf.value), is_negated=True
        )
    )
    plus = staticmethod(lambda operand: operand)
    minus = staticmethod(nodes.minus)
    invert = staticmethod(lambda _, operand: nodes.invert(operand))
    text = staticmethod(lambda leaf: nodes.text(leaf.value))
    whole = staticmethod(lambda leaf: nodes.whole(leaf.value))
    floating = staticmethod(lambda leaf: nodes.floating(leaf.value))
    true = staticmethod(lambda _: nodes.Constant(True))
    false = staticmethod(lambda _: nodes.Constant(False))
    null = staticmethod(lambda _: nodes.Constant(None))
    name = staticmethod(lambda leaf: nodes.Property(leaf.value))


_PARSER: Final = parser.parser_of(_Build())


def parse(text: str) -> Node:
    """Return the condition in an expression; raise SqlError if it is invalid."""
    return parser.end_of(parsing(text))


def parsing(text: str) -> Generator[None, None, Node]:
    """Parse like `parse`, but yield after each step."""
    nodes.check_length(text)
    node, _ = yield from parser.parsing(text, _PARSER)
    return nodes.as_condition(node)
