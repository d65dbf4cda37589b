# SPDX-License-Identifier: Apache-2.0
from collections import Counter

from macro.perf import count_samples

SCRIPT = """
 100/100
\tffffffff81000001 tcp_sendmsg_locked ([kernel.kallsyms])
\tffffffff81000002 __sys_sendto ([kernel.kallsyms])
\tffffffff81000003 __x64_sys_sendto ([kernel.kallsyms])
\tffffffff81000004 do_syscall_64 ([kernel.kallsyms])
\tffffffff81000005 entry_SYSCALL_64_after_hwframe ([kernel.kallsyms])
\t           fd104 send (/usr/lib/x86_64-linux-gnu/libc.so.6)

 100/100
\t           14be70 _PyEval_EvalFrameDefault (/usr/lib/libpython3.11.so.1.0)

 100/101
\tffffffff81000001 ext4_file_write_iter ([kernel.kallsyms])
\tffffffff81000002 ksys_pwrite64 ([kernel.kallsyms])
\tffffffff81000004 do_syscall_64 ([kernel.kallsyms])

 100/100
\tffffffff81000001 clear_page ([kernel.kallsyms])
\tffffffff81000002 asm_exc_page_fault ([kernel.kallsyms])
\t           14be70 memcpy (/usr/lib/x86_64-linux-gnu/libc.so.6)

 100/100
\tffffffff81000001 net_rx_action ([kernel.kallsyms])
\tffffffff81000002 asm_common_interrupt ([kernel.kallsyms])

 100/100
\t           1 cometmq_accel::stage (/x/site-packages/cometmq/accel/_native.abi3.so)

 100/100
\t           2 uv__io_poll (/x/site-packages/uvloop/loop.cpython-311-x86_64-linux-gnu.so)

 100/100
\t           3 [unknown] (/usr/lib/libz.so.1)
"""


def test_samples_are_counted_by_part():
    assert count_samples(SCRIPT) == Counter(
        {
            "kernel: sendto": 1,
            "Python interpreter": 1,
            "threads: kernel: pwrite64": 1,
            "kernel: page faults": 1,
            "kernel: interrupts": 1,
            "cometmq-accel": 1,
            "uvloop": 1,
            "libz.so.1": 1,
        }
    )


def test_an_empty_recording_has_no_samples():
    assert count_samples("") == Counter()
