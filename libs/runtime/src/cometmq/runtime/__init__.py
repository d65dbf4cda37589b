# SPDX-License-Identifier: Apache-2.0
"""Settings, logs, metrics, health and life cycle of all programs."""
