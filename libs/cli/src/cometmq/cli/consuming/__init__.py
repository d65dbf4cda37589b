# SPDX-License-Identifier: Apache-2.0
"""Commands about consumer groups: reading messages, and offsets, lag and moves of groups."""
