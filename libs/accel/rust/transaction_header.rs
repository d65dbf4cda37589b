// SPDX-License-Identifier: Apache-2.0
//! Headers of oneway requests that end a transaction, in both encodings; for an unusual header,
//! `read_end` returns `None`, and Python takes over.

use crate::envelope::{ONEWAY, read_plain};
use crate::scan::{decimal, decimal32};

/// The decision to commit.
pub const COMMIT: i32 = 8;
/// The decision to roll back.
pub const ROLLBACK: i32 = 12;

const BEGINS: (&[u8], [u8; 2]) = (b"{\"code\":37,", 37u16.to_be_bytes());
const REQUIRED: u32 = 0x1F;

/// A request that commits or rolls back a half message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndHeader<'a> {
    /// Producer group.
    pub group: &'a [u8],
    /// Offset of the half message in its queue.
    pub table_offset: i64,
    /// Physical offset of the half message.
    pub commit_log_offset: i64,
    /// `COMMIT` or `ROLLBACK`.
    pub decision: i32,
    seen: u32,
}

impl<'a> EndHeader<'a> {
    fn set(&mut self, name: &[u8], value: &'a [u8]) -> Option<()> {
        let bit = match name {
            b"producerGroup" => {
                self.group = value;
                1
            }
            b"tranStateTableOffset" => {
                self.table_offset = decimal(value)?;
                1 << 1
            }
            b"commitLogOffset" => {
                self.commit_log_offset = decimal(value)?;
                1 << 2
            }
            b"commitOrRollback" => {
                self.decision = decimal32(value)?;
                1 << 3
            }
            b"msgId" => 1 << 4,
            b"fromTransactionCheck" => matches!(value, b"true" | b"false").then_some(1 << 5)?,
            b"transactionId" => 1 << 6,
            b"topic" => 1 << 7,
            _ => return None,
        };
        let is_new = self.seen & bit == 0;
        self.seen |= bit;
        is_new.then_some(())
    }

    fn complete(self) -> Option<Self> {
        let is_decided = matches!(self.decision, COMMIT | ROLLBACK);
        (self.seen & REQUIRED == REQUIRED && is_decided).then_some(self)
    }
}

/// Reads a header.
#[must_use]
pub fn read_end(serialization: u8, head: &[u8]) -> Option<EndHeader<'_>> {
    let mut header = EndHeader::default();
    read_plain(serialization, head, BEGINS, ONEWAY, |name, value, _| header.set(name, value))?;
    header.complete()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = concat!(
        r#"{"code":37,"extFields":{"producerGroup":"g","tranStateTableOffset":"5","#,
        r#""commitLogOffset":"900","commitOrRollback":"8","msgId":"m"},"flag":2}"#
    );

    #[test]
    fn an_end_has_a_decision_and_its_half_message() {
        let end = read_end(0, HEAD.as_bytes()).unwrap();
        assert_eq!((end.group, end.decision), (b"g".as_slice(), COMMIT));
        assert_eq!((end.table_offset, end.commit_log_offset), (5, 900));
        assert!(read_end(0, HEAD.replace(r#""8""#, r#""12""#).as_bytes()).is_some());
    }

    #[test]
    fn unusual_ends_are_left_to_python() {
        for (from, to) in [
            (r#""8""#, r#""0""#),           // the producer does not know yet
            (r#""flag":2"#, r#""flag":0"#), // it expects an answer
            (r#","flag":2"#, ""),
            (r#""msgId":"m""#, r#""msgId":"m","msgId":"m""#),
            (r#""msgId":"m""#, r#""traceId":"m""#),
            (r#""producerGroup":"g","#, ""),
            (r#""900""#, r#""-1""#),
        ] {
            let head = HEAD.replace(from, to);
            assert_ne!(head, HEAD);
            assert_eq!(read_end(0, head.as_bytes()), None, "{to}");
        }
        assert_eq!(read_end(1, HEAD.as_bytes()), None);
    }
}
