// SPDX-License-Identifier: Apache-2.0
//! From the headers of plain sends to staged records.

use crate::batch::{Items, common_text};
use crate::frames::Frame;
use crate::halves::TRANSACTION_MASK;
use crate::properties::{PAIR_SEPARATOR, Sent, TopicHashes, read_item, read_sent};
use crate::shapes::{ReadSend, Room};
use crate::stage::{DELAY_TOPIC, Origin, Record, Request, Stage, Topic};

/// Maximum size of properties, whose length field is a signed short.
const PROPERTIES_BYTES_MAX: usize = 32767;
/// Maximum size of the stored properties of a batch; Python stores larger ones in steps.
const BATCH_TEXT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of keys of a batch; Python stores those of more in steps. Behind keys that wait,
/// a commit indexes as many as it brings: a batch with 240,000 keys held the loop for 30 ms.
const BATCH_KEYS_MAX: usize = 1 << 13;
/// Number of bytes by which delayed and half messages must be smaller than a request may be,
/// because their later copies are larger; see `cometmq.broker.delays.parking`.
pub(crate) const RESERVED_BYTES: usize = 768;
/// The flags that do not change the layout of a record: compressed, several tags, kind of
/// compression.
const PLAIN_SYS_FLAGS: i32 = 0x1 | 0x2 | 0x700;

impl Stage {
    /// Reads the headers of one or two frames into the room; returns which are plain sends by
    /// senders who have the right.
    #[inline]
    pub(crate) fn read_sends(
        &self,
        data: &[u8],
        frames: &[Option<Frame>; 2],
        room: &mut Room,
    ) -> [bool; 2] {
        let Room { sends, shapes, allowed } = room;
        let (mut is_send, mut proofs) = ([false; 2], [None; 2]);
        for (half, frame) in frames.iter().flatten().enumerate() {
            let send = &mut sends[half];
            is_send[half] = frame.end - frame.body <= self.limits.body_bytes_max
                && shapes.read(send, frame, data, self.access.is_some()).is_some();
            proofs[half] = is_send[half].then(|| send.header.proof(frame.head(data)));
        }
        if let Some(access) = &self.access {
            let signers = access.signers(proofs, sends.each_ref().map(|send| &send.message));
            for (half, frame) in frames.iter().flatten().enumerate() {
                let topic = sends[half].header.topic(frame.head(data));
                is_send[half] =
                    signers[half].is_some_and(|account| Room::may_send(allowed, account, topic));
            }
        }
        is_send
    }

    /// Stages a send; returns the size of its bodies and properties, or `None` if it is unusual.
    pub(crate) fn stage_send(
        &mut self,
        data: &[u8],
        frame: &Frame,
        send: &ReadSend,
        origin: Origin,
    ) -> Option<usize> {
        let mark = self.mark();
        let waits = self.stage_records(data, frame, send, origin);
        let bytes = self.bytes_of(mark.2..self.records.len());
        let request = Request {
            peer: origin.peer,
            opaque: send.header.opaque,
            serialization: frame.serialization,
            waits: waits.unwrap_or_default(),
            queue_id: send.header.queue_id,
            ..Request::default()
        };
        let is_storable = waits.is_some() && bytes <= self.limits.request_bytes_max;
        self.push_request(mark, is_storable, request)
    }

    /// Appends the records of one request; returns whether the sender waits. For an unusual
    /// request, returns `None`; the caller then removes the appended records.
    fn stage_records(
        &mut self,
        data: &[u8],
        frame: &Frame,
        ReadSend { header, text: properties, .. }: &ReadSend,
        origin: Origin,
    ) -> Option<bool> {
        let &topic = self.by_name.get(header.topic(frame.head(data)))?;
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
            ..Record::default()
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
        let (batch_text, batch_hashes) = (self.texts.len(), self.hashes.len());
        for item in Items::of(data, body) {
            let item = item?;
            let (text_at, hashes_at) = (self.texts.len(), self.hashes.len());
            let is_full = self.records.len() - first == self.limits.batch_count_max
                || text_at - batch_text > BATCH_TEXT_BYTES_MAX
                || self.hashes.len() - batch_hashes > BATCH_KEYS_MAX;
            if is_full {
                return None;
            }
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
    pub(crate) fn delay(&self, record: &mut Record, level: u16) -> Option<()> {
        let delays_ms = &self.delay_topic.as_ref()?.delays_ms;
        let queue = usize::from(level).min(delays_ms.len()).checked_sub(1)?;
        record.topic = DELAY_TOPIC;
        record.queue_id = i32::try_from(queue).ok()?;
        record.tag_code = delays_ms[queue];
        record.is_delayed = true;
        Some(())
    }

    pub(crate) fn push(&mut self, record: Record) -> Option<()> {
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
}
