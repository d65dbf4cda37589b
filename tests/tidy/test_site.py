# SPDX-License-Identifier: Apache-2.0
"""The site of the documentation adapts the links of its pages."""

import importlib.util
from pathlib import Path
from types import ModuleType

import generate
import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = "docs/guides/console.md"
KNOWN = frozenset({GUIDE, "docs/guides/cli.md"})


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "docs/site/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("link", "without_repository"),
    [
        ("[yes](../../tests/tidy/test_site.py)", "yes"),
        ('[yes](../../tests/tidy/test_site.py "the_name_of_a_test")', "yes"),
        ('[lag](cli.md#lag "a title")', '[lag](../../docs/guides/cli.md#lag "a title")'),
        ("[page](https://example.org/x)", "[page](https://example.org/x)"),
        ("`[-a-z0-9](none.md)`", "`[-a-z0-9](none.md)`"),
        ("[`cometmq lag`](cli.md)", "[`cometmq lag`](../../docs/guides/cli.md)"),
    ],
)
def test_a_link_leads_to_a_page_of_the_site_or_is_text(
    site: ModuleType, link: str, without_repository: str
) -> None:
    assert site.rewritten(GUIDE, link, KNOWN, repository="") == without_repository


def test_with_a_repository_a_file_keeps_its_link_and_its_title(site: ModuleType) -> None:
    link = '[yes](../../tests/tidy/test_site.py "a_test")'
    found = site.rewritten(GUIDE, link, KNOWN, repository="https://example.org/repo/")
    assert found == '[yes](https://example.org/repo/blob/main/tests/tidy/test_site.py "a_test")'


def test_every_link_leads_to_a_file(site: ModuleType) -> None:
    """The generated pages, too: a pattern in one was once read as a link, and `make docs` ended."""
    generated = {
        one.path.relative_to(ROOT).as_posix(): one.render
        for one in generate.PAGES.values()
        if one.path.suffix == ".md" and not one.is_in_git
    }
    known = {*site.pages(), *generated}
    broken = []
    for page in known:
        render = generated.get(page) or (ROOT / page).read_text
        try:
            site.rewritten(page, render(), known, repository="")
        except SystemExit as error:
            broken.append(str(error))
    assert broken == []


def test_a_link_to_nothing_ends_the_build(site: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"console.md: none.md does not exist"):
        site.rewritten(GUIDE, "[page](none.md)", KNOWN, repository="")
