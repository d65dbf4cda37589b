# SPDX-License-Identifier: Apache-2.0
"""The codes of requests (`commands`) and responses (`response_codes.py`)."""

from cometmq.remoting.commands import RequestCode
from cometmq.remoting.http_clients import LENGTHS
from cometmq.remoting.response_codes import ResponseCode

__all__ = ["RequestCode", "ResponseCode", "request_name"]


def request_name(code: int) -> str:
    """Return a request code for error messages, for example `GET_BROKER_CONFIG (26)`."""
    if code in LENGTHS:
        return f"{LENGTHS[code]} of HTTP"
    known = RequestCode._value2member_map_.get(code)
    return f"request {code}" if known is None else f"{RequestCode(code).name} ({code})"
