# SPDX-License-Identifier: Apache-2.0
"""The exporter: statistics that only clients have, as metrics."""
