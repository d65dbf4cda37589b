# SPDX-License-Identifier: Apache-2.0
"""What a start trusts, and how it repairs the rest."""
