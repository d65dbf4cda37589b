# SPDX-License-Identifier: Apache-2.0
"""Server-side message filters."""
