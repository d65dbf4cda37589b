# SPDX-License-Identifier: Apache-2.0
"""Settings, logs, metrics, health checks and life cycle of all programs.

Import the modules by name (`cometmq.runtime.settings`): a command that only reads settings then
does not load the metrics library.
"""
