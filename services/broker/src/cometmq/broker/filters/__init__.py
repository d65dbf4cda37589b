# SPDX-License-Identifier: Apache-2.0
"""Server-side filters of messages."""
