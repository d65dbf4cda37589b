# SPDX-License-Identifier: Apache-2.0
"""The state of a cluster in one model, for the console and the command line.

Import from the modules: a command that shows one figure must not load all rules.
"""
