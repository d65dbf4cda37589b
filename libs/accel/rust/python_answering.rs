// SPDX-License-Identifier: Apache-2.0
//! Answers the pulls that sockets receive, without an object of Python for a request or an answer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;
use pyo3::panic::PanicException;
use pyo3::prelude::*;

use crate::pull_lane::{Effects, PullLane, Work};

/// The value of a connection's attribute `habit` if its last chunk contained only pulls.
const PULLS: i64 = 2;
/// Once the answers exceed this size, they are sent before more are made.
const ANSWERS_BYTES_MAX: usize = 128 << 10;
/// Larger buffers are freed after the answers are sent.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// What a call needs to answer pulls: the lane, the log's view, the budget of filters, the largest
/// number of requests in a chunk, the largest number of requests in flight on a connection, and the
/// size above which the answers to one chunk end.
pub(crate) type Pulling<'py> = (PyRefMut<'py, PullLane>, Bound<'py, PyAny>, i64, usize, i64, isize);

/// The number of requests, the size of their chunks, the effects, and what went wrong.
pub(crate) type Answered<'py> = (usize, usize, Option<Effects<'py>>, Option<PyErr>);

/// Answers that are not sent yet.
#[derive(Default)]
pub(crate) struct Answers {
    bytes: Vec<u8>,
    /// Each connection, and where its answers end.
    rows: Vec<(Py<PyAny>, usize)>,
}

impl Answers {
    /// Passes the answers of each connection to a function.
    pub(crate) fn take<'py>(
        &mut self,
        py: Python<'py>,
        mut send: impl FnMut(Bound<'py, PyAny>, &[u8]) -> PyResult<()>,
    ) -> PyResult<()> {
        let (mut bytes, rows) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.rows));
        let mut begin = 0;
        for (peer, end) in rows {
            send(peer.into_bound(py), &bytes[begin..end])?;
            begin = end;
        }
        if bytes.capacity() <= KEPT_BYTES_MAX {
            bytes.clear();
            self.bytes = bytes;
        }
        Ok(())
    }
}

/// One call that answers chunks of pulls.
pub(crate) struct Answering<'a, 'py> {
    pulling: Pulling<'py>,
    answers: &'a mut Answers,
    work: Option<Work<'py>>,
    count: usize,
    received: usize,
    is_done: bool,
    fault: Option<PyErr>,
}

impl<'a, 'py> Answering<'a, 'py> {
    pub(crate) fn new(pulling: Pulling<'py>, answers: &'a mut Answers) -> Self {
        Self { pulling, answers, work: None, count: 0, received: 0, is_done: false, fault: None }
    }

    /// Whether no further chunk may be answered: one is unfinished, or the answers are large.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Answers a chunk if its connection usually pulls; returns where the bytes begin that are not
    /// answered. A bug leaves the whole chunk to Python.
    pub(crate) fn answer(&mut self, peer: &Bound<'py, PyAny>, data: &[u8]) -> PyResult<usize> {
        let py = peer.py();
        let number = |name| peer.getattr(name)?.extract::<i64>();
        let is_pulling = number(pyo3::intern!(py, "habit"))? == PULLS;
        if !is_pulling || number(pyo3::intern!(py, "in_flight"))? > self.pulling.4 {
            return Ok(0);
        }
        let before = self.work.as_ref().map_or(0, |work| work.out.len());
        let answered = catch_unwind(AssertUnwindSafe(|| self.answer_chunk(data)));
        let answered = answered.unwrap_or_else(|_| Err(PanicException::new_err("a panic")));
        let (count, rest) = answered.unwrap_or_else(|fault| {
            self.fault = Some(fault);
            if let Some(work) = &mut self.work {
                work.out.truncate(before);
            }
            (0, 0)
        });
        let end = self.work.as_ref().map_or(0, |work| work.out.len());
        if count > 0 {
            self.answers.rows.push((peer.clone().unbind(), end));
        }
        self.count += count;
        self.received += rest;
        self.is_done = rest < data.len() || end > ANSWERS_BYTES_MAX;
        Ok(rest)
    }

    fn answer_chunk(&mut self, data: &[u8]) -> PyResult<(usize, usize)> {
        let (lane, view, budget, count_max, _, room) = &mut self.pulling;
        if self.work.is_none() {
            let out = std::mem::take(&mut self.answers.bytes);
            self.work = Some(lane.begin(view, *budget, out)?);
        }
        let work = self.work.as_mut().ok_or_else(|| PyRuntimeError::new_err("no call"))?;
        lane.answer_chunk(work, data, *count_max, *room)
    }

    /// Keeps the answers; returns what Python has to count and to store before they are sent.
    pub(crate) fn finish(self) -> PyResult<Option<Answered<'py>>> {
        let Self { pulling: (lane, ..), answers, work, count, received, fault, .. } = self;
        let effects = work.map(|work| lane.finish(work)).transpose()?.map(|(bytes, effects)| {
            answers.bytes = bytes;
            effects
        });
        let is_known = effects.is_some() || fault.is_some();
        Ok(is_known.then_some((count, received, effects, fault)))
    }
}
