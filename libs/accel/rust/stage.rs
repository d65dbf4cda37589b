// SPDX-License-Identifier: Apache-2.0
//! Plain sends of one commit, from the received bytes until their records are built.
//!
//! Only the properties are copied: a staged message points into its chunk, which the caller keeps.
//! Staging never decides differently from Python: a frame that is unusual in any way is left to
//! Python.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::access::{Access, Account, PUB, allows};
use crate::batch::{Items, common_text};
use crate::frames::{Frame, Next, frame_at};
use crate::header::{Header, read_header};
use crate::host::Host;
use crate::properties::{PAIR_SEPARATOR, Sent, TopicHashes, java_hash, read_item, read_sent};
use crate::pull::stage::Pulls;
use crate::transactions::{End, TRANSACTION_MASK, Transactions};

/// Size of a record without hosts, body, topic and properties.
pub const RECORD_FIXED_BYTES: usize = 72;
const PROPERTIES_LENGTH_BYTES: usize = 2;
/// Maximum size of properties, whose length field is a signed short.
const PROPERTIES_BYTES_MAX: usize = 32767;
const TOPIC_BYTES_MAX: usize = 127;
/// Left free in a file by delayed and half messages; see `cometmq.broker.parking`.
const RESERVED_BYTES: usize = 768;
/// The flags that do not change the layout of a record: compressed, several tags, kind of
/// compression.
const PLAIN_SYS_FLAGS: i32 = 0x1 | 0x2 | 0x700;

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

/// In place of the number of a chunk: the body is in `Stage::texts`, after the properties.
pub(crate) const IN_TEXTS: u32 = u32::MAX;

/// One message.
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
}

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

/// The topic of delayed messages, which has one queue per level.
struct DelayTopic {
    name: Vec<u8>,
    delays_ms: Vec<i64>,
}

/// Number of the topic of delayed messages, if delayed sends are accepted.
pub const DELAY_TOPIC: u32 = 0;

/// The staged sends of one commit, and the known topics.
pub struct Stage {
    pub(crate) limits: Limits,
    /// The broker's address.
    pub(crate) host: Host,
    cluster: Vec<u8>,
    delay_topic: Option<DelayTopic>,
    /// Who may send, with access control; the ends of transactions are then left to Python.
    pub access: Option<Arc<Access>>,
    /// Transactions, if this stage may accept them.
    pub transactions: Option<Transactions>,
    /// Topics of the staged messages, including topics that were forgotten.
    pub topics: Vec<Topic>,
    pub(crate) by_name: HashMap<Vec<u8>, u32>,
    /// Requests in order of arrival.
    pub requests: Vec<Request>,
    pub(crate) records: Vec<Record>,
    pub(crate) texts: Vec<u8>,
    pub(crate) hashes: Vec<i32>,
    scratch: Vec<u8>,
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
            requests: vec![],
            records: vec![],
            texts: vec![],
            hashes: vec![],
            scratch: vec![],
        }
    }

    /// Accepts delayed sends from now on and stores them in this topic. `delays_ms` holds the
    /// delays of the topic's queues. No topic may be known yet; this one becomes the first when
    /// another is learned.
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
    fn push_own_topics(&mut self) -> Option<()> {
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
        if self.requests.is_empty() {
            self.topics.clear();
        }
    }

    /// Removes all staged sends.
    pub fn release(&mut self) {
        self.drop_from(0);
        if self.by_name.is_empty() {
            self.topics.clear();
        }
    }

    /// Removes the requests from this index on.
    pub fn drop_from(&mut self, first: usize) {
        let Some(request) = self.requests.get(first) else {
            return;
        };
        let record = &self.records[request.records.start];
        self.texts.truncate(record.text.start);
        self.hashes.truncate(record.hashes.start);
        self.records.truncate(request.records.start);
        self.requests.truncate(first);
    }

    /// Stages the plain sends and pulls among the first `count_max` frames of a chunk. The returned
    /// parts cover the chunk from its start without gaps. They end before an incomplete frame,
    /// before a frame with illegal lengths, or after `count_max` frames. Sends are left to Python
    /// if `origin` is `None`, and pulls if `pulls` is `None`.
    pub fn stage(
        &mut self,
        data: &[u8],
        origin: Option<Origin>,
        mut pulls: Option<&mut Pulls>,
        count_max: usize,
    ) -> Vec<Part> {
        let mut parts: Vec<Part> = vec![];
        if let Some(pulls) = &mut pulls {
            pulls.staged.clear();
        }
        let mut at = 0;
        for _ in 0..count_max {
            let Next::Whole(frame) = frame_at(data, at, self.limits.frame_bytes_max) else {
                break;
            };
            at = frame.end;
            let staged = origin.and_then(|origin| {
                let staged = self.stage_frame(data, &frame, origin);
                staged.or_else(|| self.stage_end(data, &frame, origin))
            });
            let (kind, bytes) = if let Some(bytes) = staged {
                (Kind::Sends, bytes)
            } else if pulls.as_mut().is_some_and(|pulls| pulls.stage(data, &frame)) {
                (Kind::Pulls, 0)
            } else {
                (Kind::Other, 0)
            };
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
        parts
    }

    /// Stages a frame; returns the size of its bodies and properties, or `None` if it is unusual.
    fn stage_frame(&mut self, data: &[u8], frame: &Frame, origin: Origin) -> Option<usize> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let header = read_header(frame.serialization, frame.head(data), &mut scratch);
        let body = &data[frame.body..frame.end];
        let header = header.filter(|header| {
            let may_send = |account: &Account| account.may(PUB, header.topic);
            allows(self.access.as_deref(), &header.signed(&scratch, body), may_send)
        });
        let staged = header.and_then(|header| {
            let (texts, hashes, first) = (self.texts.len(), self.hashes.len(), self.records.len());
            let waits = self.stage_records(data, frame, &header, &scratch, origin);
            if waits.is_none()
                || self.bytes_of(first..self.records.len()) > self.limits.request_bytes_max
            {
                self.texts.truncate(texts);
                self.hashes.truncate(hashes);
                self.records.truncate(first);
                return None;
            }
            let records = first..self.records.len();
            let bytes = self.content_bytes(records.clone());
            self.requests.push(Request {
                peer: origin.peer,
                opaque: header.opaque,
                serialization: frame.serialization,
                waits: waits?,
                queue_id: header.queue_id,
                records,
                end: None,
            });
            Some(bytes)
        });
        self.scratch = scratch;
        staged
    }

    /// Appends the records of one request; returns whether the sender waits. For an unusual
    /// request, returns `None`; the caller then removes the appended records.
    fn stage_records(
        &mut self,
        data: &[u8],
        frame: &Frame,
        header: &Header,
        properties: &[u8],
        origin: Origin,
    ) -> Option<bool> {
        let &topic = self.by_name.get(header.topic)?;
        let Topic { hash, queue_count, .. } = self.topics[topic as usize];
        let body = frame.body..frame.end;
        if header.queue_id >= queue_count
            || header.sys_flag & !(PLAIN_SYS_FLAGS | TRANSACTION_MASK) != 0
            || body.len() > self.limits.body_bytes_max
        {
            return None;
        }
        let record = |body, text, hashes, flag, tag_code| Record {
            chunk: origin.chunk,
            body,
            text,
            hashes,
            topic,
            queue_id: header.queue_id,
            flag,
            sys_flag: header.sys_flag,
            reconsume_times: header.reconsume_times,
            born_timestamp: header.born_timestamp,
            born_host: origin.host,
            tag_code,
            is_delayed: false,
            prepared: 0,
        };
        let (text_at, hashes_at) = (self.texts.len(), self.hashes.len());
        let hash_of = |topic: u32| self.topics[topic as usize].hash;
        let topic_hashes = TopicHashes {
            plain: hash,
            delayed: self.delay_topic.as_ref().map(|_| hash_of(DELAY_TOPIC)),
            half: self.half_number().map(hash_of),
        };
        let (texts, hashes) = (&mut self.texts, &mut self.hashes);
        let sent = read_sent(properties, &self.cluster, topic_hashes, texts, hashes)?;
        let is_odd = header.is_batch && (sent.level > 0 || sent.is_half);
        if is_odd || (header.sys_flag & TRANSACTION_MASK != 0 && !sent.is_half) {
            return None;
        }
        if !header.is_batch {
            if sent.level > 0 || sent.is_half {
                self.push_target(&sent, topic, header.queue_id);
            }
            let text = text_at..self.texts.len();
            let hashes = hashes_at..self.hashes.len();
            let mut record = record(body, text, hashes, header.flag, sent.tag_code);
            if (sent.level > 0 || sent.is_half)
                && self.record_bytes(&record) + RESERVED_BYTES > self.limits.request_bytes_max
            {
                return None; // its later copy may not fit into a file
            }
            if sent.level > 0 {
                self.delay(&mut record, sent.level)?;
            } else if sent.is_half {
                record.topic = self.half_number()?;
                record.queue_id = 0;
                record.sys_flag &= !TRANSACTION_MASK;
            }
            self.push(record)?;
            return Some(sent.waits());
        }
        let stored = self.texts.split_off(text_at);
        self.hashes.truncate(hashes_at);
        let common = common_text(&sent, &stored);
        let first = self.records.len();
        for item in Items::of(data, body) {
            let item = item?;
            if self.records.len() - first == self.limits.batch_count_max {
                return None;
            }
            let (text_at, hashes_at) = (self.texts.len(), self.hashes.len());
            self.join_text(&data[item.properties], &common)?;
            let text = text_at..self.texts.len();
            let tag_code = read_item(&self.texts[text.clone()], hash, &mut self.hashes)?;
            let hashes = hashes_at..self.hashes.len();
            self.push(record(item.body, text, hashes, item.flag, tag_code))?;
        }
        (self.records.len() > first).then_some(sent.waits()) // an empty batch is refused
    }

    /// Appends the properties that name the real topic and queue of a delayed or half message.
    fn push_target(&mut self, sent: &Sent, topic: u32, queue_id: i32) {
        if let Some(value) = sent.wait {
            self.texts.extend_from_slice(b"\x02WAIT\x01");
            self.texts.extend_from_slice(value);
        }
        self.texts.extend_from_slice(b"\x02REAL_TOPIC\x01");
        self.texts.extend_from_slice(&self.topics[topic as usize].field[1..]);
        self.texts.extend_from_slice(b"\x02REAL_QID\x01");
        self.texts.extend_from_slice(queue_id.to_string().as_bytes());
    }

    /// Redirects a message to the queue of its delay level; levels above the highest are reduced to
    /// it.
    fn delay(&self, record: &mut Record, level: u16) -> Option<()> {
        let delays_ms = &self.delay_topic.as_ref()?.delays_ms;
        let queue = usize::from(level).min(delays_ms.len()).checked_sub(1)?;
        record.topic = DELAY_TOPIC;
        record.queue_id = i32::try_from(queue).ok()?;
        record.tag_code = delays_ms[queue];
        record.is_delayed = true;
        Some(())
    }

    fn push(&mut self, record: Record) -> Option<()> {
        let fits = record.text.len() <= PROPERTIES_BYTES_MAX;
        self.records.push(record);
        fits.then_some(())
    }

    /// Appends the properties of a batch item, then the properties of its request.
    fn join_text(&mut self, own: &[u8], common: &[u8]) -> Option<()> {
        std::str::from_utf8(own).ok()?;
        self.texts.extend_from_slice(own);
        if own.last().is_some_and(|&last| last != PAIR_SEPARATOR) {
            self.texts.push(PAIR_SEPARATOR);
        }
        self.texts.extend_from_slice(common);
        Some(())
    }

    /// Returns the total size of all staged bodies and properties.
    #[must_use]
    pub fn staged_bytes(&self) -> usize {
        self.content_bytes(0..self.records.len())
    }

    pub(crate) fn content_bytes(&self, records: Range<usize>) -> usize {
        self.records[records].iter().map(|record| record.body.len() + record.text.len()).sum()
    }

    pub(crate) fn bytes_of(&self, records: Range<usize>) -> usize {
        self.records[records].iter().map(|record| self.record_bytes(record)).sum()
    }

    pub(crate) fn record_bytes(&self, record: &Record) -> usize {
        RECORD_FIXED_BYTES
            + record.born_host.size()
            + self.host.size()
            + record.body.len()
            + self.topics[record.topic as usize].field.len()
            + PROPERTIES_LENGTH_BYTES
            + record.text.len()
    }
}
