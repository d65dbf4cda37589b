// SPDX-License-Identifier: Apache-2.0
//! Reads files that Python has opened.

use std::io::IoSliceMut;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// Fills a buffer from a file if the page cache has all the bytes; never blocks. The descriptor must
/// stay open during the call.
#[allow(unsafe_code)]
pub(crate) fn read_cached(fd: RawFd, position: u64, into: &mut [u8]) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: the number is not -1, and the caller keeps the descriptor open. If it did not, the
    // system call would fail or read another file, but never write beyond the given slice.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let count = into.len();
    loop {
        let parts = &mut [IoSliceMut::new(into)];
        match preadv2(file, parts, position, ReadWriteFlags::NOWAIT) {
            Err(Errno::INTR) => {}
            result => return result == Ok(count),
        }
    }
}
