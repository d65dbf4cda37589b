# SPDX-License-Identifier: Apache-2.0
"""The streams that carry the log to slaves and followers, and from the master."""
