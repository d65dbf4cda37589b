# SPDX-License-Identifier: Apache-2.0
"""Renders Protobuf bodies, described by a descriptor set from `protoc --descriptor_set_out`.

The library is optional (`cometmq-insight[protobuf]`) and imported with the first schema.
"""

import json
from importlib import import_module
from typing import Any, Final

from cometmq.client.errors import ClientError, InvalidArgument

SET_BYTES_MAX: Final = 8 << 20
_ADVICE: Final = "write it with protoc --include_imports --descriptor_set_out=FILE"


class Schema:
    """One message type of a descriptor set."""

    def __init__(self, descriptor_set: bytes, message_type: str) -> None:
        """Raise InvalidArgument if the set is broken or has no such type, and ClientError if the
        library is missing.
        """
        if len(descriptor_set) > SET_BYTES_MAX:
            raise InvalidArgument(f"the descriptor set has more than {SET_BYTES_MAX >> 20} MiB")
        self.message_type = message_type
        self._json_format = _library("json_format")
        self._class = self._found(descriptor_set, message_type)

    def render(self, body: bytes) -> str:
        """Return a body as JSON without spaces; raise ValueError if it is not of this type."""
        message = self._class()
        try:
            message.ParseFromString(body)
            value = self._json_format.MessageToDict(message, preserving_proto_field_name=True)
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        except Exception as error:  # each back end of the library has its own
            raise ValueError(f"not a {self.message_type}: {error}") from error

    @staticmethod
    def _found(descriptor_set: bytes, message_type: str) -> Any:
        pb2, pool_of = _library("descriptor_pb2"), _library("descriptor_pool")
        factory = _library("message_factory")
        pool = pool_of.DescriptorPool()
        try:
            files = pb2.FileDescriptorSet.FromString(descriptor_set)
            for file in files.file:
                pool.Add(file)
            names = sorted(
                f"{file.package}.{it.name}".lstrip(".")
                for file in files.file
                for it in file.message_type
            )
        except Exception as error:  # each back end of the library has its own
            raise InvalidArgument(
                f"the descriptor set cannot be read: {error}; {_ADVICE}"
            ) from error
        try:
            return factory.GetMessageClass(pool.FindMessageTypeByName(message_type))
        except KeyError as error:
            known = ", ".join(names[:20]) or "none"
            raise InvalidArgument(
                f"the descriptor set has no message type {message_type}; it has: {known}"
            ) from error
        except Exception as error:  # an import that the set lacks
            raise InvalidArgument(f"{message_type} cannot be used: {error}; {_ADVICE}") from error


def _library(module: str) -> Any:
    try:
        return import_module(f"google.protobuf.{module}")
    except ImportError as error:
        raise ClientError(
            "Protobuf bodies need the package protobuf: pip install 'cometmq-insight[protobuf]'"
        ) from error
