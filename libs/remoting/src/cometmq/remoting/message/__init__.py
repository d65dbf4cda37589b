# SPDX-License-Identifier: Apache-2.0
"""Messages as bytes: stored records, batches, properties, ids, compression."""
