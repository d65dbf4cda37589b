// SPDX-License-Identifier: Apache-2.0
//! Fuzz test of access control. Every request that the lane takes must be signed by an account that
//! has the rights; a second, plain implementation checks the signature. The same seed produces the
//! same inputs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

use cometmq_accel::access::{Access, Account, PUB, SUB};
use cometmq_accel::frames::{Frame, Next, frame_at};
use cometmq_accel::host::Host;
use cometmq_accel::pull::select::Filter;
use cometmq_accel::pull::stage::{Pulls, Reader};
use cometmq_accel::stage::{Kind, Limits, Origin, Stage};

use crate::input::{Random, Seen, binary_head, json_head, mutate};

const HOST: Host = Host::V4([10, 0, 0, 1, 0, 0, 0x2a, 0x9f]);
const FRAME_BYTES_MAX: usize = 1 << 16;
const CHUNK_FRAMES_MAX: u32 = 3;
/// Access keys, their secrets, and their rights to all topics and groups.
const ACCOUNTS: [(&str, &str, u8); 3] =
    [("bothKey1", "bothSecret", PUB | SUB), ("bothKey2", "bothSecret", SUB), ("noKey123", "x", 1)];
/// A topic to which no account has rights.
const DENIED_TOPIC: &str = "Denied";

fn access() -> Arc<Access> {
    let accounts = ACCOUNTS.iter().map(|&(key, secret, right)| {
        let denied = (DENIED_TOPIC.as_bytes().to_vec(), 1);
        let account = Account::new(secret.as_bytes(), false, (right, right), [denied]);
        (key.as_bytes().to_vec(), account)
    });
    Arc::new(Access::new(accounts.collect::<HashMap<_, _>>()))
}

/// Returns the signature of fields and a body, computed by the plain implementation.
fn signature(secret: &str, fields: &BTreeMap<String, String>, body: &[u8]) -> String {
    let mut content: Vec<u8> = fields
        .iter()
        .filter(|(name, _)| !matches!(name.as_str(), "Signature" | "cometmqForwarded"))
        .flat_map(|(_, value)| value.bytes())
        .collect();
    content.extend_from_slice(body);
    let mut mac = Hmac::<Sha1>::new_from_slice(secret.as_bytes()).expect("any secret is a key");
    mac.update(&content);
    STANDARD.encode(mac.finalize().into_bytes())
}

/// Reads the fields of a header that the native readers have accepted.
fn fields_of(frame: &Frame, data: &[u8]) -> BTreeMap<String, String> {
    let head = frame.head(data);
    if frame.serialization == 1 { binary_fields(&head[21..]) } else { json_fields(head) }
}

fn binary_fields(mut rest: &[u8]) -> BTreeMap<String, String> {
    let mut fields = BTreeMap::new();
    let take = |rest: &mut &[u8], width: usize| {
        let size = rest[..width].iter().fold(0, |size, &byte| size << 8 | usize::from(byte));
        let text = String::from_utf8(rest[width..width + size].to_vec()).expect("UTF-8");
        *rest = &rest[width + size..];
        text
    };
    while !rest.is_empty() {
        let name = take(&mut rest, 2);
        fields.insert(name, take(&mut rest, 4));
    }
    fields
}

fn json_fields(head: &[u8]) -> BTreeMap<String, String> {
    let text = std::str::from_utf8(head).expect("UTF-8");
    let (_, ext) = text.split_once("\"extFields\":{").expect("fields");
    let (mut fields, mut texts, mut chars) = (BTreeMap::new(), vec![], ext.chars());
    while let Some(char) = chars.next() {
        match char {
            '"' => texts.push(json_text(&mut chars)),
            '}' => break,
            _ => {}
        }
    }
    for pair in texts.chunks(2) {
        fields.insert(pair[0].clone(), pair[1].clone());
    }
    fields
}

fn json_text(chars: &mut std::str::Chars<'_>) -> String {
    let mut text = String::new();
    loop {
        let char = match chars.next().expect("the end of a text") {
            '"' => return text,
            '\\' => match chars.next().expect("an escape") {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'u' => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let value = u32::from_str_radix(&digits, 16).expect("digits");
                    char::from_u32(value).expect("ASCII")
                }
                other => other,
            },
            other => other,
        };
        text.push(char);
    }
}

fn push_request(chunk: &mut Vec<u8>, random: &mut Random) {
    let &(key, secret, _) = random.pick(&[&ACCOUNTS[0], &ACCOUNTS[0], &ACCOUNTS[1], &ACCOUNTS[2]]);
    let (is_send, is_binary) = (random.below(2) == 0, random.below(2) == 0);
    let mut fields: Vec<(&str, &str)> = if is_send {
        vec![
            ("a", "g"),
            ("b", random.pick(&["Orders", "Orders", "Orders", DENIED_TOPIC])),
            ("c", "TBW102"),
            ("d", "4"),
            ("e", "0"),
            ("f", "0"),
            ("g", "1700000000000"),
            ("h", "0"),
            ("i", random.pick(&["UNIQ_KEY\u{1}0A00", "x\u{1}ü\"\\\n"])),
            ("m", "false"),
        ]
    } else {
        vec![
            ("consumerGroup", random.pick(&["g", "g", "other"])),
            ("topic", "Orders"),
            ("queueId", "0"),
            ("queueOffset", "0"),
            ("maxMsgNums", "32"),
            ("sysFlag", "4"),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "15000"),
            ("subscription", "*"),
            ("subVersion", "0"),
        ]
    };
    fields.push(("AccessKey", key));
    if random.below(4) == 0 {
        fields.push(("SecurityToken", "t"));
    }
    let body = vec![b'x'; if is_send { random.below(40) as usize } else { 0 }];
    let signed = fields.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let text = signature(secret, &signed, &body);
    fields.push(("Signature", if random.below(8) == 0 { &text[..20] } else { &text }));
    let repeated = if is_binary && random.below(4) == 0 { fields[..3].to_vec() } else { vec![] };
    fields.splice(0..0, repeated);
    let code = if is_send { 310 } else { 11 };
    let head = if is_binary { binary_head(code, &fields) } else { json_head(code, &fields) };
    let word = u32::from(is_binary) << 24 | head.len() as u32;
    chunk.extend_from_slice(&((4 + head.len() + body.len()) as u32).to_be_bytes());
    chunk.extend_from_slice(&word.to_be_bytes());
    chunk.extend_from_slice(&head);
    chunk.extend_from_slice(&body);
}

fn readers(pulls: &mut Pulls) {
    let mut random = Random::new(1);
    let mut chunk = vec![];
    for _ in 0..200 {
        chunk.clear();
        push_request(&mut chunk, &mut random);
        if let Next::Whole(frame) = frame_at(&chunk, 0, FRAME_BYTES_MAX) {
            let reader = Reader { filter: Filter::All, suggested_id: 0, queue_count: 1 };
            let _ = pulls.learn(frame.serialization, frame.head(&chunk), reader);
        }
    }
}

/// Checks that all frames from a position on are signed by an account that has the right.
fn check(chunk: &[u8], start: usize, kind: Kind) {
    let needed = if kind == Kind::Sends { PUB } else { SUB };
    let mut at = start;
    while at < chunk.len() {
        let Next::Whole(frame) = frame_at(chunk, at, FRAME_BYTES_MAX) else {
            panic!("a part of a frame is taken");
        };
        at = frame.end;
        let fields = fields_of(&frame, chunk);
        let &(_, secret, right) =
            ACCOUNTS.iter().find(|(key, ..)| *key == fields["AccessKey"]).expect("a known account");
        assert!(right & needed != 0, "{fields:?}");
        assert!(fields.get("b").is_none_or(|topic| topic != DENIED_TOPIC), "{fields:?}");
        let wanted = signature(secret, &fields, &chunk[frame.body..frame.end]);
        assert_eq!(fields["Signature"], wanted, "{fields:?}");
    }
}

/// Runs a series of inputs and returns the counters; panics on a request that should not be taken.
///
/// # Panics
///
/// If a request is taken without a valid signature or without the rights.
#[must_use]
pub fn run(seed: u64, frames: u64) -> Seen {
    let mut random = Random::new(seed);
    let limits = Limits {
        frame_bytes_max: FRAME_BYTES_MAX,
        body_bytes_max: 600,
        batch_count_max: 8,
        request_bytes_max: 1000,
    };
    let access = access();
    let mut stage = Stage::new(limits, HOST, b"CLUSTER\x01c");
    stage.secure(Arc::clone(&access));
    let _ = stage.learn(b"Orders", 1);
    let _ = stage.learn(DENIED_TOPIC.as_bytes(), 1);
    let mut pulls = Pulls::default();
    pulls.access = Some(access);
    readers(&mut pulls);
    let origin = Origin { chunk: 0, peer: 0, host: HOST, now_ms: Some(7) };
    let (mut so_far, mut chunk) = (Seen::default(), vec![]);
    while so_far.frames < frames {
        chunk.clear();
        for _ in 0..=random.below(CHUNK_FRAMES_MAX) {
            so_far.frames += 1;
            push_request(&mut chunk, &mut random);
        }
        mutate(&mut chunk, &mut random);
        for part in stage.stage(&chunk, Some(origin), Some(&mut pulls), None, 100) {
            so_far.staged += part.count as u64;
            if part.kind != Kind::Other {
                check(&chunk[..part.end], part.start, part.kind);
            }
        }
        stage.drop_from(0);
    }
    so_far
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_request_is_taken_without_signature_and_rights_and_many_are() {
        let seen = run(1, 300_000);
        assert!(seen.staged > seen.frames / 8, "{seen:?}");
    }
}
