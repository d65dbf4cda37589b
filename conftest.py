# SPDX-License-Identifier: Apache-2.0
"""What holds for every test of the workspace."""

import signal

# A shell that runs the tests in the background has them ignore SIGINT, and whatever programs
# they start with them; tests that interrupt a program need the ordinary behaviour.
signal.signal(signal.SIGINT, signal.default_int_handler)
