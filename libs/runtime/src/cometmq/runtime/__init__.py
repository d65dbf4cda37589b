# SPDX-License-Identifier: Apache-2.0
"""Settings, logs, metrics, health and life cycle of all programs.

The modules are imported by name (`cometmq.runtime.settings` ...): a command that only reads
settings does not load the metrics library.
"""
