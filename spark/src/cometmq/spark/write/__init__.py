# SPDX-License-Identifier: Apache-2.0
"""Writes messages: the sink, and the sends of each task."""
