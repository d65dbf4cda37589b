# SPDX-License-Identifier: Apache-2.0
"""Consumers (push, lite pull, pull) and their membership in a consumer group."""
