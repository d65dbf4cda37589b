# SPDX-License-Identifier: Apache-2.0
"""Native conditions give the same verdicts as the Python path, or leave the decision to it."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.filters.records import sql_record_filter
from cometmq.broker.filters.sql import SqlError, SqlFilter
from cometmq.broker.native import IS_BUILT
from cometmq.peers.long_forms import examples
from cometmq.remoting.message.record_layout import MAGIC_V1

names = st.sampled_from(["a", "b", "ab", "level"])
constants = st.sampled_from([
    "1", "0", "-3", "2147483647", "2147483648", "9223372036854775807", "5L", "1.5", "-0.5", "1e3",
    "0.0", "-0.0",
    "'eu'", "''", "'e''u'", "'\u00fc'", "TRUE", "FALSE",
])  # fmt: skip
numbers = st.sampled_from(["1", "-3", "7", "2147483648", "1.5", "-0.5", "2e1", "0.0", "-.0"])
comparisons = st.one_of(
    st.builds("{} {} {}".format, names, st.sampled_from(["=", "<>"]), constants),
    st.builds("{} {} {}".format, names, st.sampled_from(["<", "<=", ">", ">="]), numbers),
    st.builds("{} IS {}NULL".format, names, st.sampled_from(["", "NOT "])),
    st.builds("{} {}IN ('eu', '1', '\u00fc')".format, names, st.sampled_from(["", "NOT "])),
    st.builds(
        "{} {}BETWEEN {} AND {}".format, names, st.sampled_from(["", "NOT "]), numbers, numbers
    ),
    names,
    st.builds("{} > {}".format, names, names),
    st.builds("{} CONTAINS 'e'".format, names),
)
expressions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=6,
)
values = st.one_of(
    st.sampled_from([
        "", "1", "+1", "-3", "01", "7", "2147483647", "2147483648", "-2147483649", "99999999999999",
        "9223372036854775808", "1.5", " 1.5 ", "1.5f", ".5", "5.", "1e400", "NaN", "-Infinity", "+",
        "0x1p3", "0X.8P1d", "eu", "e'u", "\u00fc", "\u0663", "TRUE", "TrUe", "-0.0", "-0",
        "0.0", "\udcff",
    ]),
    st.text(st.characters(exclude_characters="\x02", codec="utf-8"), max_size=6),
)  # fmt: skip
properties = st.lists(st.tuples(names, values), max_size=6)


def record(text: bytes) -> bytes:
    """Build a record with these properties and arbitrary other fields."""
    fixed = bytearray(88)
    struct.pack_into(">i", fixed, 4, MAGIC_V1)
    return bytes(fixed) + b"\x01T" + struct.pack(">h", len(text)) + text


@pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")
@examples(100, long=600)
@given(expressions, st.lists(properties, min_size=1, max_size=8))
def test_native_verdicts_are_those_of_python(expression, messages):
    from cometmq import accel  # optional

    try:
        sql = SqlFilter(expression)
    except SqlError:
        return
    if sql.program is None:
        assert any(word in expression for word in ("CONTAINS", " > a", " > b", " > ab", " > level"))
        return
    matches = sql_record_filter(sql).matches
    for pairs in messages:
        text = "\x02".join(f"{name}\x01{value}" for name, value in pairs)
        data = record(text.encode(errors="surrogateescape"))
        verdict = accel.matches(sql.program.names, sql.program.condition, data)
        assert verdict in {None, matches(data)}
        is_plain = text.isascii() and "0x" not in text.lower()
        assert verdict is not None or not is_plain


def test_long_conditions_have_no_native_form():
    assert SqlFilter(" OR ".join(f"a = {number}" for number in range(64))).program is not None
    assert SqlFilter(" OR ".join(f"a = {number}" for number in range(65))).program is None
    assert SqlFilter(" OR ".join(f"a{number} = 1" for number in range(8))).program is not None
    assert SqlFilter(" OR ".join(f"a{number} = 1" for number in range(9))).program is None
