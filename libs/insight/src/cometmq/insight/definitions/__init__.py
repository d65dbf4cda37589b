# SPDX-License-Identifier: Apache-2.0
"""Definitions, which are topics, groups and rights of a cluster as one file: export and import.
Also the settings of brokers.
"""
