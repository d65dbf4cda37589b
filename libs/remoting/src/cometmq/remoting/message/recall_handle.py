# SPDX-License-Identifier: Apache-2.0
"""The handle that names a delayed message in a request to recall it (RocketMQ 5)."""

import base64
import binascii
from typing import Final, NamedTuple

_VERSION: Final = "v1"
HANDLE_CHARS_MAX: Final = 2_048


class RecallHandle(NamedTuple):
    """The delayed message that a handle names."""

    topic: str
    broker_name: str
    due_ms: int
    """The delivery time that the client assumes; 0 if the client does not know it."""
    unique_key: str

    def encode(self) -> str:
        """Return the handle as text, which clients do not interpret."""
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.due_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()


def parse_recall_handle(text: str) -> RecallHandle:
    """Return the message that a handle names; raise ValueError if the text is no handle."""
    if len(text) > HANDLE_CHARS_MAX:
        raise ValueError(f"it has more than {HANDLE_CHARS_MAX} characters")
    padding = "=" * (-len(text) % 4)  # Java accepts handles without it
    try:
        parts = base64.b64decode(text + padding, altchars=b"-_", validate=True).decode().split(" ")
    except (binascii.Error, ValueError) as error:
        raise ValueError("it is not Base64 of UTF-8 text") from error
    if len(parts) < 5 or parts[0] != _VERSION or not all(parts[1:5]):  # the fields
        raise ValueError("it is not `v1 TOPIC BROKER TIME ID`")
    topic, broker_name, due, unique_key = parts[1:5]
    if not (due.isascii() and due.isdecimal() and len(due) < 20):  # a Java long
        raise ValueError("its time is not a number of milliseconds")
    return RecallHandle(topic, broker_name, int(due), unique_key)
