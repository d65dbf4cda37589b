// SPDX-License-Identifier: Apache-2.0
//! Answers the pulls that sockets receive, without a Python object for each request and answer.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PyRuntimeError;
use pyo3::panic::PanicException;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::pull_lane::{Effects, PullLane, Work};
use super::sockets::{seal, write};
use super::tls::TlsSession;

/// The value of a connection's attribute `habit` if its last chunk contained only pulls.
pub(crate) const PULLS: i64 = 2;
/// Once the answers exceed this size, they are sent before more are made. Smaller answers are sent
/// together: if each were sent at once, its client would ask again at once, in a read of its own,
/// and the loop would take 1.3 times the processor time for pulls with an SQL filter.
const ANSWERS_BYTES_MAX: usize = 128 << 10;
/// The attribute `direct_bytes` of a connection stops growing beyond this size.
const COUNTED_BYTES_MAX: usize = 1 << 26;
/// After this number of answers, sockets are not read again before the loop has done other work.
const ANSWERS_MAX: usize = 16;
/// If Python must store changes before the answers are sent, and they exceed this size, no further
/// socket is read. Larger buffers are freed after use.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// The arguments for answering pulls:
///
/// - the lane, the log's view, and the budget of filters
/// - the maximum number of requests in a chunk, and in flight on a connection
/// - the size above which the answers to one chunk end
/// - whether answers may be sent at once if their requests have changed nothing
pub(crate) type Pulling<'py> =
    (PyRefMut<'py, PullLane>, Bound<'py, PyAny>, i64, usize, i64, isize, bool);

/// The result of answering pulls:
///
/// - the number of requests, and the size of their frames
/// - the number of bytes sent, and the bytes that the connections must send
/// - whether other answers are kept
/// - the effects, and the error, if any
pub(crate) type Answered<'py> =
    (usize, usize, usize, Vec<Rest<'py>>, bool, Option<Effects<'py>>, Option<PyErr>);

/// A connection, the bytes that it must send, and whether they are encrypted already; `None` if
/// they have to be sent after its other output.
pub(crate) type Rest<'py> = (Bound<'py, PyAny>, Bound<'py, PyBytes>, Option<bool>);

/// Answers that are not sent yet.
#[derive(Default)]
pub(crate) struct Answers {
    bytes: Vec<u8>,
    /// Each connection, and where its answers end.
    rows: Vec<(Py<PyAny>, usize)>,
}

impl Answers {
    /// Sends all answers; returns the number of bytes that the kernel has taken, and adds the bytes
    /// that it has not taken to `rest`.
    pub(crate) fn send<'py>(
        &mut self,
        py: Python<'py>,
        output: &mut Output<'_>,
        rest: &mut Vec<Rest<'py>>,
    ) -> PyResult<usize> {
        let (mut begin, mut total) = (0, 0);
        for (peer, end) in self.rows.drain(..) {
            total += output.send(peer.into_bound(py), &self.bytes[begin..end], rest)?;
            begin = end;
        }
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES_MAX);
        Ok(total)
    }
}

/// How answers are written: the sessions of secured sockets, and a buffer.
pub(crate) struct Output<'a> {
    pub(crate) secured: &'a HashMap<RawFd, Py<TlsSession>>,
    /// The buffer for encrypted bytes.
    pub(crate) sealed: &'a mut Vec<u8>,
}

impl Output<'_> {
    fn send<'py>(
        &mut self,
        peer: Bound<'py, PyAny>,
        data: &[u8],
        rest: &mut Vec<Rest<'py>>,
    ) -> PyResult<usize> {
        let py = peer.py();
        peer.setattr(pyo3::intern!(py, "has_received"), true)?;
        let fd: RawFd = peer.getattr(pyo3::intern!(py, "direct_fd"))?.extract()?;
        if fd < 0 || peer.getattr(pyo3::intern!(py, "is_dirty"))?.is_truthy()? {
            rest.push((peer, PyBytes::new(py, data), None));
            return Ok(0);
        }
        let data = seal(py, self.secured, fd, data, self.sealed);
        let sent = write(fd, data);
        let name = pyo3::intern!(py, "direct_bytes");
        let before: usize = peer.getattr(name)?.extract()?;
        if before < COUNTED_BYTES_MAX {
            peer.setattr(name, before + sent)?;
        }
        if sent < data.len() {
            rest.push((peer, PyBytes::new(py, &data[sent..]), Some(true)));
        }
        Ok(sent)
    }
}

/// One call that answers chunks of pulls.
pub(crate) struct Answering<'a, 'py> {
    pulling: Pulling<'py>,
    /// The chunks that are kept, each with its connection and its end in `kept`.
    peers: Vec<(Bound<'py, PyAny>, usize)>,
    kept: Vec<u8>,
    answers: &'a mut Answers,
    work: Option<Work<'py>>,
    count: usize,
    /// The number of requests at the last call of `reads_on`.
    seen: usize,
    received: usize,
    sent: usize,
    rest: Vec<Rest<'py>>,
    is_done: bool,
    is_full: bool,
    fault: Option<PyErr>,
}

impl<'a, 'py> Answering<'a, 'py> {
    pub(crate) fn new(pulling: Pulling<'py>, answers: &'a mut Answers) -> Self {
        Self {
            pulling,
            peers: vec![],
            kept: vec![],
            answers,
            work: None,
            count: 0,
            seen: 0,
            received: 0,
            sent: 0,
            rest: vec![],
            is_done: false,
            is_full: false,
            fault: None,
        }
    }

    /// Whether no further socket may be read: a chunk is unfinished or not sent, or there is no room.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Keeps a chunk of a connection that usually pulls, until `run`.
    pub(crate) fn keep(&mut self, peer: &Bound<'py, PyAny>, data: &[u8]) {
        self.kept.extend_from_slice(data);
        self.peers.push((peer.clone(), self.kept.len()));
    }

    /// Answers the chunks that are kept, and sends answers if they are large. Adds what is not
    /// answered to `left`.
    pub(crate) fn run(
        &mut self,
        py: Python<'py>,
        mut output: Option<&mut Output<'_>>,
        left: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let (mut kept, mut peers) =
            (std::mem::take(&mut self.kept), std::mem::take(&mut self.peers));
        let mut at = 0;
        for (peer, end) in peers.drain(..) {
            let data = &kept[at..end];
            at = end;
            let begin = if self.is_full { 0 } else { self.answer(&peer, data)? };
            if begin < data.len() {
                left.append((&peer, PyBytes::new(py, &data[begin..])))?;
            }
            if let Some(output) = &mut output {
                self.send_large(py, output)?;
            }
        }
        kept.clear();
        (self.kept, self.peers) = (kept, peers);
        Ok(())
    }

    /// Answers a chunk; returns where the bytes begin that are not answered. A bug leaves the whole
    /// chunk to Python.
    fn answer(&mut self, peer: &Bound<'py, PyAny>, data: &[u8]) -> PyResult<usize> {
        let py = peer.py();
        if peer.getattr(pyo3::intern!(py, "in_flight"))?.extract::<i64>()? > self.pulling.4 {
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
        let room = usize::try_from(self.pulling.5).unwrap_or(0);
        self.is_full = self.fault.is_some() || self.sent + end > room;
        self.is_done |= self.is_full || rest < data.len();
        Ok(rest)
    }

    /// Sends the answers if they are large.
    fn send_large(&mut self, py: Python<'py>, output: &mut Output<'_>) -> PyResult<()> {
        let bytes = self.work.as_ref().map_or(0, |work| work.out.len());
        if bytes > ANSWERS_BYTES_MAX { self.send(py, output) } else { Ok(()) }
    }

    /// Sends the answers so far, unless Python must store changes before.
    pub(crate) fn send(&mut self, py: Python<'py>, output: &mut Output<'_>) -> PyResult<()> {
        let Some(work) = &mut self.work else {
            return Ok(());
        };
        if !self.pulling.6 || work.has_changes() {
            self.is_done |= work.out.len() > KEPT_BYTES_MAX;
            return Ok(());
        }
        std::mem::swap(&mut work.out, &mut self.answers.bytes);
        self.sent += self.answers.send(py, output, &mut self.rest)?;
        std::mem::swap(&mut work.out, &mut self.answers.bytes);
        self.is_done |= !self.rest.is_empty();
        Ok(())
    }

    /// Whether the sockets may be read again: all answers are sent, the last reads have brought
    /// pulls, and there are fewer than `ANSWERS_MAX` answers.
    pub(crate) fn reads_on(&mut self) -> bool {
        let has_new = self.count > self.seen;
        self.seen = self.count;
        has_new && !self.is_done && self.count < ANSWERS_MAX && self.answers.rows.is_empty()
    }

    fn answer_chunk(&mut self, data: &[u8]) -> PyResult<(usize, usize)> {
        let (lane, view, budget, count_max, _, room, _) = &mut self.pulling;
        if self.work.is_none() {
            let out = std::mem::take(&mut self.answers.bytes);
            self.work = Some(lane.begin(view, *budget, out)?);
        }
        let work = self.work.as_mut().ok_or_else(|| PyRuntimeError::new_err("no call"))?;
        lane.answer_chunk(work, data, *count_max, *room)
    }

    /// Keeps the answers that are not sent; returns what Python has to count and to store.
    pub(crate) fn finish(self) -> PyResult<Option<Answered<'py>>> {
        let Self { pulling: (lane, ..), answers, work, count, received, sent, rest, fault, .. } =
            self;
        let effects = work.map(|work| lane.finish(work)).transpose()?.map(|(bytes, effects)| {
            answers.bytes = bytes;
            effects
        });
        let is_known = effects.is_some() || fault.is_some();
        let is_kept = !answers.rows.is_empty();
        Ok(is_known.then_some((count, received, sent, rest, is_kept, effects, fault)))
    }
}
