// SPDX-License-Identifier: Apache-2.0
//! Signatures and rights of plain requests, by the rules of `cometmq.broker.acl.check`.
//!
//! A request is plainly allowed if a known account that has the rights has signed it. Any other
//! request is left to Python, which is the reference, so this code refuses nothing.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use subtle::ConstantTimeEq;

use crate::scan::be32;
use crate::signatures::{Key, MAC_BYTES, Message, sign, sign_two};

/// The right to send to a topic.
pub const PUB: u8 = 4;
/// The right to consume a topic, or to join a group.
pub const SUB: u8 = 8;
const DENY: u8 = 1;

const RETRY_PREFIX: &[u8] = b"%RETRY%";
/// Size of a signature in Base64.
const SIGNATURE_BYTES: usize = 28;

/// The fields that a client adds when it signs a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof<'a> {
    pub(crate) access_key: Option<&'a [u8]>,
    pub(crate) security_token: Option<&'a [u8]>,
    pub(crate) signature: Option<&'a [u8]>,
}

impl<'a> Proof<'a> {
    /// Stores a field; returns `None` for any other field, and for one that occurs twice.
    pub fn set(&mut self, name: &[u8], value: &'a [u8]) -> Option<()> {
        let field = match name {
            b"AccessKey" => &mut self.access_key,
            b"SecurityToken" => &mut self.security_token,
            b"Signature" => &mut self.signature,
            _ => return None,
        };
        field.replace(value).is_none().then_some(())
    }
}

/// A request as its client signed it.
pub struct Signed<'a, const N: usize> {
    /// The fields that the client added.
    pub proof: Proof<'a>,
    /// The values of all other fields, decoded, ordered by the names of the fields. All names begin
    /// with a small letter, so they follow those of `proof`. Missing fields are empty.
    pub values: [&'a [u8]; N],
    /// The body.
    pub body: &'a [u8],
}

impl<const N: usize> Signed<'_, N> {
    /// Sets `message` to the content that the client should have signed.
    fn write(&self, message: &mut Message) {
        let Proof { access_key, security_token, .. } = self.proof;
        let first = [access_key.unwrap_or_default(), security_token.unwrap_or_default()];
        message.set(&[&first, &self.values, &[self.body]]);
    }
}

/// The keys and rights of one account.
pub struct Account {
    key: Key,
    /// Whether the account is an administrator without explicit rights, who may do everything.
    has_all: bool,
    topic_right: u8,
    group_right: u8,
    topics: Rows<u8>,
    groups: Rows<u8>,
}

/// Values by name, sorted by the names: a binary search takes less time than hashing a name that a
/// client chose.
type Rows<T> = Vec<(Vec<u8>, T)>;

/// Returns rows with one value for each name.
fn rows<T>(values: HashMap<Vec<u8>, T>) -> Rows<T> {
    let mut rows: Vec<_> = values.into_iter().collect();
    rows.sort_by(|(name, _), (other, _)| name.cmp(other));
    rows
}

fn value<'a, T>(rows: &'a Rows<T>, name: &[u8]) -> Option<&'a T> {
    let found = rows.binary_search_by(|(known, _)| known.as_slice().cmp(name));
    found.ok().map(|index| &rows[index].1)
}

impl Account {
    /// Creates an account. `defaults` holds the rights to topics and groups that `rights` does not
    /// name; `rights` names a group by its retry topic.
    #[must_use]
    pub fn new(
        secret: &[u8],
        has_all: bool,
        (topic_right, group_right): (u8, u8),
        rights: impl IntoIterator<Item = (Vec<u8>, u8)>,
    ) -> Self {
        let (mut topics, mut groups) = (HashMap::new(), HashMap::new());
        for (name, right) in rights {
            match name.strip_prefix(RETRY_PREFIX) {
                Some(group) => groups.insert(group.to_vec(), right),
                None => topics.insert(name, right),
            };
        }
        let (topics, groups) = (rows(topics), rows(groups));
        Self { key: Key::new(secret), has_all, topic_right, group_right, topics, groups }
    }

    /// Returns whether the account has a right to a topic.
    #[must_use]
    pub fn may(&self, needed: u8, topic: &[u8]) -> bool {
        match topic.strip_prefix(RETRY_PREFIX) {
            Some(group) => self.may_for_group(needed, group),
            None => self.grants(needed, *value(&self.topics, topic).unwrap_or(&self.topic_right)),
        }
    }

    /// Returns whether the account has a right to a group.
    #[must_use]
    pub fn may_for_group(&self, needed: u8, group: &[u8]) -> bool {
        self.grants(needed, *value(&self.groups, group).unwrap_or(&self.group_right))
    }

    fn grants(&self, needed: u8, right: u8) -> bool {
        self.has_all || (right & needed != 0 && right & DENY == 0)
    }
}

/// An account, and the Base64 text of the signature by which a request claims to come from it.
struct Claim<'a> {
    account: &'a Account,
    text: [u8; SIGNATURE_BYTES],
}

impl<'a> Claim<'a> {
    /// Returns the account if it has signed the message.
    fn check(&self, message: &Message) -> Option<&'a Account> {
        self.confirm(sign(&self.account.key, message))
    }

    /// Returns the account if this is its signature of the message.
    fn confirm(&self, signature: [u8; MAC_BYTES]) -> Option<&'a Account> {
        // A signature has only one text. Encoding takes a third of the time of decoding.
        let mut text = [0; SIGNATURE_BYTES];
        STANDARD.encode_slice(signature, &mut text).ok()?;
        is_equal(&text, &self.text).then_some(self.account)
    }
}

/// Compares texts in constant time, but in words: `subtle` takes each byte by itself.
fn is_equal(text: &[u8; SIGNATURE_BYTES], other: &[u8; SIGNATURE_BYTES]) -> bool {
    let words = (0..SIGNATURE_BYTES).step_by(4);
    let difference = words.fold(0, |found, at| found | (be32(text, at) ^ be32(other, at)));
    difference.ct_eq(&0).into()
}

/// The accounts of a broker with access control. It is replaced as a whole when accounts change.
#[derive(Default)]
pub struct Access {
    accounts: Rows<Account>,
}

impl Access {
    /// Creates the table, by access key.
    #[must_use]
    pub fn new(accounts: HashMap<Vec<u8>, Account>) -> Self {
        Self { accounts: rows(accounts) }
    }

    /// Returns the claim of a request.
    fn claim(&self, proof: &Proof) -> Option<Claim<'_>> {
        let account = value(&self.accounts, proof.access_key?)?;
        let text = proof.signature?.try_into().ok()?;
        Some(Claim { account, text })
    }

    /// Returns the account that has signed a request, or `None` if the signature is not valid. Sets
    /// `message` to the content that the client should have signed.
    #[must_use]
    pub fn signer<const N: usize>(
        &self,
        request: &Signed<'_, N>,
        message: &mut Message,
    ) -> Option<&Account> {
        let claim = self.claim(&request.proof)?;
        request.write(message);
        claim.check(message)
    }

    /// Returns the accounts that have signed two messages, in less time than one after the other.
    #[must_use]
    pub fn signers(
        &self,
        proofs: [Option<Proof>; 2],
        [message, other_message]: [&Message; 2],
    ) -> [Option<&Account>; 2] {
        let [claim, other] = proofs.map(|proof| self.claim(&proof?));
        let (Some(one), Some(two)) = (&claim, &other) else {
            let one = claim.and_then(|claim| claim.check(message));
            return [one, other.and_then(|claim| claim.check(other_message))];
        };
        let keys = [&one.account.key, &two.account.key];
        let [signature, other_signature] = sign_two(keys, [message, other_message]);
        [one.confirm(signature), two.confirm(other_signature)]
    }
}

/// Returns whether a request is plainly allowed: with access control, if its signer has the rights
/// that `has_rights` looks for; without, always.
#[must_use]
pub fn allows<const N: usize>(
    access: Option<&Access>,
    request: &Signed<'_, N>,
    message: &mut Message,
    has_rights: impl FnOnce(&Account) -> bool,
) -> bool {
    match access {
        Some(access) => access.signer(request, message).is_some_and(has_rights),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signature of "userKey1" + "ab" + "body" by the secret "userSecret1".
    const SIGNATURE: &[u8] = b"jg7mfmxbss2WqBjfGRqpRQb9veQ=";

    fn access(has_all: bool) -> Access {
        let rights = [(b"Orders".to_vec(), PUB), (b"%RETRY%g".to_vec(), SUB | DENY)];
        let account = Account::new(b"userSecret1", has_all, (SUB, SUB), rights);
        Access::new([(b"userKey1".to_vec(), account)].into())
    }

    fn signed<'a>(key: &'a [u8], signature: &'a [u8], body: &'a [u8]) -> Signed<'a, 3> {
        let mut proof = Proof::default();
        assert_eq!(proof.set(b"AccessKey", key), Some(()));
        assert_eq!(proof.set(b"Signature", signature), Some(()));
        Signed { proof, values: [b"a", b"", b"b"], body }
    }

    #[test]
    fn only_the_right_signature_of_a_known_account_counts() {
        let access = access(false);
        let is_signed = |request: &Signed<'_, 3>| {
            allows(Some(&access), request, &mut Message::default(), |_| true)
        };
        assert!(is_signed(&signed(b"userKey1", SIGNATURE, b"body")));
        for key in [b"".as_slice(), b"userKey", b"userKey11", b"userKey0", b"userKey2", b"z"] {
            assert!(!is_signed(&signed(key, SIGNATURE, b"body")));
        }
        for at in 0..SIGNATURE.len() {
            let mut other = SIGNATURE.to_vec();
            other[at] ^= 1;
            assert!(!is_signed(&signed(b"userKey1", &other, b"body")));
        }
        assert!(!is_signed(&signed(b"userKey1", SIGNATURE, b"bodY")));
        assert!(!is_signed(&signed(b"userKey1", &SIGNATURE[..27], b"body")));
        assert!(!is_signed(&signed(b"userKey1", &[SIGNATURE, b"="].concat(), b"body")));
        assert!(!is_signed(&signed(b"userKey1", b"", b"body")));
        let unsigned = Signed { proof: Proof::default(), values: [b"a"], body: b"" };
        let mut message = Message::default();
        assert!(!allows(Some(&access), &unsigned, &mut message, |_| true));
        assert!(!allows(Some(&Access::default()), &unsigned, &mut message, |_| true));
        assert!(allows(None, &unsigned, &mut message, |_| false));
        let wrong = signed(b"userKey1", b"wrong", b"body");
        assert!(allows(None, &wrong, &mut message, |_| false));
    }

    #[test]
    fn two_requests_are_checked_independently() {
        let access = access(false);
        let bodies: [Option<&'static [u8]>; 4] =
            [Some(b"body"), Some(b"bodY"), Some(&[b'x'; 200]), None];
        let request =
            |body: Option<&'static [u8]>| body.map(|body| signed(b"userKey1", SIGNATURE, body));
        let mut messages = <[Message; 2]>::default();
        for (body, other) in bodies.iter().flat_map(|&body| bodies.map(|other| (body, other))) {
            let requests = [request(body), request(other)];
            for (request, message) in requests.iter().zip(&mut messages) {
                if let Some(request) = request {
                    request.write(message);
                }
            }
            let proofs = requests.map(|request| Some(request?.proof));
            let found = access.signers(proofs, messages.each_ref());
            let wanted = [body, other].map(|body| body == Some(b"body"));
            assert_eq!(found.map(|signer| signer.is_some()), wanted);
        }
    }

    #[test]
    fn explicit_rights_replace_the_default_and_deny_wins() {
        let known = access(false);
        let account = value(&known.accounts, b"userKey1").expect("known");
        assert!(account.may(PUB, b"Orders") && !account.may(SUB, b"Orders"));
        assert!(account.may(SUB, b"Other") && !account.may(PUB, b"Other"));
        assert!(account.may(SUB, b"%RETRY%h") && account.may_for_group(SUB, b"h"));
        assert!(!account.may(SUB, b"%RETRY%g") && !account.may_for_group(SUB, b"g"));
        let known = access(true);
        assert!(value(&known.accounts, b"userKey1").expect("known").may(SUB, b"%RETRY%g"));
    }

    #[test]
    fn a_field_that_occurs_twice_or_is_unknown_is_left_to_python() {
        let mut proof = Proof::default();
        assert_eq!(proof.set(b"SecurityToken", b""), Some(()));
        assert_eq!(proof.set(b"SecurityToken", b"t"), None);
        assert_eq!(proof.set(b"cometmqForwarded", b"t"), None);
    }
}
