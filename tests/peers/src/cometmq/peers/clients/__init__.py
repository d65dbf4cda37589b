# SPDX-License-Identifier: Apache-2.0
"""Official clients in other languages, each behind the same subcommands and JSON lines."""
