# SPDX-License-Identifier: Apache-2.0
"""One CometMQ broker as a process: start and kill it, ask it, read its files and metrics."""
