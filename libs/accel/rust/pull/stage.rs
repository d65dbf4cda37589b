// SPDX-License-Identifier: Apache-2.0
//! The pulls of one chunk, and the readers that Python has admitted.

use std::collections::HashMap;

use crate::frames::Frame;
use crate::pull::answer::{Answer, Template};
use crate::pull::request::{Asked, read_pull};
use crate::pull::select::{
    Caches, Filter, Found, LastBlocks, Limits, LogView, Queue, Selection, Source,
};

/// Marks a staged pull whose reader has been forgotten.
const NO_READER: u32 = u32::MAX;
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

/// The readers, and the pulls of the last staged chunk.
#[derive(Default)]
pub struct Pulls {
    /// The readers, by number.
    pub readers: Vec<Reader>,
    by_key: HashMap<Vec<u8>, u32>,
    keys_bytes: usize,
    /// The pulls, in the order of the chunk.
    pub staged: Vec<Pull>,
    key: Vec<u8>,
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

    /// Returns whether the readers use as much memory as they may.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.readers.len() >= READERS_MAX || self.keys_bytes >= KEYS_BYTES_MAX
    }

    /// Forgets all readers; staged pulls lose theirs.
    pub fn forget(&mut self) {
        self.by_key.clear();
        self.keys_bytes = 0;
        self.readers.clear();
        for pull in &mut self.staged {
            pull.reader = NO_READER;
        }
    }

    /// Stages a frame if it is a plain pull by a known reader; returns whether it is.
    pub fn stage(&mut self, data: &[u8], frame: &Frame) -> bool {
        let asked = read_pull(frame.serialization, frame.head(data), &mut self.key);
        let reader = self.by_key.get(&self.key);
        let (Some(asked), Some(&reader)) = (asked, reader) else {
            return false;
        };
        if asked.queue_id >= self.readers[reader as usize].queue_count {
            return false;
        }
        let Frame { serialization, start, end, .. } = *frame;
        self.staged.push(Pull { asked, reader, serialization, start, end });
        true
    }
}

/// The sources from which a pull is answered.
pub struct Context<'a, S> {
    /// The queue to read.
    pub queue: Queue,
    /// The log.
    pub log: &'a LogView,
    /// Limits of answers.
    pub limits: Limits,
    /// Reads blocks that are not cached.
    pub source: &'a mut S,
}

/// Appends the answer to a pull to `out`; `body` is a buffer for the records. If Python must
/// answer, returns `None` and appends nothing.
pub fn answer<S: Source>(
    pull: &Pull,
    reader: &Reader,
    context: Context<'_, S>,
    caches: &mut Caches,
    template: &Template,
    (out, body, budget): (&mut Vec<u8>, &mut Vec<u8>, &mut i64),
) -> Option<Found> {
    let Context { queue, log, limits, source } = context;
    body.clear();
    let count_max = i64::from(pull.asked.count_max.max(1)).min(limits.count_max);
    let found = Selection {
        caches,
        source,
        log,
        queue,
        limits: Limits { count_max, ..limits },
        filter: &reader.filter,
        last: LastBlocks::default(),
    }
    .run(pull.asked.queue_offset, body, budget)?;
    let numbers = [reader.suggested_id, found.next_offset, queue.min_offset, queue.max_offset];
    let Pull { asked, serialization, .. } = *pull;
    template.push(out, &Answer { opaque: asked.opaque, serialization, numbers }, body);
    Some(found)
}
