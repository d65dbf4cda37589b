#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [OPTION OF PYTEST...]: run the scenarios on a Kubernetes cluster; `make e2e` calls it.
# SHORT=yes: install, failover, switchover, upgrade and deletion only.
#
# Without E2E_KUBECONFIG, a cluster is made on this machine (cluster/README.md), the images are built and
# loaded into it, and everything is deleted afterwards unless KEEP=yes. With E2E_KUBECONFIG, the cluster
# of these credentials is used, in the namespaces cometmq-e2e and cometmq-e2e-operator; kubectl and helm
# must be on PATH, and E2E_IMAGE and E2E_OPERATOR_IMAGE name images that its nodes can pull. The Java client
# runs beside ours if E2E_JAVA_IMAGE names its image (java-image.sh), and lag reports run if E2E_SPARK_IMAGE
# names the image of Spark. Metrics, which include those of lag reports, are scraped if prometheus is on PATH;
# autoscaling needs it, too. The long form needs room for a hundred small pods, but on this machine's own
# cluster it runs five broker groups per core instead of fifty: more do not fit.
set -euo pipefail
cd "$(dirname "$0")/../.."
cluster=tests/e2e/cluster/cluster.sh
arguments=(--timeout=1800)
if [ "${SHORT:-}" = yes ]; then
    short="test_install or test_killed_masters or test_switchovers or test_rolling_upgrade"
    arguments+=(-k "$short or test_deletion_waits_for_consumers" --rounds=2 --switchovers=3)
fi
if [ -n "${E2E_KUBECONFIG:-}" ]; then
    export KUBECONFIG=$E2E_KUBECONFIG
    : "${E2E_IMAGE:?name the image of the suite, which the nodes can pull}"
    : "${E2E_OPERATOR_IMAGE:?name the image of the operator, which the nodes can pull}"
    arguments+=("--image=$E2E_IMAGE" "--operator-image=$E2E_OPERATOR_IMAGE")
    [ -z "${E2E_JAVA_IMAGE:-}" ] || arguments+=("--java-image=$E2E_JAVA_IMAGE")
    if [ -n "${E2E_SPARK_IMAGE:-}" ]; then
        arguments+=("--spark-image=$E2E_SPARK_IMAGE")
    elif [ "${SHORT:-}" != yes ]; then
        echo "run.sh: lag reports and metrics are not tested: E2E_SPARK_IMAGE names no image" >&2
        arguments+=(--ignore=tests/e2e/test_lag_report.py --ignore=tests/e2e/test_monitoring.py)
    fi
else
    [ "${KEEP:-}" = yes ] || trap '$cluster down' EXIT
    binaries=$($cluster up)
    export PATH=$binaries:$PATH
    KUBECONFIG=$($cluster kubeconfig)
    export KUBECONFIG
    base=cometmq-base:bookworm
    make --no-print-directory base-image BASE_IMAGE=$base
    make --no-print-directory images TARGETS="suite operator" BASE_IMAGE=$base TAG=e2e
    docker tag cometmq:e2e cometmq:e2e-next # the upgrade needs another name, not another content
    images=(cometmq:e2e cometmq:e2e-next cometmq-operator:e2e)
    if [ "${SHORT:-}" != yes ]; then
        # Java for the Java client and for Spark, and the programs that Spark's scripts call.
        java_base=cometmq-spark-base:bookworm
        make --no-print-directory base-image BASE_IMAGE=$java_base \
            PACKAGES="openjdk-17-jre-headless tini procps libnss-wrapper"
        make --no-print-directory images TARGETS=spark SPARK_BASE_IMAGE=$java_base TAG=e2e
        tests/e2e/java-image.sh cometmq-java-client:e2e $java_base
        images+=(cometmq-java-client:e2e cometmq-spark:e2e)
        arguments+=(--java-image=cometmq-java-client:e2e --spark-image=cometmq-spark:e2e)
    fi
    $cluster load "${images[@]}"
    arguments+=(--image=cometmq:e2e --next-image=cometmq:e2e-next --operator-image=cometmq-operator:e2e)
    [ "${SHORT:-}" = yes ] || make --no-print-directory prometheus
    groups=$(($(nproc) * 5))
    if [ "$groups" -lt 50 ] && [ "${SHORT:-}" != yes ]; then
        echo "run.sh: $groups broker groups at once instead of 50, because $(nproc) cores run all the nodes" >&2
        arguments+=("--groups=$groups")
    fi
fi
if [ "${SHORT:-}" != yes ] && ! command -v prometheus >/dev/null; then
    echo "run.sh: metrics and autoscaling are not tested: there is no prometheus; \`make prometheus\` installs it" >&2
    arguments+=(--ignore=tests/e2e/test_monitoring.py --ignore=tests/e2e/test_autoscaling.py)
fi
# Not `| head -1`: with pipefail, kubectl would fail if head ends before it.
worker='!node-role.kubernetes.io/control-plane'
node=$(kubectl get nodes --selector="$worker" --output=jsonpath='{.items[0].metadata.name}')
if ! docker inspect "$node" >/dev/null 2>&1; then
    echo "run.sh: lost nodes, partitions, clients outside the cluster and autoscaling are not tested: the nodes" \
        "are no containers of this machine" >&2
    arguments+=(--ignore=tests/e2e/test_lost_nodes.py --ignore=tests/e2e/test_external_clients.py)
    arguments+=(--ignore=tests/e2e/test_autoscaling.py)
elif [ "${SHORT:-}" != yes ] && command -v prometheus >/dev/null; then
    adapter=$(tests/e2e/adapter/build.sh)
    export PATH=$adapter:$PATH
fi
.venv/bin/pytest -q tests/e2e "${arguments[@]}" "$@"
