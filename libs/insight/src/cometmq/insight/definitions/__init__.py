# SPDX-License-Identifier: Apache-2.0
"""The definitions of a cluster as one file: topics, groups and rights; what an import would do."""
