# SPDX-License-Identifier: Apache-2.0
"""Message broker."""
