// SPDX-License-Identifier: Apache-2.0
//! Reads blocks of the log and of queues for pulls: by a call of Python, or from an open file whose
//! place Python has named.

use std::collections::HashMap;
use std::os::fd::RawFd;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::files::read_cached;
use crate::pull::cache::{CHECKSUM_BYTES, Part, cover, fits, parts};
use crate::pull::select::{ENTRY_BYTES, Source};

/// Number of blocks whose places are remembered: half a gigabyte of the log.
const PLACES_MAX: usize = 1 << 12;

/// The places of blocks of the log whose bytes all have checksums.
///
/// Readers at different positions load the blocks again and again. With its place, a block can be
/// read and compared with its checksums without asking Python. The owner clears the places when
/// bytes might have changed.
#[derive(Default)]
pub(crate) struct Places {
    blocks: HashMap<i64, Place>,
}

struct Place {
    /// The file; its descriptor may be closed, and is asked for at each read.
    file: Py<PyAny>,
    position: u64,
    parts: Vec<Part>,
}

impl Places {
    /// Forgets all places.
    pub(crate) fn clear(&mut self) {
        self.blocks = HashMap::new();
    }

    fn note(&mut self, start: i64, place: Place) {
        if self.blocks.len() >= PLACES_MAX {
            self.clear();
        }
        self.blocks.insert(start, place);
    }

    /// Reads a block from its place and compares it with its checksums; `None` if Python must be
    /// asked again.
    fn read(&self, py: Python<'_>, start: i64, block: &mut [u8]) -> Option<bool> {
        let place = self.blocks.get(&start)?;
        if !cover(&place.parts, block.len()) {
            return None;
        }
        let descriptor = place.file.bind(py).call_method0(pyo3::intern!(py, "descriptor")).ok()?;
        let fd: RawFd = descriptor.getattr(pyo3::intern!(py, "number")).ok()?.extract().ok()?;
        Some(read_cached(fd, place.position, block) && fits(block, 0, &place.parts))
    }
}

/// Reads by calling Python, which handles its own errors.
pub(crate) struct PythonSource<'a, 'py> {
    pub(crate) py: Python<'py>,
    pub(crate) view: &'a Bound<'py, PyAny>,
    pub(crate) queue: &'a Bound<'py, PyAny>,
    pub(crate) read_log: &'a Py<PyAny>,
    pub(crate) read_entries: &'a Py<PyAny>,
    pub(crate) places: &'a mut Places,
}

/// A place: a file, an object that keeps it open, its descriptor, a position in it, and where the
/// checksums of the block are.
type Found<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, RawFd, u64, Option<Checksums<'py>>);
/// Where checksums are: an object that keeps their file open, its descriptor, where the block
/// begins in the log, and the number of its first entry and of the one after its last.
type Checksums<'py> = (Bound<'py, PyAny>, RawFd, i64, usize, usize);

impl PythonSource<'_, '_> {
    fn copy(&self, found: &Bound<'_, PyAny>, into: &mut [u8]) -> bool {
        PyBuffer::<u8>::get(found).is_ok_and(|data| data.copy_to_slice(self.py, into).is_ok())
    }
}

impl Source for PythonSource<'_, '_> {
    fn log(&mut self, start: i64, known: usize, block: &mut [u8]) -> bool {
        if known == 0 {
            if let Some(is_read) = self.places.read(self.py, start, block) {
                return is_read;
            }
        }
        let found = self.read_log.call1(self.py, (self.view, start, known, block.len()));
        let Ok(found) = found else {
            return false;
        };
        let found = found.bind(self.py);
        let Ok(place) = found.cast::<PyTuple>() else {
            return self.copy(found, &mut block[known..]);
        };
        // `found` keeps the files open.
        let Ok((file, _open, fd, position, sealed)) = place.extract::<Found<'_>>() else {
            return false;
        };
        let parts = match sealed {
            None => vec![],
            Some((_open, fd, start, first, stop)) => {
                let Some(count) = stop.checked_sub(first) else {
                    return false;
                };
                let mut entries = vec![0; count * CHECKSUM_BYTES];
                if !read_cached(fd, (first * CHECKSUM_BYTES) as u64, &mut entries) {
                    return false;
                }
                parts(&entries, start)
            }
        };
        if !read_cached(fd, position, &mut block[known..]) || !fits(block, known, &parts) {
            return false;
        }
        if known == 0 && cover(&parts, block.len()) {
            self.places.note(start, Place { file: file.unbind(), position, parts });
        }
        true
    }

    fn entries(&mut self, _queue: usize, queue_offset: i64, into: &mut [u8]) -> bool {
        let count = into.len() / ENTRY_BYTES;
        let found = self.read_entries.call1(self.py, (self.queue, queue_offset, count));
        found.is_ok_and(|found| self.copy(found.bind(self.py), into))
    }
}
