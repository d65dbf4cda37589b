# SPDX-License-Identifier: Apache-2.0
"""`cometmq mcp`: what operators see and do, as tools of the Model Context Protocol."""
