// SPDX-License-Identifier: Apache-2.0
//! The class `LaneRuns`, with which the store builds what a commit stores of staged requests.

use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::answers::LaneAnswers;
use super::keys::LaneKeys;
use super::placing::{Placed, place_requests};
use super::send_lane::SendLane;
use crate::answers::{Answer, Answers, Ended};
use crate::commit::Place;

/// The staged requests of a lane, as a source of runs.
#[pyclass(module = "cometmq.accel")]
pub(crate) struct LaneRuns {
    lane: Py<SendLane>,
}

#[pymethods]
impl LaneRuns {
    #[new]
    fn new(lane: Py<SendLane>) -> Self {
        Self { lane }
    }

    #[allow(clippy::too_many_arguments)] // once per commit: an object for them costs time
    fn place<'py>(
        &self,
        py: Python<'py>,
        first: usize,
        count: usize,
        offset: i64,
        file_end: i64,
        now_ms: i64,
        queues: &Bound<'py, PyDict>,
        create: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let lane = &mut *self.lane.borrow_mut(py);
        let requests = lane.staged(first, count)?;
        let place = Place { offset, file_end, now_ms };
        let sources = (&lane.names[..], &lane.chunks[..]);
        let Placed { count, records, entries, built } =
            place_requests(&mut lane.stage, sources, requests, place, (queues, create))?;
        let groups = PyList::empty(py);
        let is_only = built.groups.len() == 1;
        for (waits, answers) in built.groups {
            groups.append((waits, Py::new(py, own(py, lane, answers, is_only))?))?;
        }
        let keys = Py::new(py, LaneKeys { keys: built.keys })?;
        (count, built.message_count, records, entries, keys, groups).into_pyobject(py)
    }

    fn unplaced(&self, py: Python<'_>, first: usize, count: usize) -> PyResult<LaneAnswers> {
        let lane = &*self.lane.borrow(py);
        let mut answers = Answers::default();
        for request in &lane.stage.requests[lane.staged(first, count)?] {
            let record = &lane.stage.records[request.records.start];
            if let Some(end) = request.end {
                answers.ends.push(Ended { end, topic: record.topic });
                continue;
            }
            let start = answers.places.len();
            answers.places.resize(start + request.records.len(), -1);
            answers.rows.push(Answer {
                peer: request.peer,
                opaque: request.opaque,
                serialization: request.serialization,
                topic: record.topic,
                queue_id: request.queue_id,
                level: record.is_delayed.then_some(record.queue_id),
                queue_offset: -1,
                size: 0,
                places: start..answers.places.len(),
                back: request.back.clone(),
            });
        }
        Ok(own(py, lane, answers, false))
    }

    fn release(&self, py: Python<'_>) {
        self.lane.borrow_mut(py).release();
    }
}

/// Gives the answers their own references to connections and topics, because they outlive the
/// commit. If these are the only answers, they refer to most connections, so all of them are
/// copied.
fn own(py: Python<'_>, lane: &SendLane, mut answers: Answers, is_only: bool) -> LaneAnswers {
    let (mut peers, mut topics) = (Owned::default(), Owned::default());
    if is_only {
        peers.items = lane.peers.iter().map(|peer| peer.clone_ref(py)).collect();
    }
    for row in &mut answers.rows {
        if !is_only {
            row.peer = peers.number(row.peer, |peer| lane.peers[peer].clone_ref(py));
        }
        row.topic = topics.number(row.topic, |topic| lane.names[topic].clone_ref(py));
    }
    for one in &mut answers.ends {
        one.topic = topics.number(one.topic, |topic| lane.names[topic].clone_ref(py));
    }
    LaneAnswers {
        answers,
        peers: peers.items,
        topics: topics.items,
        template: Arc::clone(&lane.template),
    }
}

/// The items that the answers refer to, renumbered in the order of first use.
struct Owned<T> {
    items: Vec<T>,
    numbers: HashMap<u32, u32>,
    last: (u32, u32),
}

impl<T> Default for Owned<T> {
    fn default() -> Self {
        Self { items: vec![], numbers: HashMap::new(), last: (u32::MAX, 0) }
    }
}

impl<T> Owned<T> {
    fn number(&mut self, old: u32, item: impl FnOnce(usize) -> T) -> u32 {
        if self.last.0 != old {
            let items = &mut self.items;
            let number = *self.numbers.entry(old).or_insert_with(|| {
                items.push(item(old as usize));
                (items.len() - 1) as u32
            });
            self.last = (old, number);
        }
        self.last.1
    }
}
