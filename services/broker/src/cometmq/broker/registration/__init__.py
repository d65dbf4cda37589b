# SPDX-License-Identifier: Apache-2.0
"""The broker's addresses and identity, and its registrations with name servers."""
