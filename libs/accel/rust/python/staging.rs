// SPDX-License-Identifier: Apache-2.0
//! Stages the sends that sockets receive.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::send_lane::SendLane;

/// The value of a connection's attribute `habit` if its last chunk contained only sends.
pub(crate) const SENDS: i64 = 1;

/// Size of the sends of one call, plus `KEY_BYTES` for each key, after which the other chunks are
/// left to Python: twice the bytes that one call reads, because most messages have a key or two.
const STAGED_BYTES_MAX: usize = 8 << 20;

/// The arguments for staging sends: the lane, the time for the ends of transactions, and the
/// maximum number of requests in a chunk.
pub(crate) type Sending<'py> = (PyRefMut<'py, SendLane>, Option<i64>, usize);

/// The result of staging sends: the connections with their chunks, the number of requests, the
/// bytes of their bodies and properties, the number of answers to each chunk, and the error, if
/// any.
pub(crate) type StagedRows<'py> = (Bound<'py, PyList>, usize, usize, Vec<usize>, Option<PyErr>);

/// One call that stages chunks of sends.
pub(crate) struct Staging<'py> {
    sending: Sending<'py>,
    rows: Vec<(Bound<'py, PyAny>, Bound<'py, PyBytes>)>,
}

impl<'py> Staging<'py> {
    pub(crate) fn new(sending: Sending<'py>) -> Self {
        Self { sending, rows: vec![] }
    }

    /// Keeps a chunk of a connection that usually sends, until `finish`.
    pub(crate) fn keep(&mut self, peer: &Bound<'py, PyAny>, data: Bound<'py, PyBytes>) {
        self.rows.push((peer.clone(), data));
    }

    /// Whether no chunk is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Stages the chunks that contain only plain sends, and adds the others to `left`. Returns what
    /// is staged; `None` if nothing is. A bug leaves its chunk and all later ones to Python.
    pub(crate) fn finish(
        self,
        py: Python<'py>,
        left: &Bound<'py, PyList>,
    ) -> PyResult<Option<StagedRows<'py>>> {
        let Self { sending: (mut lane, now_ms, count_max), rows } = self;
        let (staged, mut answer_counts) = (PyList::empty(py), Vec::with_capacity(rows.len()));
        let (mut count, mut bytes, mut fault) = (0, 0, None);
        for row in rows {
            let first = lane.staged_count();
            let found = if fault.is_some() || bytes > STAGED_BYTES_MAX {
                None
            } else {
                let stage = || lane.stage_whole(&row.0, &row.1, count_max, now_ms);
                let found = catch_unwind(AssertUnwindSafe(stage));
                found.unwrap_or_else(|_| Err(PanicException::new_err("a panic"))).unwrap_or_else(
                    |error| {
                        lane.drop_staged(first);
                        fault = Some(error);
                        None
                    },
                )
            };
            match found {
                None => left.append(row)?,
                Some((requests, size, answers)) => {
                    count += requests;
                    bytes += size;
                    answer_counts.push(answers);
                    staged.append(row)?;
                }
            }
        }
        let is_nothing = staged.is_empty() && fault.is_none();
        Ok((!is_nothing).then_some((staged, count, bytes, answer_counts, fault)))
    }
}
