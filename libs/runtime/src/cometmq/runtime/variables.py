# SPDX-License-Identifier: Apache-2.0
"""Finds `COMETMQ_...` environment variables that no program reads, which are usually misspelt."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from cometmq.remoting.spelling import closest
from cometmq.runtime.programs import PROGRAMS

START: Final = "COMETMQ_"

COMMAND_VARIABLES: Final = frozenset(
    {
        *("COMETMQ_ACCESS_KEY", "COMETMQ_SECRET_KEY", "COMETMQ_SECURITY_TOKEN"),
        *("COMETMQ_CREDENTIALS", "COMETMQ_TLS", "COMETMQ_TLS_CONFIG"),
        *("COMETMQ_LOG_LEVEL", "COMETMQ_LOG_JSON", "COMETMQ_CONTEXT"),
        "COMETMQ_DECOMMISSION_SECONDS",  # of deploy/spark/decom.sh
    }
)
"""The variables that set options of commands."""

_SERVICE: Final = re.compile(
    r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_LINK: Final = re.compile(r"(tcp|udp|sctp)://.*")


def unread(variables: Mapping[str, str], prefix: str, own: Iterable[str]) -> dict[str, str]:
    """Return the variables that no program reads, each with the most similar one among `own` and
    the commands' variables, or with an empty string.

    `own` are the variables that a program with this prefix reads. If no variable is similar, one is
    returned only if it begins with the prefix, because others may belong to unrelated software.
    """
    own = set(own)
    right = _by_end(prefix, own)
    found: dict[str, str] = {}
    for name in sorted(variables):
        if not name.startswith(START) or name in own or name in COMMAND_VARIABLES:
            continue
        if is_of_service(name, variables[name]):
            continue
        end, own_end = name.removeprefix(START), name.removeprefix(f"{prefix}_")
        is_own = own_end != name
        if end in right:
            found[name] = right[end]
        elif is_own or not _is_of_other(name, prefix):
            guess = closest(own_end if is_own else end, right)
            if is_own or guess is not None:
                found[name] = "" if guess is None else right[guess]
    return found


def is_of_service(name: str, value: str) -> bool:
    """Return whether Kubernetes or Docker sets a variable for a service, such as
    COMETMQ_BROKER_A_PORT.
    """
    return _SERVICE.fullmatch(name) is not None or (
        name.endswith("_PORT") and _LINK.fullmatch(value) is not None
    )


def unread_line(name: str, guesses: Iterable[str]) -> str:
    """Return the message about a variable that no program reads."""
    guess = " or ".join(filter(None, guesses))
    return f"no program reads the variable {name}" + (f"; did you mean {guess}?" if guess else "")


def _is_of_other(name: str, prefix: str) -> bool:
    """Return whether a variable has the prefix of a different program, even a misspelt one."""
    words = name.removeprefix(START).split("_")
    prefixes = [it.prefix.removeprefix(START) + "_" for it in PROGRAMS.values()]
    guesses = (closest("_".join(words[:count]) + "_", prefixes) for count in (1, 2))
    found = next(filter(None, guesses), None)
    return found is not None and f"{START}{found}" != f"{prefix}_"


def _by_end(prefix: str, own: Iterable[str]) -> dict[str, str]:
    """Map names without `COMETMQ_` or the prefix to full names; `own` takes precedence."""
    ends: dict[str, str] = {name.removeprefix(START): name for name in COMMAND_VARIABLES}
    for name in sorted(own, key=lambda it: it.startswith(START)):
        ends[name.removeprefix(START)] = name
        ends[name.removeprefix(f"{prefix}_")] = name
    return ends
