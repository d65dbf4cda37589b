# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for tests, also of the programs that use this package."""
