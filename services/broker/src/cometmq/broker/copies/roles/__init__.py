# SPDX-License-Identifier: Apache-2.0
"""The roles of a member of a broker group, and what each of them does in its broker."""
