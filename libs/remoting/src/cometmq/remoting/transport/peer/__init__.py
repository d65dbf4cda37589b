# SPDX-License-Identifier: Apache-2.0
"""The parts of one connection: what it reads, serves, writes and asks."""
