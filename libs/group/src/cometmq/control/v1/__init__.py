# SPDX-License-Identifier: Apache-2.0
"""Version 1 of the protocol: its files and the code generated from one (`make protos`)."""
