# SPDX-License-Identifier: Apache-2.0
"""Counts the mass of the repository: `make mass` prints it and lowers the limits.

Source is what users run (`src` folders and Rust, without tests and generated code); tests are
everything that only we run: folders and modules of tests, fuzz targets, helpers, programs of
compatibility and load.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LIMITS: Final = ROOT / "tests/tidy/mass.json"
GENERATED: Final = re.compile(r"_pb2(_grpc)?\.pyi?$|^libs/client/.*\.pyi$")
MEMBER: Final = re.compile(r"(?:libs|services)/[\w-]+|operator|spark")
SKIPPED: Final = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
"""Tokens that say nothing about the number of ideas."""


def mass() -> dict[str, int]:
    """Return lines of source by member; totals of lines, files, tokens, definitions, and bytes."""
    found: Counter[str] = Counter()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        path = ROOT / name
        if not path.is_file() or path.is_symlink() or GENERATED.search(name):
            continue
        if name.endswith(".md"):
            found["bytes of Markdown"] += path.stat().st_size
        if not name.endswith((".py", ".rs", ".pyi")):
            continue
        text = path.read_text(encoding="utf-8")
        if name.endswith(".rs"):  # their tests stand at the end of a file
            text, _, tests = text.partition("\n#[cfg(test)]\nmod tests {")
            found["lines of tests"] += tests.count("\n") + bool(tests)
        lines = text.count("\n")
        if name.startswith("tests/") or re.search(r"/(tests?|fuzz)/|(^|/)(test_|conftest)", name):
            found["lines of tests"] += lines
        elif member := MEMBER.match(name):
            if "/src/" not in name and "/rust/" not in name:
                continue  # examples and benchmarks
            found[f"lines of {member[0]}"] += lines
            found["lines of source"] += lines
            found["files of source"] += 1
            if name.endswith(".py"):
                found["tokens of source"] += tokens_of(text)
                found["definitions of source"] += sum(
                    isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
                    for node in ast.walk(ast.parse(text))
                )
    return dict(sorted(found.items()))


def tokens_of(text: str) -> int:
    """Return the number of tokens of a module without its comments and layout."""
    read = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in SKIPPED for token in read)


def main() -> None:
    """Print the figures beside their limits."""
    limits = json.loads(LIMITS.read_text(encoding="utf-8")) if LIMITS.exists() else {}
    found = mass()
    for what, count in found.items():
        print(f"{what:<32}{count:>10,}{limits.get(what, 0):>10,}")  # noqa: T201
    if "--write" in sys.argv:
        lowered = {what: min(count, limits.get(what, count)) for what, count in found.items()}
        LIMITS.write_text(json.dumps(lowered, indent=4) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
