// SPDX-License-Identifier: Apache-2.0
//! Messages that a consumer sends back for a retry: the native version of
//! `cometmq.broker.handlers.send_back`, for groups that Python has admitted, and for messages in
//! memory. Messages that go to the dead-letter topic are left to Python.

use std::sync::Arc;

use crate::access::{SUB, allows};
use crate::frames::Frame;
use crate::halves::TRANSACTION_MASK;
use crate::host::Host;
use crate::properties::{PAIR_SEPARATOR, VALUE_SEPARATOR, read_item};
use crate::range::parse;
use crate::send_back_header::{Back, BackGroup, BackHeader, Backs, read_back};
use crate::sends::RESERVED_BYTES;
use crate::signatures::Message;
use crate::stage::{DELAY_TOPIC, IN_TEXTS, Origin, Record, Request, Stage};
use crate::text::{hex_host, push_decimal, push_hex};
use crate::transaction_header::COMMIT;

/// The first retry has this delay level, each later one a level more.
const FIRST_LEVEL: i32 = 3;
/// Larger records are left to Python.
const RECORD_BYTES_MAX: usize = 64 << 10;
/// If the texts of a commit exceed this size, Python serves further requests: a short request may
/// name a long message.
const TEXTS_BYTES_MAX: usize = 4 << 20;
/// Maximum number of properties, which are compared with one another.
const PAIRS_MAX: usize = 32;

impl Stage {
    /// Accepts messages that this group sends back from now on; returns whether it is new.
    pub fn learn_back(&mut self, name: &[u8], group: BackGroup) -> bool {
        if self.topics.is_empty() && self.push_own_topics().is_none() {
            return false;
        }
        self.backs.insert(name.to_vec(), group).is_none()
    }

    /// Forgets all groups; staged requests remain.
    pub fn forget_backs(&mut self) {
        self.backs.clear();
    }

    /// Stages a request that sends a message back; returns the size of its body and properties, or
    /// `None` if it is unusual.
    pub(crate) fn stage_back(
        &mut self,
        data: &[u8],
        frame: &Frame,
        origin: Origin,
        backs: &mut Backs,
    ) -> Option<usize> {
        let header = read_back(frame.serialization, frame.head(data))?;
        let group = self.backs.get(header.group)?;
        if frame.body != frame.end || self.texts.len() > TEXTS_BYTES_MAX {
            return None;
        }
        let mut message = Message::default();
        let is_allowed =
            allows(self.access.as_deref(), &header.signed(), &mut message, |account| {
                account.may_for_group(SUB, header.group)
            });
        let count_max = match header.count_max {
            Some(count_max) if header.envelope.version >= group.version_min => count_max,
            _ => group.count_max,
        };
        let queue_id = i32::try_from(backs.count % group.queue_count.max(1)).ok()?;
        let topic = group.topic.clone();
        let data = (backs.read)(is_allowed.then_some(header.offset)?)?;
        let found = Found::of(&data, header.offset)?;
        if found.reconsume_times < 0 || found.reconsume_times >= count_max {
            return None;
        }
        let mark = self.mark();
        let back = self.push_copy(&header, &found, &topic, queue_id);
        let bytes = self.bytes_of(mark.2..self.records.len()) + RESERVED_BYTES;
        let is_storable = back.is_some() && bytes <= self.limits.request_bytes_max;
        let request = Request {
            peer: origin.peer,
            opaque: header.envelope.opaque,
            serialization: frame.serialization,
            waits: true,
            queue_id,
            back: back.map(Arc::new),
            ..Request::default()
        };
        self.push_request(mark, is_storable, request)
    }

    /// Appends the copy of a message; returns the topic in which it was stored first, and the
    /// group.
    fn push_copy(
        &mut self,
        header: &BackHeader,
        found: &Found,
        topic: &[u8],
        queue_id: i32,
    ) -> Option<Back> {
        let chosen = FIRST_LEVEL.checked_add(found.reconsume_times)?;
        let level = if header.level > 0 { header.level } else { chosen };
        let level = level.min(self.delay_topic.as_ref()?.delays_ms.len() as i32);
        let (text_at, hashes_at) = (self.texts.len(), self.hashes.len());
        let origin = found.push_text(&mut self.texts, level, (topic, queue_id))?;
        let body_at = self.texts.len();
        let hash = self.topics[DELAY_TOPIC as usize].hash;
        read_item(&self.texts[text_at..], hash, &mut self.hashes)?;
        self.texts.extend_from_slice(found.body);
        let mut record = Record {
            chunk: IN_TEXTS,
            body: body_at..self.texts.len(),
            text: text_at..body_at,
            hashes: hashes_at..self.hashes.len(),
            topic: DELAY_TOPIC,
            flag: found.flag,
            sys_flag: found.sys_flag,
            reconsume_times: found.reconsume_times.checked_add(1)?,
            born_timestamp: found.born_timestamp,
            born_host: found.born_host,
            is_delayed: true,
            ..Record::default()
        };
        self.delay(&mut record, u16::try_from(level).ok()?)?;
        let is_short = record.body.len() <= self.limits.body_bytes_max;
        self.push(record)?;
        is_short.then(|| Back { topic: origin.to_vec(), group: header.group.to_vec() })
    }
}

/// The stored message.
struct Found<'a> {
    offset: i64,
    flag: i32,
    sys_flag: i32,
    born_timestamp: i64,
    born_host: Host,
    store_host: Host,
    reconsume_times: i32,
    body: &'a [u8],
    topic: &'a [u8],
    properties: &'a str,
}

impl<'a> Found<'a> {
    fn of(data: &'a [u8], offset: i64) -> Option<Self> {
        let record = parse(data, offset, false)?;
        if record.size != data.len() || data.len() > RECORD_BYTES_MAX {
            return None;
        }
        let state = record.sys_flag.cast_signed() & TRANSACTION_MASK;
        if state != 0 && state != COMMIT {
            return None;
        }
        let (born_host, store_host) = record.hosts()?;
        Some(Self {
            offset,
            flag: record.flag(),
            sys_flag: record.plain_flags(),
            born_timestamp: record.born_timestamp()?,
            born_host,
            store_host,
            reconsume_times: record.reconsume_times(),
            body: data.get(record.body)?,
            topic: Some(record.topic).filter(|topic| topic.is_ascii())?,
            properties: str::from_utf8(record.properties).ok()?,
        })
    }

    /// Appends the properties of the copy; returns the topic in which the message was stored first.
    fn push_text(
        &self,
        out: &mut Vec<u8>,
        level: i32,
        (topic, queue_id): (&[u8], i32),
    ) -> Option<&'a [u8]> {
        let start = out.len();
        let put = |out: &mut Vec<u8>, name: &[u8], value: &[u8]| {
            if out.len() > start {
                out.push(PAIR_SEPARATOR);
            }
            out.extend_from_slice(name);
            out.push(VALUE_SEPARATOR);
            out.extend_from_slice(value);
        };
        let mut level_text = vec![];
        push_decimal(&mut level_text, level.into());
        let pairs = self.pairs()?;
        for &(name, value) in &pairs {
            match name {
                b"REAL_TOPIC" | b"REAL_QID" | b"TIMER_OUT_MS" => {}
                b"WAIT" => put(out, name, b"false"),
                b"DELAY" => put(out, name, &level_text),
                _ => put(out, name, value),
            }
        }
        let value_of = |name: &[u8]| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1);
        let mut id = hex_host(&self.store_host);
        push_hex(&mut id, self.offset);
        for (name, value) in [
            (&b"RETRY_TOPIC"[..], self.topic),
            (b"ORIGIN_MESSAGE_ID", &id),
            (b"WAIT", b"false"),
            (b"DELAY", &level_text),
        ] {
            if value_of(name).is_none() {
                put(out, name, value);
            }
        }
        let mut queue_text = vec![];
        push_decimal(&mut queue_text, queue_id.into());
        put(out, b"REAL_TOPIC", topic);
        put(out, b"REAL_QID", &queue_text);
        Some(value_of(b"RETRY_TOPIC").unwrap_or(self.topic))
    }

    /// Returns the properties. If a name occurs several times, its last value has the place of the
    /// first; `None` if there are too many.
    fn pairs(&self) -> Option<Vec<(&'a [u8], &'a [u8])>> {
        let mut pairs: Vec<(&[u8], &[u8])> = vec![];
        for pair in self.properties.as_bytes().split(|&byte| byte == PAIR_SEPARATOR) {
            let Some(cut) = pair.iter().position(|&byte| byte == VALUE_SEPARATOR) else {
                continue;
            };
            let (name, value) = (&pair[..cut], &pair[cut + 1..]);
            if name.is_empty() || value.is_empty() {
                continue;
            }
            if let Some(known) = pairs.iter_mut().find(|known| known.0 == name) {
                known.1 = value;
            } else if pairs.len() < PAIRS_MAX {
                pairs.push((name, value));
            } else {
                return None;
            }
        }
        Some(pairs)
    }
}
