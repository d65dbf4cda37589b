#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Entrypoint as Spark on Kubernetes expects it: the first argument selects the program.
#   driver ARGUMENTS...   spark-submit in client mode, inside the driver's pod
#   executor              the executor backend, configured by environment variables
#   anything else         run as a command: cometmq-lag snapshot ..., spark-class ..., bash
set -euo pipefail

: "${SPARK_HOME:=/opt/spark}"

# Java and Hadoop need a user name, but a cluster may run this container under a random id.
name_the_user() {
    local user_id group_id library
    user_id=$(id -u)
    group_id=$(id -g)
    if getent passwd "$user_id" >/dev/null; then
        return
    fi
    for library in /usr/lib/*/libnss_wrapper.so /usr/lib/libnss_wrapper.so; do
        if [ -s "$library" ]; then
            NSS_WRAPPER_PASSWD=$(mktemp)
            NSS_WRAPPER_GROUP=$(mktemp)
            LD_PRELOAD=$library
            export NSS_WRAPPER_PASSWD NSS_WRAPPER_GROUP LD_PRELOAD
            echo "spark:x:$user_id:$group_id:spark:${HOME:-$SPARK_HOME}:/bin/false" \
                >"$NSS_WRAPPER_PASSWD"
            echo "spark:x:$group_id:" >"$NSS_WRAPPER_GROUP"
            return
        fi
    done
    echo "entrypoint: user id $user_id has no name and libnss_wrapper is missing" >&2
}

java_program() {
    if [ -n "${JAVA_HOME:-}" ]; then
        echo "$JAVA_HOME/bin/java"
    else
        command -v java
    fi
}

# Values of SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ... in the order of their numbers.
read_java_options() {
    local name
    java_options=()
    while IFS= read -r name; do
        java_options+=("${!name}")
    done < <(compgen -e | grep '^SPARK_JAVA_OPT_[0-9]*$' | sort -t_ -k4 -n)
}

run_driver() {
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=${SPARK_DRIVER_BIND_ADDRESS:?is set by Spark}" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client \
        "$@"
}

run_executor() {
    local class_path
    local -a java_options
    class_path="${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*:$PWD"
    class_path="$class_path:${SPARK_CLASSPATH:-}:${SPARK_DIST_CLASSPATH:-}"
    read_java_options
    exec tini -s -- "$(java_program)" "${java_options[@]}" \
        "-Xms${SPARK_EXECUTOR_MEMORY:?is set by Spark}" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "$class_path" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "${SPARK_DRIVER_URL:?is set by Spark}" \
        --executor-id "${SPARK_EXECUTOR_ID:?is set by Spark}" \
        --cores "${SPARK_EXECUTOR_CORES:?is set by Spark}" \
        --app-id "${SPARK_APPLICATION_ID:?is set by Spark}" \
        --hostname "${SPARK_EXECUTOR_POD_IP:?is set by Spark}" \
        --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:?is set by Spark}" \
        --podName "${SPARK_EXECUTOR_POD_NAME:?is set by Spark}"
}

name_the_user
case "${1:-}" in
driver)
    shift
    run_driver "$@"
    ;;
executor)
    run_executor
    ;;
"")
    echo "entrypoint: missing argument: driver, executor, or a command such as cometmq-lag" >&2
    exit 2
    ;;
*)
    exec tini -s -- "$@"
    ;;
esac
