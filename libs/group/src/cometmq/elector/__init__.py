# SPDX-License-Identifier: Apache-2.0
"""The elector: ensures that one broker group has a master."""
