# SPDX-License-Identifier: Apache-2.0
"""Messages that are delivered later: delay levels, timed messages, retries, recalls, parking."""
