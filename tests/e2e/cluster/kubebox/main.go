// SPDX-License-Identifier: Apache-2.0

// kubebox: every Kubernetes component of a one-machine test cluster in one
// static binary, chosen by argv[0] (through symlinks) or by the first argument.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/coredns/coredns/coremain"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	kubectlcli "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kerr "k8s.io/kubernetes/cmd/kubeadm/app/util/errors"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// CoreDNS plugins that a cluster's Corefile names (no cloud plugins).
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"

	_ "k8s.io/client-go/plugin/pkg/client/auth"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func runCobra(mk func() *cobra.Command) func() { return func() { os.Exit(cli.Run(mk())) } }

func main() {
	applets := map[string]func(){
		"kube-apiserver":          runCobra(apiserver.NewAPIServerCommand),
		"kube-controller-manager": runCobra(kcm.NewControllerManagerCommand),
		"kube-scheduler":          runCobra(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
		"kube-proxy":              runCobra(proxy.NewProxyCommand),
		"kubeadm":                 func() { kerr.HandleError(kubeadm.Run()) },
		"kubectl": func() {
			logs.GlogSetter(kubectlcli.GetLogVerbosity(os.Args))
			if err := cli.RunNoErrOutput(kubectlcli.NewDefaultKubectlCommand()); err != nil {
				util.CheckErr(err)
			}
		},
		"etcd":    func() { etcdmain.Main(os.Args) },
		"coredns": coremain.Run,
		"kubelet": func() { os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background()))) },
	}

	name := filepath.Base(os.Args[0])
	if _, ok := applets[name]; !ok && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		name = filepath.Base(os.Args[0])
	}
	run, ok := applets[name]
	if !ok {
		names := make([]string, 0, len(applets))
		for n := range applets {
			names = append(names, n)
		}
		sort.Strings(names)
		fmt.Fprintln(os.Stderr, "applets:", strings.Join(names, " "))
		os.Exit(2)
	}
	run()
}
