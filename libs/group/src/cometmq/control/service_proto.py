# SPDX-License-Identifier: Apache-2.0
"""Prints `service.proto`, the methods and orders of the control API for other programs."""

import inspect
import sys
from typing import Final

from cometmq.control.methods import FIRST_FIELD, PACKAGE, fields
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha.orders import ORDERS

HEAD: Final = f"""\
// SPDX-License-Identifier: Apache-2.0
// The methods of the control API. Generated from cometmq.ha.orders: run make protos.
syntax = "proto3";

package {PACKAGE};

import "{pb.DESCRIPTOR.name}";

service GroupControl {{
  rpc GetStatus(GetStatusRequest) returns (MemberStatus);
  // Sends a status at once, after each change of role or epoch, and at least every interval.
  rpc WatchStatus(WatchStatusRequest) returns (stream MemberStatus);
  rpc UpdateConfig(UpdateConfigRequest) returns (UpdateConfigReply);
  // The orders are answered with the status after they took effect.
"""


def service_proto() -> str:
    """Return the text of the file."""
    calls = [f"  rpc {name}({name}Request) returns (MemberStatus);\n" for name in ORDERS]
    lines = ["}"]
    for name, order in ORDERS.items():
        words = inspect.cleandoc(order.__doc__ or "").splitlines()
        lines += ["", *(f"// {line}".rstrip() for line in words)]
        lines += [f"message {name}Request {{", "  Target target = 1;"]
        for number, (field, type_) in enumerate(fields(order).items(), FIRST_FIELD):
            lines.append(f"  {type_} {field} = {number};")
        lines.append("}")
    return HEAD + "".join(calls) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(service_proto())
