// SPDX-License-Identifier: Apache-2.0
//! Headers of requests that send a message back, in both encodings; for an unusual header,
//! `read_back` returns `None`, and Python takes over.

use crate::access::{Proof, Signed};
use crate::envelope::{ANSWERED, Envelope, read_plain};
use crate::scan::{decimal, decimal32};

/// A consumer group that may send messages back.
pub struct BackGroup {
    /// Its retry topic.
    pub topic: Vec<u8>,
    /// Number of queues to which retries are distributed.
    pub queue_count: u64,
    /// Number of retries, unless the client's request has another number.
    pub count_max: i32,
    /// The oldest version of clients whose requests may have another number.
    pub version_min: i32,
}

/// For a request that sends a message back: the topic and the group of the consumer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Back {
    /// The topic in which the message was stored first.
    pub topic: Vec<u8>,
    /// The group.
    pub group: Vec<u8>,
}

/// What the broker supplies for requests that send messages back.
pub struct Backs<'a> {
    /// Number of messages sent back before, which selects the queue.
    pub count: u64,
    /// Returns the record at a physical offset, if it is in memory.
    pub read: &'a mut dyn FnMut(i64) -> Option<Vec<u8>>,
}

const BEGINS: (&[u8], [u8; 2]) = (b"{\"code\":36,", 36u16.to_be_bytes());

// The fields in the order of their names, in which they are signed.
const DELAY_LEVEL: usize = 0;
const GROUP: usize = 1;
const COUNT_MAX: usize = 2;
const OFFSET: usize = 3;
const ORIGIN_ID: usize = 4;
const ORIGIN_TOPIC: usize = 5;
const UNIT_MODE: usize = 6;
const FIELDS: usize = 7;
const REQUIRED: [usize; 3] = [DELAY_LEVEL, GROUP, OFFSET];

/// The fields of a plain request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackHeader<'a> {
    /// Consumer group.
    pub group: &'a [u8],
    /// Physical offset of the message.
    pub offset: i64,
    /// Delay level; 0 if the broker chooses.
    pub level: i32,
    /// How often the message may be retried, if the client says so.
    pub count_max: Option<i32>,
    /// The envelope.
    pub envelope: Envelope,
    values: [Option<&'a [u8]>; FIELDS],
    proof: Proof<'a>,
}

impl<'a> BackHeader<'a> {
    /// Stores a field. With `may_repeat`, it may occur again with the same value, as most fields do
    /// in signed binary requests of Java's client.
    fn set(&mut self, name: &[u8], value: &'a [u8], may_repeat: bool) -> Option<()> {
        let index = match name {
            b"delayLevel" => DELAY_LEVEL,
            b"group" => GROUP,
            b"maxReconsumeTimes" => COUNT_MAX,
            b"offset" => OFFSET,
            b"originMsgId" => ORIGIN_ID,
            b"originTopic" => ORIGIN_TOPIC,
            b"unitMode" => UNIT_MODE,
            _ => return self.proof.set(name, value),
        };
        if let Some(known) = self.values[index] {
            return (may_repeat && known == value).then_some(());
        }
        self.values[index] = Some(value);
        match index {
            DELAY_LEVEL => self.level = decimal32(value)?,
            GROUP => self.group = value,
            COUNT_MAX => self.count_max = Some(decimal32(value)?),
            OFFSET => self.offset = decimal(value)?,
            UNIT_MODE => return matches!(value, b"true" | b"false").then_some(()),
            _ => {}
        }
        Some(())
    }

    /// Returns the content that the client should have signed.
    #[must_use]
    pub fn signed(&self) -> Signed<'a, FIELDS> {
        Signed { proof: self.proof, values: self.values.map(Option::unwrap_or_default), body: b"" }
    }
}

/// Reads a header.
#[must_use]
pub fn read_back(serialization: u8, head: &[u8]) -> Option<BackHeader<'_>> {
    let mut header = BackHeader::default();
    let set = |name: &[u8], value, may_repeat| header.set(name, value, may_repeat);
    let envelope = read_plain(serialization, head, BEGINS, ANSWERED, set)?;
    let is_complete = REQUIRED.iter().all(|&index| header.values[index].is_some());
    is_complete.then_some(BackHeader { envelope, ..header })
}
