#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kopf 1.45.2 beside kubernetes 34.1.0. `import kopf` also imports the official clients if they are
# installed, though an operator never mentions them: more than twice the modules. Installing a tool
# that depends on such a client into the same image makes the operator larger and slower to start,
# and adds a login of its own.
. "$(dirname "$0")/common.sh"
python_packages kopf==1.45.2
count() { venv/bin/python -c 'import sys, kopf; print(len(sys.modules), "kubernetes" in sys.modules)'; }
read -r alone has_client <<<"$(count)"
expect "kubernetes imported when absent" False "$has_client"
venv/bin/pip install --quiet --disable-pip-version-check kubernetes==34.1.0
read -r beside has_client <<<"$(count)"
expect "kubernetes imported when installed" True "$has_client"
expect "more than twice the modules" yes "$([ "$beside" -gt $((2 * alone)) ] && echo yes || echo "no: $alone, $beside")"
