# SPDX-License-Identifier: Apache-2.0
"""Connected producers and consumers: groups, subscriptions, queue locks, and notices to them."""
