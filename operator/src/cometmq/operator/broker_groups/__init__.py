# SPDX-License-Identifier: Apache-2.0
"""Broker groups that are declared as Kubernetes objects: decisions, passes, calls to brokers."""
