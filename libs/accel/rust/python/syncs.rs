// SPDX-License-Identifier: Apache-2.0
//! The class `LogSyncer`, which is described in `_native.pyi`: a thread that syncs the log, and
//! writes the answers that waited for a sync, without the interpreter lock.

use std::collections::VecDeque;
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, available_parallelism, yield_now};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{fdatasync, fsync};
use rustix::io::{Errno, read, retry_on_intr, write};

use super::files::borrowed;
use super::lending::{LentAnswers, Row};
use crate::watches::{Watched, Watches};

/// Linux keeps 15 characters.
const THREAD_NAME: &str = "cometmq-flush";

/// If all answers after a sync are written, its end is reported with the next one, or after this
/// time: waking the loop for it at once would delay the next message of a single sender.
const REPORT_AFTER: Duration = Duration::from_millis(1);

/// After the answer to a single sender, the thread watches (polls) for the next sync for this long,
/// because waking up takes it 20 to 50 us. The next sync usually comes after 50 to 200 us. With 100
/// us, half of the watches saw none, and the sender sent 0.76 of the messages.
const WATCH: Duration = Duration::from_micros(300);

/// A watching thread yields its processor to the loop and the sender, which use it for less time
/// than this. If it is away for longer, another program runs.
const DISPLACED: Duration = Duration::from_micros(500);

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
    ends: Mutex<Vec<End>>,
    changed: Condvar,
    /// Whether there is something to do for the thread.
    is_due: AtomicBool,
    /// Whether the loop can run while the thread watches.
    may_watch: bool,
    ended: OwnedFd,
    /// Whether `ended` was written to since it was read.
    is_woken: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The sync after the running one.
    next: Option<Request>,
    /// Answers to write, each with the number of its sync.
    lent: VecDeque<(u64, Vec<Arc<Row>>)>,
    /// The numbers of the syncs whose end the loop waits for, because it has answers to send then.
    owed: Vec<u64>,
    /// The number of the last sync that has ended.
    ended: u64,
    /// Whether a sync has failed. A later success proves nothing, so all answers are left to the
    /// loop.
    has_failed: bool,
    /// Whether the end of a sync is not reported yet, because it is not urgent.
    is_unreported: bool,
    is_closed: bool,
}

struct Request {
    number: u64,
    files: Vec<RawFd>,
    folder: Option<RawFd>,
}

struct End {
    number: u64,
    seconds: f64,
    failure: Option<(usize, i32)>,
    at: Instant,
}

/// The number of a sync, its duration in seconds, how it failed: the index of the file (for the
/// folder, the number of files) and the error; and how many seconds ago it ended.
type Ended = (u64, f64, Option<(usize, i32)>, f64);

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
            is_due: AtomicBool::new(false),
            may_watch: available_parallelism().is_ok_and(|count| count.get() > 1),
            ended,
            is_woken: AtomicBool::new(false),
        });
        let of_thread = Arc::clone(&shared);
        Builder::new().name(THREAD_NAME.into()).spawn(move || of_thread.run())?;
        Ok(Self { shared })
    }

    fn fileno(&self) -> RawFd {
        self.shared.ended.as_raw_fd()
    }

    fn start(&self, number: u64, files: Vec<RawFd>, folder: Option<RawFd>) -> bool {
        let mut state = self.shared.state();
        state.owed.push(number);
        let replaced = state.next.replace(Request { number, files, folder });
        self.shared.is_due.store(true, Ordering::Release);
        drop(state);
        self.shared.changed.notify_one();
        replaced.is_some()
    }

    fn lend(&self, number: u64, answers: &Bound<'_, LentAnswers>, is_all: bool) {
        let answers = answers.borrow();
        let rows = answers.lent();
        let is_all = is_all && answers.is_lent();
        let mut state = self.shared.state();
        if state.ended >= number || state.has_failed {
            return; // the loop settles them
        }
        if is_all {
            state.owed.retain(|&one| one != number);
        }
        state.lent.push_back((number, rows));
    }

    fn take(&self) -> Vec<Ended> {
        // First, so that a sync that ends after this call wakes the loop again.
        if self.shared.is_woken.swap(false, Ordering::Acquire) {
            let _ = read(&self.shared.ended, &mut [0; 8]);
        }
        self.shared.state().is_unreported = false;
        let ends = std::mem::take(&mut *locked(&self.shared.ends));
        let ended =
            |end: End| (end.number, end.seconds, end.failure, end.at.elapsed().as_secs_f64());
        ends.into_iter().map(ended).collect()
    }
}

impl Drop for LogSyncer {
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.shared.is_due.store(true, Ordering::Release);
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn run(&self) {
        let mut watches = Watches::default();
        while let Some(request) = self.next() {
            let began = Instant::now();
            let failure = sync(&request);
            let at = Instant::now();
            let seconds = (at - began).as_secs_f64();
            let is_alone = self.note(End { number: request.number, seconds, failure, at });
            if is_alone && self.may_watch && watches.is_worthwhile() {
                watches.note(self.watch());
            }
        }
    }

    /// Waits for the next sync without sleeping.
    fn watch(&self) -> Watched {
        let began = Instant::now();
        let mut last = began;
        while !self.is_due.load(Ordering::Acquire) {
            if last - began > WATCH {
                return Watched::Miss;
            }
            yield_now(); // the loop or the sender may need this processor
            let now = Instant::now();
            if now - last > DISPLACED {
                return Watched::Displaced;
            }
            last = now;
        }
        Watched::Hit
    }

    /// Reports a sync that has ended, and writes the answers that waited for it. Returns whether
    /// there was just one answer, and it is written.
    fn note(&self, end: End) -> bool {
        let (rows, is_owed) = self.due(&end);
        let mut end = Some(end);
        if is_owed {
            // The loop sends its answers meanwhile.
            locked(&self.ends).extend(end.take());
            self.wake();
        }
        let (mut row_count, mut left_count) = (0, 0);
        for row in rows.iter().flatten() {
            row_count += 1;
            left_count += usize::from(!row.write());
        }
        let Some(end) = end else {
            return false;
        };
        locked(&self.ends).push(end);
        if left_count == 0 {
            self.state().is_unreported = true;
        } else {
            self.wake();
        }
        row_count == 1 && left_count == 0
    }

    /// Returns the rows to write after a sync, and whether the loop waits for its end.
    fn due(&self, end: &End) -> (Vec<Vec<Arc<Row>>>, bool) {
        let mut state = self.state();
        state.ended = end.number;
        state.has_failed |= end.failure.is_some();
        let count = state.owed.len();
        state.owed.retain(|&one| one > end.number);
        let is_owed = state.owed.len() < count || state.has_failed;
        let due_count = state.lent.iter().take_while(|(number, _)| *number <= end.number).count();
        let due = state.lent.drain(..due_count).map(|(_, rows)| rows);
        let rows = due.collect();
        (if state.has_failed { vec![] } else { rows }, is_owed)
    }

    /// Wakes the loop. This fails only if the counter is full, and the loop is then woken anyway.
    fn wake(&self) {
        let _ = write(&self.ended, &1_u64.to_ne_bytes());
        self.is_woken.store(true, Ordering::Release);
    }

    fn next(&self) -> Option<Request> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(request) = state.next.take() {
                self.is_due.store(false, Ordering::Relaxed);
                return Some(request);
            }
            if !state.is_unreported {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let waited = self.changed.wait_timeout(state, REPORT_AFTER);
            let (guard, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if waited.timed_out() && state.is_unreported {
                state.is_unreported = false;
                drop(state);
                self.wake();
                state = self.state();
            }
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
