# SPDX-License-Identifier: Apache-2.0
"""Invalid values are rejected before installation; errors name the path and the valid values."""

import pytest
import yaml

BAD_VALUES = [
    # values as JSON, the path in the message, and a further part of the message
    ('namesrv={"replicas": 0}', "/namesrv/replicas", "minimum: got 0, want 1"),
    ('namesrv={"replicas": "two"}', "/namesrv/replicas", "got string, want integer"),
    ('namesrv={"replica": 2}', "/namesrv", "'replica' not allowed"),
    ('namesrv={"service": {"type": "Nodeport"}}', "/namesrv/service/type", "'NodePort'"),
    ('namesrv={"config": {"listenPort": 9877}}', "namesrv.config.listenPort", "the chart sets it"),
    ('txnChecker={"config": {"secretKey": "x"}}', "txnChecker.config.secretKey", "sets it"),
    ('exporter={"config": {"accessKey": "x"}}', "exporter.config.accessKey", "sets it"),
    ('console={"config": {"listenPort": "1"}}', "console.config.listenPort", "sets it"),
    ('console={"ingress": {"enabled": true}}', "console.ingress.host", "name the host"),
    ('exporter={"replicas": 2}', "/exporter", "'replicas' not allowed"),
    ('image={"digest": "abc"}', "/image/digest", "sha256"),
    ('logLevel="loud"', "/logLevel", "'debug', 'info', 'warning', 'error'"),
    ('brokerGroups=[{"replicas": 1}]', "/brokerGroups/0", "missing property 'name'"),
    ('brokerGroups=[{"name": "Broker_A"}]', "/brokerGroups/0/name", "does not match pattern"),
    ('brokerGroups=[{"name": "a"}, {"name": "a"}]', "brokerGroups[1].name", "another group"),
    ('brokerGroups=[{"name": "namesrv"}]', "brokerGroups[0].name", "choose another"),
    ('brokerGroups=[{"name": "a", "replicas": 2}]', "brokerGroups[0].replicas", "etcd.endpoints"),
    ('brokerGroups=[{"name": "a", "minInSync": 2}]', "brokerGroups[0].minInSync", "1 replicas"),
    (
        'brokerGroups=[{"name": "a", "flushDiskType": "SYNC"}]',
        "/brokerGroups/0/flushDiskType", "'SYNC_FLUSH'",
    ),
    (
        'brokerGroups=[{"name": "a", "config": {"brokerId": 1}}]',
        "brokerGroups[0].config.brokerId", "the chart sets it",
    ),
    (
        'brokerGroups=[{"name": "a", "config": {"x": [1]}}]',
        "/brokerGroups/0/config/x", "got array",
    ),
    (
        'brokerGroups=[{"name": "a", "storage": {"size": "many"}}]',
        "/brokerGroups/0/storage/size", "does not match pattern",
    ),
    (
        'brokerGroups=[{"name": "a", "external": {"type": "NodePort"}}]',
        "brokerGroups[0].external.nodePorts", "one port for each",
    ),
    (
        'brokerGroups=[{"name": "a", "external": {"type": "LoadBalancer"}}]',
        "brokerGroups[0].external.hosts", "address of the load balancer",
    ),
    ('groupRecord={"etcd": {"endpoints": ["etcd"]}}', "/groupRecord/etcd/endpoints/0", "pattern"),
    ('groupRecord={"etcd": {"tls": true}}', "groupRecord.etcd.tls", "tls.enabled"),
    ('acl={"enabled": true}', "acl.existingSecret", "plain_acl.yml"),
    ('tls={"enabled": true}', "tls.existingSecret", "tls.crt"),
    ('lagReport={"intervalSeconds": 10}', "/lagReport/intervalSeconds", "got 10, want 60"),
    ('lagReport={"schedule": "hourly"}', "/lagReport/schedule", "does not match pattern"),
    ('fullnameOverride="My_Name"', "/fullnameOverride", "does not match pattern"),
    ('nameOverride="mq.prod"', "/nameOverride", "does not match pattern"),
    ('image={"tag": "v1+x"}', "/image/tag", "does not match pattern"),
    ('namesrv={"nodeSelector": {"gpu": true}}', "/namesrv/nodeSelector/gpu", "want string"),
    ('namesrv={"tolerations": ["spot"]}', "/namesrv/tolerations/0", "want object"),
    ('namesrv={"podLabels": {"team": 1}}', "/namesrv/podLabels/team", "want string"),
    ('namesrv={"podAnnotations": {"a": 1.5}}', "/namesrv/podAnnotations/a", "want string"),
    ('namesrv={"env": [{"name": "A", "value": 1}]}', "/namesrv/env/0/value", "want string"),
    ('namesrv={"config": {"a": "b\\nlistenPort=1"}}', "/namesrv/config/a", "pattern"),
    ('networkPolicy={"clients": ["10.0.0.0/8"]}', "/networkPolicy/clients/0", "want object"),
    ('acl={"existingSecret": "My_Secret"}', "/acl/existingSecret", "does not match pattern"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "path", "part"), BAD_VALUES, ids=[one[0] for one in BAD_VALUES])
def test_a_wrong_value_is_refused_with_its_path(template, value, path, part):
    done = template(settings=[value])
    assert done.returncode != 0
    assert path in done.stderr
    assert part in done.stderr


def test_a_port_of_two_brokers_is_refused(template):
    external = '{"type": "NodePort", "nodePorts": [30911, 30911]}'
    group = f'{{"name": "a", "replicas": 2, "external": {external}}}'
    record = 'groupRecord={"etcd": {"endpoints": ["etcd:2379"]}}'
    done = template(settings=[f"brokerGroups=[{group}]", record])
    assert done.returncode != 0
    assert "brokerGroups[0].external.nodePorts: two brokers" in done.stderr


def test_an_exporter_without_an_account_is_refused(template):
    done = template(
        settings=[
            'acl={"enabled": true, "existingSecret": "accounts"}',
            'txnChecker={"enabled": false}',
            'tests={"enabled": false}',
            'exporter={"enabled": true}',
        ]
    )
    assert done.returncode != 0
    assert "exporter.accountSecret" in done.stderr


def test_a_name_with_which_kubernetes_cannot_create_pods_is_refused(template):
    """A StatefulSet with it is accepted, and then has no pods: their label has 63 characters."""
    name = f'fullnameOverride="{"n" * 30}"'
    done = template(settings=[name, f'brokerGroups=[{{"name": "{"b" * 22}"}}]'])
    assert done.returncode != 0
    assert "brokerGroups[0].name: pods cannot be named nnn" in done.stderr


@pytest.mark.parametrize("release", ["1mq", "mq.prod"])
def test_a_release_name_that_cannot_name_services_is_refused(template, release):
    done = template(release=release)
    assert done.returncode != 0
    assert "fullnameOverride: " in done.stderr
    assert template(release=release, settings=['fullnameOverride="mq"']).returncode == 0


def test_names_may_be_as_long_as_kubernetes_allows(template):
    external = '{"type": "NodePort", "nodePorts": [30911, 30912]}'
    group = f'{{"name": "{"b" * 21}", "replicas": 2, "external": {external}}}'
    done = template(
        release="r" * 53,
        settings=[
            f"brokerGroups=[{group}]",
            'groupRecord.etcd.endpoints=["[fd00::1]:2379"]',
            *(f"{one}.enabled=true" for one in ("console", "exporter", "lagReport")),
        ],
    )
    assert done.returncode == 0, done.stderr
    for one in yaml.safe_load_all(done.stdout):
        limit = 52 if one["kind"] in {"StatefulSet", "CronJob"} else 63
        assert len(one["metadata"]["name"]) <= limit
