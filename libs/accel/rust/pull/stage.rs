// SPDX-License-Identifier: Apache-2.0
//! The pulls and renewals of one chunk, and the readers that Python has admitted.

use std::collections::HashMap;
use std::sync::Arc;

use crate::access::Access;
use crate::frames::{Frame, Next, frame_at};
use crate::pull::answer::Template;
use crate::pull::renewals::Renewals;
use crate::pull::request::{Asked, read_pull};
use crate::pull::select::{Caches, Filter, LastBlocks, Selection, Source};
use crate::pull::{Found, Limits, LogView, Queue};
use crate::signatures::Message;
use crate::text::{close_length, push_decimal};

/// Marks a staged request whose reader, or whose known renewal, has been forgotten.
const FORGOTTEN: u32 = u32::MAX;
const READERS_MAX: usize = 1 << 15;
const KEYS_BYTES_MAX: usize = 8 << 20;

/// A group and its subscription to a topic.
#[derive(Debug)]
pub struct Reader {
    /// The messages that the subscription selects.
    pub filter: Filter,
    /// The broker to pull from next.
    pub suggested_id: i64,
    /// Number of queues that may be read.
    pub queue_count: i32,
}

/// One pull of the chunk.
#[derive(Clone, Copy, Debug)]
pub struct Pull {
    /// The numbers in the header.
    pub asked: Asked,
    /// Index of the reader.
    pub reader: u32,
    /// Serialization of the request's header, and of the answer.
    pub serialization: u8,
    /// Start of the frame in the chunk.
    pub start: usize,
    /// End of the frame.
    pub end: usize,
}

/// One request of the chunk to renew locks.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    /// Opaque of the request.
    pub opaque: i32,
    /// Number of the known request that it repeats.
    pub number: u32,
    /// Serialization of the request's header, and of the answer.
    pub serialization: u8,
    /// Start of the frame in the chunk.
    pub start: usize,
    /// End of the frame.
    pub end: usize,
}

/// One staged request.
#[derive(Clone, Copy, Debug)]
pub enum Staged {
    /// A pull.
    Pull(Pull),
    /// A request to renew locks.
    Renewal(Renewal),
}

impl Staged {
    /// Returns the start and end of the frame.
    #[must_use]
    pub fn frame(&self) -> (usize, usize) {
        match self {
            Self::Pull(pull) => (pull.start, pull.end),
            Self::Renewal(renewal) => (renewal.start, renewal.end),
        }
    }
}

/// The readers and known renewals, and the requests of the last staged chunk.
#[derive(Default)]
pub struct Pulls {
    /// The accounts, with access control; renewals are then left to Python.
    pub access: Option<Arc<Access>>,
    /// The readers, by number.
    pub readers: Vec<Reader>,
    by_key: HashMap<Vec<u8>, u32>,
    keys_bytes: usize,
    /// The known renewals.
    pub renewals: Renewals,
    /// The staged requests, in the order of the chunk.
    pub staged: Vec<Staged>,
    key: Vec<u8>,
    message: Message,
}

impl Pulls {
    /// Accepts pulls like this one from now on. Returns false, with nothing changed, if the header
    /// is unusual or its reader is already known.
    pub fn learn(&mut self, serialization: u8, head: &[u8], reader: Reader) -> bool {
        if read_pull(serialization, head, &mut self.key).is_none() {
            return false;
        }
        if self.by_key.contains_key(&self.key) {
            return false;
        }
        let Ok(number) = u32::try_from(self.readers.len()) else {
            return false;
        };
        self.keys_bytes += self.key.len();
        self.by_key.insert(self.key.clone(), number);
        self.readers.push(reader);
        true
    }

    /// Returns whether the readers have reached their memory limit.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.readers.len() >= READERS_MAX || self.keys_bytes >= KEYS_BYTES_MAX
    }

    /// Forgets all readers; staged pulls are left to Python.
    pub fn forget(&mut self) {
        self.by_key.clear();
        self.keys_bytes = 0;
        self.readers.clear();
        for staged in &mut self.staged {
            if let Staged::Pull(pull) = staged {
                pull.reader = FORGOTTEN;
            }
        }
    }

    /// Forgets all known renewals; staged ones are left to Python.
    pub fn forget_renewals(&mut self) {
        self.renewals.forget();
        for staged in &mut self.staged {
            if let Staged::Renewal(renewal) = staged {
                renewal.number = FORGOTTEN;
            }
        }
    }

    /// Stages a chunk of at most `count_max` plain pulls and known renewals, in place of the last
    /// chunk; returns their number, or 0 if the chunk contains anything else.
    pub fn stage_chunk(&mut self, data: &[u8], count_max: usize, frame_bytes_max: usize) -> usize {
        self.staged.clear();
        let mut at = 0;
        while at < data.len() {
            let Next::Whole(frame) = frame_at(data, at, frame_bytes_max) else {
                return 0;
            };
            if self.staged.len() == count_max || !self.stage(data, &frame) {
                return 0;
            }
            at = frame.end;
        }
        self.staged.len()
    }

    /// Stages a frame if it is a plain pull by a known reader or a known renewal; returns whether
    /// it is.
    pub fn stage(&mut self, data: &[u8], frame: &Frame) -> bool {
        self.stage_pull(data, frame) || self.stage_renewal(data, frame)
    }

    fn stage_pull(&mut self, data: &[u8], frame: &Frame) -> bool {
        let fields = read_pull(frame.serialization, frame.head(data), &mut self.key);
        let Some(fields) = fields else {
            return false;
        };
        let Some(&reader) = self.by_key.get(&self.key) else {
            return false;
        };
        let Frame { serialization, start, body, end } = *frame;
        let (access, message) = (self.access.as_deref(), &mut self.message);
        let is_allowed = fields.asked.queue_id < self.readers[reader as usize].queue_count
            && fields.is_allowed_by(access, &data[body..end], message);
        message.shrink();
        if !is_allowed {
            return false;
        }
        let asked = fields.asked;
        self.staged.push(Staged::Pull(Pull { asked, reader, serialization, start, end }));
        true
    }

    fn stage_renewal(&mut self, data: &[u8], frame: &Frame) -> bool {
        if self.access.is_some() {
            return false;
        }
        let Frame { serialization, start, body, end } = *frame;
        let found = self.renewals.find(serialization, frame.head(data), &data[body..end]);
        let Some((opaque, number)) = found else {
            return false;
        };
        let renewal = Renewal { opaque, number, serialization, start, end };
        self.staged.push(Staged::Renewal(renewal));
        true
    }
}

/// What a pull is answered from: its queue, the log, the limits, and a source of blocks.
pub struct Context<'a, S> {
    /// The queue to read.
    pub queue: Queue,
    /// Its topic.
    pub topic: &'a [u8],
    /// The log.
    pub log: &'a LogView,
    /// Limits of answers.
    pub limits: Limits,
    /// Reads blocks that are not cached.
    pub source: &'a mut S,
}

/// Appends the answer to a pull to `out`. If Python must answer, returns `None` and appends nothing.
/// `budget` is the number of steps that filters may still take.
pub fn answer<S: Source>(
    pull: &Pull,
    reader: &Reader,
    context: Context<'_, S>,
    caches: &mut Caches,
    template: &Template<4>,
    (out, budget): (&mut Vec<u8>, &mut i64),
) -> Option<Found> {
    let Context { queue, topic, log, limits, source } = context;
    let Pull { asked, serialization, .. } = *pull;
    let count_max = i64::from(asked.count_max.max(1)).min(limits.count_max);
    let limits = Limits { count_max, ..limits };
    let numbers = |next| [reader.suggested_id, next, queue.min_offset, queue.max_offset];
    let begin = |out: &mut Vec<u8>, next| {
        let numbers = numbers(next);
        let push = |out: &mut Vec<u8>, field: usize| push_decimal(out, numbers[field]);
        template.begin(out, (asked.opaque, serialization), push)
    };
    // Filters make results unique.
    let is_shared = matches!(reader.filter, Filter::All);
    if is_shared {
        if let Some((found, records)) = caches.recent.find(queue, asked.queue_offset, &limits, log)
        {
            let frame = begin(out, found.next_offset);
            out.extend_from_slice(records);
            close_length(out, frame.start);
            return Some(found);
        }
    }
    // Usually all messages that the pull asks for are there.
    let expected = asked.queue_offset.saturating_add(count_max).min(queue.max_offset);
    let frame = begin(out, expected);
    let found = Selection {
        caches,
        source,
        log,
        queue,
        name: (asked.queue_id, topic),
        limits,
        filter: &reader.filter,
        last: LastBlocks::default(),
    }
    .run(asked.queue_offset, out, budget);
    let Some(found) = found else {
        out.truncate(frame.start);
        return None;
    };
    if is_shared {
        let records = &out[frame.end..];
        caches.recent.note(queue, asked.queue_offset, &limits, found, records);
    }
    if found.next_offset != expected {
        let mut head = vec![];
        begin(&mut head, found.next_offset);
        out.splice(frame.clone(), head);
    }
    close_length(out, frame.start);
    Some(found)
}
