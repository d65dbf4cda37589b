# SPDX-License-Identifier: Apache-2.0
"""The key of a group: its Secret, the safe order of a replacement, and pods without a key."""

import base64

import msgspec
import pytest

from cometmq.ha.proof import fingerprint
from cometmq.operator.api import ApiRefused
from cometmq.operator.api_types.security_sections import SecretReason
from cometmq.operator.broker_groups.group import KEY_MARK, KEY_OPTIONAL, KEY_REQUIRED, ROTATE_KEY
from cometmq.operator.broker_groups.key_rotation import KeyStep, StoredKeys, advanced, begun
from cometmq.operator.broker_groups.key_secret import KeySecret, new_key, secret_of, stored_of
from cometmq.operator.broker_groups.live import Live
from cometmq.operator.broker_groups.render import broker_conf, objects
from cometmq.operator.broker_groups.user_orders import RotateKey, given, plan
from cometmq.operator.secrets import SecretFault
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG
from cometmq.runtime import properties
from cometmq.testing.operator.api import MemoryApi
from cometmq.testing.operator.states import READY, group, seen

OLD, NEW = b"o" * 44, b"n" * 44
ADDED = StoredKeys((OLD, NEW), KeyStep.ADDED)
MOVED = StoredKeys((NEW, OLD), KeyStep.MOVED)


def prints(*keys):
    return tuple(map(fingerprint, keys))


def test_a_key_is_added_moved_and_then_the_old_one_removed():
    assert begun(StoredKeys((OLD,)), NEW) == ADDED
    assert advanced(ADDED, {0: prints(OLD, NEW), 1: prints(OLD, NEW)}, (0, 1)) == MOVED
    assert advanced(MOVED, {0: prints(NEW, OLD), 1: prints(NEW, OLD)}, (0, 1)) == StoredKeys((NEW,))


@pytest.mark.parametrize(
    "reported",
    [
        {},
        {0: prints(OLD, NEW)},
        {0: prints(OLD, NEW), 1: ()},
        {0: prints(OLD, NEW), 1: prints(OLD)},
        {0: prints(OLD, NEW), 1: prints(NEW, OLD)},
    ],
)
def test_a_step_waits_until_every_broker_has_read_the_keys(reported):
    behind = advanced(ADDED, reported, (0, 1))
    assert isinstance(behind, list)
    assert behind[-1] == 1


def test_there_is_one_replacement_at_a_time_and_none_without_an_order():
    for stored in (ADDED, MOVED):
        assert begun(stored, b"x" * 44) is None
    assert advanced(StoredKeys((OLD,)), {0: prints(OLD)}, (0,)) == []


@pytest.mark.parametrize("stored", [StoredKeys((OLD,)), ADDED, MOVED])
def test_the_secret_keeps_keys_and_step(stored):
    body = secret_of(group(), stored)
    assert stored_of(body) == stored
    assert base64.b64decode(body["data"]["group.key"]).splitlines() == list(stored.keys)
    assert body["metadata"]["name"] == "orders-group-key"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "u-1"


def test_keys_that_a_person_has_written_are_used_as_they_are():
    body = secret_of(group(), ADDED)
    body["metadata"]["annotations"] = {}
    assert stored_of(body) == StoredKeys((OLD, NEW))
    body["data"] = {"group.key": "not base64"}
    with pytest.raises(SettingsError, match=r"orders-group-key, group\.key: not in base64"):
        stored_of(body)
    with pytest.raises(SettingsError, match="has no key"):
        stored_of({"metadata": {"name": "x"}})


def test_a_new_key_is_long_and_random():
    assert len(base64.b64decode(new_key())) == 32
    assert new_key() != new_key()


SECRET = ("Secret", "mq", "orders-group-key")


async def test_a_secret_is_created_once_and_replaced_step_by_step():
    api = MemoryApi()
    made = iter((OLD, NEW, b"x" * 44))
    secret = KeySecret(api, log=NO_LOG, make=lambda: next(made))
    assert secret.keys == ()
    assert await secret.rotate(group()) == "the key of the group has not been created yet"
    for _ in range(2):
        await secret.keep(group(), {}, (0, 1))
    assert await secret.rotate(group()) == ""
    again = KeySecret(api, log=NO_LOG, make=lambda: b"unused" * 9)  # the operator was replaced
    await again.keep(group(), {0: prints(OLD, NEW), 1: prints(OLD)}, (0, 1))
    assert again.keys == (OLD, NEW)
    await again.keep(group(), {0: prints(OLD, NEW), 1: prints(OLD, NEW)}, (0, 1))
    assert "replaced already: step moved" in await again.rotate(group())
    await again.keep(group(), dict.fromkeys((0, 1), prints(NEW, OLD)), (0, 1))
    await again.keep(group(), dict.fromkeys((0, 1), prints(NEW)), (0, 1))
    assert stored_of(api.objects[SECRET]) == StoredKeys((NEW,))
    assert len(api.made("apply")) == 4


async def test_a_deleted_secret_is_created_again_with_the_key_of_the_brokers():
    api = MemoryApi()
    secret = KeySecret(api, log=NO_LOG)
    await secret.keep(group(), {}, ())
    before = secret.keys
    del api.objects[SECRET]
    await secret.read(group())
    await secret.keep(group(), {}, ())
    assert stored_of(api.objects[SECRET]).keys == before


async def test_a_missing_right_is_named():
    api = MemoryApi()

    def refused(verb, _kind):
        if verb == "apply":
            raise ApiRefused(403, "secrets is forbidden")

    api.before = refused
    with pytest.raises(
        SecretFault, match="grant its account the verbs get, create and patch"
    ) as it:
        await KeySecret(api, log=NO_LOG).keep(group(), {}, ())
    assert it.value.reason is SecretReason.FORBIDDEN


# ---- groups of earlier releases --------------------------------------------------------------


def live(*marks, template=None):
    pods = {
        one: {"metadata": {"annotations": {} if mark is None else {KEY_MARK: mark}}}
        for one, mark in enumerate(marks)
    }
    annotations = {} if template is None else {KEY_MARK: template}
    stateful_set = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
    return Live(stateful_set=stateful_set, pods=pods, claims=[])


@pytest.mark.parametrize(
    ("found", "is_required"),
    [
        (Live(stateful_set=None, pods={}, claims=[]), True),
        (live(None, None), False),
        (live(None, KEY_OPTIONAL, template=KEY_OPTIONAL), False),
        (live(template=KEY_OPTIONAL), False),
        (live(KEY_OPTIONAL, KEY_OPTIONAL, template=KEY_OPTIONAL), True),
        (live(KEY_OPTIONAL, KEY_REQUIRED, template=KEY_REQUIRED), True),
        (live(template=KEY_REQUIRED), True),
    ],
)
def test_a_proof_is_demanded_once_no_pod_is_without_the_key(found, is_required):
    assert found.is_key_required is is_required


@pytest.mark.parametrize("is_required", [True, False])
def test_pods_mount_the_key_and_say_that_they_have_it(is_required):
    conf = properties.parse(broker_conf(group(), is_key_required=is_required))
    assert conf["groupKeyFile"] == "/etc/cometmq-group-key/group.key"
    assert conf.get("groupKeyRequired") == (None if is_required else "false")
    (found,) = (
        one
        for one in objects(
            group(), image="i", replicas=2, volume_size="1Gi", operator_namespace="o",
            is_key_required=is_required,
        )
        if one["kind"] == "StatefulSet"
    )  # fmt: skip
    template = found["spec"]["template"]
    mark = KEY_REQUIRED if is_required else KEY_OPTIONAL
    assert template["metadata"]["annotations"][KEY_MARK] == mark
    (volume,) = (one for one in template["spec"]["volumes"] if one["name"] == "group-key")
    assert volume["secret"]["secretName"] == "orders-group-key"


def test_an_annotation_orders_the_replacement():
    one = msgspec.structs.replace(group(), annotations={ROTATE_KEY: "now"})
    order = given(one)
    assert order is not None
    assert plan(one, seen(READY, READY), order) == RotateKey()
