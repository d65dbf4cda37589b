# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes operator: turns BrokerGroup objects into broker groups that fail over."""
