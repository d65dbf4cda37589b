# SPDX-License-Identifier: Apache-2.0
"""Settings, logs, metrics, health checks, accounts, threads and the life cycle that all programs
share.

Import the modules by name (`cometmq.runtime.settings`), so that a command that only reads settings
does not load the metrics library.
"""
