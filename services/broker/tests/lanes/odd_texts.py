# SPDX-License-Identifier: Apache-2.0
"""Texts of headers that are no UTF-8, or escaped in ways in which no client writes them."""

from typing import Final

from hypothesis import strategies as st

MARK: Final = b"@@@@@@"
"""A text of a request for a test to replace; all texts have its length."""
BROKEN: Final = [
    b"\xbc\xfcok\xbc\xfc", b"\xed\xa0\xbd12\xe4", b"\xc0\x80\xf8\x88\x80\x80", b"\xef\xbb\xbfKEY",
]  # fmt: skip
ESCAPED: Final = [rb"\ud83d", rb"\udc00", rb"\u0001", rb"\u00e9"]
WHOLE: Final = ["é😀".encode(), b"a\x01b\x02c\x01"]
TEXTS: Final = st.one_of(
    st.binary(min_size=len(MARK), max_size=len(MARK)), st.sampled_from(BROKEN + ESCAPED + WHOLE)
)
