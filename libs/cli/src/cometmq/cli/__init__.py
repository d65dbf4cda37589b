# SPDX-License-Identifier: Apache-2.0
"""The cometmq command."""
