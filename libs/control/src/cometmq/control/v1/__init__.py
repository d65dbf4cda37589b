# SPDX-License-Identifier: Apache-2.0
"""Version 1 of the protocol: control.proto, and the code generated from it (`make protos`)."""
