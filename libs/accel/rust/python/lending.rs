// SPDX-License-Identifier: Apache-2.0
//! The classes `LentAnswers` and `Loan`, which are described in `_native.pyi`: answers that the
//! thread that syncs the log writes to sockets.
//!
//! To lend a row (the answers to one connection) is to let that thread write it. Until then, the
//! loop may take the row back and write it itself.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::yield_now;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::sockets;

/// The thread may write the row.
const LENT: usize = usize::MAX;
/// The thread is writing the row.
const BUSY: usize = usize::MAX - 1;
/// The loop has to write the row.
const TAKEN: usize = usize::MAX - 2;

/// The attribute `direct_fd` of a connection that has rows on loan.
const ON_LOAN: RawFd = -2;

/// Frames for one socket.
///
/// Invariants: a row that the thread may write, or is writing, can be reached from the newest row of
/// its connection, and the connection is on loan. The thread writes a row only if it has written all
/// of the row before, so no byte overtakes another.
pub(crate) struct Row {
    fd: RawFd,
    data: Vec<u8>,
    /// The number of bytes that the kernel has taken, or LENT, BUSY or TAKEN.
    state: AtomicUsize,
    /// Whether the loop has been given the bytes that the kernel has not taken.
    is_rest_taken: AtomicBool,
    /// The row before, unless it is written or settled.
    older: Mutex<Option<Arc<Row>>>,
}

impl Row {
    fn older(&self) -> Option<Arc<Self>> {
        self.older.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn forget_older(&self) {
        *self.older.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn state(&self) -> usize {
        self.state.load(Ordering::Acquire)
    }

    fn is_written(&self) -> bool {
        self.state() == self.data.len()
    }

    /// Whether the next row of the connection may be lent.
    fn goes_on(&self) -> bool {
        let state = self.state();
        state == LENT || state == BUSY || state == self.data.len()
    }

    /// Writes the row, unless it was taken back; returns whether the kernel has taken all of it.
    pub(crate) fn write(&self) -> bool {
        let follows = self.older().is_none_or(|row| row.is_written());
        let next = if follows { BUSY } else { TAKEN };
        if self.change(next).is_err() || !follows {
            return false;
        }
        self.forget_older();
        self.state.store(sockets::write(self.fd, &self.data), Ordering::Release);
        self.is_written()
    }

    /// Takes the row back, so that the thread does not write it. If the thread has written it
    /// already, returns how many bytes.
    fn take_back(&self) -> Option<usize> {
        loop {
            match self.change(TAKEN) {
                Ok(_) | Err(TAKEN) => return None,
                Err(BUSY) => yield_now(), // for one system call that does not wait
                Err(sent) => return Some(sent),
            }
        }
    }

    fn change(&self, state: usize) -> Result<usize, usize> {
        self.state.compare_exchange(LENT, state, Ordering::AcqRel, Ordering::Acquire)
    }

    /// Returns the bytes that the kernel has not taken; only the first call returns any.
    fn take_rest(&self) -> &[u8] {
        match self.data.get(self.state()..) {
            Some(rest) if !rest.is_empty() && !self.is_rest_taken.swap(true, Ordering::Relaxed) => {
                rest
            }
            _ => &[],
        }
    }
}

/// The newest row of a connection.
#[pyclass(module = "cometmq.accel", frozen)]
pub(crate) struct Loan {
    row: Arc<Row>,
}

#[pymethods]
impl Loan {
    fn withdraw<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        // The newest first: a row is never written without the one before.
        let mut rest = PyBytes::new(py, b"");
        let mut next = Some(Arc::clone(&self.row));
        while let Some(row) = next {
            row.take_back();
            let own = row.take_rest();
            if !own.is_empty() {
                rest = PyBytes::new(py, own); // no other row is written in part
            }
            next = row.older();
        }
        rest
    }
}

/// The answers to a run, one row per connection.
#[pyclass(module = "cometmq.accel")]
pub(crate) struct LentAnswers {
    rows: Vec<(Py<PyAny>, usize, Arc<Row>)>,
}

/// A connection, the bytes that it must send, the number of answers, and whether the thread has
/// written them, apart from these bytes.
pub(crate) type Rest<'py> = (Py<PyAny>, Bound<'py, PyBytes>, usize, bool);

/// The number of written answers, their size, and the answers that the connections must send.
pub(crate) type Settled<'py> = (usize, usize, Vec<Rest<'py>>);

#[pymethods]
impl LentAnswers {
    #[new]
    fn new(rows: Vec<(Bound<'_, PyAny>, Vec<u8>, usize)>) -> PyResult<Self> {
        let mut lent = Self::with_capacity(rows.len());
        for (peer, data, count) in rows {
            lent.push(&peer, data, count)?;
        }
        Ok(lent)
    }

    fn write(&self) -> bool {
        self.rows.iter().filter(|(_, _, row)| !row.write()).count() == 0
    }

    fn settle<'py>(&mut self, py: Python<'py>) -> PyResult<Settled<'py>> {
        let (mut total, mut sent_bytes, mut rest) = (0, 0, vec![]);
        for (peer, count, row) in self.rows.drain(..) {
            let sent = row.take_back();
            let bound = peer.bind(py);
            let name = pyo3::intern!(py, "direct_fd");
            let is_on_loan = bound.getattr(name)?.extract::<RawFd>()? == ON_LOAN;
            if newest(bound)?.is_some_and(|newest| Arc::ptr_eq(&newest, &row)) {
                bound.setattr(pyo3::intern!(py, "loan"), py.None())?;
                if is_on_loan {
                    bound.setattr(name, row.fd)?;
                }
            }
            row.forget_older();
            let Some(sent) = sent else {
                rest.push((peer, PyBytes::new(py, &row.data), count, false));
                continue;
            };
            sent_bytes += sent;
            let own = row.take_rest();
            if is_on_loan && own.is_empty() {
                note_answered(bound, count)?;
                total += count;
            } else {
                rest.push((peer, PyBytes::new(py, own), count, true));
            }
        }
        Ok((total, sent_bytes, rest))
    }
}

impl LentAnswers {
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self { rows: Vec::with_capacity(count) }
    }

    /// Adds frames for a connection. Lends them, unless other output of the connection must be
    /// written before.
    pub(crate) fn push(
        &mut self,
        peer: &Bound<'_, PyAny>,
        data: Vec<u8>,
        count: usize,
    ) -> PyResult<()> {
        let py = peer.py();
        let may_lend = peer.getattr(pyo3::intern!(py, "may_lend"))?.is_truthy()?;
        let older = if may_lend { newest(peer)? } else { None };
        let name = pyo3::intern!(py, "direct_fd");
        let mut fd: RawFd = peer.getattr(name)?.extract()?;
        if let (ON_LOAN, Some(row)) = (fd, &older) {
            fd = row.fd;
        }
        let is_lent = may_lend
            && fd >= 0
            && older.as_ref().is_none_or(|row| row.goes_on())
            && !peer.getattr(pyo3::intern!(py, "is_dirty"))?.is_truthy()?;
        let row = Arc::new(Row {
            fd,
            data,
            state: AtomicUsize::new(if is_lent { LENT } else { TAKEN }),
            is_rest_taken: AtomicBool::new(false),
            older: Mutex::new(older.filter(|row| !row.is_written())),
        });
        if may_lend {
            let loan = Bound::new(py, Loan { row: Arc::clone(&row) })?;
            peer.setattr(pyo3::intern!(py, "loan"), loan)?;
        }
        if is_lent {
            peer.setattr(name, ON_LOAN)?;
        }
        self.rows.push((peer.clone().unbind(), count, row));
        Ok(())
    }

    /// The rows for the thread; the loop writes all others.
    pub(crate) fn lent(&self) -> Vec<Arc<Row>> {
        let rows = self.rows.iter().filter(|(_, _, row)| row.state() == LENT);
        rows.map(|(_, _, row)| Arc::clone(row)).collect()
    }

    pub(crate) fn is_lent(&self) -> bool {
        self.rows.iter().all(|(_, _, row)| row.state() != TAKEN)
    }
}

/// Subtracts answered requests from the connection's count of requests in flight.
pub(crate) fn note_answered(peer: &Bound<'_, PyAny>, count: usize) -> PyResult<()> {
    let name = pyo3::intern!(peer.py(), "in_flight");
    peer.setattr(name, peer.getattr(name)?.extract::<i64>()? - count as i64)
}

fn newest(peer: &Bound<'_, PyAny>) -> PyResult<Option<Arc<Row>>> {
    let loan = peer.getattr(pyo3::intern!(peer.py(), "loan"))?;
    if loan.is_none() {
        return Ok(None);
    }
    Ok(Some(Arc::clone(&loan.cast::<Loan>()?.get().row)))
}
