# SPDX-License-Identifier: Apache-2.0
"""Messages that are delivered later: delay levels, retries, and what waits for its topic."""
