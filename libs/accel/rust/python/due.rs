// SPDX-License-Identifier: Apache-2.0
//! The function `select_due` and the class `DueRecords`, which are described in `_native.pyi`.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use super::keys::LaneKeys;
use super::placing::place_requests;
use super::send_lane::host;
use crate::commit::Place;
use crate::due::{Selection, Times, select};
use crate::stage::{Limits, Stage};

type Spans = Vec<(i64, usize)>;

#[pyfunction]
#[pyo3(signature = (entries, *, now_ms, due_at_most, copied_until, file_size, bytes_max))]
pub(crate) fn select_due(
    entries: &[u8],
    now_ms: i64,
    due_at_most: i64,
    copied_until: i64,
    file_size: i64,
    bytes_max: usize,
) -> (usize, bool, Spans) {
    let times = Times { now_ms, due_at_most, copied_until };
    let selection = select(entries, times, file_size, bytes_max);
    (selection.count, selection.ends_at_undue, selection.spans)
}

/// The records of due messages; the records of one commit are built together.
#[pyclass(module = "cometmq.accel")]
pub(crate) struct DueRecords {
    stage: Stage,
    names: Vec<Py<PyString>>,
    chunks: Vec<Py<PyBytes>>,
    #[pyo3(get)]
    count: usize,
    #[pyo3(get)]
    staged_bytes: usize,
}

#[pymethods]
impl DueRecords {
    #[new]
    #[pyo3(signature = (entries, spans, *, store_host, body_bytes_max, record_bytes_max, delayed_topic, half_topic, now_ms))]
    #[allow(clippy::too_many_arguments)] // keyword arguments in Python
    fn new(
        entries: &[u8],
        spans: Vec<(i64, Bound<'_, PyBytes>)>,
        store_host: &[u8],
        body_bytes_max: usize,
        record_bytes_max: usize,
        delayed_topic: &str,
        half_topic: &str,
        now_ms: i64,
    ) -> PyResult<Self> {
        let limits = Limits {
            frame_bytes_max: 0,
            body_bytes_max,
            batch_count_max: 0,
            request_bytes_max: record_bytes_max,
        };
        let mut stage = Stage::new(limits, host(store_host)?, b"");
        let selection = Selection {
            count: entries.len() / 20,
            ends_at_undue: false,
            spans: spans.iter().map(|(offset, data)| (*offset, data.as_bytes().len())).collect(),
        };
        let is_end = |&(offset, size): &(i64, usize)| offset.checked_add(size as i64).is_none();
        if selection.spans.iter().any(|span| span.0 < 0 || is_end(span)) {
            return Err(PyValueError::new_err("no such part of a log"));
        }
        let contents: Vec<&[u8]> = spans.iter().map(|(_, data)| data.as_bytes()).collect();
        let others = [delayed_topic.as_bytes(), half_topic.as_bytes()];
        let count = stage.stage_due(entries, &selection, &contents, &others, now_ms);
        let py_names = |py: Python<'_>| -> Vec<Py<PyString>> {
            let names = stage.topics.iter().map(|topic| String::from_utf8_lossy(&topic.field[1..]));
            names.map(|name| PyString::new(py, &name).unbind()).collect()
        };
        Ok(Self {
            names: Python::attach(py_names),
            count,
            staged_bytes: stage.staged_bytes(),
            chunks: spans.into_iter().map(|(_, data)| data.unbind()).collect(),
            stage,
        })
    }

    fn targets<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyString>, usize)> {
        let names = self.names.iter().map(|name| name.bind(py).clone());
        names.zip(self.stage.topics.iter().map(|topic| topic.slots.len())).collect()
    }

    #[allow(clippy::too_many_arguments)] // once per commit: an object for them costs time
    fn place<'py>(
        &mut self,
        py: Python<'py>,
        first: usize,
        count: usize,
        offset: i64,
        file_end: i64,
        now_ms: i64,
        queues: &Bound<'py, PyDict>,
        create: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        if first.checked_add(count).is_none_or(|end| end > self.count) {
            return Err(PyIndexError::new_err("more messages than are staged"));
        }
        let (requests, place) = (first..first + count, Place { offset, file_end, now_ms });
        let sources = (&self.names[..], &self.chunks[..]);
        let placed = place_requests(&mut self.stage, sources, requests, place, (queues, create))?;
        let mut totals = vec![(0usize, 0usize); self.names.len()];
        for row in placed.built.groups.iter().flat_map(|(_, answers)| &answers.rows) {
            let total = &mut totals[row.topic as usize];
            total.0 += 1;
            total.1 += row.size;
        }
        let list = PyList::empty(py);
        for (name, (count, bytes)) in self.names.iter().zip(totals) {
            if count > 0 {
                list.append((name, count, bytes))?;
            }
        }
        let keys = Py::new(py, LaneKeys { keys: placed.built.keys })?;
        (placed.count, placed.records, placed.entries, keys, list).into_pyobject(py)
    }
}
