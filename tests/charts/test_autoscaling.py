# SPDX-License-Identifier: Apache-2.0
"""The examples of autoscaling fit Kubernetes' schemas, and their pods are restricted.

The ScaledObject is a custom resource, which `make operator-test` validates.
"""

import kubernetes_validate
import pytest

from cometmq.peers.prometheus.autoscaling import autoscaler, consumers

KUBERNETES = "1.34"


@pytest.mark.parametrize("read", [autoscaler, consumers])
def test_objects_fit_the_schema_of_kubernetes(read):
    kubernetes_validate.validate(read(), KUBERNETES, strict=True)


def test_a_misspelt_field_does_not_fit_the_schema_of_kubernetes():
    wrong = autoscaler()
    wrong["spec"]["behavior"]["scaleDown"]["stabilizationWindow"] = 300
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES, strict=True)


def test_pods_meet_the_restricted_standard():
    pod = consumers()["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
