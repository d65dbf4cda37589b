# SPDX-License-Identifier: Apache-2.0
"""How much memory, output and time a connection may use, and who waits meanwhile."""
