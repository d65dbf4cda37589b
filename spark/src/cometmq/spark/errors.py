# SPDX-License-Identifier: Apache-2.0
"""Errors of the data source; each message is one line for a user."""

from cometmq.remoting.errors import CometError


class SourceError(CometError):
    """Base class of the data source's errors."""


class OptionError(SourceError):
    """An option is unknown or missing, or its value is invalid."""


class SchemaError(SourceError):
    """A requested schema does not match the table, or the sink cannot write a column."""


class TopicMissing(SourceError):
    """A requested topic or queue does not exist."""


class NameServerUnreachable(SourceError):
    """No name server is responding."""


class BrokerUnreachable(SourceError):
    """None of the brokers that hold a queue is responding."""


class Refused(SourceError):
    """A broker or name server rejected a request."""


class OffsetMissing(SourceError):
    """A timestamp or group does not determine an offset in a queue."""


class DataLoss(SourceError):
    """Messages that should be read no longer exist."""


class SendIncomplete(SourceError):
    """Some of a task's rows have not been stored by any broker."""
