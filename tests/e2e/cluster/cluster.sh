#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A Kubernetes cluster on this machine, by kind:
#   cluster.sh check         can this machine run it? If not, say why and end with status 2
#   cluster.sh build         build its programs, unless they are in the cache
#   cluster.sh up            create it unless it is there; print the folder of kubectl, kind and helm
#   cluster.sh kubeconfig    print the path of its credentials
#   cluster.sh load IMAGE... copy images of the Docker engine to all nodes
#   cluster.sh down          delete the cluster, and stop the engine if `up` has started it
# Environment: E2E_CLUSTER (name), E2E_WORKERS (nodes beside the first one), E2E_NODE_IMAGE (an image of
# kind; without it one is built), E2E_CACHE (folder of everything that is built).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cluster=${E2E_CLUSTER:-cometmq-e2e}
workers=${E2E_WORKERS:-3}
cache=${E2E_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/cometmq-e2e}
# The files that decide the content of the binaries and of the node image.
hash=$(cd "$here" && cat go.mod go.sum build.sh node-image.sh node/* ./*/*.go | sha256sum | cut -c1-12)
binaries=$cache/bin-$hash
engine=$cache/dockerd.pid
export KUBECONFIG=$cache/$cluster.kubeconfig
export PATH=$binaries:$PATH

say() { echo "[$(date +%T)] $*" >&2; }
refuse() {
    echo "cluster.sh: $1; or set E2E_KUBECONFIG to the credentials of a cluster that exists" >&2
    exit 2
}

check() {
    [ "$(id -u)" -eq 0 ] || refuse "only root can run nodes in containers"
    [ "$(uname -m)" = x86_64 ] || refuse "the node image is made for x86-64 only, this is $(uname -m)"
    command -v apt-get >/dev/null || refuse "nodes are made from Debian packages, and apt-get is missing"
    unshare --mount --net --pid --fork true 2>/dev/null || refuse "this machine allows no namespaces of its own"
}

build() {
    check
    mkdir -p "$cache"
    if [ ! -x "$binaries/helm" ]; then
        say "building Kubernetes, kind and helm; the first time takes 6 to 12 minutes"
        rm -rf "$binaries.part"
        "$here/build.sh" "$binaries.part"
        mv "$binaries.part" "$binaries"
    fi
}

up() {
    build
    "$here/engine.sh" "$binaries/runcwrap" "$engine"
    image=${E2E_NODE_IMAGE:-kubebox/node:$hash}
    if [ -z "${E2E_NODE_IMAGE:-}" ] && ! docker image inspect "$image" >/dev/null 2>&1; then
        say "making the image of the nodes"
        "$here/node-image.sh" "$image" "$binaries" "$cache"
    fi
    made_of=$(docker inspect --format='{{.Config.Image}}' "$cluster-control-plane" 2>/dev/null || true)
    nodes=$(docker ps --quiet --filter "label=io.x-k8s.kind.cluster=$cluster" | wc -l)
    if [ "$made_of" = "$image" ] && [ "$nodes" -eq $((workers + 1)) ] &&
        kind export kubeconfig --name "$cluster" --quiet && ready 60; then
        say "the cluster $cluster exists already"
    else
        delete # also what a run that was killed, or a restart of this machine, has left half alive
        say "creating the cluster $cluster with $workers workers"
        {
            printf 'kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: control-plane\n'
            for _ in $(seq "$workers"); do echo '- role: worker'; done
        } | kind create cluster --name "$cluster" --image "$image" --wait 300s --config - --quiet
        ready 240 || refuse "the new cluster is not ready after 240 s"
    fi
    say "the cluster is ready: KUBECONFIG=$KUBECONFIG"
    echo "$binaries"
}

ready() { # wait SECONDS for nodes and name service; a busy API server may drop connections meanwhile
    local end=$((SECONDS + $1)) left error
    while left=$((end - SECONDS)) && [ "$left" -gt 0 ]; do
        if error=$(kubectl wait --for=condition=Ready nodes --all --timeout="${left}s" 2>&1) &&
            error=$(kubectl -n kube-system rollout status deploy/coredns --timeout="${left}s" 2>&1); then
            return
        fi
        sleep 1
    done
    say "the cluster $cluster is not ready: $error"
    return 1
}

delete() { # as kind does, but also without its binary
    docker ps --all --quiet --filter "label=io.x-k8s.kind.cluster=$cluster" |
        xargs --no-run-if-empty docker rm --force --volumes >/dev/null
}

down() {
    if docker info >/dev/null 2>&1; then
        delete
    fi
    rm -f "$KUBECONFIG"
    if [ -f "$engine" ]; then
        if [ -n "$(docker ps --quiet 2>/dev/null)" ]; then
            say "the engine stays, because other containers run"
        else
            kill "$(cat "$engine")" 2>/dev/null || true
            rm -f "$engine"
        fi
    fi
}

case ${1:-} in
check) check ;;
build) build ;;
up) up ;;
kubeconfig) echo "$KUBECONFIG" ;;
load) shift && kind load docker-image --name "$cluster" "$@" --quiet ;;
down) down ;;
*)
    sed -n '3,11s/^# //p' "$0" >&2
    exit 2
    ;;
esac
