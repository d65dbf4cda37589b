# SPDX-License-Identifier: Apache-2.0
"""Headers for the administration of a broker's consumer groups."""

import msgspec


class DeleteSubscriptiongroup(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Delete a consumer group and, optionally, its offsets."""

    group_name: str
    remove_offset: bool = False


class GetSubscriptiongroupConfig(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Ask for the settings of one consumer group (5.x)."""

    group: str
