# SPDX-License-Identifier: Apache-2.0
"""Checks rules of style, so that reviewers do not have to."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from cometmq.testing.remoting.cases import check_each

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    path
    for folder in ("libs", "operator", "services", "tests/peers", "tests/support")
    for path in (ROOT / folder).glob("**/src/**/*.py")
    if not path.name.endswith("_pb2.py")  # generated: `make protos`
)
TRACKED = subprocess.run(
    ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()
IN_GIT = {path for name in TRACKED for path in (ROOT / name, *(ROOT / name).parents)}
MARKDOWN = [ROOT / name for name in TRACKED if name.endswith(".md")]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[parts.index("src") + 1 :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_a_module_begins_with_licence_and_purpose() -> None:
    check_each(check_beginning, {module_name(path): path for path in SOURCES})


def check_beginning(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    licence, _, rest = text.partition("\n")
    assert licence == "# SPDX-License-Identifier: Apache-2.0"
    if not re.match(r'"""\S', rest):  # as nearly all begin; parsing takes time
        assert ast.get_docstring(ast.parse(text)), "the module docstring says what it is for"


def test_rooms_have_at_most_25_modules() -> None:
    larger = {"cometmq.remoting.transport": 30}
    rooms = Counter(module_name(path.parent) for path in SOURCES if path.name != "__init__.py")
    allowed = {room: larger.get(room, 25) for room in rooms}
    assert {room: count for room, count in rooms.items() if count > allowed[room]} == {}


def test_classes_have_at_most_25_methods_and_18_attributes() -> None:
    """Attributes of `self`; test rigs are left out."""
    larger = {"Hub": 19, "PeerProtocol": 19}
    found = {}
    for path in SOURCES:
        if path.relative_to(ROOT).parts[0] == "tests" or "testing" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        if text.count("def ") <= 25 and len(set(re.findall(r"self\.(\w+)", text))) <= 18:
            continue  # too short for such a class, and parsing takes time
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                methods = [it for it in node.body if isinstance(it, FUNCTIONS)]
                own = {name for method in methods for name in attributes_set_by(method)}
                if len(methods) > 25 or len(own) > larger.get(node.name, 18):
                    found[node.name] = len(methods), len(own)
    assert found == {}


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def attributes_set_by(method: ast.AST) -> set[str]:
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def test_commands_to_copy_are_made_by_one_function() -> None:
    """Peers choose names and addresses, so `cometmq.remoting.visible.command` quotes them."""
    form = re.compile(r'f"[^"]*\bcometmq [a-z]+ [^"]*\{(?!\w+\()(?![A-Z_]+\})')
    rooms = ("libs/client/src", "libs/insight/src", "libs/cli/src", "services/console/src")
    found = [path for path in SOURCES if str(path.relative_to(ROOT)).startswith(rooms)]
    assert [path.name for path in found if form.search(path.read_text(encoding="utf-8"))] == []


def test_no_leftover_of_a_patch_is_tracked() -> None:
    assert [name for name in TRACKED if name.endswith((".orig", ".rej"))] == []


def test_no_module_changes_the_import_path() -> None:
    """Shared code is in packages, and pytest's `pythonpath` lists the folders of scripts."""
    python = {name: (ROOT / name).read_text() for name in TRACKED if name.endswith(".py")}
    assert [name for name, text in python.items() if re.search(r"sys\.path\b", text)] == []


def test_programs_fetch_over_http_within_limits() -> None:
    """Without them, a server that never ends its answer holds the caller, or fills its memory."""
    own = "libs/client/src/cometmq/client/http_fetch.py"
    unlimited = re.compile(
        r"\b(urlopen|urlretrieve|build_opener|install_opener|(Fancy)?URLopener|OpenerDirector"
        r"|HTTPS?Connection)\b"
    )
    names = [name for name in TRACKED if "/src/" in name and name.endswith(".py")]
    products = [name for name in names if not name.startswith("tests/")]
    found = {name for name in products if unlimited.search((ROOT / name).read_text())}
    assert found == {own}, "call cometmq.client.http_fetch.fetch"


def test_every_module_is_used() -> None:
    entries = {"cometmq.cli.main"}
    imported: set[str] = set()
    for path in [*SOURCES, *ROOT.glob("bench/**/*.py"), *ROOT.glob("**/tests/**/*.py")]:
        if ".venv" in path.parts or ".cache" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        imported.update(re.findall(r"cometmq(?:\.\w+)+", text))
        for match in re.finditer(r"from (cometmq[\w.]*) import (\([^)]*\)|[^\n]+)", text):
            imported.update(f"{match[1]}.{name}" for name in re.findall(r"\w+", match[2]))
    names = {module_name(path) for path in SOURCES if path.name != "__main__.py"}
    unused = {
        name
        for name in names - entries
        if not any(one == name or one.startswith(f"{name}.") for one in imported)
    }
    assert not unused


def test_no_portion_closes_the_namespace() -> None:
    assert not [path for path in SOURCES if path.parent.name == "cometmq"]


def test_the_message_codec_loads_no_event_loop() -> None:
    code = (
        "import sys, cometmq.remoting, cometmq.remoting.message.record;"
        "print([m for m in ('asyncio', 'ssl', 'socket') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_locks_name_no_download_address() -> None:
    locks = [name for name in TRACKED if name.endswith((".lock", "package-lock.json"))]
    assert locks
    assert not [name for name in locks if "://" in (ROOT / name).read_text(encoding="utf-8")]


def test_links_in_documents_lead_to_what_is_in_git() -> None:
    """Not to a page that only `make docs` writes: who reads the repository cannot follow that."""
    check_each(check_links, {str(path.relative_to(ROOT)): path for path in MARKDOWN})


def check_links(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text)
    leads = {target: Path(os.path.normpath(path.parent / target)) for target in targets}
    assert [target for target, to in leads.items() if to not in IN_GIT] == []
