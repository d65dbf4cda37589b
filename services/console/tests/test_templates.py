# SPDX-License-Identifier: Apache-2.0
"""Templates: what is escaped, what forms send back, and which mistakes are refused."""

import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markupsafe import Markup

from cometmq.console.web import rendering
from cometmq.console.web.cells import cell, templates
from cometmq.insight.model import Unknown
from cometmq.remoting.visible import visible

OWN = Path(rendering.__file__).with_name("templates")
TEXTS = st.text(st.characters(codec="utf-8"))


def rendered(page, macros="", **values):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "macros.html").write_text(macros)
        Path(folder, "page.html").write_text(page)
        return templates(Path(folder), {"cell": cell}).get_template("page.html").render(values)


def test_values_are_escaped_once_unless_they_are_markup():
    macros = "{% macro bold(text) %}<b>{{ text }}</b>{% endmacro %}"
    page = "{{ text }}|{{ html }}|{{ m.bold(text) }}"
    found = rendered(page, macros, text="<'\"&>", html=Markup("<b>"))
    assert found == "&lt;&#39;&#34;&amp;&gt;|<b>|<b>&lt;&#39;&#34;&amp;&gt;</b>"


@pytest.mark.parametrize("page", ["{{ missing }}", "{{ it.missing }}", "{{ '' ~ missing }}"])
def test_a_value_that_is_missing_is_an_error(page):
    with pytest.raises(UndefinedError):
        rendered(page, it=1)


@pytest.mark.parametrize("path", sorted(OWN.glob("*.html")), ids=lambda it: it.stem)
def test_what_a_form_sends_back_is_exact(path):
    text = path.read_text("utf-8")
    fields = re.findall(r'value="\{\{(.*?)\}\}"', text)
    areas = re.findall(r"\{\{((?:(?!\}\}).)*)\}\}</textarea", text)
    assert [it for it in fields + areas if not it.endswith("|e ")] == []


def test_each_template_is_valid():
    found = templates(OWN, {})
    assert found.list_templates()
    for name in found.list_templates():
        found.get_template(name)


@given(TEXTS)
def test_people_see_every_control_character(text):
    page = '{{ text }}<a title="{{ text }}"></a>{{ cell(text) }}{{ cell(unknown) }}'
    found = rendered(page, text=text, unknown=Unknown(text))
    assert visible(found) == found
    assert Markup(rendered("<{{ text }}>", text=text)[1:-1]).unescape() == visible(text)


@given(TEXTS)
def test_a_form_sends_back_what_it_was_given(text):
    page = '<input value="{{ text|e }}">{{ text }}'
    found = re.fullmatch(r'<input value="(.*)">(.*)', rendered(page, text=text), re.DOTALL)
    assert found is not None
    field, read = (str(Markup(it).unescape()) for it in found.groups())
    assert (field, read) == (text, visible(text))
