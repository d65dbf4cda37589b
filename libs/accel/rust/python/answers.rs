// SPDX-License-Identifier: Apache-2.0
//! The class `LaneAnswers`, which is described in `_native.pyi`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use super::lending::{LentAnswers, Settled};
use super::sockets::Sockets;
use crate::answers::{Answers, Ended, Template};
use crate::send_back_header::Back;

/// Counts by topic, by delay level, and by topic and group of the messages that were sent back.
type Counts<'py> = (Bound<'py, PyList>, Vec<(i32, usize, usize)>, Bound<'py, PyList>);

/// Answers to requests of one commit.
#[pyclass(module = "cometmq.accel")]
pub(crate) struct LaneAnswers {
    pub(crate) answers: Answers,
    pub(crate) peers: Vec<Py<PyAny>>,
    pub(crate) topics: Vec<Py<PyString>>,
    pub(crate) template: Arc<Template>,
}

#[pymethods]
impl LaneAnswers {
    #[getter]
    fn count(&self) -> usize {
        self.answers.rows.len() + self.answers.ends.len()
    }

    #[getter]
    fn peer(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.peers.first().map(|peer| peer.clone_ref(py))
    }

    #[getter]
    fn peer_count(&self) -> usize {
        self.peers.len()
    }

    #[getter]
    fn half_count(&self) -> usize {
        self.answers.half_count
    }

    #[getter]
    fn end_count(&self) -> usize {
        self.answers.ends.len()
    }

    fn ended(&self) -> (Vec<i64>, Vec<i64>) {
        let (commits, rollbacks): (Vec<_>, Vec<_>) =
            self.answers.ends.iter().partition(|one| one.end.commits);
        let offsets = |ends: Vec<Ended>| ends.iter().map(|one| one.end.half_offset).collect();
        (offsets(commits), offsets(rollbacks))
    }

    fn committed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut totals = vec![(0usize, 0usize); self.topics.len()];
        for one in self.answers.ends.iter().filter(|one| one.end.commits) {
            let total = &mut totals[one.topic as usize];
            *total = (total.0 + 1, total.1 + one.end.size);
        }
        let list = PyList::empty(py);
        for (topic, (messages, bytes)) in self.topics.iter().zip(totals) {
            if messages > 0 {
                list.append((topic, messages, bytes))?;
            }
        }
        Ok(list)
    }

    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Counts<'py>> {
        Ok((self.totals(py)?, self.delays(), self.backs(py)?))
    }

    fn encode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (peer, out, count) in self.frames() {
            list.append((peer, PyBytes::new(py, &out), count))?;
        }
        Ok(list)
    }

    fn send<'py>(
        &self,
        py: Python<'py>,
        sockets: &mut Sockets,
    ) -> PyResult<(Settled<'py>, Counts<'py>)> {
        let frames = self.frames(); // a bug ends this call before anything is sent
        let counts = self.counts(py)?;
        Ok((sockets.reply(py, frames)?, counts))
    }

    fn lend(&self, py: Python<'_>) -> PyResult<LentAnswers> {
        let mut lent = LentAnswers::with_capacity(self.peers.len());
        for (peer, out, count) in self.frames() {
            lent.push(peer.bind(py), out, count)?;
        }
        Ok(lent)
    }

    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for row in &self.answers.rows {
            let places = &self.answers.places[row.places.clone()];
            let mut ids = vec![];
            self.template.push_ids(&mut ids, places);
            let place = places.first().copied().unwrap_or(-1);
            list.append((
                &self.peers[row.peer as usize],
                row.opaque,
                row.serialization,
                &self.topics[row.topic as usize],
                row.queue_id,
                row.level,
                places.len(),
                (place, row.size, row.queue_offset, String::from_utf8_lossy(&ids)),
                row.back.as_deref().map(names_of),
            ))?;
        }
        Ok(list)
    }
}

impl LaneAnswers {
    /// Returns, for each connection with answers: the connection, its frames and their number.
    fn frames(&self) -> impl Iterator<Item = (&Py<PyAny>, Vec<u8>, usize)> {
        let mut outs = vec![(Vec::new(), 0usize); self.peers.len()];
        for row in &self.answers.rows {
            outs[row.peer as usize].1 += 1;
        }
        for row in &self.answers.rows {
            let (out, count) = &mut outs[row.peer as usize];
            if out.is_empty() {
                out.reserve(*count * self.template.usual_bytes());
            }
            self.template.push(out, row, &self.answers.places[row.places.clone()]);
        }
        let rows = self.peers.iter().zip(outs).filter(|(_, (_, count))| *count > 0);
        rows.map(|(peer, (out, count))| (peer, out, count))
    }

    /// Returns, for each topic: the topic, and its numbers of requests, messages and bytes.
    fn totals<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut totals = vec![(0usize, 0usize, 0usize); self.topics.len()];
        for row in &self.answers.rows {
            let total = &mut totals[row.topic as usize];
            total.0 += 1;
            total.1 += row.places.len();
            total.2 += row.size;
        }
        let list = PyList::empty(py);
        for (topic, (requests, messages, bytes)) in self.topics.iter().zip(totals) {
            if requests > 0 {
                list.append((topic, requests, messages, bytes))?;
            }
        }
        Ok(list)
    }

    /// Returns, for each delay level: its queue, and its numbers of messages and bytes.
    fn delays(&self) -> Vec<(i32, usize, usize)> {
        let mut totals: Vec<(i32, usize, usize)> = vec![];
        for (level, size) in self.answers.rows.iter().filter_map(|row| Some((row.level?, row.size)))
        {
            match totals.iter_mut().find(|total| total.0 == level) {
                Some(total) => *total = (level, total.1 + 1, total.2 + size),
                None => totals.push((level, 1, size)),
            }
        }
        totals
    }

    /// Returns the topics and groups of the messages that were sent back, and their numbers.
    fn backs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut totals: HashMap<&Back, usize> = HashMap::new();
        for back in self.answers.rows.iter().filter_map(|row| row.back.as_deref()) {
            *totals.entry(back).or_default() += 1;
        }
        let list = PyList::empty(py);
        for (back, count) in totals {
            let (topic, group) = names_of(back);
            list.append((topic, group, count))?;
        }
        Ok(list)
    }
}

fn names_of(back: &Back) -> (Cow<'_, str>, Cow<'_, str>) {
    (String::from_utf8_lossy(&back.topic), String::from_utf8_lossy(&back.group))
}
