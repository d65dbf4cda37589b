# SPDX-License-Identifier: Apache-2.0
"""The bytes of a record in the answer to a query."""

from cometmq.broker.messages import stored_bytes
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.record import decode_record

HOST = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")


def test_the_crc_stays_that_of_the_body_that_was_stored() -> None:
    """A recomputed CRC would match a body that was damaged on disk."""
    message = NewMessage(
        topic="T",
        queue_id=3,
        flag=0,
        sys_flag=0,
        born_timestamp=1,
        born_host=HOST,
        store_host=HOST,
        body=b"body",
    )
    stored = encode_record(message, 7, 4_096, 2)
    damaged = stored.replace(b"body", b"Body")
    assert stored_bytes(decode_record(stored)) == stored
    assert stored_bytes(decode_record(damaged)) == damaged
