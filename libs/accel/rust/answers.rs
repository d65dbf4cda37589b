// SPDX-License-Identifier: Apache-2.0
//! Answers to sends that were stored, in both encodings.

use std::ops::Range;
use std::sync::Arc;

use crate::halves::{End, Half};
use crate::pull::{self, answer::PlainTemplate};
use crate::send_back_header::Back;
use crate::text::{close_length, push_decimal, push_hex};

/// Rough size of the values and names in an answer, and of the bytes around them.
const VALUES_BYTES: usize = 80;

/// The positions of one request's messages, and the destination of its answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Number that the caller gave to the connection.
    pub peer: u32,
    /// Opaque of the request.
    pub opaque: i32,
    /// Serialization of the answer: 0 JSON, 1 ROCKETMQ.
    pub serialization: u8,
    /// Number of the topic.
    pub topic: u32,
    /// Queue id in the answer.
    pub queue_id: i32,
    /// For a delayed message, the queue of its delay level.
    pub level: Option<i32>,
    /// Queue offset of the first message.
    pub queue_offset: i64,
    /// Total size of the records.
    pub size: usize,
    /// Range of the request's messages in `Answers::places`.
    pub places: Range<usize>,
    /// For a request that sent a message back: its answer has no fields.
    pub back: Option<Arc<Back>>,
}

/// A stored request that ended a half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The half message and the decision.
    pub end: End,
    /// Number of the topic of the committed message.
    pub topic: u32,
}

/// The answers of one commit, in the order of the requests.
#[derive(Default)]
pub struct Answers {
    /// Requests that ended a half message; they get no answer.
    pub ends: Vec<Ended>,
    /// Number of half messages.
    pub half_count: usize,
    /// The half messages to keep in memory.
    pub halves: Vec<Half>,
    /// One answer per request.
    pub rows: Vec<Answer>,
    /// Physical offset of each message.
    pub places: Vec<i64>,
}

/// The constant parts of every answer.
pub struct Template {
    /// Answers with the fields msgId, queueId and queueOffset.
    pub fields: pull::answer::Template<3>,
    /// The broker's address, in the form in which message ids contain it.
    pub host: Vec<u8>,
    /// Answers without fields.
    pub plain: PlainTemplate,
}

impl Template {
    /// Returns about how many bytes the answer to a send of one message has.
    #[must_use]
    pub fn usual_bytes(&self) -> usize {
        let text = self.fields.json.iter().map(Vec::len).sum::<usize>();
        text.max(self.fields.entries.len()) + self.host.len() + VALUES_BYTES
    }

    /// Appends the ids of messages, separated by commas.
    pub fn push_ids(&self, out: &mut Vec<u8>, places: &[i64]) {
        for (index, place) in places.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(&self.host);
            push_hex(out, *place);
        }
    }

    /// Appends the frame of one answer.
    pub fn push(&self, out: &mut Vec<u8>, answer: &Answer, places: &[i64]) {
        if answer.back.is_some() {
            self.plain.push(out, answer.opaque, answer.serialization, b"");
            return;
        }
        let head = (answer.opaque, answer.serialization);
        let place = self.fields.begin(out, head, |out, field| match field {
            0 => self.push_ids(out, places),
            1 => push_decimal(out, answer.queue_id.into()),
            _ => push_decimal(out, answer.queue_offset),
        });
        close_length(out, place.start);
    }
}
