# SPDX-License-Identifier: Apache-2.0
"""One CometMQ broker as a process: start it, kill it, query it, read its files and metrics."""
