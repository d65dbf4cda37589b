# SPDX-License-Identifier: Apache-2.0
"""The operator's chart is valid and restricted, and grants only the rights that it needs."""

import json
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from cometmq.operator.api import KINDS
from cometmq.operator.broker_groups.pod import pod_template
from cometmq.operator.broker_groups.render import objects as render_objects
from cometmq.operator.handlers import OWNED
from cometmq.operator.settings import PREFIX, OperatorSettings
from cometmq.runtime.settings import load
from cometmq.testing.operator.states import group

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/cometmq-operator"
EXAMPLES = sorted((CHART / "ci").glob("*-values.yaml"))
KUBERNETES = "1.34"

BAD_VALUES = [
    # values as JSON, the path in the message, and a further part of the message
    ("replicas=0", "/replicas", "minimum: got 0, want 1"),
    ("replica=2", "'replica' not allowed", ""),
    ('watchNamespaces="prod"', "/watchNamespaces", "got string, want array"),
    ('watchNamespaces=["Prod"]', "/watchNamespaces/0", "does not match pattern"),
    ('image={"digest": "abc"}', "/image/digest", "sha256"),
    ('image={"pullPolicy": "always"}', "/image/pullPolicy", "'Always'"),
    ("drainQuietSeconds=0", "/drainQuietSeconds", "minimum: got 0, want 1"),
    ('crds={"keep": "yes"}', "/crds/keep", "got string, want boolean"),
]


@pytest.fixture(scope="session", params=[None, *EXAMPLES], ids=lambda one: one and one.stem)
def objects(request, render):
    return render([request.param] if request.param else [], chart=CHART)


def only(objects, kind):
    (found,) = (one for one in objects if one["kind"] == kind)
    return found


def rules(objects, name):
    """Return the verbs for each resource in the roles of this name."""
    found: dict[str, set[str]] = {}
    for one in objects:
        if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"].endswith(name):
            for rule in one["rules"]:
                for resource in rule["resources"]:
                    found.setdefault(resource, set()).update(rule["verbs"])
    return found


@pytest.mark.parametrize("chart", ["cometmq", "cometmq-operator"])
def test_a_chart_renders_without_a_version_of_kubernetes(helm, chart):
    """A helm built by `go install` alone assumes Kubernetes 1.20, which the charts refuse."""
    done = helm("template", "mq", str(CHART.parent / chart))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.stem)
def test_lint_accepts_the_examples(helm, example):
    done = helm(
        "lint", "--strict", str(CHART), "--values", str(example), f"--kube-version={KUBERNETES}"
    )
    assert done.returncode == 0, done.stdout


def test_objects_fit_the_schema_of_kubernetes(objects):
    assert len(objects) > 6
    for one in objects:
        if one["kind"] != "CustomResourceDefinition":
            kubernetes_validate.validate(one, KUBERNETES, strict=True)


def test_the_definitions_are_those_of_the_operator_and_survive_the_release(objects):
    found = {
        one["metadata"]["name"]: one for one in objects if one["kind"] == "CustomResourceDefinition"
    }
    paths = sorted((ROOT / "deploy/crds").glob("*.yaml"))
    assert len(found) == len(paths) == 3
    for path in paths:
        wanted = yaml.safe_load(path.read_text(encoding="utf-8"))
        one = found[wanted["metadata"]["name"]]
        assert one["spec"] == wanted["spec"]
        assert one["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_definition_may_come_from_elsewhere(render):
    objects = render(settings=['crds={"install": false}'], chart=CHART)
    assert not [one for one in objects if one["kind"] == "CustomResourceDefinition"]


def test_the_operator_accepts_its_settings(objects):
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    env = {one["name"]: one.get("value", "x") for one in container["env"]}
    result = load(OperatorSettings, prefix=PREFIX, env=env, cli={})
    assert result.unknown == {}
    assert all(name.startswith(PREFIX) for name in env)
    assert result.value.drain_quiet_mills == 60_000
    assert result.value.lease_name == only(objects, "Deployment")["metadata"]["name"]


def test_pods_meet_the_restricted_standard(objects):
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_policies_of_groups_let_the_operator_reach_control_ports(objects):
    """The NetworkPolicy of each group admits pods with this label."""
    labels = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "cometmq-operator"


def test_objects_of_groups_fit_the_schema_of_kubernetes():
    one = group(
        tls={"secretName": "cert"},
        accounts={"secretName": "accounts", "operatorSecretName": "operator"},
        networkPolicy={
            "clients": [
                {"podSelector": {"matchLabels": {"app": "shop"}}, "namespaceSelector": {}},
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
            ]
        },
    )
    for found in render_objects(
        one, image="cometmq:1", replicas=2, volume_size="1Gi", operator_namespace="ops"
    ):
        kubernetes_validate.validate(found, KUBERNETES, strict=True)


@pytest.mark.parametrize(
    ("watched", "namespaces"),
    [([], {"any": True}), (["prod", "test"], {"matchNames": ["prod", "test"]})],
)
def test_pod_monitors_select_the_operator_and_the_brokers_of_its_groups(
    render, watched, namespaces
):
    """Alerts need jobs whose names begin with cometmq."""
    values = ['metrics={"podMonitor": {"enabled": true}}', f"watchNamespaces={json.dumps(watched)}"]
    objects = render(settings=values, chart=CHART)
    operator, brokers = (one["spec"] for one in objects if one["kind"] == "PodMonitor")
    assert brokers["namespaceSelector"] == namespaces
    assert "namespaceSelector" not in operator
    pods = (
        (operator, only(objects, "Deployment")["spec"]["template"]),
        (brokers, pod_template(group(), image="cometmq:1", annotations={})),
    )
    for monitor, template in pods:
        labels = template["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        assert labels[monitor["jobLabel"]].startswith("cometmq-")
        (container,) = template["spec"]["containers"]
        (endpoint,) = monitor["podMetricsEndpoints"]
        assert endpoint["port"] in [port["name"] for port in container["ports"]]


def test_secrets_are_read_by_name_and_those_of_keys_written(objects):
    assert rules(objects, "cometmq-operator")["secrets"] == {"get", "create", "patch"}


def test_rights_cover_the_calls_of_the_operator(objects):
    found = rules(objects, "cometmq-operator")
    called = {kind._api_info.plural for kind in KINDS.values()} | {"events"}
    assert called <= found.keys()
    assert all({"list", "watch"} <= found[plural] for _, _, plural in OWNED)
    kinds = ("brokergroups", "topics", "consumergroups")
    more = {f"{kind}/{part}" for kind in kinds for part in ("status", "finalizers")}
    more |= {"namespaces", "customresourcedefinitions", "endpointslices/restricted"}
    assert found.keys() <= called | more
    for resource, verbs in found.items():
        assert "*" not in verbs, resource
        assert "deletecollection" not in verbs


def test_rights_end_at_the_namespaces_that_are_watched(render):
    objects = render([CHART / "ci/one-namespace-values.yaml"], chart=CHART)
    cluster = only(objects, "ClusterRole")
    everywhere = {
        resource: rule["verbs"] for rule in cluster["rules"] for resource in rule["resources"]
    }
    kinds = ("brokergroups", "topics", "consumergroups")
    assert everywhere == {
        "namespaces": ["get", "list", "watch"], "customresourcedefinitions": ["list", "watch"],
        **{key: ["get", "patch"] for key in kinds},
    }  # fmt: skip
    places = {one["metadata"].get("namespace") for one in objects if one["kind"] == "Role"}
    assert places == {None, "prod"}


def test_one_operator_has_no_budget(render):
    kinds = [one["kind"] for one in render(settings=["replicas=1"], chart=CHART)]
    assert "PodDisruptionBudget" not in kinds
    assert "PodDisruptionBudget" in [one["kind"] for one in render(chart=CHART)]


@pytest.mark.parametrize(("value", "path", "part"), BAD_VALUES, ids=[one[0] for one in BAD_VALUES])
def test_a_wrong_value_is_refused_with_its_path(template, value, path, part):
    done = template(settings=[value], chart=CHART)
    assert done.returncode != 0
    assert path in done.stderr
    assert part in done.stderr
