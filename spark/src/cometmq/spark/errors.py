# SPDX-License-Identifier: Apache-2.0
"""What the data source raises beside the refusals of brokers; each is one line for a user."""

from cometmq.remoting.errors import CometError


class SourceError(CometError):
    """The data source cannot do what was asked."""


class OptionError(SourceError):
    """An option is unknown, is missing, or has a value that it cannot have."""


class SchemaError(SourceError):
    """A schema was asked for that the table cannot give, or given that a sink cannot take."""


class TopicMissing(SourceError):
    """No name server knows a topic or a queue that was asked for."""


class NameServerUnreachable(SourceError):
    """None of the name servers answers."""


class BrokerUnreachable(SourceError):
    """No broker that holds a queue answers."""


class Refused(SourceError):
    """A broker or name server answered that it will not do what was asked."""


class OffsetMissing(SourceError):
    """A moment or a group names no offset in a queue."""


class DataLoss(SourceError):
    """Messages that were to be read are not there any more."""


class SendIncomplete(SourceError):
    """Rows of a task were not stored by any broker."""
