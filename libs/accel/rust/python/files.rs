// SPDX-License-Identifier: Apache-2.0
//! Reads files that Python has opened, and writes and syncs many files without the interpreter lock.

use std::io::IoSliceMut;
use std::os::fd::{BorrowedFd, RawFd};

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use rustix::fs::fdatasync;
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwrite, retry_on_intr};

/// Fills a buffer from a file if the page cache has all the bytes; never blocks. The descriptor must
/// stay open during the call.
pub(crate) fn read_cached(fd: RawFd, position: u64, into: &mut [u8]) -> bool {
    let count = into.len();
    let read =
        || preadv2(borrowed(fd)?, &mut [IoSliceMut::new(into)], position, ReadWriteFlags::NOWAIT);
    retry_on_intr(read) == Ok(count)
}

#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // the interface of pyo3
pub(crate) fn write_files(
    py: Python<'_>,
    pieces: Vec<(RawFd, u64, PyBackedBytes)>,
) -> Option<(usize, i32)> {
    py.detach(|| {
        first_failure(&pieces, |(fd, offset, data)| {
            let (mut offset, mut rest) = (*offset, &**data);
            while !rest.is_empty() {
                let count = retry_on_intr(|| pwrite(borrowed(*fd)?, rest, offset))?;
                if count == 0 {
                    return Err(Errno::IO); // no file system does this, and it must not go on
                }
                offset += count as u64;
                rest = &rest[count..];
            }
            Ok(())
        })
    })
}

#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn sync_files(py: Python<'_>, fds: Vec<RawFd>) -> Option<(usize, i32)> {
    py.detach(|| first_failure(&fds, |fd| retry_on_intr(|| fdatasync(borrowed(*fd)?))))
}

fn first_failure<T>(items: &[T], step: impl Fn(&T) -> Result<(), Errno>) -> Option<(usize, i32)> {
    let failure = |(index, item)| Some((index, step(item).err()?.raw_os_error()));
    items.iter().enumerate().find_map(failure)
}

#[allow(unsafe_code)]
pub(crate) fn borrowed<'fd>(fd: RawFd) -> Result<BorrowedFd<'fd>, Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is not -1, and the callers' objects (`cometmq.store.disk.Descriptor`) keep
    // the descriptor open. If they did not, the system call would fail or use another file, but
    // never touch memory beyond the given slice.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}
