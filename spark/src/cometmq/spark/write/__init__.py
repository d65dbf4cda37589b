# SPDX-License-Identifier: Apache-2.0
"""Writing: the sink, and the sends of each task."""
