// SPDX-License-Identifier: Apache-2.0
//! Requests that renew queue locks: they ask for queues that their client already holds.
//!
//! Apart from its opaque, such a request repeats one that Python has answered. Its body names the
//! client, the group and the queues. The answer to the same body is the same until a lock is taken
//! or released; Python then makes this module forget all renewals.

use std::collections::HashMap;

use crate::envelope::{self, ANSWERED};

const JSON_LOCK: &[u8] = b"{\"code\":41,";
const BINARY_LOCK: [u8; 2] = 41u16.to_be_bytes();
const COUNT_MAX: usize = 1 << 15;
/// Maximum size of all requests and answers.
const BYTES_MAX: usize = 8 << 20;

/// The known requests, with the bodies of their answers.
#[derive(Default)]
pub struct Renewals {
    answers: Vec<Vec<u8>>,
    by_body: HashMap<Vec<u8>, u32>,
    bytes: usize,
}

impl Renewals {
    /// Accepts requests like this one from now on. Returns false, with nothing changed, if the
    /// header is unusual or the body is already known.
    pub fn learn(&mut self, serialization: u8, head: &[u8], body: &[u8], answer: &[u8]) -> bool {
        let Ok(number) = u32::try_from(self.answers.len()) else {
            return false;
        };
        if read_lock(serialization, head).is_none() || self.by_body.contains_key(body) {
            return false;
        }
        self.bytes += body.len() + answer.len();
        self.by_body.insert(body.to_vec(), number);
        self.answers.push(answer.to_vec());
        true
    }

    /// Returns whether the requests and answers have reached `BYTES_MAX`.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.answers.len() >= COUNT_MAX || self.bytes >= BYTES_MAX
    }

    /// Forgets all requests.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns the opaque and the number of a known request.
    #[must_use]
    pub fn find(&self, serialization: u8, head: &[u8], body: &[u8]) -> Option<(i32, u32)> {
        let opaque = read_lock(serialization, head)?;
        Some((opaque, *self.by_body.get(body)?))
    }

    /// Returns the body of the answer to a request.
    #[must_use]
    pub fn answer(&self, number: u32) -> Option<&[u8]> {
        self.answers.get(number as usize).map(Vec::as_slice)
    }
}

/// Returns the opaque of a plain request for locks, which has no fields.
fn read_lock(serialization: u8, head: &[u8]) -> Option<i32> {
    match serialization {
        0 if head.starts_with(JSON_LOCK) => {
            let envelope =
                envelope::read_json(head, JSON_LOCK.len(), ANSWERED, |scan| scan.eat(b'}'))?;
            Some(envelope.opaque)
        }
        1 if head.starts_with(&BINARY_LOCK) => {
            let (envelope, fields) = envelope::read_binary(head, ANSWERED)?;
            fields.is_empty().then_some(envelope.opaque)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "{\"code\":41,\"flag\":0,\"language\":\"JAVA\",\"opaque\":7,\
        \"serializeTypeCurrentRPC\":\"JSON\",\"version\":401}";

    #[test]
    fn a_request_is_known_by_its_body() {
        let mut renewals = Renewals::default();
        assert!(renewals.learn(0, HEAD.as_bytes(), b"one", b"first"));
        assert!(!renewals.learn(0, HEAD.as_bytes(), b"one", b"other"));
        assert!(renewals.learn(0, HEAD.as_bytes(), b"two", b"second"));
        let other = HEAD.replace("\"opaque\":7", "\"opaque\":8,\"extFields\":{}");
        assert_eq!(renewals.find(0, other.as_bytes(), b"two"), Some((8, 1)));
        assert_eq!(renewals.answer(1), Some(b"second".as_slice()));
        assert_eq!(renewals.find(0, HEAD.as_bytes(), b"three"), None);
        renewals.forget();
        assert_eq!(renewals.find(0, HEAD.as_bytes(), b"two"), None);
        assert_eq!(renewals.answer(1), None);
    }

    #[test]
    fn unusual_headers_are_left_to_python() {
        for (from, to) in [
            ("\"code\":41,", "\"code\":42,"),
            ("\"flag\":0", "\"flag\":2"),
            ("\"opaque\":7", "\"opaque\":-7"),
            ("\"opaque\":7", "\"opaque\":7,\"extFields\":{\"a\":\"b\"}"),
            ("\"opaque\":7", "\"opaque\":7,\"remark\":\"x\""),
            (":401}", ":401} "),
        ] {
            assert!(HEAD.contains(from));
            assert_eq!(read_lock(0, HEAD.replace(from, to).as_bytes()), None, "{to}");
        }
        let mut binary = [0; 21];
        binary[1] = 41;
        binary[8] = 7;
        assert_eq!(read_lock(1, &binary), Some(7));
        assert_eq!(read_lock(0, &binary), None);
        binary[12] = 2;
        assert_eq!(read_lock(1, &binary), None);
    }
}
