// SPDX-License-Identifier: Apache-2.0
//! Builds the records, queue entries and keys of staged requests, for the queues that the store
//! knows.

use std::ops::Range;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::commit::{Built, OpenQueue, Place};
use crate::stage::Stage;

/// The requests of one call that fit into the file.
pub(crate) struct Placed<'py> {
    pub(crate) count: usize,
    pub(crate) records: Bound<'py, PyBytes>,
    /// A tuple for each queue: the queue, its entries, and their number.
    pub(crate) entries: Bound<'py, PyList>,
    pub(crate) built: Built,
}

/// Builds the records, entries and keys of as many staged requests as fit into the file.
pub(crate) fn place_requests<'py>(
    stage: &mut Stage,
    (names, chunks): (&[Py<PyString>], &[Py<PyBytes>]),
    requests: Range<usize>,
    place: Place,
    queues: (&Bound<'py, PyDict>, &Bound<'py, PyAny>),
) -> PyResult<Placed<'py>> {
    let (py, first) = (queues.0.py(), requests.start);
    let chunks: Vec<&[u8]> = chunks.iter().map(|chunk| chunk.as_bytes(py)).collect();
    let (count, bytes) = stage.fit(first, requests.len(), place);
    let mut open = stage.open_queues(first, count);
    let placed = next_offsets(py, &mut open, names, queues).and_then(|queues| {
        let mut built = None;
        let records = PyBytes::new_with(py, bytes, |out| {
            let requests = first..first + count;
            built = Some(stage.build(requests, &chunks, place, &mut open, out));
            Ok(())
        })?;
        Ok((queues, records, built.unwrap_or_default()))
    });
    stage.close_queues(&open);
    let (queues, records, built) = placed?;
    let entries = PyList::empty(py);
    for (queue, opened) in queues.iter().zip(&open) {
        entries.append((queue, PyBytes::new(py, &opened.entries), opened.count))?;
    }
    Ok(Placed { count, records, entries, built })
}

/// Returns the queues, and sets the next offset of each; creates those that are not known.
fn next_offsets<'py>(
    py: Python<'py>,
    open: &mut [OpenQueue],
    names: &[Py<PyString>],
    (known, create): (&Bound<'py, PyDict>, &Bound<'py, PyAny>),
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let next_offset = pyo3::intern!(py, "next_offset");
    let mut queues = Vec::with_capacity(open.len());
    for opened in open {
        let place = (&names[opened.topic as usize], opened.queue_id).into_pyobject(py)?;
        let queue = match known.get_item(&place)? {
            Some(queue) => queue,
            None => create.call1(place)?,
        };
        opened.next_offset = queue.getattr(next_offset)?.extract()?;
        queues.push(queue);
    }
    Ok(queues)
}
