# SPDX-License-Identifier: Apache-2.0
"""Reading: planning on the driver, and the work of each task."""
