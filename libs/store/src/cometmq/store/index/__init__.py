# SPDX-License-Identifier: Apache-2.0
"""The hash index, which finds messages by key."""
