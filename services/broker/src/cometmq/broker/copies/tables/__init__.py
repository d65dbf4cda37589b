# SPDX-License-Identifier: Apache-2.0
"""Topics, groups, offsets and filters on their way to and from other brokers."""
