#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# node-image.sh NAME BINARIES WORK: make the image of kind's nodes from the folder of build.sh and a
# Debian root, which stays in WORK for the next time. Needs root, debootstrap and a Docker engine.
set -euo pipefail
name=${1:?usage: node-image.sh NAME BINARIES WORK}
binaries=$(realpath "${2:?}")
work=$(realpath -m "${3:?}")
cd "$(dirname "$0")"
repository=kubebox.local
packages=bash,ca-certificates,iptables,nftables,iproute2,containerd,runc,containernetworking-plugins,conntrack
packages+=,procps,mount,util-linux,kmod,socat
version=$("$binaries/kubebox" kubeadm version -o short)
debian=$work/debian-$(echo "$packages" | sha256sum | cut -c1-12)
export DOCKER_BUILDKIT=0
build() { # its only words on standard error recommend another builder
    docker build --quiet --network=none "$@" 2>&1 >/dev/null | sed '/^DEPRECATED\|^ \|^$/d' >&2
}

if [ ! -d "$debian" ]; then
    rm -rf "$debian.part"
    mkdir -p "$debian.part"
    if ! debootstrap --variant=minbase --include="$packages" bookworm "$debian.part" >"$work/debootstrap.log" 2>&1; then
        tail -20 "$work/debootstrap.log" >&2
        exit 1
    fi
    rm -rf "$debian.part"/var/cache/apt/archives/*.deb "$debian.part"/var/lib/apt/lists/* \
        "$debian.part"/usr/share/{doc,man,locale,info}/*
    mv "$debian.part" "$debian"
fi
scratch=$(mktemp -d "$work/build.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# ---- one image for the control plane and kube-proxy, under the names that kubeadm expects ---------
kube=$scratch/kube
libraries=/usr/lib/x86_64-linux-gnu
mkdir -p "$kube"/{usr/local/bin,usr/sbin,usr/bin,usr/lib,usr/lib64,tmp,run,etc,var/run} "$kube$libraries"
chmod 1777 "$kube/tmp"
for folder in sbin bin lib lib64; do ln -s "usr/$folder" "$kube/$folder"; done
cp "$binaries/kubebox" "$kube/usr/local/bin/"
for program in kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd coredns; do
    ln -s kubebox "$kube/usr/local/bin/$program"
done
# kube-proxy runs iptables (over nf_tables), nft and conntrack; xtables plugins have libraries of their own.
for program in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
    ln -s xtables-nft-multi "$kube/usr/sbin/$program"
done
programs=(/usr/sbin/xtables-nft-multi /usr/sbin/nft /usr/sbin/conntrack)
linked() { # every absolute path in the output of ldd
    chroot "$debian" sh -c "ldd ${programs[*]} $libraries/xtables/*.so 2>/dev/null || true" |
        sed -n 's,^\t.*=> \(/[^ ]*\).*,\1,p; s,^\t\(/[^ ]*\) .*,\1,p' | sort -u
}
for file in "${programs[@]}" $(linked); do
    place=$(dirname "$file")
    [[ $place == /lib* ]] && place=/usr$place
    mkdir -p "$kube$place"
    cp -L "$debian$file" "$kube$place/"
done
cp -r "$debian$libraries/xtables" "$kube$libraries/"
tar -C "$kube" -c . | docker import -c 'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin' - "$repository/base:$version" >/dev/null
for program in iptables nft conntrack; do # would fail here rather than in a pod that restarts forever
    docker run --rm --network=none "$repository/base:$version" "$program" --version >/dev/null
done
images=()
pause=
for image in $("$binaries/kubebox" kubeadm config images list --kubernetes-version "$version" \
    --image-repository "$repository" 2>/dev/null); do
    images+=("$image")
    case $image in
    */pause:*)
        pause=$image
        tar -C "$binaries" -c pause | docker import -c 'ENTRYPOINT ["/pause"]' - "$image" >/dev/null
        ;;
    */coredns:*)
        printf 'FROM %s/base:%s\nENTRYPOINT ["/usr/local/bin/coredns"]\n' "$repository" "$version" | build -t "$image" -
        ;;
    *) docker tag "$repository/base:$version" "$image" ;;
    esac
done

# ---- the node ------------------------------------------------------------------------------------
node=$scratch/node
mkdir -p "$node"/kind/{bin,manifests,images} "$node"/usr/local/bin "$node"/etc/containerd "$node"/etc/cni/net.d
docker save -o "$node/kind/images/kube.tar" "${images[@]}"
echo "$version" >"$node/kind/version"
cp node/default-cni.yaml node/default-storage.yaml "$node/kind/manifests/"
sed "s,@PAUSE@,$pause," node/containerd.toml >"$node/etc/containerd/config.toml"
cp node/init node/kubeadm node/crictl node/journalctl "$binaries/kubebox" "$binaries/nodeagent" "$node/usr/local/bin/"
ln -s kubebox "$node/usr/local/bin/kubelet"
ln -s kubebox "$node/usr/local/bin/kubectl"
ln -s /usr/local/bin/kubebox "$node/kind/bin/kubeadm"
root=$repository/$(basename "$debian"):root
docker image inspect "$root" >/dev/null 2>&1 || tar -C "$debian" -c . | docker import - "$root" >/dev/null
cat >"$node/Dockerfile" <<TEXT
FROM $root
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
COPY etc /etc
COPY kind /kind
COPY usr /usr
ENTRYPOINT ["/usr/local/bin/init"]
TEXT
build -t "$name" "$node"
