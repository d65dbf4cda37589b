# SPDX-License-Identifier: Apache-2.0
"""The state of a cluster in one model, for the console and the command line.

This package imports nothing, so that a command which shows one figure does not load all rules.
"""
