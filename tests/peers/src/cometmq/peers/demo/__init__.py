# SPDX-License-Identifier: Apache-2.0
"""`make demo`: sends the Python standard library line by line through a broker, and rebuilds it.

`run` has the sequence, `corpus` finds the files, `children` starts the processes, `reports` reads
the output of the consumer processes, and `rebuild` reassembles the files.
"""
