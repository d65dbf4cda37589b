# SPDX-License-Identifier: Apache-2.0
"""Templates: what is escaped, replaced and repeated, and which mistakes are refused."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from cometmq.console.web import rendering
from cometmq.console.web.cells import cell
from cometmq.console.web.templating import Templates, as_module
from cometmq.insight.model import Unknown
from cometmq.remoting.visible import visible

OWN = Path(rendering.__file__).with_name("templates")


@pytest.fixture
def shown(tmp_path):
    """Show the template `page.html` of a folder with these files."""

    def show(page, *, others=None, **values):
        files = {"macros.html": "", "page.html": page, **(others or {})}
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        return Templates(tmp_path, {"twice": lambda text: text * 2}).render("page.html", values)

    return show


def test_values_are_escaped_unless_they_are_markup(shown):
    page = "{{ text }}|{{ twice(text) }}|{{ html }}|{{ [1, None] }}"
    text = shown(page, text="<'\"&>", html=Markup("<b>"))
    assert (
        text
        == "&lt;&#39;&#34;&amp;&gt;|&lt;&#39;&#34;&amp;&gt;&lt;&#39;&#34;&amp;&gt;|<b>|[1, None]"
    )


def test_what_a_macro_shows_is_escaped_once(shown):
    macros = "{% macro bold(text) %}<b>{{ text }}</b>{% endmacro %}"
    page = "{% macro own(text) %}{{ m.bold(text) }}!{% endmacro %}{{ own(text) }}"
    assert shown(page, others={"macros.html": macros}, text="a&b") == "<b>a&amp;b</b>!"


@pytest.mark.parametrize(
    ("values", "text"), [([], "none"), ([1], "[1]"), ([1, 2], "[1][2]"), ([3], "three")]
)
def test_statements(shown, values, text):
    page = (
        "{% if not values %}none{% elif values == [3] %}three{% else %}"
        "{% for it in values %}{% set shown = f'[{it}]' %}{{ shown }}{% endfor %}{% endif %}"
    )
    assert shown(page, values=values) == text


def test_lines_of_statements_and_comments_leave_no_space(shown):
    page = (
        "a\n  {% if True %}\n  b\n  {% endif %}\n  {# a comment #}\nc {% if True %}d{% endif %}\n"
    )
    assert shown(page) == "a\n  b\nc d"


BASE = (
    "<{% block head %}{% endblock %}"
    "|{% block body %}body{% block in_it %}-{% endblock %}{% endblock %}>"
)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("{% extends 'base.html' %}not shown", "<|body->"),
        ("{% extends 'base.html' %}{% block head %}{{ x }}{% endblock %}", "<1|body->"),
        ("{% extends 'base.html' %}{% block in_it %}+{% endblock %}", "<|body+>"),
        ("{% extends 'middle.html' %}{% block in_it %}+{% endblock %}", "<|mid+>"),
        ("{% extends 'middle.html' %}", "<|mid.>"),
    ],
)
def test_a_template_replaces_the_blocks_of_the_one_that_it_extends(shown, page, text):
    middle = (
        "{% extends 'base.html' %}{% block body %}mid{% block in_it %}.{% endblock %}{% endblock %}"
    )
    assert shown(page, others={"base.html": BASE, "middle.html": middle}, x=1) == text


def test_a_variable_of_a_template_is_not_seen_by_another(shown):
    base = "{% for x in [7, 8] %}{{ x }}{% endfor %}{% block body %}{% endblock %}"
    page = "{% extends 'base.html' %}{% block body %}{{ x }}{% include 'part.html' %}{% endblock %}"
    part = "{% set y = x + 1 %}/{{ y }}"
    assert shown(page, others={"base.html": base, "part.html": part}, x=1) == "781/2"


def test_a_value_that_is_missing_is_an_error(shown):
    with pytest.raises(NameError):
        shown("{{ missing }}")


@pytest.mark.parametrize(
    "page", ["{% if x %}", "{% if x %}{% endfor %}", "{% endif %}", "{% unless x %}{% endif %}"]
)
def test_a_statement_without_its_end_is_refused(page):
    with pytest.raises((AssertionError, IndexError)):
        as_module(page)


@pytest.mark.parametrize("path", sorted(OWN.glob("*.html")), ids=lambda it: it.stem)
def test_each_template_is_valid(path):
    source, extended = as_module(path.read_text("utf-8"))
    compile(source, path.name, "exec")
    assert not extended or (OWN / extended).is_file()


def rendered(page, **values):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "macros.html").write_text("")
        Path(folder, "page.html").write_text(page)
        return Templates(Path(folder), {"cell": cell}).render("page.html", values)


TEXTS = st.text(st.characters(codec="utf-8"))


@given(TEXTS)
def test_people_see_every_control_character(text):
    page = '{{ text }}<a title="{{ text }}"></a>{{ cell(text) }}{{ cell(unknown) }}'
    found = rendered(page, text=text, unknown=Unknown(text))
    assert visible(found) == found
    assert Markup(rendered("<{{ text }}>", text=text)[1:-1]).unescape() == visible(text)


@given(TEXTS)
def test_a_form_sends_back_what_it_was_given(text):
    page = '<input value="{{ text }}"><textarea rows="6">\n{{ text }}</textarea>{{ text }}'
    found = re.fullmatch(
        r'<input value="(.*)"><textarea rows="6">\n(.*)</textarea>(.*)',
        rendered(page, text=text),
        re.DOTALL,
    )
    assert found is not None
    field, area, read = (str(Markup(it).unescape()) for it in found.groups())
    assert (field, area, read) == (text, text, visible(text))
