// SPDX-License-Identifier: Apache-2.0
//! The class `Sockets`, which is described in `_native.pyi`: reads and writes sockets that the
//! transports of an event loop own.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Result, Write};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, FromRawFd, RawFd};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::answering::{self, Answered, Answering, Answers, Output, PULLS, Pulling};
use super::lending::{Settled, note_answered};
use super::staging::{SENDS, Sending, StagedRows, Staging};
use super::tls::TlsSession;

/// Size of one read; a longer input takes several turns of the loop.
const READ_BYTES_MAX: usize = 256 << 10;
/// Maximum size of all reads of one call; each socket may read an equal share.
const TURN_BYTES: usize = 4 << 20;
/// Number of sockets that are read before their pulls are answered.
const GROUP_COUNT: usize = 16;
/// Number of sockets that one call can read.
const EVENTS_MAX: usize = 128;
/// A socket that alone was readable so often in a row is read without asking the epoll object.
const LONE_COUNT: u32 = 8;
/// Number of such reads in a row. Other sockets wait for at most so many of them, each of at most
/// `LONE_BYTES_MAX`.
const GUESSES_MAX: u32 = 4;
/// Size of a read after which the next one asks the epoll object.
const LONE_BYTES_MAX: usize = 4 << 10;

/// Nonblocking sockets.
#[pyclass(module = "cometmq.accel")]
pub(crate) struct Sockets {
    buffer: Vec<u8>,
    /// The sockets whose bytes are encrypted.
    secured: HashMap<RawFd, Py<TlsSession>>,
    plain: Vec<u8>,
    sealed: Vec<u8>,
    /// Number of received bytes that were not plain bytes, since `take_overhead` was called last.
    overhead: isize,
    answers: Answers,
    lone: Lone,
}

/// A socket that alone has been readable: a lone sender's next message needs one system call less.
#[derive(Default)]
struct Lone {
    fd: RawFd,
    /// Number of times in a row that the epoll object has reported only this socket.
    count: u32,
    /// Number of reads since then that did not ask it.
    guesses: u32,
}

impl Lone {
    /// Returns the socket that is probably the only readable one, if it is still read directly.
    fn guess(&mut self, peers: &Bound<'_, PyDict>) -> PyResult<Option<RawFd>> {
        if self.count < LONE_COUNT || self.guesses == GUESSES_MAX {
            return Ok(None);
        }
        let is_polled = pyo3::intern!(peers.py(), "is_polled");
        let is_read = match peers.get_item(self.fd)? {
            Some(peer) => peer.getattr(is_polled)?.is_truthy()?,
            None => false,
        };
        self.guesses += 1;
        Ok(is_read.then_some(self.fd))
    }

    /// Notes which sockets the epoll object has reported.
    fn note(&mut self, events: &[Event]) {
        let mut fd = -1;
        if let [event] = events {
            let Event { flags, data } = *event;
            if flags == EventFlags::IN {
                fd = fd_of(data);
            }
        }
        self.count = if fd >= 0 && fd == self.fd { self.count.saturating_add(1) } else { 0 };
        (self.fd, self.guesses) = (fd, 0);
    }
}

/// The index of a row, and the bytes that are still to be sent; `None` if nothing of the row was
/// written, because its connection no longer has a socket.
type Rest<'py> = (usize, Option<Bound<'py, PyBytes>>);
type Received<'py> =
    (Bound<'py, PyList>, Bound<'py, PyList>, Option<Answered<'py>>, Option<StagedRows<'py>>);
type Taken<'py> = (usize, Bound<'py, PyList>, Option<Answered<'py>>, Option<StagedRows<'py>>);

#[pymethods]
impl Sockets {
    #[new]
    fn new() -> Self {
        Self {
            buffer: vec![0; READ_BYTES_MAX],
            secured: HashMap::new(),
            plain: vec![],
            sealed: vec![],
            overhead: 0,
            answers: Answers::default(),
            lone: Lone::default(),
        }
    }

    fn secure(&mut self, fd: RawFd, session: Py<TlsSession>) {
        self.secured.insert(fd, session);
    }

    fn release(&mut self, fd: RawFd) {
        self.secured.remove(&fd);
    }

    fn take_overhead(&mut self) -> isize {
        std::mem::take(&mut self.overhead)
    }

    #[pyo3(signature = (epoll, peers, count_max, pulling=None, sending=None))]
    #[allow(clippy::too_many_arguments)] // once per turn: an object for them costs time
    fn receive<'py>(
        &mut self,
        py: Python<'py>,
        epoll: RawFd,
        peers: &Bound<'py, PyDict>,
        count_max: usize,
        pulling: Option<Pulling<'py>>,
        sending: Option<Sending<'py>>,
    ) -> PyResult<Received<'py>> {
        let Self { buffer, secured, plain, sealed, overhead, answers, lone } = self;
        let mut output = Output { secured, sealed };
        let ended = PyList::empty(py);
        let mut events = [MaybeUninit::uninit(); EVENTS_MAX];
        let mut takers = Takers {
            answering: pulling.map(|pulling| Answering::new(pulling, answers)),
            staging: sending.map(Staging::new),
            chunks: PyList::empty(py),
        };
        let (mut reads_on, mut is_first) = (true, true);
        while reads_on {
            let guess = if is_first { lone.guess(peers)? } else { None };
            let events = if let Some(fd) = guess {
                &[Event { flags: EventFlags::IN, data: data_of(fd) }]
            } else {
                let events = poll(epoll, &mut events[..count_max.min(EVENTS_MAX)])?;
                if is_first {
                    lone.note(events);
                }
                events
            };
            is_first = false;
            let mut is_missed = false;
            let share = (TURN_BYTES / events.len().max(1)).clamp(1, READ_BYTES_MAX);
            let buffer = &mut buffer[..share];
            // Native code that runs between system calls takes twice the time.
            for group in events.chunks(GROUP_COUNT) {
                for &Event { flags, data } in group {
                    let fd = fd_of(data);
                    let peer = peers.as_any().get_item(fd)?;
                    let is_readable = flags == EventFlags::IN;
                    let result =
                        if is_readable { retry(|| borrowed(fd)?.read(buffer)) } else { Ok(0) };
                    let data = match result {
                        Ok(0) => {
                            ended.append(peer)?;
                            continue;
                        }
                        Ok(count) => match secured.get(&fd) {
                            None => &buffer[..count],
                            Some(session) => {
                                plain.clear();
                                // The connection asks the session for its last bytes and the reason.
                                if session.borrow_mut(py).receive(&buffer[..count], plain) {
                                    ended.append(peer)?;
                                    *overhead += count as isize;
                                    continue;
                                }
                                // Plain bytes may have been received earlier than their last record.
                                *overhead += count as isize - plain.len() as isize;
                                &*plain
                            }
                        },
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            is_missed = guess.is_some();
                            continue;
                        }
                        Err(_) => {
                            ended.append(peer)?;
                            continue;
                        }
                    };
                    if data.len() > LONE_BYTES_MAX {
                        lone.count = 0;
                    }
                    takers.take(&peer, data)?;
                }
                takers.run(py, Some(&mut output))?;
                if takers.answering.as_ref().is_some_and(Answering::is_done) {
                    break;
                }
            }
            if is_missed {
                lone.count = 0;
                continue; // ask the epoll object
            }
            reads_on = match &mut takers.answering {
                None => false,
                Some(answering) => {
                    answering.send(py, &mut output)?;
                    answering.reads_on() && takers.is_empty() && ended.is_empty()
                }
            };
        }
        let (chunks, answered, staged) = takers.finish(py)?;
        self.shrink();
        Ok((chunks, ended, answered, staged))
    }

    #[pyo3(signature = (rows, first, pulling=None, sending=None))]
    fn take_rows<'py>(
        &mut self,
        rows: &Bound<'py, PyList>,
        first: usize,
        pulling: Option<Pulling<'py>>,
        sending: Option<Sending<'py>>,
    ) -> PyResult<Taken<'py>> {
        let py = rows.py();
        let mut takers = Takers {
            answering: pulling.map(|pulling| Answering::new(pulling, &mut self.answers)),
            staging: sending.map(Staging::new),
            chunks: PyList::empty(py),
        };
        let mut next = first;
        while next < rows.len() {
            let (peer, data) =
                rows.get_item(next)?.extract::<(Bound<'_, _>, Bound<'_, PyBytes>)>()?;
            next += 1;
            takers.take(&peer, data.as_bytes())?;
            takers.run(py, None)?;
            if takers.answering.as_ref().is_some_and(Answering::is_done) {
                break;
            }
        }
        let (chunks, answered, staged) = takers.finish(py)?;
        Ok((next, chunks, answered, staged))
    }

    fn send_answers<'py>(
        &mut self,
        py: Python<'py>,
    ) -> PyResult<(usize, Vec<answering::Rest<'py>>)> {
        let mut output = Output { secured: &self.secured, sealed: &mut self.sealed };
        let mut rest = vec![];
        let total = self.answers.send(py, &mut output, &mut rest)?;
        self.shrink();
        Ok((total, rest))
    }

    #[allow(clippy::unused_self)] // a method, because a connection is given one object
    fn send(&self, fd: RawFd, data: &[u8]) -> usize {
        write(fd, data)
    }

    fn send_rows<'py>(
        &mut self,
        py: Python<'py>,
        rows: &Bound<'py, PyList>,
    ) -> PyResult<(usize, Vec<Rest<'py>>)> {
        let name = pyo3::intern!(py, "direct_fd");
        let (mut total, mut unsent, mut full) = (0, vec![], vec![]);
        for (index, row) in rows.iter().enumerate() {
            let row = row.cast::<PyTuple>()?;
            let fd: RawFd = row.get_item(0)?.getattr(name)?.extract()?;
            let plain = row.get_item(1)?.cast_into::<PyBytes>()?;
            if fd < 0 {
                unsent.push((index, None));
                continue;
            }
            let data = seal(py, &self.secured, fd, plain.as_bytes(), &mut self.sealed);
            // Later bytes for a socket must not overtake bytes that it has not taken.
            let sent = if full.contains(&fd) { 0 } else { write(fd, data) };
            total += sent;
            if sent < data.len() {
                full.push(fd);
                let rest = PyBytes::new(py, &data[sent..]);
                unsent.push((index, Some(rest)));
            }
        }
        self.shrink();
        Ok((total, unsent))
    }
}

impl Sockets {
    /// Writes the answers of a commit; each row has a connection, its frames and their number.
    pub(crate) fn reply<'a, 'py>(
        &mut self,
        py: Python<'py>,
        rows: impl Iterator<Item = (&'a Py<PyAny>, Vec<u8>, usize)>,
    ) -> PyResult<Settled<'py>> {
        let (mut total, mut sent_bytes, mut rest) = (0, 0, vec![]);
        for (peer, plain, count) in rows {
            let bound = peer.bind(py);
            let fd: RawFd = bound.getattr(pyo3::intern!(py, "direct_fd"))?.extract()?;
            if fd < 0 || bound.getattr(pyo3::intern!(py, "is_dirty"))?.is_truthy()? {
                rest.push((peer.clone_ref(py), PyBytes::new(py, &plain), count, false));
                continue;
            }
            let data = seal(py, &self.secured, fd, &plain, &mut self.sealed);
            let sent = write(fd, data);
            sent_bytes += sent;
            if sent < data.len() {
                rest.push((peer.clone_ref(py), PyBytes::new(py, &data[sent..]), count, true));
            } else {
                note_answered(bound, count)?;
                total += count;
            }
        }
        self.shrink();
        Ok((total, sent_bytes, rest))
    }

    fn shrink(&mut self) {
        for buffer in [&mut self.plain, &mut self.sealed] {
            buffer.shrink_to(READ_BYTES_MAX);
        }
    }
}

/// The destinations of the chunks of one call: answers, staging, or Python.
struct Takers<'a, 'py> {
    answering: Option<Answering<'a, 'py>>,
    staging: Option<Staging<'py>>,
    /// The chunks that are left to Python.
    chunks: Bound<'py, PyList>,
}

impl<'py> Takers<'_, 'py> {
    /// Keeps a chunk until `run`, or adds it to the chunks that are left to Python.
    fn take(&mut self, peer: &Bound<'py, PyAny>, data: &[u8]) -> PyResult<()> {
        let py = peer.py();
        if data.is_empty() {
            return Ok(()); // a record of TLS is not complete
        }
        if self.answering.is_some() || self.staging.is_some() {
            let habit = peer.getattr(pyo3::intern!(py, "habit"))?.extract::<i64>()?;
            match (habit, &mut self.answering, &mut self.staging) {
                (PULLS, Some(answering), _) => {
                    answering.keep(peer, data);
                    return Ok(());
                }
                (SENDS, _, Some(staging)) => {
                    staging.keep(peer, PyBytes::new(py, data));
                    return Ok(());
                }
                _ => {}
            }
        }
        self.chunks.append((peer, PyBytes::new(py, data)))
    }

    /// Answers the chunks of pulls that were kept, and sends large answers.
    fn run(&mut self, py: Python<'py>, output: Option<&mut Output<'_>>) -> PyResult<()> {
        match &mut self.answering {
            None => Ok(()),
            Some(answering) => answering.run(py, output, &self.chunks),
        }
    }

    /// Whether no chunk is left to Python or staged for a commit.
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.staging.as_ref().is_none_or(Staging::is_empty)
    }

    /// Returns the chunks for Python, the result of the answers, and what is staged.
    fn finish(
        self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyList>, Option<Answered<'py>>, Option<StagedRows<'py>>)> {
        let Self { answering, staging, chunks } = self;
        let answered = answering.map_or(Ok(None), Answering::finish)?;
        let staged = staging.map_or(Ok(None), |staging| staging.finish(py, &chunks))?;
        Ok((chunks, answered, staged))
    }
}

/// Returns the bytes to write to a socket: encrypted ones, in a buffer, if it is secured.
pub(crate) fn seal<'a>(
    py: Python<'_>,
    secured: &HashMap<RawFd, Py<TlsSession>>,
    fd: RawFd,
    data: &'a [u8],
    sealed: &'a mut Vec<u8>,
) -> &'a [u8] {
    let Some(session) = secured.get(&fd) else {
        return data;
    };
    sealed.clear();
    session.borrow_mut(py).seal(data, sealed);
    sealed
}

/// Finds the readable sockets, without waiting for any.
#[allow(unsafe_code)]
fn poll(epoll: RawFd, events: &mut [MaybeUninit<Event>]) -> Result<&[Event]> {
    if epoll < 0 {
        return Err(ErrorKind::NotConnected.into());
    }
    // SAFETY: the number is not -1. If the object was closed, the system call fails.
    let epoll = unsafe { BorrowedFd::borrow_raw(epoll) };
    match epoll::wait(epoll, events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok((ready, _)) => Ok(ready),
        Err(Errno::INTR) => Ok(&[]),
        Err(error) => Err(error.into()),
    }
}

/// Returns the descriptor with which Python's `epoll.register` marks an event; the bytes after it
/// are arbitrary.
fn fd_of(data: EventData) -> RawFd {
    let [a, b, c, d, ..] = data.u64().to_ne_bytes();
    RawFd::from_ne_bytes([a, b, c, d])
}

/// Returns the data of an event for a socket.
fn data_of(fd: RawFd) -> EventData {
    let [a, b, c, d] = fd.to_ne_bytes();
    EventData::new_u64(u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]))
}

/// Writes as much as the kernel takes, and returns the number of bytes. Errors are ignored, because
/// the transport's next operation on the socket reports them.
pub(crate) fn write(fd: RawFd, data: &[u8]) -> usize {
    retry(|| borrowed(fd)?.write(data)).unwrap_or(0)
}

fn retry(mut attempt: impl FnMut() -> Result<usize>) -> Result<usize> {
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Returns a socket without its ownership.
#[allow(unsafe_code)]
fn borrowed(fd: RawFd) -> Result<ManuallyDrop<TcpStream>> {
    if fd < 0 {
        return Err(ErrorKind::NotConnected.into());
    }
    // SAFETY: `ManuallyDrop` never closes the descriptor, and the value does not leave the caller.
    // Only the loop's thread, which is in this call, closes sockets of the loop, and a connection
    // gives up its descriptor before its transport closes it. With any other descriptor, the system
    // call would fail or transfer bytes, but never touch memory other than the given slice.
    Ok(ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) }))
}
