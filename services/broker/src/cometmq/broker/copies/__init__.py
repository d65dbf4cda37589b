# SPDX-License-Identifier: Apache-2.0
"""Replication: roles in a broker group, streams of the log, copies of tables, the gate of
requests.
"""
