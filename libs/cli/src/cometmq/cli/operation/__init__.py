# SPDX-License-Identifier: Apache-2.0
"""Commands that examine a cluster, or measure it."""
