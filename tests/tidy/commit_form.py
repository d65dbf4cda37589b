# SPDX-License-Identifier: Apache-2.0
"""Checks the form of a commit message: `python tests/tidy/commit_form.py FILE`, a git hook."""

import re
import sys
from pathlib import Path

SUBJECT_LENGTH_MAX = 72
VERB = re.compile(r"^(?:\w+(?:\([\w-]+\))?: )?(\w+)")
IMPERATIVES = {
    "bring",
    "embed",
    "exceed",
    "feed",
    "need",
    "ping",
    "proceed",
    "seed",
    "shed",
    "speed",
}
"""Verbs that look like past or present participles."""


def faults(message: str) -> list[str]:
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if subject.startswith(("Merge ", "Revert ", "fixup! ")):
        return []
    found = []
    if not subject:
        found.append("The message has no subject.")
    if len(subject) > SUBJECT_LENGTH_MAX:
        found.append(f"The subject has {len(subject)} characters, more than {SUBJECT_LENGTH_MAX}.")
    if subject.endswith("."):
        found.append("The subject ends with a full stop.")
    verb = VERB.match(subject)
    if verb and verb[1].lower().endswith(("ed", "ing")) and verb[1].lower() not in IMPERATIVES:
        found.append("The subject is not imperative: write 'Fix', not 'Fixed' or 'Fixing'.")
    if len(lines) > 1 and lines[1]:
        found.append("The line after the subject is not empty.")
    if not any(line.strip() for line in lines[1:]):
        found.append("The body is missing: say why the change is made.")
    return found


def main() -> int:
    found = faults(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for fault in found:
        sys.stderr.write(f"commit message: {fault}\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
