# SPDX-License-Identifier: Apache-2.0
"""Generated pages are up to date, and the code has the descriptions that they need."""

import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import generate
import pytest
from generators import events as events_page
from generators import settings as settings_page

from cometmq import client
from cometmq.broker.limits import LIMITS
from cometmq.client import sync

ROOT = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()
DECLARATIONS = {"counter", "gauge", "histogram", "labelled_counter", "labelled_gauge"}
DECLARING = re.compile(rf"\b(?:{'|'.join(DECLARATIONS)})\s*\(")


PAGES = {one.path: one for one in generate.PAGES.values() if not one.is_in_git}
"""The pages that `make docs` generates."""
DOCUMENTS = [*(ROOT / name for name in TRACKED if name.endswith(".md")), *PAGES]


@functools.cache
def text_of(page: Path) -> str:
    return PAGES[page].render() if page in PAGES else page.read_text(encoding="utf-8")


def reference(name: str) -> str:
    return text_of(generate.REFERENCE / name)


def exists(page: Path) -> bool:
    return page in PAGES or page.exists()


def test_generated_files_that_are_in_git_are_up_to_date(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == 0, capsys.readouterr().out


def test_the_client_s_reference_has_every_exported_name() -> None:
    page = reference("client-api.md")
    shown = set(re.findall(r"^### (\w+)$|^\| `(\w+)` \||^- \[`(\w+)`\]", page, re.MULTILINE))
    names = {name for row in shown for name in row if name}
    assert {*client.__all__, *sync.__all__} - names == set()
    assert "- `async send(message: Message, *, queue: MessageQueue | None = None, " in page


def test_every_setting_is_described() -> None:
    assert [field.name for field in settings_page.all_fields() if not field.description] == []


def test_every_event_that_calls_for_attention_is_explained() -> None:
    assert events_page.without_meaning() == []


def test_event_names_are_fixed_texts_of_a_noun_and_a_state() -> None:
    names = {event.name for event in events_page.all_events()}
    assert len(names) > 50, "the search for events finds them"
    assert [name for name in names if not re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", name)] == []


def test_every_declared_metric_is_in_a_catalogue() -> None:
    pages = ("metrics.md", "spark-metrics.md")
    page = "".join(map(reference, pages))
    declared: list[str] = []
    for path in [ROOT / name for name in TRACKED if re.fullmatch(r".*/src/.*\.py", name)]:
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if DECLARING.search(text) else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in DECLARATIONS:
                first = node.args[0]
                declared += [str(first.value)] if isinstance(first, ast.Constant) else []
    assert len(declared) > 30
    assert [name for name in declared if f"`{name}`" not in page] == []


def test_a_setting_that_nothing_reads_says_that_it_is_only_accepted() -> None:
    read = {f"{limit.name}_max" for limit in LIMITS}
    for path in [ROOT / name for name in TRACKED if re.fullmatch(r".*/src/.*\.py", name)]:
        if path.exists() and not {"settings", "settings.py"} & set(path.parts):
            read |= set(re.findall(r"\.(\w+)\b", path.read_text(encoding="utf-8")))
    unread = {
        field.name: field.description
        for field in settings_page.all_fields()
        if field.path[0] not in read
    }
    assert len(unread) > 50, "RocketMQ's own settings are among them"
    assert [name for name, text in unread.items() if not text.startswith("Accepted")] == []


@functools.cache
def anchors(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", text_of(page), flags=re.DOTALL)
    return {slug(title) for title in re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)}


def slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_document_sections_cited_by_the_code_exist() -> None:
    missing = []
    count = 0
    for name in TRACKED:
        if not re.fullmatch(r"(libs|operator|services|tests|bench|docs)/.*\.(py|c|h|java)", name):
            continue
        text = (ROOT / name).read_text(encoding="utf-8") if (ROOT / name).exists() else ""
        for page, anchor in re.findall(r"\b(docs/[\w/.-]+\.md)(?:#([\w-]+))?", text):
            count += 1
            path = ROOT / page
            if "*" not in page and not exists(path):
                missing.append(f"{name}: {page}")
            elif anchor and anchor not in anchors(path):
                missing.append(f"{name}: {page}#{anchor}")
        missing += [
            f"{name}: docs/adr/{number}"
            for number in re.findall(r"\bdocs/adr/(\d{4})", text)
            if not list((ROOT / "docs/adr").glob(f"{number}-*.md"))
        ]
    assert count > 5
    assert missing == []


def test_anchors_in_links_between_documents_exist() -> None:
    missing = []
    for path in filter(exists, DOCUMENTS):
        text = re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL)
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", text):
            page = Path(os.path.normpath(path.parent / target)) if target else path
            if page.suffix == ".md" and (not exists(page) or anchor not in anchors(page)):
                missing.append(f"{path.name}: {target}#{anchor}")
    assert missing == []


def quoted(path: Path) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", text_of(path)))


def test_metrics_that_documents_name_exist() -> None:
    pages = ("metrics.md", "spark-metrics.md")
    known = set().union(*(quoted(generate.REFERENCE / page) for page in pages))
    named = {
        (path.name, metric.removesuffix("_bucket"))
        for path in DOCUMENTS
        if path.is_relative_to(ROOT / "docs")
        for metric in re.findall(r"\bcometmq_[a-z_]+", text_of(path))
    }
    assert len(named) > 20
    assert [use for use in sorted(named) if use[1] not in known] == []


def test_events_and_settings_that_runbooks_name_exist() -> None:
    files = {"json", "jsonl", "md", "conf", "py", "bak"}
    events = {event.name for event in events_page.all_events()}
    settings = {field.name for field in settings_page.all_fields()}
    missing = []
    count = 0
    for path in ROOT.glob("docs/runbooks/*.md"):
        for text in quoted(path):
            name = text.partition("=")[0]
            is_dotted = re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", text)
            is_event = is_dotted and text.rpartition(".")[2] not in files
            is_setting = re.fullmatch(r"[a-z]+([A-Z][a-z]+)+", name)
            count += bool(is_event or is_setting)
            if (is_event and text not in events) or (is_setting and name not in settings):
                missing.append(f"{path.name}: {text}")
    assert count > 40
    assert missing == []
