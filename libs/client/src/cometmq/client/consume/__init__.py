# SPDX-License-Identifier: Apache-2.0
"""Consumers: push, lite pull and pull, and their membership in a consumer group."""
