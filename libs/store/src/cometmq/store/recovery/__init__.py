# SPDX-License-Identifier: Apache-2.0
"""What the store trusts at startup, and how it repairs the rest."""
