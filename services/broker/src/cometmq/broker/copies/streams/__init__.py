# SPDX-License-Identifier: Apache-2.0
"""The log on its way to and from other brokers."""
