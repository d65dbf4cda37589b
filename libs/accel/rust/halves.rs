// SPDX-License-Identifier: Apache-2.0
//! The half messages in memory, for the requests that end them (`transactions.rs`).

use std::collections::BTreeMap;

use crate::host::Host;

/// Maximum number of half messages in memory; above it, the oldest one is dropped.
const HALVES_MAX: usize = 4096;
/// The system flags of messages in a transaction.
pub const TRANSACTION_MASK: i32 = 0xC;

/// A half message that was stored.
pub struct Half {
    /// Physical offset of its record.
    pub offset: i64,
    /// Offset in the half topic's queue.
    pub queue_offset: i64,
    /// Size of its record.
    pub size: usize,
    /// Properties, then body.
    pub(crate) content: Vec<u8>,
    pub(crate) text_bytes: usize,
    pub(crate) flag: i32,
    pub(crate) sys_flag: i32,
    pub(crate) reconsume_times: i32,
    pub(crate) born_timestamp: i64,
    pub(crate) born_host: Host,
}

/// The end of a half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Offset in the half topic's queue.
    pub half_offset: i64,
    /// Size of the half message's record.
    pub size: usize,
    /// Whether the transaction commits; otherwise, it is rolled back.
    pub commits: bool,
}

/// The topics of transactions and the half messages in memory.
pub struct Transactions {
    pub(crate) half_topic: Vec<u8>,
    pub(crate) op_topic: Vec<u8>,
    pub(crate) op_text: Vec<u8>,
    pub(crate) op_tag_code: i64,
    /// Whether half messages are accepted.
    pub takes_halves: bool,
    /// Number of the half topic; the op topic has the next one.
    pub(crate) half_number: u32,
    pub(crate) halves: BTreeMap<i64, Half>,
}

impl Transactions {
    /// Creates the state without half messages. `op_text` and `op_tag_code` are the properties and
    /// the tag code of every op message.
    #[must_use]
    pub fn new(half_topic: &[u8], op_topic: &[u8], op_text: &[u8], op_tag_code: i64) -> Self {
        Self {
            half_topic: half_topic.to_vec(),
            op_topic: op_topic.to_vec(),
            op_text: op_text.to_vec(),
            op_tag_code,
            takes_halves: false,
            half_number: 0,
            halves: BTreeMap::new(),
        }
    }

    /// Returns whether a topic is reserved for transactions.
    #[must_use]
    pub fn owns(&self, topic: &[u8]) -> bool {
        topic == self.half_topic || topic == self.op_topic
    }

    /// Keeps a half message in memory.
    pub fn keep(&mut self, half: Half) {
        self.halves.insert(half.offset, half);
        if self.halves.len() > HALVES_MAX {
            self.halves.pop_first();
        }
    }

    /// Forgets all half messages in memory.
    pub fn forget_halves(&mut self) {
        self.halves.clear();
    }
}
