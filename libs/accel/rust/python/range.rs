// SPDX-License-Identifier: Apache-2.0
//! The function `read_range`, with the interface of `cometmq.store.writing.ranges.ReadRange`, and
//! the function `follow_headers`.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::keys::LaneKeys;
use crate::range::{Rules, follow, read};

#[pyfunction]
#[pyo3(signature = (data, position, base, *, check_crc, is_indexing, delayed))]
pub(crate) fn read_range<'py>(
    data: &Bound<'py, PyBytes>,
    position: usize,
    base: i64,
    check_crc: bool,
    is_indexing: bool,
    delayed: (String, Vec<i64>, i64),
) -> PyResult<Bound<'py, PyTuple>> {
    let py = data.py();
    let past_end = || PyIndexError::new_err("the position is behind the end of the data");
    let range = data.as_bytes().get(position..).ok_or_else(past_end)?;
    let offset = base.checked_add(position as i64).ok_or_else(past_end)?;
    let (delayed_topic, delays_ms, other_delay_ms) = delayed;
    let rules = Rules {
        check_crc,
        is_indexing,
        delayed_topic: delayed_topic.as_bytes(),
        delays_ms: &delays_ms,
        other_delay_ms,
    };
    let found = read(range, offset, &rules);
    let runs = PyList::empty(py);
    for run in &found.runs {
        let entries = PyBytes::new(py, &run.entries);
        runs.append((run.topic, run.queue_id, run.first, run.entries.len() / 20, entries))?;
    }
    let keys = Py::new(py, LaneKeys { keys: found.keys })?;
    (found.size, found.count, found.timestamp, runs, keys).into_pyobject(py)
}

#[pyfunction]
pub(crate) fn follow_headers(
    data: &[u8],
    offset: i64,
    file_size: i64,
    bytes_max: usize,
) -> Option<(usize, usize)> {
    follow(data, offset, file_size, bytes_max)
}
