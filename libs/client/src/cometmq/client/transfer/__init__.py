# SPDX-License-Identifier: Apache-2.0
"""Single message transfers: sending to a queue with retries, and one pull from a queue."""
