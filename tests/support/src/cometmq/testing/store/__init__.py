# SPDX-License-Identifier: Apache-2.0
"""An in-memory disk that can crash or fail, and message builders, for tests that use a store."""
