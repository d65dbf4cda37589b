# SPDX-License-Identifier: Apache-2.0
"""Name server: the route table."""
