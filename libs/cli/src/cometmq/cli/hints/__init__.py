# SPDX-License-Identifier: Apache-2.0
"""What the command line proposes: words to a shell, and the name that was meant."""
