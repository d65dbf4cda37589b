# SPDX-License-Identifier: Apache-2.0
"""One CometMQ broker as a process that tests start, kill and query, and whose files they read."""
