# SPDX-License-Identifier: Apache-2.0
"""The control API of a broker group's members: status and orders over gRPC.

Import the modules by name. Only `server`, `client` and `credentials` import grpc, which takes
0.15 s and 4 MB, so a program imports them only if it uses the control API.
"""
