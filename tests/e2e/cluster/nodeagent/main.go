// SPDX-License-Identifier: Apache-2.0

// nodeagent runs once on every node and does what a CNI daemon and a
// local-path provisioner would do in a test cluster:
//   - writes the CNI configuration for the node's own pod range,
//   - keeps a route to the pod range of every other node,
//   - masquerades pod traffic to the container network, and refuses pod traffic
//     to anywhere beyond it (a test cluster talks to nobody else),
//   - relays DNS from pods to the container engine's resolver,
//   - makes a directory and a node-bound PersistentVolume for each claim of its
//     storage class that the scheduler placed on this node, and removes both
//     when the claim is gone.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	provisioner   = "kubebox.local/path"
	selectedNode  = "volume.kubernetes.io/selected-node"
	provisionedBy = "pv.kubernetes.io/provisioned-by"
	volumeRoot    = "/var/local/kubebox-volumes"
	cniFile       = "/etc/cni/net.d/10-kubebox.conflist"
)

func env(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

var (
	kubeconfig = env("AGENT_KUBECONFIG", "/etc/kubernetes/kubelet.conf")
	node       = env("AGENT_NODE", hostname())
	resolver   = env("AGENT_RESOLVER", "127.0.0.11:53")
	lastLog    string
)

func hostname() string { h, _ := os.Hostname(); return h }

func say(format string, a ...any) { // each new condition once, not every second
	if s := fmt.Sprintf(format, a...); s != lastLog {
		lastLog = s
		log.Print(s)
	}
}

func sh(argv ...string) error {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return nil
}

func main() {
	log.SetPrefix("nodeagent: ")
	// on the one address, so that answers carry it as their source
	addr := net.JoinHostPort(address("eth0"), "53")
	go relayUDP(addr)
	go relayTCP(addr)
	for {
		if cs, err := connect(); err == nil {
			for {
				if err := step(context.Background(), cs); err != nil {
					say("%v", err)
					if apierrors.IsUnauthorized(err) {
						break // the kubelet rotated its certificate: read it again
					}
				}
				time.Sleep(500 * time.Millisecond)
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func connect() (*kubernetes.Clientset, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.Timeout = 5 * time.Second
	return kubernetes.NewForConfig(rest.AddUserAgent(cfg, "nodeagent"))
}

func step(ctx context.Context, cs *kubernetes.Clientset) error {
	opts := metav1.ListOptions{ResourceVersion: "0"} // from the watch cache: cheap
	nodes, err := cs.CoreV1().Nodes().List(ctx, opts)
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		if err := network(&nodes.Items[i]); err != nil {
			return err
		}
	}
	pvcs, err := cs.CoreV1().PersistentVolumeClaims("").List(ctx, opts)
	if err != nil {
		return err
	}
	for i := range pvcs.Items {
		if err := provision(ctx, cs, &pvcs.Items[i]); err != nil {
			return err
		}
	}
	pvs, err := cs.CoreV1().PersistentVolumes().List(ctx, opts)
	if err != nil {
		return err
	}
	for i := range pvs.Items {
		if err := reclaim(ctx, cs, &pvs.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

var done = map[string]string{} // node name -> what was applied for it

func network(n *corev1.Node) error {
	cidr := n.Spec.PodCIDR
	ip := ""
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && !strings.Contains(a.Address, ":") {
			ip = a.Address
		}
	}
	if cidr == "" || ip == "" || done[n.Name] == cidr+ip {
		return nil
	}
	if n.Name != node {
		if err := sh("ip", "route", "replace", cidr, "via", ip); err != nil {
			return err
		}
		done[n.Name] = cidr + ip
		log.Printf("route to %s: %s via %s", n.Name, cidr, ip)
		return nil
	}
	if err := firewall(); err != nil {
		return err
	}
	conf := fmt.Sprintf(`{"cniVersion":"0.4.0","name":"kubebox","plugins":[
 {"type":"ptp","ipMasq":false,"mtu":1500,"ipam":{"type":"host-local","dataDir":"/run/cni-ipam",
  "ranges":[[{"subnet":%q}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
`, cidr)
	if err := os.MkdirAll(filepath.Dir(cniFile), 0o755); err != nil {
		return err
	}
	tmp := cniFile + ".tmp"
	if err := os.WriteFile(tmp, []byte(conf), 0o644); err != nil {
		return err
	}
	if err := os.Rename(tmp, cniFile); err != nil {
		return err
	}
	done[n.Name] = cidr + ip
	log.Printf("own pod range %s", cidr)
	return nil
}

// subnet reads a range out of the configuration that kind wrote for kubeadm.
func subnet(key, fallback string) string {
	raw, _ := os.ReadFile("/kind/kubeadm.conf")
	m := regexp.MustCompile(`(?m)^\s*` + key + `:\s*"?([0-9./]+)`).FindSubmatch(raw)
	if m == nil {
		return fallback
	}
	return string(m[1])
}

func firewall() error {
	pods, services := subnet("podSubnet", "10.244.0.0/16"), subnet("serviceSubnet", "10.96.0.0/16")
	out, err := exec.Command("ip", "-4", "route", "show", "dev", "eth0", "proto", "kernel").Output()
	if err != nil || len(strings.Fields(string(out))) == 0 {
		return fmt.Errorf("no route on eth0: %v", err)
	}
	nodes := strings.Fields(string(out))[0]
	for _, r := range []string{
		"nat POSTROUTING -s " + pods + " ! -d " + pods + " -m addrtype ! --dst-type LOCAL -j MASQUERADE",
		"filter FORWARD -d " + services + " -j REJECT", // a service that kube-proxy has no rule for
		"filter OUTPUT -d " + services + " -j REJECT",
		"filter FORWARD -s " + pods + " -d " + pods + " -j ACCEPT",
		"filter FORWARD -s " + pods + " -d " + nodes + " -j ACCEPT",
		"filter FORWARD -s " + pods + " -o eth0 -j REJECT",
	} {
		f := strings.Fields(r)
		if sh(append([]string{"iptables", "-w", "-t", f[0], "-C"}, f[1:]...)...) == nil {
			continue
		}
		if err := sh(append([]string{"iptables", "-w", "-t", f[0], "-A"}, f[1:]...)...); err != nil {
			return err
		}
	}
	return nil
}

func address(dev string) string {
	if i, err := net.InterfaceByName(dev); err == nil {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
				return n.IP.String()
			}
		}
	}
	return "127.0.0.1"
}

func relayUDP(addr string) {
	pc, err := net.ListenPacket("udp4", addr)
	if err != nil {
		log.Fatal(err)
	}
	for {
		buf := make([]byte, 4096)
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			continue
		}
		go func() {
			up, err := net.Dial("udp4", resolver)
			if err != nil {
				return
			}
			defer up.Close()
			up.SetDeadline(time.Now().Add(3 * time.Second))
			up.Write(buf[:n])
			answer := make([]byte, 4096)
			if m, err := up.Read(answer); err == nil {
				pc.WriteTo(answer[:m], from)
			}
		}()
	}
}

func relayTCP(addr string) {
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		log.Fatal(err)
	}
	for {
		c, err := l.Accept()
		if err != nil {
			continue
		}
		go func() {
			defer c.Close()
			up, err := net.DialTimeout("tcp4", resolver, 3*time.Second)
			if err != nil {
				return
			}
			defer up.Close()
			go io.Copy(up, c)
			io.Copy(c, up)
		}()
	}
}

func provision(ctx context.Context, cs *kubernetes.Clientset, c *corev1.PersistentVolumeClaim) error {
	if c.Status.Phase != corev1.ClaimPending || c.Spec.VolumeName != "" ||
		c.Annotations["volume.kubernetes.io/storage-provisioner"] != provisioner ||
		c.Annotations[selectedNode] != node || c.DeletionTimestamp != nil {
		return nil
	}
	name := "pvc-" + string(c.UID)
	dir := filepath.Join(volumeRoot, name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o777); err != nil { // any user of the pod may write
		return err
	}
	mode := corev1.PersistentVolumeFilesystem
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   c.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              *c.Spec.StorageClassName,
			VolumeMode:                    &mode,
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1",
				Namespace: c.Namespace, Name: c.Name, UID: c.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}},
		},
	}
	_, err := cs.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if err == nil {
		log.Printf("volume %s for %s/%s", name, c.Namespace, c.Name)
	} else if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return err
}

func reclaim(ctx context.Context, cs *kubernetes.Clientset, pv *corev1.PersistentVolume) error {
	if pv.Annotations[provisionedBy] != provisioner || pv.Status.Phase != corev1.VolumeReleased ||
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete ||
		pv.Spec.Local == nil || filepath.Dir(pv.Spec.Local.Path) != volumeRoot {
		return nil
	}
	if pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != node {
		return nil
	}
	if err := os.RemoveAll(pv.Spec.Local.Path); err != nil {
		return err
	}
	err := cs.CoreV1().PersistentVolumes().Delete(ctx, pv.Name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
