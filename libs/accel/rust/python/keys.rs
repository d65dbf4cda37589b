// SPDX-License-Identifier: Apache-2.0
//! The class `LaneKeys`: index keys with the interface of `cometmq.store.index.index_format.Keys`.

use std::cell::Cell;

use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::commit::Keys;
use crate::index::Slots;
use crate::properties::{index_hash_text, java_hash, java_hash_text};

/// From this number on, the keys are added to the files, and not merged with newer ones.
const MERGED_COUNT: usize = 256;

#[pyclass(module = "cometmq.accel")]
pub(crate) struct LaneKeys {
    pub(crate) keys: Keys,
}

#[pymethods]
impl LaneKeys {
    #[getter]
    fn count(&self) -> usize {
        self.keys.hashes.len()
    }

    fn offset(&self, index: usize) -> PyResult<i64> {
        let offset = self.keys.offsets.get(index).copied();
        offset.ok_or_else(|| PyIndexError::new_err("no such key"))
    }

    fn timestamp(&self, index: usize) -> PyResult<i64> {
        self.keys.timestamp(index).ok_or_else(|| PyIndexError::new_err("no such key"))
    }

    fn find(&self, topic: &str, key: &str) -> Vec<i64> {
        let hash = index_hash_text(java_hash(java_hash_text(0, topic), b"#"), key);
        let rows = self.keys.hashes.iter().zip(&self.keys.offsets).rev();
        rows.filter(|(one, _)| **one == hash).map(|(_, offset)| *offset).collect()
    }

    fn absorb(&mut self, newer: &Bound<'_, PyAny>) -> bool {
        let Ok(newer) = newer.cast::<Self>() else {
            return false;
        };
        match newer.try_borrow() {
            Ok(newer) if self.keys.hashes.len() < MERGED_COUNT => {
                self.keys.append(&newer.keys);
                true
            }
            _ => false,
        }
    }

    #[allow(clippy::too_many_arguments)] // once per commit: an object for them costs time
    fn link<'py>(
        &self,
        py: Python<'py>,
        start: usize,
        count: usize,
        slots: &Bound<'py, PyAny>,
        dirty: &Bound<'py, PyAny>,
        page_slots: usize,
        number: i32,
        begin_ms: i64,
    ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        let (slots, dirty) = (PyBuffer::<i32>::get(slots)?, PyBuffer::<u8>::get(dirty)?);
        let slots = Slots {
            newest: cells(py, &slots)?,
            dirty: cells(py, &dirty)?,
            page_slots: page_slots.max(1),
        };
        let (end, size) = start
            .checked_add(count)
            .zip(count.checked_mul(20))
            .ok_or_else(|| PyValueError::new_err("too many keys"))?;
        let mut used = None;
        let entries = PyBytes::new_with(py, size, |out| {
            used = self.keys.link(start..end, &slots, number, begin_ms, out);
            Ok(())
        })?;
        let used = used.ok_or_else(|| PyValueError::new_err("keys that the slots cannot hold"))?;
        Ok((entries, used))
    }
}

/// Returns the memory of a writable buffer.
#[allow(unsafe_code)]
fn cells<'a, T: Element>(_py: Python<'a>, buffer: &'a PyBuffer<T>) -> PyResult<&'a [Cell<T>]> {
    let items = buffer.as_slice_ptr().filter(|_| !buffer.readonly());
    let items = items.ok_or_else(|| PyValueError::new_err("needs writable, contiguous memory"))?;
    // SAFETY: the exporter keeps the memory in place and alive while `buffer` exists, and the
    // pointer has the length, alignment and type that `PyBuffer` has verified. Every bit pattern
    // is a valid integer. Other objects may share the memory, so it is accessed as cells, which
    // are read and written one at a time on this thread. The thread holds the interpreter lock for
    // `'a` (the stable ABI that this crate is built for has no other threading), and no Python
    // code runs between taking the slice and leaving the caller.
    Ok(unsafe { &*(items.as_ptr() as *const [Cell<T>]) })
}
