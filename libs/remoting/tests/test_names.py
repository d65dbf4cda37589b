# SPDX-License-Identifier: Apache-2.0

from cometmq.remoting import names


def test_system_names() -> None:
    assert names.is_system_topic("SCHEDULE_TOPIC_XXXX")
    assert names.is_system_topic("rmq_sys_anything")
    assert not names.is_system_topic("orders")
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert not names.is_system_group("orders")
