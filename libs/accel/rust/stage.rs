// SPDX-License-Identifier: Apache-2.0
//! Plain sends of one commit, from the received bytes until their records are built.
//!
//! Only the properties are copied: a staged message points into its chunk, which the caller keeps.
//! Every staged request gets the same result as in Python; an unusual frame is left to Python.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::access::Access;
use crate::frames::{Frame, Next, frame_at};
use crate::halves::{End, Transactions};
use crate::host::Host;
use crate::properties::java_hash;
use crate::pull::stage::Pulls;
use crate::send_back_header::{Back, BackGroup, Backs};
use crate::shapes::{ReadSend, Room};

const TOPIC_BYTES_MAX: usize = 127;
/// Added to the size of a send for each key: staging, placing and indexing a key takes at least as
/// long as writing this number of bytes, and 32 KiB of text can hold 16,000 keys.
const KEY_BYTES: usize = 128;
/// Once the sends of a chunk, with `KEY_BYTES` for each key, have this size, the others must wait.
const CHUNK_BYTES_MAX: usize = 1 << 20;

/// A topic that Python has admitted.
pub struct Topic {
    /// Length and name, in the form that records contain.
    pub field: Vec<u8>,
    pub(crate) hash: u32,
    pub(crate) queue_count: i32,
    /// For each queue, its index in the current commit plus one; 0 if the commit does not contain
    /// it.
    pub(crate) slots: Vec<u32>,
}

impl Topic {
    fn new(length: u8, name: &[u8], queue_count: i32) -> Self {
        Self {
            field: [&[length], name].concat(),
            hash: java_hash(java_hash(0, name), b"#"),
            queue_count,
            slots: vec![0; usize::try_from(queue_count).unwrap_or(0)],
        }
    }
}

/// Stands for the number of a chunk if the body is in `Stage::texts`, after the properties.
pub(crate) const IN_TEXTS: u32 = u32::MAX;

/// One message.
#[derive(Default)]
pub struct Record {
    /// Number of the chunk that holds the body, or `IN_TEXTS`.
    pub(crate) chunk: u32,
    pub(crate) body: Range<usize>,
    pub(crate) text: Range<usize>,
    pub(crate) hashes: Range<usize>,
    pub(crate) topic: u32,
    pub(crate) queue_id: i32,
    pub(crate) flag: i32,
    pub(crate) sys_flag: i32,
    pub(crate) reconsume_times: i32,
    pub(crate) born_timestamp: i64,
    pub(crate) born_host: Host,
    /// Tag code or, for a delayed message, its delay in milliseconds.
    pub(crate) tag_code: i64,
    pub(crate) is_delayed: bool,
    /// For a committed message, the physical offset of its half message.
    pub(crate) prepared: i64,
}

/// One request, whose records are contiguous.
#[derive(Default)]
pub struct Request {
    /// Number that the caller gave to the connection.
    pub peer: u32,
    /// Opaque of the request.
    pub opaque: i32,
    /// Serialization of the request's header, and of the answer.
    pub serialization: u8,
    /// Whether the sender waits for flush and replicas.
    pub waits: bool,
    /// Queue id in the answer; for a delayed message, the queue of its real topic.
    pub queue_id: i32,
    /// Range of the request's records.
    pub records: Range<usize>,
    /// For a request that ends a half message, which gets no answer.
    pub end: Option<End>,
    /// For a request that sends a message back.
    pub back: Option<Arc<Back>>,
}

/// The sizes of texts, hashes and records at some time.
pub(crate) type Mark = (usize, usize, usize);

/// The kind of the frames of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Left to Python.
    Other,
    /// Plain sends that are staged.
    Sends,
    /// Plain pulls and renewals of locks, which are staged in `Pulls`.
    Pulls,
}

/// Consecutive frames of one chunk, all of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Kind of the frames.
    pub kind: Kind,
    /// Number of staged requests; 0 for frames that are left to Python.
    pub count: usize,
    /// Total size of their bodies and properties.
    pub bytes: usize,
    /// Start of the first frame in the chunk.
    pub start: usize,
    /// End of the last frame.
    pub end: usize,
}

/// Limits on staged frames.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Maximum number of bytes after the length word of a frame.
    pub frame_bytes_max: usize,
    /// Maximum size of a body.
    pub body_bytes_max: usize,
    /// Maximum number of messages in a batch.
    pub batch_count_max: usize,
    /// Maximum size of the records of one request, which must fit into one file of the log.
    pub request_bytes_max: usize,
}

/// The chunk and the connection from which a send comes.
#[derive(Clone, Copy)]
pub struct Origin {
    /// Number of the chunk.
    pub chunk: u32,
    /// Number of the connection.
    pub peer: u32,
    /// The peer's address, in the form that records contain.
    pub host: Host,
    /// The current time in milliseconds; `None` leaves the ends of transactions to Python.
    pub now_ms: Option<i64>,
}

/// The destinations of the frames of one chunk.
struct Takers<'a, 'b> {
    origin: Option<Origin>,
    pulls: Option<&'a mut Pulls>,
    backs: Option<Backs<'b>>,
}

/// The topic of delayed messages, which has one queue per level.
pub(crate) struct DelayTopic {
    name: Vec<u8>,
    pub(crate) delays_ms: Vec<i64>,
}

/// Number of the topic of delayed messages, if delayed sends are accepted.
pub const DELAY_TOPIC: u32 = 0;

/// The staged sends of one commit, and the known topics.
pub struct Stage {
    pub(crate) limits: Limits,
    /// The broker's address.
    pub(crate) host: Host,
    pub(crate) cluster: Vec<u8>,
    pub(crate) delay_topic: Option<DelayTopic>,
    /// The accounts, with access control; the ends of transactions are then left to Python.
    pub(crate) access: Option<Arc<Access>>,
    /// Transactions, if this stage may accept them.
    pub transactions: Option<Transactions>,
    /// Topics of the staged messages, including topics that were forgotten.
    pub topics: Vec<Topic>,
    pub(crate) by_name: HashMap<Vec<u8>, u32>,
    /// Groups whose consumers may send messages back.
    pub(crate) backs: HashMap<Vec<u8>, BackGroup>,
    /// Requests in order of arrival.
    pub requests: Vec<Request>,
    pub(crate) records: Vec<Record>,
    pub(crate) texts: Vec<u8>,
    pub(crate) hashes: Vec<i32>,
    pub(crate) room: Room,
}

impl Stage {
    /// Creates a stage without topics. `host` is the broker's address, and `cluster` the property
    /// pair that ends every stored text.
    #[must_use]
    pub fn new(limits: Limits, host: Host, cluster: &[u8]) -> Self {
        Self {
            limits,
            host,
            cluster: cluster.to_vec(),
            delay_topic: None,
            access: None,
            transactions: None,
            topics: vec![],
            by_name: HashMap::new(),
            backs: HashMap::new(),
            requests: vec![],
            records: vec![],
            texts: vec![],
            hashes: vec![],
            room: Room::default(),
        }
    }

    /// Accepts sends only from these accounts from now on.
    pub fn secure(&mut self, access: Arc<Access>) {
        self.access = Some(access);
        self.room = Room::default(); // it remembers accounts
    }

    /// Accepts delayed sends from now on, and stores them in this topic. `delays_ms` holds the
    /// delays of the topic's queues.
    ///
    /// Must be called before any topic is known: this topic becomes the first one when another is
    /// learned.
    pub fn delay_in(&mut self, name: &[u8], delays_ms: Vec<i64>) {
        let is_plain = name.is_ascii() && name.len() <= TOPIC_BYTES_MAX;
        if self.topics.is_empty() && is_plain && !delays_ms.is_empty() {
            self.delay_topic = Some(DelayTopic { name: name.to_vec(), delays_ms });
        }
    }

    /// Returns whether delayed sends are accepted.
    #[must_use]
    pub fn takes_delayed(&self) -> bool {
        self.delay_topic.is_some()
    }

    /// Accepts sends to a topic from now on; returns its number, or `None` if the name is illegal
    /// or already known.
    pub fn learn(&mut self, name: &[u8], queue_count: i32) -> Option<u32> {
        let length = u8::try_from(name.len()).ok()?;
        if !name.is_ascii() || name.len() > TOPIC_BYTES_MAX || self.by_name.contains_key(name) {
            return None;
        }
        let is_delayed = self.delay_topic.as_ref().is_some_and(|delayed| delayed.name == name);
        let known = self.transactions.as_ref();
        if is_delayed || known.is_some_and(|known| known.owns(name)) {
            return None;
        }
        if self.topics.is_empty() {
            self.push_own_topics()?;
        }
        let number = u32::try_from(self.topics.len()).ok()?;
        self.by_name.insert(name.to_vec(), number);
        self.topics.push(Topic::new(length, name, queue_count));
        Some(number)
    }

    /// Appends the topics to which the broker redirects messages.
    pub(crate) fn push_own_topics(&mut self) -> Option<()> {
        if let Some(DelayTopic { name, delays_ms }) = &self.delay_topic {
            let level_count = i32::try_from(delays_ms.len()).ok()?;
            self.topics.push(Topic::new(name.len() as u8, name, level_count));
        }
        if let Some(known) = &mut self.transactions {
            known.half_number = self.topics.len() as u32;
            for name in [&known.half_topic, &known.op_topic] {
                self.topics.push(Topic::new(name.len() as u8, name, 1));
            }
        }
        Some(())
    }

    /// Forgets all topics; staged sends keep theirs.
    pub fn forget(&mut self) {
        self.by_name.clear();
        self.backs.clear();
        if self.requests.is_empty() {
            self.topics.clear();
        }
    }

    /// Removes all staged sends.
    pub fn release(&mut self) {
        self.drop_from(0);
        if self.by_name.is_empty() && self.backs.is_empty() {
            self.topics.clear();
        }
    }

    /// Removes the requests from this index on.
    pub fn drop_from(&mut self, first: usize) {
        let Some(request) = self.requests.get(first) else {
            return;
        };
        let record = &self.records[request.records.start];
        self.undo((record.text.start, record.hashes.start, request.records.start));
        self.requests.truncate(first);
    }

    /// Stages the plain sends and pulls among the first `count_max` frames of a chunk. The returned
    /// parts cover the chunk from its start without gaps. They end before an incomplete frame,
    /// before a frame with illegal lengths, after `count_max` frames, or after sends of more than
    /// `CHUNK_BYTES_MAX`. Sends are left to Python if `origin` is `None`, pulls if `pulls` is
    /// `None`, and messages sent back if `backs` is `None`.
    pub fn stage(
        &mut self,
        data: &[u8],
        origin: Option<Origin>,
        mut pulls: Option<&mut Pulls>,
        backs: Option<Backs>,
        count_max: usize,
    ) -> Vec<Part> {
        let mut parts: Vec<Part> = vec![];
        if let Some(pulls) = &mut pulls {
            pulls.staged.clear();
        }
        let mut takers = Takers { origin, pulls, backs };
        let (mut at, mut left) = (0, count_max);
        let mut room = std::mem::take(&mut self.room);
        let group = if self.access.is_some() { 2 } else { 1 }; // for two signatures at a time
        let mut staged_bytes = 0;
        while left > 0 && staged_bytes <= CHUNK_BYTES_MAX {
            let (mut frames, start) = ([None; 2], at);
            for slot in frames.iter_mut().take(group.min(left)) {
                let Some(frame) = self.next_frame(data, at) else { break };
                (*slot, at, left) = (Some(frame), frame.end, left - 1);
            }
            if at == start {
                break;
            }
            let are_sends = match origin {
                Some(_) => self.read_sends(data, &frames, &mut room),
                None => [false; 2],
            };
            for (half, frame) in frames.iter().flatten().enumerate() {
                let send = are_sends[half].then_some(&room.sends[half]);
                let (kind, bytes) = self.take_frame(data, frame, send, &mut takers);
                staged_bytes += bytes;
                push_part(&mut parts, kind, bytes, frame);
            }
        }
        room.shrink();
        self.room = room;
        parts
    }

    /// Stages a frame; its header was read before if it is a plain send.
    fn take_frame(
        &mut self,
        data: &[u8],
        frame: &Frame,
        send: Option<&ReadSend>,
        takers: &mut Takers,
    ) -> (Kind, usize) {
        let staged = takers.origin.and_then(|origin| {
            send.and_then(|send| self.stage_send(data, frame, send, origin))
                .or_else(|| self.stage_end(data, frame, origin))
                .or_else(|| self.stage_back(data, frame, origin, takers.backs.as_mut()?))
        });
        if let Some(bytes) = staged {
            (Kind::Sends, bytes)
        } else if takers.pulls.as_mut().is_some_and(|pulls| pulls.stage(data, frame)) {
            (Kind::Pulls, 0)
        } else {
            (Kind::Other, 0)
        }
    }

    /// Returns the frame at a position if it is whole and legal.
    fn next_frame(&self, data: &[u8], at: usize) -> Option<Frame> {
        match frame_at(data, at, self.limits.frame_bytes_max) {
            Next::Whole(frame) => Some(frame),
            Next::Incomplete | Next::Illegal => None,
        }
    }

    /// Returns what is staged, for `undo`.
    pub(crate) fn mark(&self) -> Mark {
        (self.texts.len(), self.hashes.len(), self.records.len())
    }

    /// Removes what was appended since a mark.
    pub(crate) fn undo(&mut self, (texts, hashes, records): Mark) {
        self.texts.truncate(texts);
        self.hashes.truncate(hashes);
        self.records.truncate(records);
    }

    /// Appends a request for the records since a mark; returns the size of their bodies and
    /// properties. If these are not storable, removes them and returns `None`.
    pub(crate) fn push_request(
        &mut self,
        mark: Mark,
        is_storable: bool,
        request: Request,
    ) -> Option<usize> {
        let records = mark.2..self.records.len();
        if !is_storable {
            self.undo(mark);
            return None;
        }
        self.requests.push(Request { records: records.clone(), ..request });
        Some(self.content_bytes(records))
    }

    /// Returns the total size of all staged bodies and properties, with `KEY_BYTES` for each key.
    #[must_use]
    pub fn staged_bytes(&self) -> usize {
        self.content_bytes(0..self.records.len())
    }

    pub(crate) fn content_bytes(&self, records: Range<usize>) -> usize {
        let size = |record: &Record| {
            record.body.len() + record.text.len() + KEY_BYTES * record.hashes.len()
        };
        self.records[records].iter().map(size).sum()
    }
}

fn push_part(parts: &mut Vec<Part>, kind: Kind, bytes: usize, frame: &Frame) {
    let count = usize::from(kind != Kind::Other);
    match parts.last_mut() {
        Some(part) if part.kind == kind => {
            part.count += count;
            part.bytes += bytes;
            part.end = frame.end;
        }
        _ => parts.push(Part { kind, count, bytes, start: frame.start, end: frame.end }),
    }
}
