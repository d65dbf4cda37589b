# SPDX-License-Identifier: Apache-2.0
"""A real API server accepts the examples of autoscaling, the ScaledObject with KEDA's own CRD."""

import json

import pytest

from cometmq.peers.go_modules import KEDA
from cometmq.peers.prometheus.autoscaling import (
    AUTOSCALER,
    CONSUMERS,
    SCALED_OBJECT,
    autoscaler,
    scaled_object,
)

STRICT = ("apply", "--validate=strict", "--filename")


@pytest.fixture(scope="module", autouse=True)
def keda(kube):
    """Define KEDA's kinds; only the example's kind is needed."""
    definition = KEDA.folder() / "config/crd/bases/keda.sh_scaledobjects.yaml"
    kube.kubectl("apply", "--server-side", "--filename", str(definition))
    kube.kubectl("wait", "--for=condition=Established", "crd/scaledobjects.keda.sh")


def contains(found, wanted):
    """Return whether an object has all the fields of another one; the API adds defaults."""
    if isinstance(wanted, dict):
        return all(key in found and contains(found[key], one) for key, one in wanted.items())
    return found == wanted


def test_keda_accepts_the_scaled_object(kube, namespace):
    kube.kubectl(*STRICT, str(SCALED_OBJECT), "--namespace", namespace)
    found = kube.objects("scaledobject", "billing", "--namespace", namespace)
    assert contains(found, scaled_object())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cooldown": 600}, 'unknown field "spec.cooldown"'),
        ({"minReplicaCount": 17}, "minReplicaCount must be less than or equal to maxReplicaCount"),
        ({"triggers": [{"type": "prometheus"}]}, "spec.triggers[0].metadata: Required value"),
    ],
    ids=("misspelt", "out of order", "without a query"),
)
def test_keda_rejects_a_wrong_one(kube, namespace, change, reason):
    """This proves that KEDA's schema is in force, and that it is strict."""
    body = scaled_object()
    body["spec"] |= change
    said = kube.kubectl(
        *STRICT, "-", "--namespace", namespace, stdin=json.dumps(body), is_checked=False
    )
    assert reason in said


def test_kubernetes_accepts_the_consumers_and_their_autoscaler(kube, namespace):
    kube.kubectl(*STRICT, str(CONSUMERS), "--namespace", namespace)
    kube.kubectl(*STRICT, str(AUTOSCALER), "--namespace", namespace)
    found = kube.objects("hpa", "billing", "--namespace", namespace)
    wanted = autoscaler()
    assert contains(found["spec"], {**wanted["spec"], "metrics": found["spec"]["metrics"]})
    assert found["spec"]["metrics"][0]["external"]["target"]["averageValue"] == "1k"
