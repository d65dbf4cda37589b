// SPDX-License-Identifier: Apache-2.0
//! Hints to the processor to bring bytes into its cache.

/// Size of a cache line of the usual processors.
const LINE_BYTES: usize = 64;
/// Maximum number of lines to prefetch; the processor itself prefetches the rest of longer slices.
const LINES_MAX: usize = 8;

/// Begins to bring the first bytes of a slice into the cache; does not wait for them.
#[inline]
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
pub fn prefetch(data: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in data.chunks(LINE_BYTES).take(LINES_MAX) {
        // SAFETY: every x86-64 processor has the instruction. It reads from a valid slice, and
        // changes neither memory nor registers; with any address, it would not fail either.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// Does nothing: other processors have other instructions.
#[cfg(not(target_arch = "x86_64"))]
pub fn prefetch(_data: &[u8]) {}
