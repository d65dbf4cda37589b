# SPDX-License-Identifier: Apache-2.0
"""The native message path: `cometmq-accel` serves plain sends and pulls; handlers serve all other
requests.
"""
