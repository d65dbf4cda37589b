# SPDX-License-Identifier: Apache-2.0
"""What writes the pages that are derived from the code: one module for each kind of page."""
