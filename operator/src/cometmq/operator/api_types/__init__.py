# SPDX-License-Identifier: Apache-2.0
"""The types of the API cometmq.io/v1alpha1: specs, statuses, and CustomResourceDefinitions."""
