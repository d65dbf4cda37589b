# SPDX-License-Identifier: Apache-2.0
"""Many broker groups on one machine: an operator as a process, and nodes that run real brokers.

A node is a process that runs the brokers of many pods, because a machine for tests cannot hold a
container for each of them. `cluster` gives each pod an address, `operator` and `node` are programs,
and `processes` starts them and reads what they cost.
"""
