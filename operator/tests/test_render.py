# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes objects that the operator renders for a group."""

import pytest

from cometmq.broker.copies.members import parse_members
from cometmq.broker.registration.addresses import parse_advertised
from cometmq.broker.settings import BrokerSettings
from cometmq.operator.api_types.broker_group import OWNED_SETTINGS
from cometmq.operator.broker_groups.group import (
    CONTROL_NAME,
    RESTART,
    TLS_SECRET,
    BrokerGroup,
    group_of,
)
from cometmq.operator.broker_groups.render import broker_conf, objects
from cometmq.remoting.transport.settings import TlsMode
from cometmq.runtime.settings import load
from cometmq.runtime.tls_keys import client_tls, server_tls
from cometmq.testing.operator.states import group


def rendered(one: BrokerGroup, **more):
    facts = {"image": "cometmq:1", "replicas": 2, "volume_size": "20Gi", "operator_namespace": "o"}
    return {found["kind"]: found for found in objects(one, **{**facts, **more})}


def loaded(one: BrokerGroup, tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text(broker_conf(one), encoding="utf-8")
    return load(BrokerSettings, prefix="COMETMQ_TEST_NONE", file=file)


def test_a_broker_accepts_the_settings(tmp_path):
    one = group(
        brokerName="o-1",
        nameServers=["a:9876", "b.c:9876"],
        replication={"minInSync": 2},
        config={"fileReservedTime": "48", "regionId": r"a\b=c: d"},
    )
    found = loaded(one, tmp_path)
    assert found.unknown == {}
    settings = found.value
    assert settings.broker_name == "o-1"
    assert settings.namesrv_addr == "a:9876;b.c:9876"
    assert settings.region_id == r"a\b=c: d"
    assert settings.file_reserved_time == 48
    assert settings.group_record == "kubernetes:mq/orders"
    members = parse_members(settings.group_members)
    assert members[8].broker == "orders-8.orders-peers.mq.svc:10911"
    assert members[8].replication == "orders-8.orders-peers.mq.svc:10912"


def test_settings_of_the_operator_win(tmp_path):
    settings = loaded(group(config={"minInSync": "9", "listenPort": "1"}), tmp_path).value
    assert (settings.min_in_sync, settings.listen_port) == (1, 10911)
    written = {line.partition("=")[0] for line in broker_conf(group()).splitlines()}
    defaults = {"frozenMasterMills", "handOverLingerMills", "registerNameServerPeriod"}
    assert written - defaults <= set(OWNED_SETTINGS)


def test_a_broker_forwards_longer_than_clients_wait_for_routes_unless_told_otherwise(tmp_path):
    assert loaded(group(), tmp_path).value.hand_over_linger_mills > 30_000
    chosen = group(config={"handOverLingerMills": "1000"})
    assert loaded(chosen, tmp_path).value.hand_over_linger_mills == 1_000


def test_brokers_look_for_new_name_servers_every_ten_seconds_unless_told_otherwise(tmp_path):
    assert loaded(group(), tmp_path).value.register_name_server_period == 10_000
    chosen = group(config={"registerNameServerPeriod": "30000"})
    assert loaded(chosen, tmp_path).value.register_name_server_period == 30_000


def test_scaling_restarts_no_broker():
    first, second = rendered(group(replicas=2)), rendered(group(replicas=5), replicas=5)
    templates = [one["StatefulSet"]["spec"]["template"] for one in (first, second)]
    assert templates[0] == templates[1]


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"fileReservedTime": "1"}},
        {"image": {"name": "cometmq:2"}},
        {"nameServers": ["other:9876"]},
        {"resources": {"limits": {"memory": "2Gi"}}},
        {"replication": {"minInSync": 2}},
    ],
    ids=str,
)
def test_other_changes_restart_brokers(change):
    before, after = rendered(group())["StatefulSet"], rendered(group(**change))["StatefulSet"]
    assert before["spec"]["template"] != after["spec"]["template"]


def test_a_restart_by_hand_changes_the_template_only():
    metadata = {"namespace": "mq", "name": "orders", "uid": "u", "annotations": {RESTART: "now"}}
    one = group_of({"metadata": metadata, "spec": {"nameServers": ["ns:9876"]}})
    other, marks = (
        rendered(each)["StatefulSet"]["spec"]["template"]["metadata"]["annotations"]
        for each in (group(), one)
    )
    assert marks == {**other, RESTART: "now"}


def test_pods_meet_the_restricted_standard():
    pod = rendered(group())["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_broker_may_change_its_own_record_only():
    (rule,) = rendered(group())["Role"]["rules"]
    assert rule["resourceNames"] == ["orders"]
    assert rule["resources"] == ["leases"]
    assert "create" not in rule["verbs"]


def test_only_the_operator_and_peers_reach_the_control_port():
    rules = rendered(group(), operator_namespace="ops")["NetworkPolicy"]["spec"]["ingress"]
    control = [one for one in rules if {"protocol": "TCP", "port": 10913} in one["ports"]]
    assert len(control) == 2
    assert all(one["from"] for one in control)
    (namespace,) = control[1]["from"]
    labels = namespace["namespaceSelector"]["matchLabels"]
    assert labels == {"kubernetes.io/metadata.name": "ops"}


def client_rule(one: BrokerGroup):
    policy = rendered(one, operator_namespace="ops")["NetworkPolicy"]
    rules = policy["spec"]["ingress"]
    (found,) = (rule for rule in rules if {"protocol": "TCP", "port": 10911} in rule["ports"])
    assert {"protocol": "TCP", "port": 10909} in found["ports"]
    return found


def test_every_pod_may_be_a_client_unless_the_spec_names_peers():
    assert "from" not in client_rule(group())
    clients = [
        {"podSelector": {"matchLabels": {"app": "shop"}}, "namespaceSelector": {}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
    ]
    admitted = client_rule(group(networkPolicy={"clients": clients}))["from"]
    assert admitted[:2] == clients
    more = [one["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for one in admitted[2:]]
    assert more == ["cometmq-broker", "cometmq-operator"]


def test_limits_on_clients_keep_metrics_reachable_and_restart_no_broker():
    one = group(networkPolicy={"clients": [{"podSelector": {}}]})
    objects_ = rendered(one)
    rules = objects_["NetworkPolicy"]["spec"]["ingress"]
    assert {"ports": [{"protocol": "TCP", "port": 10919}]} in rules
    assert objects_["StatefulSet"] == rendered(group())["StatefulSet"]


SECURED = {
    "tls": {"secretName": "cert", "mode": "Enforcing", "clientAuth": "Require"},
    "accounts": {"secretName": "accounts", "operatorSecretName": "operator"},
}


def pod_of(one: BrokerGroup):
    return rendered(one)["StatefulSet"]["spec"]["template"]


def test_a_broker_accepts_the_settings_of_a_secured_group(tmp_path):
    loaded_ = loaded(group(**SECURED), tmp_path)
    assert loaded_.unknown == {}
    server, client = server_tls(loaded_.value), client_tls(loaded_.value)
    assert (server.mode, server.need_client_auth) == (TlsMode.ENFORCING, "require")
    assert (client.enable, client.auth_server) == (True, True)
    assert loaded_.value.acl_enable
    pod = pod_of(group(**SECURED))["spec"]
    (container,) = pod["containers"]
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one.get("secret") for one in pod["volumes"]}
    files = {
        f"{mounts[name]}/{item['path']}": (secret["secretName"], item["key"])
        for name, secret in volumes.items()
        if secret
        for item in secret["items"]
    }
    assert files == {
        str(server.cert_path): ("cert", "tls.crt"),
        str(server.key_path): ("cert", "tls.key"),
        str(server.trust_cert_path): ("cert", "ca.crt"),
        loaded_.value.acl_file: ("accounts", "plain_acl.yml"),
        loaded_.value.group_key_file: ("orders-group-key", "group.key"),
    }
    assert (client.cert_path, client.trust_cert_path) == (server.cert_path, server.trust_cert_path)
    assert all(
        one["readOnly"] for one in container["volumeMounts"] if one["name"] in ("tls", "accounts")
    )


def test_secrets_are_mounted_outside_of_read_only_folders():
    """The runtime cannot create the folder of a mount inside a ConfigMap."""
    (container,) = pod_of(group(**SECURED))["spec"]["containers"]
    paths = [one["mountPath"] for one in container["volumeMounts"]]
    assert not [(one, other) for one in paths for other in paths if one.startswith(f"{other}/")]


def test_permissive_tls_is_the_default_and_leaves_outgoing_connections_plain(tmp_path):
    settings = loaded(group(tls={"secretName": "cert"}), tmp_path).value
    assert server_tls(settings).mode is TlsMode.PERMISSIVE
    assert server_tls(settings).need_client_auth == "none"
    assert not client_tls(settings).enable


def test_probes_avoid_a_control_port_with_tls():
    kinds = ("startupProbe", "livenessProbe", "readinessProbe")
    for one, action in ((group(), "grpc"), (group(**SECURED), "httpGet")):
        (container,) = pod_of(one)["spec"]["containers"]
        assert all(action in container[kind] for kind in kinds)
    (container,) = pod_of(group(**SECURED))["spec"]["containers"]
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": 10919}


def test_a_pod_says_how_its_control_port_is_reached():
    marks = pod_of(group(**SECURED))["metadata"]["annotations"]
    assert marks[TLS_SECRET] == "cert"
    assert CONTROL_NAME not in marks
    named = group(tls={"secretName": "cert", "controlName": "brokers.example"})
    assert pod_of(named)["metadata"]["annotations"][CONTROL_NAME] == "brokers.example"
    assert TLS_SECRET not in pod_of(group())["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("spec", "has_budget"),
    [({}, True), ({"replicas": 1}, False), ({"podDisruptionBudget": {"enabled": False}}, False)],
)
def test_a_budget_never_blocks_a_single_pod(spec, has_budget):
    assert ("PodDisruptionBudget" in rendered(group(**spec))) is has_budget


NODE_PORTS = {"type": "NodePort", "nodePorts": [30911, 30921, 30931]}
BALANCED = {"type": "LoadBalancer", "hosts": ["mq-0.example.com", "mq-1.example.com"]}


def external_services(one: BrokerGroup):
    found = objects(one, image="i", replicas=2, volume_size="1Gi", operator_namespace="o")
    services = [each for each in found if each["kind"] == "Service"]
    return {
        each["metadata"]["name"]: each["spec"]
        for each in services
        if each["metadata"]["name"].endswith("-external")
    }


@pytest.mark.parametrize(
    ("external", "addresses", "host"),
    [
        (NODE_PORTS, "0=:30911;1=:30921;2=:30931", "status.hostIP"),
        ({**NODE_PORTS, "hosts": BALANCED["hosts"]},
         "0=mq-0.example.com:30911;1=mq-1.example.com:30921", "status.podIP"),
        (BALANCED, "0=mq-0.example.com:10911;1=mq-1.example.com:10911", "status.podIP"),
    ],
    ids=["ports", "ports and hosts", "balancers"],
)  # fmt: skip
def test_brokers_advertise_their_external_addresses(tmp_path, external, addresses, host):
    one = group(external=external)
    found = loaded(one, tmp_path)
    assert found.value.advertised_addresses == addresses
    assert set(parse_advertised(addresses, setting="s")) >= {0, 1}
    env = {each["name"]: each for each in pod_of(one)["spec"]["containers"][0]["env"]}
    source = env["COMETMQ_BROKER_BROKER_IP1"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert source == host


def test_each_broker_has_a_service_for_clients_outside():
    assert external_services(group()) == {}
    found = external_services(group(external=NODE_PORTS))
    assert list(found) == ["orders-0-external", "orders-1-external"]
    assert found["orders-1-external"]["ports"] == [
        {"name": "main", "port": 10911, "targetPort": 10911, "protocol": "TCP", "nodePort": 30921}
    ]
    selector = found["orders-1-external"]["selector"]
    assert selector["statefulset.kubernetes.io/pod-name"] == "orders-1"
    assert found["orders-1-external"]["externalTrafficPolicy"] == "Local"
    ranges = ["192.0.2.0/24"]
    balanced = {**BALANCED, "loadBalancerSourceRanges": ranges, "annotations": {"a": "b"}}
    spec = external_services(group(external=balanced))["orders-0-external"]
    assert spec["loadBalancerSourceRanges"] == ranges
    assert "externalTrafficPolicy" not in spec
    assert "nodePort" not in spec["ports"][0]
    annotated = rendered(group(external=balanced))["Service"]
    assert annotated["metadata"]["annotations"] == {"a": "b"}


def test_every_object_is_owned_and_labelled():
    for found in rendered(group()).values():
        metadata = found["metadata"]
        assert metadata["ownerReferences"][0]["uid"] == "u-1"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "cometmq-operator"
        assert metadata["namespace"] == "mq"
