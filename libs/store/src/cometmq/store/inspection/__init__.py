# SPDX-License-Identifier: Apache-2.0
"""Look into the folder of a store without a broker, and verify it."""
