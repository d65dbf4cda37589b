// SPDX-License-Identifier: Apache-2.0
//! The class `LogSyncer`, which is described in `_native.pyi`: a thread that syncs the log without
//! the interpreter lock.

use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Instant;

use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{fdatasync, fsync};
use rustix::io::{Errno, read, retry_on_intr, write};

use super::files::borrowed;
use super::sockets;

/// Linux keeps 15 characters.
const THREAD_NAME: &str = "cometmq-flush";

/// A thread that runs one sync at a time; the caller's loop watches a descriptor for their ends.
///
/// Syncing on a thread of Python costs two waits for the interpreter lock, while the loop is busy
/// with the sends that arrive meanwhile: the device idled for half of the time.
#[pyclass(module = "cometmq.accel", frozen)]
pub(crate) struct LogSyncer {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Apart from the state, which is locked while an answer is sent.
    ends: Mutex<Vec<Ended>>,
    changed: Condvar,
    ended: OwnedFd,
}

#[derive(Default)]
struct State {
    /// The sync after the running one.
    next: Option<Request>,
    answer: Option<Answer>,
    /// The number of the last sync that has ended.
    ended: u64,
    /// Whether a sync has failed. A later one proves nothing, so all answers are left to the loop.
    has_failed: bool,
    is_closed: bool,
}

struct Request {
    number: u64,
    files: Vec<RawFd>,
    folder: Option<RawFd>,
}

/// Bytes for a socket, which the thread writes as soon as their sync has ended: waking the loop for
/// that costs a lone sender a third of its time.
struct Answer {
    /// The sync that covers what the answer promises.
    number: u64,
    fd: RawFd,
    data: Vec<u8>,
    /// How many bytes the kernel has taken; the thread no longer touches the socket then.
    sent: Option<usize>,
}

impl Answer {
    fn send(&mut self, has_failed: bool) {
        self.sent = Some(if has_failed { 0 } else { sockets::write(self.fd, &self.data) });
    }
}

/// The number of a sync, its duration in seconds, and how it failed: the index of the file (for the
/// folder, the number of files) and the error.
type Ended = (u64, f64, Option<(usize, i32)>);

#[pymethods]
impl LogSyncer {
    #[new]
    fn new() -> PyResult<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let ended = eventfd(0, flags).map_err(Error::from)?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            ends: Mutex::default(),
            changed: Condvar::new(),
            ended,
        });
        let of_thread = Arc::clone(&shared);
        Builder::new().name(THREAD_NAME.into()).spawn(move || of_thread.run())?;
        Ok(Self { shared })
    }

    fn fileno(&self) -> RawFd {
        self.shared.ended.as_raw_fd()
    }

    fn start(&self, number: u64, files: Vec<RawFd>, folder: Option<RawFd>) -> bool {
        let replaced = self.shared.state().next.replace(Request { number, files, folder });
        self.shared.changed.notify_one();
        replaced.is_some()
    }

    fn answer(&self, number: u64, fd: RawFd, data: &[u8]) {
        let mut state = self.shared.state();
        let mut answer = Answer { number, fd, data: data.to_vec(), sent: None };
        if state.ended >= number {
            answer.send(state.has_failed);
        }
        state.answer = Some(answer);
    }

    fn withdraw(&self) -> usize {
        self.shared.state().answer.take().and_then(|answer| answer.sent).unwrap_or(0)
    }

    fn take(&self) -> Vec<Ended> {
        // First, so that a sync that ends after this call wakes the loop again.
        let _ = read(&self.shared.ended, &mut [0; 8]);
        std::mem::take(&mut locked(&self.shared.ends))
    }
}

impl Drop for LogSyncer {
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn run(&self) {
        while let Some(request) = self.next() {
            let began = Instant::now();
            let failure = sync(&request);
            let seconds = began.elapsed().as_secs_f64();
            self.note(request.number, seconds, failure);
        }
    }

    /// Reports a sync that has ended, and sends the answer that waited for it.
    fn note(&self, number: u64, seconds: f64, failure: Option<(usize, i32)>) {
        locked(&self.ends).push((number, seconds, failure));
        // Before the answer: the loop wakes up meanwhile, and has noted the end when the next
        // message of the sender arrives. It fails only if the counter is full, and the loop is then
        // woken anyway.
        let _ = write(&self.ended, &1_u64.to_ne_bytes());
        let mut state = self.state();
        state.ended = number;
        state.has_failed |= failure.is_some();
        let has_failed = state.has_failed;
        let is_due = |one: &&mut Answer| one.sent.is_none() && one.number <= number;
        if let Some(answer) = state.answer.as_mut().filter(is_due) {
            answer.send(has_failed); // the lock is held, so that the loop cannot close the socket
        }
    }

    fn next(&self) -> Option<Request> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(request) = state.next.take() {
                return Some(request);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Locks a value. No code panics while it holds the lock.
fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sync(request: &Request) -> Option<(usize, i32)> {
    let failed = |index, result: std::result::Result<(), Errno>| {
        result.err().map(|error| (index, error.raw_os_error()))
    };
    let files = request.files.iter().enumerate();
    let mut failures =
        files.filter_map(|(index, &fd)| failed(index, retry_on_intr(|| fdatasync(borrowed(fd)?))));
    failures.next().or_else(|| {
        let fd = request.folder?;
        failed(request.files.len(), retry_on_intr(|| fsync(borrowed(fd)?)))
    })
}
