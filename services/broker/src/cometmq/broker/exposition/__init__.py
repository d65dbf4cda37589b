# SPDX-License-Identifier: Apache-2.0
"""The broker's HTTP port: its metric families, also under RocketMQ's names, and its other pages."""
