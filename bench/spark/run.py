# SPDX-License-Identifier: Apache-2.0
"""Run all benchmarks of the Spark package, or only those named.

make spark-bench ARGS="messages snapshot"
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in {"run", "tree"})


def main(names: list[str]) -> int:
    """Run the programs one after the other; return the number of failures."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    failed = 0
    for name in names or NAMES:
        print(f"-- {name}", flush=True)
        failed += subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
