# SPDX-License-Identifier: Apache-2.0
"""Connected producers and consumers, and the queue locks of orderly consumers."""
