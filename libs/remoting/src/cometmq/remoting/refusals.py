# SPDX-License-Identifier: Apache-2.0
"""Explain servers' error answers in plain words.

Compatibility: a remark may be a Java exception with its class and source position. Error messages
omit both; `CommandError.remark` keeps the whole text.
"""

import re
from collections.abc import Mapping
from typing import Final

from cometmq.remoting.remarks import filter_refused
from cometmq.remoting.response_codes import ResponseCode

ACL_PACKAGE: Final = "org.apache.rocketmq.acl."
ACL_EXCEPTION: Final = f"{ACL_PACKAGE}common.AclException"

_JAVA_CLASS: Final = re.compile(r"\b(?:[a-z]\w*\.)+[A-Z][\w$]*: ")
_JAVA_PLACE: Final = re.compile(r",? ?\b(?:[a-z]\w*\.)+[A-Z][\w$]*\.[\w$<>]+\([^()]*\)")
_FURTHER_READING: Final = re.compile(
    r"\s*(?:See|For more information, please visit the url,) http\S*(?: for further details\.)?"
)

_QUOTED_TWICE: Final = re.compile(r"''(?! )([^']+)(?<! )''")
"""A quoted string from an SQL92 condition, as in `Value ''5'' cannot be compared.`"""

_ACCESS_DENIED: Final = "access denied"
MEANINGS: Final[Mapping[int, str]] = {
    ResponseCode.SYSTEM_ERROR: "the server failed or refused the request",
    ResponseCode.SYSTEM_BUSY: "the server is overloaded, try again later",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the server does not serve this kind of request",
    ResponseCode.FLUSH_DISK_TIMEOUT: "stored, but not flushed to disk in time",
    ResponseCode.SLAVE_NOT_AVAILABLE: "no slave is sufficiently up to date",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "stored, but no slave received it in time",
    ResponseCode.MESSAGE_ILLEGAL: "the broker does not accept the message",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker is not accepting writes",
    ResponseCode.NO_PERMISSION: "the broker, topic or group does not permit this",
    ResponseCode.TOPIC_NOT_EXIST: "the topic does not exist",
    ResponseCode.QUERY_NOT_FOUND: "nothing was found",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "the broker cannot parse the filter expression",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "the broker does not know the subscription; members of "
    "the group may subscribe to different topics",
    ResponseCode.SUBSCRIPTION_NOT_LATEST: "the broker has an older subscription of the group",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "the consumer group does not exist",
    ResponseCode.INVALID_PARAMETER: "a parameter is out of range",
    ResponseCode.CONSUMER_NOT_ONLINE: "no member of the consumer group is connected",
    ResponseCode.CONSUME_MSG_TIMEOUT: "the consumer did not answer in time",
    ResponseCode.BROADCAST_CONSUMPTION: "the group consumes in broadcasting mode",
    ResponseCode.FLOW_CONTROL: "the broker throttles this client",
    ResponseCode.GO_AWAY: "the server is stopping",
}
"""The meaning of each code that a client can do something about."""


_MEANINGS_OF_REMARKS: Final = (
    (
        re.compile(r"No Any Consumer online in the consumer group: "),
        "no member of the consumer group is connected",
    ),
    (re.compile(r"The Consumer <.*> <.*> not online"), "this member of the group is not connected"),
    (
        re.compile(r"the producer group\[.*\] not exist"),
        "no member of the producer group is connected",
    ),
)
"""Patterns of SYSTEM_ERROR remarks that do not indicate a failure of the server, with their
meanings.
"""

_NO_OPEN_MASTER: Final = re.compile("the new master |the master has changed ")
_NO_MASTER: Final = "no master of the broker group can be reached now, try again later"
"""The meaning of SYSTEM_BUSY from a broker that has handed over."""

_SQL_IS_OFF: Final = filter_refused("SQL92")


def is_access_refusal(remark: str) -> bool:
    """Return whether access control refused the request, which the code alone does not show."""
    return ACL_PACKAGE in remark


def plain_remark(remark: str) -> str:
    """Return a remark without Java class names, source positions, links and doubled quotes."""
    text = _JAVA_PLACE.sub("", _JAVA_CLASS.sub("", remark))
    return _QUOTED_TWICE.sub(r"'\1'", _FURTHER_READING.sub("", text).strip())


def is_access_text(text: str) -> bool:
    """Return whether an error message says that access control denied the request."""
    return _ACCESS_DENIED in text


def explained(code: int, remark: str, address: str, *, is_access: bool) -> str:
    """Return the meaning of an answer, then the server's remark, the code and the address."""
    name = code_name(code)
    meaning = MEANINGS.get(code, "the server refused the request")
    if is_access:
        meaning = _ACCESS_DENIED
    said = plain_remark(remark)
    if code == ResponseCode.SYSTEM_BUSY and _NO_OPEN_MASTER.match(said):
        meaning = _NO_MASTER
    if said == _SQL_IS_OFF:
        meaning = "SQL92 filters are off: set enablePropertyFilter=true at every broker"
    if code == ResponseCode.SYSTEM_ERROR:
        of_remark = (found for pattern, found in _MEANINGS_OF_REMARKS if pattern.match(said))
        meaning = next(of_remark, meaning)
    place = f" from {address}" if address else ""
    return f"{meaning}{f': {said}' if said else ''} ({name} {code}{place})"


def code_name(code: int) -> str:
    """Return the name of a response code, or UNKNOWN if it has none."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return "UNKNOWN"
