// SPDX-License-Identifier: Apache-2.0
//! Half messages, and the oneway requests that end them.
//!
//! This is the native version of `cometmq.broker.transactions`, for half messages that were stored
//! recently. A half message that is not in memory, and a request that expects an answer, are left
//! to Python.

use std::ops::Range;

use crate::frames::Frame;
use crate::halves::{End, Half};
use crate::properties::{read_half, read_item};
use crate::stage::{IN_TEXTS, Origin, Record, Request, Stage};
use crate::text::push_decimal;
use crate::transaction_header::{COMMIT, read_end};

/// Maximum size of body and properties of a half message in memory: 16 MB for all.
const HALF_BYTES_MAX: usize = 4096;

impl Stage {
    /// Returns the half message to keep in memory; `None` if it is too large, or with access
    /// control. `place` is its physical offset and its queue offset.
    pub(crate) fn half_of(
        &self,
        record: &Record,
        body: &[u8],
        place: (i64, i64),
        size: usize,
    ) -> Option<Half> {
        let text = &self.texts[record.text.clone()];
        if self.access.is_some() || text.len() + body.len() > HALF_BYTES_MAX {
            return None;
        }
        Some(Half {
            offset: place.0,
            queue_offset: place.1,
            size,
            content: [text, body].concat(),
            text_bytes: text.len(),
            flag: record.flag,
            sys_flag: record.sys_flag,
            reconsume_times: record.reconsume_times,
            born_timestamp: record.born_timestamp,
            born_host: record.born_host,
        })
    }

    pub(crate) fn is_half(&self, record: &Record) -> bool {
        self.transactions.as_ref().is_some_and(|known| known.half_number == record.topic)
    }

    /// Returns the number of the half topic, if half messages are accepted.
    pub(crate) fn half_number(&self) -> Option<u32> {
        self.transactions.as_ref().filter(|known| known.takes_halves).map(|known| known.half_number)
    }

    /// Stages a oneway request that ends a half message in memory; returns the size of the bodies
    /// and properties to store, or `None` if the request is unusual.
    pub(crate) fn stage_end(
        &mut self,
        data: &[u8],
        frame: &Frame,
        origin: Origin,
    ) -> Option<usize> {
        let now_ms = origin.now_ms.filter(|_| self.access.is_none())?;
        let end = read_end(frame.serialization, frame.head(data))?;
        let known = self.transactions.as_mut()?;
        let half = known.halves.get(&end.commit_log_offset)?;
        let found = read_half(&half.content[..half.text_bytes])?;
        let &topic = self.by_name.get(found.topic)?;
        let queue_id = found.queue_id;
        if half.queue_offset != end.table_offset
            || found.group != end.group
            || frame.body != frame.end
            || queue_id >= self.topics[topic as usize].queue_count
        {
            return None;
        }
        let half = known.halves.remove(&end.commit_log_offset)?;
        let mark = self.mark();
        let commits = end.decision == COMMIT;
        let pushed = if commits { self.push_committed(&half, topic, queue_id) } else { Some(()) };
        let pushed = pushed.and_then(|()| self.push_op(&half, now_ms));
        let is_storable = pushed.is_some() && self.is_storable(mark.2..self.records.len());
        let request = Request {
            peer: origin.peer,
            waits: true,
            end: Some(End { half_offset: half.queue_offset, size: half.size, commits }),
            ..Request::default()
        };
        self.push_request(mark, is_storable, request)
    }

    fn is_storable(&self, records: Range<usize>) -> bool {
        let is_short = |record: &Record| record.body.len() <= self.limits.body_bytes_max;
        self.records[records.clone()].iter().all(is_short)
            && self.bytes_of(records) <= self.limits.request_bytes_max
    }

    /// Appends the message that consumers receive.
    fn push_committed(&mut self, half: &Half, topic: u32, queue_id: i32) -> Option<()> {
        let (text_at, hashes_at) = (self.texts.len(), self.hashes.len());
        let body_at = text_at + half.text_bytes;
        let topic_hash = self.topics[topic as usize].hash;
        let text = &half.content[..half.text_bytes];
        let tag_code = read_item(text, topic_hash, &mut self.hashes)?;
        self.texts.extend_from_slice(&half.content);
        self.records.push(Record {
            chunk: IN_TEXTS,
            body: body_at..self.texts.len(),
            text: text_at..body_at,
            hashes: hashes_at..self.hashes.len(),
            topic,
            queue_id,
            flag: half.flag,
            sys_flag: half.sys_flag | COMMIT,
            reconsume_times: half.reconsume_times,
            born_timestamp: half.born_timestamp,
            born_host: half.born_host,
            tag_code,
            prepared: half.offset,
            ..Record::default()
        });
        Some(())
    }

    /// Appends the message that marks a half message as ended.
    fn push_op(&mut self, half: &Half, now_ms: i64) -> Option<()> {
        let known = self.transactions.as_ref()?;
        let text_at = self.texts.len();
        let body_at = text_at + known.op_text.len();
        self.texts.extend_from_slice(&known.op_text);
        push_decimal(&mut self.texts, half.queue_offset);
        self.records.push(Record {
            chunk: IN_TEXTS,
            body: body_at..self.texts.len(),
            text: text_at..body_at,
            hashes: self.hashes.len()..self.hashes.len(),
            topic: known.half_number + 1,
            born_timestamp: now_ms,
            born_host: self.host,
            tag_code: known.op_tag_code,
            ..Record::default()
        });
        Some(())
    }
}
