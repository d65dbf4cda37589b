# SPDX-License-Identifier: Apache-2.0
"""Several brokers run from one settings file; each has ports, a name and folders of its own."""

import pytest

from cometmq.broker.instances import instance
from cometmq.broker.registration.addresses import choose_ports, explicit_ha_port
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.errors import SettingsError
from cometmq.runtime.settings import load


def settings(**options):
    return load(BrokerSettings, prefix="X", env={}, cli=options)


def ports(loaded):
    value = loaded.value
    chosen = choose_ports(value.listen_port, "", ha_port=explicit_ha_port(loaded))
    return {*chosen, value.admin_http_port, value.control_port} - {-1, None}


def test_the_first_instance_has_the_settings_as_they_are():
    loaded = settings(brokerName="orders")
    assert instance(loaded, 1) is loaded


def test_names_and_folders_are_derived():
    given = {"brokerName": "orders", "storePathRootDir": "/data/store/"}
    third = instance(settings(**given), 3).value
    assert (third.broker_name, third.store_path_root_dir) == ("orders-3", "/data/store-3")
    assert third.store_path_commit_log == ""
    apart = instance(settings(**given, storePathCommitLog="/fast/log"), 2).value
    assert apart.store_path_commit_log == "/fast/log-2"


@pytest.mark.parametrize(
    "options", [{}, {"haListenPort": "10915", "adminHttpPort": "10916", "controlPort": "10913"}]
)
def test_sixty_four_instances_share_no_port(options):
    loaded = settings(**options)
    used = [ports(instance(loaded, number)) for number in range(1, 65)]
    assert all(len(one) == len(used[0]) for one in used)
    assert len(set.union(*used)) == sum(map(len, used))
    assert instance(loaded, 2).value.listen_port == 10921


def test_derived_settings_are_not_saved_and_name_the_instance():
    second = instance(settings(), 2)
    assert "10921" not in second.as_saved_properties()
    assert second.label("listenPort") == "listenPort of instance 2"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"listenPort": "65530"}, "--listen-port: instance 2 would need port 65540"),
        ({"haMasterAddress": "10.0.0.1:10912"}, "--ha-master-address: several instances"),
        ({"groupRecord": "file:/r"}, "--group-record: several instances cannot share it"),
        ({"advertisedAddresses": "0=a:1"}, "--advertised-addresses: several instances"),
    ],
)
def test_settings_of_one_broker_are_refused(options, text):
    with pytest.raises(SettingsError, match=text):
        instance(settings(**options), 2)
