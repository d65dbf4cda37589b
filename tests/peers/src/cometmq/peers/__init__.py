# SPDX-License-Identifier: Apache-2.0
"""Runs real third-party servers and clients as context managers, for tests and benchmarks.

Modules: `java` and `comet` run clusters behind one interface (`cluster`); `javaclient`,
`nodeclient` and `cppclient` run official clients as programs that print JSON lines.
"""
