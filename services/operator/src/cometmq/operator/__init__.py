# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes operator: BrokerGroup objects become broker groups that fail over."""
