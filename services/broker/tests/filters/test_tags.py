# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.filters import tags as tags_module
from cometmq.broker.filters.tags import CODES_MAX, codes_of, is_tag_type, tag_filter
from cometmq.remoting.message.flags import java_hash, tag_code


def selected(expression: str) -> frozenset[int]:
    accept = tag_filter(expression)
    assert accept is not None
    return codes_of(accept)


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_all_messages(expression: str | None) -> None:
    assert tag_filter(expression) is None


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TagA", {"TagA"}),
        ("TagA || TagB", {"TagA", "TagB"}),
        ("TagA||TagB||", {"TagA", "TagB"}),
        ("|| TagA", {"TagA"}),
        ("标签", {"标签"}),
    ],
)
def test_tags(expression: str, tags: set[str]) -> None:
    assert selected(expression) == frozenset(map(tag_code, tags))
    accept = tag_filter(expression)
    assert accept is not None
    assert accept(tag_code(next(iter(tags))))
    assert not accept(tag_code("other"))
    assert not accept(0)


def test_an_expression_of_many_tags_leaves_the_memo_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """9,000 tags in each pull emptied the memo, and took twice as long."""
    few = [f"tag{number}" for number in range(CODES_MAX)]
    codes = frozenset(map(java_hash, few))
    assert selected("||".join(few)) == codes

    def never(_tag: str) -> int:
        raise AssertionError("a memo is used")

    monkeypatch.setattr(tags_module, "tag_code", never)
    assert selected("||".join([*few, "one more"])) == codes | {java_hash("one more")}


def test_an_expression_of_separators_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="split"):
        tag_filter("||||")


def test_the_type_defaults_to_tags() -> None:
    assert is_tag_type(None)
    assert is_tag_type("")
    assert is_tag_type("TAG")
    assert not is_tag_type("SQL92")
