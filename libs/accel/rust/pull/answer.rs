// SPDX-License-Identifier: Apache-2.0
//! Answers to pulls that found messages and to renewals of locks, in both encodings.

use std::ops::Range;

use crate::frames::PREFIX_BYTES;
use crate::text::{close_length, push_decimal, push_entry};

/// The constant parts of answers with `N` fields.
pub struct Template<const N: usize> {
    /// JSON: the text before each of the values and the opaque, and the end.
    pub json: Vec<Vec<u8>>,
    /// ROCKETMQ: code, language and version.
    pub binary_head: [u8; 5],
    /// ROCKETMQ: flag.
    pub flag: i32,
    /// ROCKETMQ: the remark.
    pub remark: Vec<u8>,
    /// ROCKETMQ: names of the fields.
    pub names: [Vec<u8>; N],
    /// ROCKETMQ: the entries after these fields.
    pub entries: Vec<u8>,
}

impl<const N: usize> Template<N> {
    /// Appends the header of one answer; the body and `close_length` follow. `push` appends the
    /// value of a field. Returns the header's place.
    #[inline]
    pub fn begin(
        &self,
        out: &mut Vec<u8>,
        (opaque, serialization): (i32, u8),
        push: impl Fn(&mut Vec<u8>, usize),
    ) -> Range<usize> {
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX_BYTES]);
        if serialization == 1 {
            out.extend_from_slice(&self.binary_head);
            out.extend_from_slice(&opaque.to_be_bytes());
            out.extend_from_slice(&self.flag.to_be_bytes());
            out.extend_from_slice(&(self.remark.len() as u32).to_be_bytes());
            out.extend_from_slice(&self.remark);
            let entries = out.len();
            out.extend_from_slice(&[0; 4]);
            for (index, name) in self.names.iter().enumerate() {
                push_entry(out, name, |out| push(out, index));
            }
            out.extend_from_slice(&self.entries);
            close_length(out, entries);
        } else {
            for (index, before) in self.json[..N].iter().enumerate() {
                out.extend_from_slice(before);
                push(out, index);
            }
            out.extend_from_slice(&self.json[N]);
            push_decimal(out, opaque.into());
            out.extend_from_slice(&self.json[N + 1]);
        }
        close_head(out, start, serialization);
        start..out.len()
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
