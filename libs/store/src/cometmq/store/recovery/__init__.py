# SPDX-License-Identifier: Apache-2.0
"""The checks and repairs of a store at startup."""
