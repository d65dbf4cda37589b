// SPDX-License-Identifier: Apache-2.0

// runcwrap is an OCI runtime for machines whose root lacks some capabilities:
// it takes out of the container's request those that this process could never
// hand on (so that --privileged means "everything there is"), then runs runc.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// capability names in the kernel's order (bit 0 first)
var capNames = strings.Fields(`CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP
LINUX_IMMUTABLE NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO
SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE
AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON
BPF CHECKPOINT_RESTORE`)

func have() map[string]bool {
	m := map[string]bool{}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return m
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), "CapBnd:"); ok {
			bits, _ := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			for i, n := range capNames {
				m["CAP_"+n] = bits>>i&1 == 1
			}
		}
	}
	return m
}

func trim(file string, process func(map[string]any) map[string]any) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var doc map[string]any
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&doc); err != nil {
		return err
	}
	proc := process(doc)
	caps, _ := proc["capabilities"].(map[string]any)
	if caps == nil {
		return nil
	}
	ok := have()
	for set, v := range caps {
		list, _ := v.([]any)
		kept := []any{}
		for _, c := range list {
			if s, _ := c.(string); ok[s] {
				kept = append(kept, c)
			}
		}
		caps[set] = kept
	}
	out, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	return os.WriteFile(file, out, 0o600)
}

func option(args []string, names ...string) string {
	for i, a := range args {
		for _, n := range names {
			if a == n && i+1 < len(args) {
				return args[i+1]
			}
			if v, ok := strings.CutPrefix(a, n+"="); ok {
				return v
			}
		}
	}
	return ""
}

func main() {
	for _, a := range os.Args[1:] {
		var err error
		switch a {
		case "create", "run":
			dir := option(os.Args, "--bundle", "-b")
			err = trim(filepath.Join(dir, "config.json"), func(d map[string]any) map[string]any {
				p, _ := d["process"].(map[string]any)
				return p
			})
		case "exec":
			if f := option(os.Args, "--process", "-p"); f != "" {
				err = trim(f, func(d map[string]any) map[string]any { return d })
			}
		default:
			continue
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "runcwrap:", err)
			os.Exit(1)
		}
		break
	}
	runc := os.Getenv("RUNC")
	if runc == "" {
		runc = "/usr/sbin/runc"
	}
	err := syscall.Exec(runc, append([]string{"runc"}, os.Args[1:]...), os.Environ())
	fmt.Fprintln(os.Stderr, "runcwrap:", err)
	os.Exit(1)
}
