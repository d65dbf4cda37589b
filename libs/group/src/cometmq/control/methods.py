# SPDX-License-Identifier: Apache-2.0
"""The methods of the control API, with their requests and answers as protobuf messages, for server
and client.

The methods of orders are derived from the classes in `cometmq.ha.orders`. Programs in other
languages use `service.proto`, which `service_proto.py` writes.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar, get_type_hints

import msgspec
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from cometmq.control.controlled import Report, Target
from cometmq.control.v1 import control_pb2 as pb
from cometmq.ha import orders
from cometmq.ha.actions import Status
from cometmq.ha.orders import Order
from cometmq.ha.record import Copy
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.remoting.errors import RemoteProtocolError

REASON_KEY: Final = "cometmq-reason"
"""The key, in the trailing metadata of a refusal, of its reason."""
PROOF_KEY: Final = "cometmq-proof-bin"
CHALLENGE_KEY: Final = "cometmq-challenge-bin"
"""The keys of proofs and challenges (`ha/proof.py`), in the metadata of a call and its refusal."""
PACKAGE: Final = pb.DESCRIPTOR.package
FOLDER: Final = pb.DESCRIPTOR.name.rpartition("/")[0]
SERVICE: Final = f"{PACKAGE}.GroupControl"
FIRST_FIELD: Final = 2
"""Field 1 of each request is the target."""
OTHERS: Final[Mapping[str, tuple[Any, Any]]] = {
    "GetStatus": (pb.GetStatusRequest, pb.MemberStatus),
    "WatchStatus": (pb.WatchStatusRequest, pb.MemberStatus),
    "UpdateConfig": (pb.UpdateConfigRequest, pb.UpdateConfigReply),
}
"""The methods that are not orders: name -> request, answer."""
TYPES: Final = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}


class Method(NamedTuple):
    """The method of an order; the answer is the member's status afterwards."""

    order: type[Order]
    request: Any

    def encode(self, target: pb.Target, order: Order) -> bytes:
        """Return the request that carries an order."""
        message = self.request(target=target, **msgspec.structs.asdict(order))
        return bytes(message.SerializeToString())

    def decode(self, request: Any) -> Order:
        """Return the order in a request."""
        return self.order(*[getattr(request, one) for one in self.order.__struct_fields__])


def fields(order: type[Order]) -> Mapping[str, str]:
    """Return the fields of an order with their types in the API, in the order of their numbers."""
    hints = get_type_hints(order, include_extras=True)
    return {
        name: getattr(hints[name], "__metadata__", ("bool",))[0] for name in order.__struct_fields__
    }


def described() -> FileDescriptorProto:
    """Return the descriptor that protoc would generate from `service.proto`."""
    file = FileDescriptorProto(
        name=f"{FOLDER}/service.proto", package=PACKAGE, syntax="proto3",
        dependency=[pb.DESCRIPTOR.name],
    )  # fmt: skip
    service = file.service.add(name="GroupControl")
    for name, (request, answer) in OTHERS.items():
        service.method.add(
            name=name, input_type=f".{request.DESCRIPTOR.full_name}",
            output_type=f".{answer.DESCRIPTOR.full_name}",
            server_streaming=True if name == "WatchStatus" else None,
        )  # fmt: skip
    for name, order in orders.ORDERS.items():
        service.method.add(
            name=name, input_type=f".{PACKAGE}.{name}Request",
            output_type=f".{pb.MemberStatus.DESCRIPTOR.full_name}",
        )  # fmt: skip
        message = file.message_type.add(name=f"{name}Request")
        message.field.add(
            name="target", number=1, label=FieldDescriptorProto.LABEL_OPTIONAL,
            type=FieldDescriptorProto.TYPE_MESSAGE, type_name=f".{PACKAGE}.Target",
            json_name="target",
        )  # fmt: skip
        for number, (field, type_) in enumerate(fields(order).items(), FIRST_FIELD):
            message.field.add(
                name=field, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL,
                type=TYPES[type_], json_name=field,
            )  # fmt: skip
    return file


def _methods() -> Mapping[str, Method]:
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(described().SerializeToString())
    return {
        name: Method(
            order,
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}Request")),
        )
        for name, order in orders.ORDERS.items()
    }


METHODS: Final = _methods()


# ---- reports as messages ---------------------------------------------------------------------


StructT = TypeVar("StructT", bound=msgspec.Struct)


def _to_copy(copy: Copy) -> pb.Copy:
    return pb.Copy(ordinal=copy.ordinal, incarnation=copy.incarnation)


def _from_copy(message: pb.Copy) -> Copy:
    return Copy(message.ordinal, message.incarnation)


def to_target(target: Target) -> pb.Target:
    """Return the message that names a member."""
    return pb.Target(group=target.group, ordinal=target.ordinal)


def to_message(report: Report) -> pb.MemberStatus:
    """Return a report as a message, whose fields have the names of those of report and status."""
    facts = msgspec.structs.asdict(report) | msgspec.structs.asdict(report.status)
    del facts["status"]
    facts |= {
        "copy": _to_copy(report.status.copy),
        "last_in_sync": [_to_copy(copy) for copy in report.status.last_in_sync],
    }
    return pb.MemberStatus(**facts)


def from_message(message: pb.MemberStatus) -> Report:
    """Return the report in a message; raise RemoteProtocolError for values from a later version."""
    try:
        role, standing = Role(message.role), Standing(message.standing)
    except ValueError as error:
        raise RemoteProtocolError(
            f"broker {message.copy.ordinal} reports role {message.role[:64]!r} and standing"
            f" {message.standing[:64]!r}, which this version does not know: update this program"
        ) from error
    facts: dict[str, Any] = {
        one.name: getattr(message, one.name)
        for one in message.DESCRIPTOR.fields
        if not one.has_presence or message.HasField(one.name)
    }
    facts |= {
        "copy": _from_copy(message.copy),
        "role": role,
        "standing": standing,
        "last_in_sync": tuple(map(_from_copy, message.last_in_sync)),
        "group_keys": tuple(message.group_keys),
    }
    facts["status"] = _made(Status, facts)
    return _made(Report, facts)


def _made(kind: type[StructT], facts: Mapping[str, Any]) -> StructT:
    return kind(**{name: facts[name] for name in kind.__struct_fields__ if name in facts})
