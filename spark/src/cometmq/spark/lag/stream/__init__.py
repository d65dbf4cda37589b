# SPDX-License-Identifier: Apache-2.0
"""The streaming job: windows over snapshots, and damped status changes."""
