#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# k8s.io/apimachinery 0.34.4 and CPython. The times of a Lease (acquireTime, renewTime) are a
# MicroTime, whose decoder demands six digits after the second. Python's isoformat() writes them
# too, except on a whole second, where it leaves them out: one renewal of a million is refused. The
# sibling type Time reads both forms.
. "$(dirname "$0")/common.sh"
cat >go.mod <<'GO'
module finding

go 1.24

require k8s.io/apimachinery v0.34.4
GO
cat >main.go <<'GO'
package main

import (
	"encoding/json"
	"fmt"
	"os"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func main() {
	var micro meta.MicroTime
	var plain meta.Time
	text, _ := json.Marshal(os.Args[1])
	fmt.Println("MicroTime", json.Unmarshal(text, &micro) == nil, "Time", json.Unmarshal(text, &plain) == nil)
}
GO
GOFLAGS=-mod=mod go build -o read . 2>log
iso() { python3 -c "from datetime import UTC, datetime; print(datetime(2026, 1, 2, 3, 4, 5, $1, UTC).isoformat())"; }
expect "$(iso 123000)" "MicroTime true Time true" "$(./read "$(iso 123000)")"
expect "$(iso 0)" "MicroTime false Time true" "$(./read "$(iso 0)")"
