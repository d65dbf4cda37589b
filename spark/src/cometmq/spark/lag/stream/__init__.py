# SPDX-License-Identifier: Apache-2.0
"""The streaming job: windows of snapshots, and damped status changes."""
