# SPDX-License-Identifier: Apache-2.0
"""Reads messages and tables: planning on the driver, and the work of each task."""
