# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.runtime.acl.documents import Document
from cometmq.runtime.acl.errors import AclError


@pytest.mark.parametrize(
    "text",
    [
        'accounts:\n- {accessKey: "Rocket\\nMQ", secretKey: "1"}\n',
        'accounts:\n- {accessKey: RocketMQ, secretKey: 12345678, topicPerms: ["a\\e[2Jb"]}\n',
        'globalWhiteRemoteAddresses: ["10.0.0.{1,\\n2"]\n',
    ],
)
def test_a_fault_is_one_line_that_can_be_read(text: str) -> None:
    with pytest.raises(AclError) as caught:
        Document(text).read()
    assert str(caught.value).isprintable()
