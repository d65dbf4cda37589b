// SPDX-License-Identifier: Apache-2.0
//! Answers to pulls that found messages and to renewals of locks, in both encodings.

use std::ops::Range;

use crate::frames::PREFIX_BYTES;
use crate::text::{close_length, push_decimal, push_entry};

/// The values of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Answer {
    /// Opaque of the request.
    pub opaque: i32,
    /// Serialization: 0 JSON, 1 ROCKETMQ.
    pub serialization: u8,
    /// Broker to pull from next, next offset, and the first and last offset of the queue.
    pub numbers: [i64; 4],
}

/// The constant parts of every answer.
pub struct Template {
    /// JSON: the text before each of the four numbers and the opaque, and the end.
    pub json: [Vec<u8>; 6],
    /// ROCKETMQ: code, language and version.
    pub binary_head: [u8; 5],
    /// ROCKETMQ: flag.
    pub flag: i32,
    /// ROCKETMQ: the remark.
    pub remark: Vec<u8>,
    /// ROCKETMQ: names of the four numbers.
    pub names: [Vec<u8>; 4],
}

impl Template {
    /// Appends the header of one answer; the body and `close_length` follow. Returns its place.
    pub fn begin(&self, out: &mut Vec<u8>, answer: &Answer) -> Range<usize> {
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX_BYTES]);
        self.push_head(out, answer);
        close_head(out, start, answer.serialization);
        start..out.len()
    }

    /// Replaces a header that may be followed by a body.
    pub fn replace_head(&self, out: &mut Vec<u8>, place: &Range<usize>, answer: &Answer) {
        let mut head = vec![];
        self.begin(&mut head, answer);
        out.splice(place.clone(), head);
    }

    fn push_head(&self, out: &mut Vec<u8>, answer: &Answer) {
        if answer.serialization == 1 {
            self.push_binary(out, answer);
        } else {
            self.push_json(out, answer);
        }
    }

    fn push_json(&self, out: &mut Vec<u8>, answer: &Answer) {
        let [.., before_opaque, end] = &self.json;
        for (before, number) in self.json.iter().zip(answer.numbers) {
            out.extend_from_slice(before);
            push_decimal(out, number);
        }
        out.extend_from_slice(before_opaque);
        push_decimal(out, answer.opaque.into());
        out.extend_from_slice(end);
    }

    fn push_binary(&self, out: &mut Vec<u8>, answer: &Answer) {
        out.extend_from_slice(&self.binary_head);
        out.extend_from_slice(&answer.opaque.to_be_bytes());
        out.extend_from_slice(&self.flag.to_be_bytes());
        out.extend_from_slice(&(self.remark.len() as u32).to_be_bytes());
        out.extend_from_slice(&self.remark);
        let entries = out.len();
        out.extend_from_slice(&[0; 4]);
        for (name, number) in self.names.iter().zip(answer.numbers) {
            push_entry(out, name, |out| push_decimal(out, number));
        }
        close_length(out, entries);
    }
}

/// The constant parts of answers without fields, before and after the opaque.
#[derive(Clone, Default)]
pub struct PlainTemplate {
    /// JSON, where the opaque is decimal.
    pub json: [Vec<u8>; 2],
    /// ROCKETMQ, where it has four bytes.
    pub binary: [Vec<u8>; 2],
}

impl PlainTemplate {
    /// Appends the frame of one answer.
    pub fn push(&self, out: &mut Vec<u8>, opaque: i32, serialization: u8, body: &[u8]) {
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX_BYTES]);
        let [before, after] = if serialization == 1 { &self.binary } else { &self.json };
        out.extend_from_slice(before);
        if serialization == 1 {
            out.extend_from_slice(&opaque.to_be_bytes());
        } else {
            push_decimal(out, opaque.into());
        }
        out.extend_from_slice(after);
        close_head(out, start, serialization);
        out.extend_from_slice(body);
        close_length(out, start);
    }
}

/// Writes the word that precedes the header of the last frame, which has no body yet.
fn close_head(out: &mut [u8], start: usize, serialization: u8) {
    let head = (out.len() - start - PREFIX_BYTES) as u32;
    let word = u32::from(serialization) << 24 | head;
    out[start + 4..start + 8].copy_from_slice(&word.to_be_bytes());
}
