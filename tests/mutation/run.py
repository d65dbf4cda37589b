# SPDX-License-Identifier: Apache-2.0
"""Changes the source at random places, one at a time, and counts the changes that a test notices.

Run in a clean work tree, of which nothing else is in use: `python -m tests.mutation.run`. Two
commits are compared by the share that was noticed with the same seed and modules.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LINES_MIN: Final = 60
"""Smaller modules are mostly declarations."""
TIMEOUT_S: Final = 900
COMPARED: Final = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
SWAPPED: Final = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or,
    ast.Or: ast.And,
}  # fmt: skip


def changes(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the nodes that can be changed, each with its new text."""
    strings = [it for it in ast.walk(tree) if isinstance(it, ast.JoinedStr)]
    in_strings = {it for one in strings for it in ast.walk(one)}
    for node in ast.walk(tree):  # nodes in f-strings have no exact place before Python 3.12
        if node in in_strings:
            continue
        match node:
            case ast.Compare(ops=[one]) if type(one) in COMPARED:
                yield node, _with(node, "ops", [COMPARED[type(one)]()])
            case ast.BoolOp() | ast.BinOp() if type(node.op) in SWAPPED:
                yield node, _with(node, "op", SWAPPED[type(node.op)]())
            case ast.UnaryOp(op=ast.Not()):
                yield node, f"({ast.unparse(node.operand)})"
            case ast.Constant(value=bool()):
                yield node, str(not node.value)
            case ast.Constant(value=int(number)):
                yield node, str(number + 1)
            case ast.Return(value=value) if value is not None:
                yield node, "return None"
            case ast.Raise() | ast.Continue() | ast.Break():
                yield node, "pass"
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield node, "pass"
            case ast.Assign(targets=[ast.Attribute()]) | ast.AugAssign():
                yield node, "pass"


def _with(node: ast.expr, field: str, value: object) -> str:
    kept = getattr(node, field)
    setattr(node, field, value)
    text = f"({ast.unparse(node)})"
    setattr(node, field, kept)
    return text


def changed(text: str, node: ast.expr | ast.stmt, new: str) -> str:
    """Return a module's text with another text in the place of a node."""
    lines = text.encode().split(b"\n")
    assert node.end_lineno is not None
    first, last = node.lineno - 1, node.end_lineno - 1
    head, tail = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    lines[first : last + 1] = [head + new.encode() + tail]
    return b"\n".join(lines).decode()


def near(module: Path) -> list[str]:
    """Return the tests that import a module, or are named like it."""
    dotted = ".".join(module.with_suffix("").parts[module.parts.index("cometmq") :])
    package = re.escape(dotted.rpartition(".")[0])
    pattern = rf"{re.escape(dotted)}\b|from {package} import .*\b{module.stem}\b"
    found = _run("git", "grep", "-lP", pattern, "--", "libs/*test_*.py", "services/*test_*.py")
    named = _run(
        "git", "ls-files", *(f"{it}/*/test_{module.stem}.py" for it in ("libs", "services"))
    )
    return sorted({*found.stdout.split(), *named.stdout.split()})


def member_of(module: Path) -> str:
    """Return the folder of the tests of a module's member."""
    return str(Path(*module.parts[:2]) / "tests")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


def is_noticed(tests: list[str]) -> bool:
    """Return whether one of these tests fails; a run without an end counts, too."""
    try:
        done = _run(
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider",
            "--order-seed=1", "--timeout=120", *tests,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, 5)


def main() -> None:
    """Print each change with what noticed it, and the share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=20)
    parser.add_argument("--changes", type=int, default=10, help="of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--near", action="store_true", help="only the tests that import the module")
    arguments = parser.parse_args()
    listed = _run("git", "ls-files", "libs/*/src/*.py", "services/*/src/*.py").stdout.split()
    modules = [it for it in listed if (ROOT / it).read_text().count("\n") >= LINES_MIN]
    modules = [it for it in modules if "_pb2" not in it]
    drawn = Random(arguments.seed)
    noticed = count = 0
    modules.sort(key=lambda it: Random(f"{arguments.seed} {it}").random())
    for name in modules[: arguments.modules]:
        module = Path(name)
        text = (ROOT / module).read_text()
        tests = near(module)
        found = ((node, changed(text, node, new)) for node, new in changes(ast.parse(text)))
        places = [it for it in found if it[1] != text]
        for node, new in drawn.sample(places, min(arguments.changes, len(places))):
            (ROOT / module).write_text(new)
            try:
                by = "near" if tests and is_noticed(tests) else ""
                if not by and not arguments.near:
                    by = "member" if is_noticed([member_of(module)]) else ""
            finally:
                (ROOT / module).write_text(text)
            count += 1
            noticed += bool(by)
            place = f"{name}:{node.lineno}"
            print(f"{by or 'NOT NOTICED':<12}{place}  {ast.unparse(node)[:60]!r}", flush=True)  # noqa: T201
    print(f"{noticed} of {count} were noticed")  # noqa: T201


if __name__ == "__main__":
    main()
