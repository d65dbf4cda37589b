// SPDX-License-Identifier: Apache-2.0
//! Signatures and rights of plain requests, by the rules of `cometmq.broker.acl.check`.
//!
//! This code finds out whether a request is plainly allowed: signed by a known account that has
//! the rights. It refuses nothing: any other request is left to Python, which is the reference.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use subtle::ConstantTimeEq;

/// The right to send to a topic.
pub const PUB: u8 = 4;
/// The right to consume a topic, or to join a group.
pub const SUB: u8 = 8;
const DENY: u8 = 1;

const RETRY_PREFIX: &[u8] = b"%RETRY%";
/// Size of an HMAC-SHA1 in Base64.
const SIGNATURE_BYTES: usize = 28;
/// Room for the signed fields of most requests.
const CONTENT_BYTES: usize = 512;

/// The fields that a client adds when it signs a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proof<'a> {
    access_key: Option<&'a [u8]>,
    security_token: Option<&'a [u8]>,
    signature: Option<&'a [u8]>,
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

/// The keys and rights of one account.
pub struct Account {
    keyed: Hmac<Sha1>,
    /// Whether it is an administrator whom no explicit right binds.
    has_all: bool,
    topic_right: u8,
    group_right: u8,
    topics: HashMap<Vec<u8>, u8>,
    groups: HashMap<Vec<u8>, u8>,
}

impl Account {
    /// Creates an account. `defaults` holds the rights to topics and groups that `rights` does not
    /// name; `rights` names a group by its retry topic. Returns `None` if the secret cannot be
    /// used.
    #[must_use]
    pub fn new(
        secret: &[u8],
        has_all: bool,
        defaults: (u8, u8),
        rights: impl IntoIterator<Item = (Vec<u8>, u8)>,
    ) -> Option<Self> {
        let (mut topics, mut groups) = (HashMap::new(), HashMap::new());
        for (name, right) in rights {
            match name.strip_prefix(RETRY_PREFIX) {
                Some(group) => groups.insert(group.to_vec(), right),
                None => topics.insert(name, right),
            };
        }
        let keyed = Hmac::new_from_slice(secret).ok()?;
        let (topic_right, group_right) = defaults;
        Some(Self { keyed, has_all, topic_right, group_right, topics, groups })
    }

    /// Returns whether the account has a right to a topic.
    #[must_use]
    pub fn may(&self, needed: u8, topic: &[u8]) -> bool {
        match topic.strip_prefix(RETRY_PREFIX) {
            Some(group) => self.may_for_group(needed, group),
            None => self.grants(needed, *self.topics.get(topic).unwrap_or(&self.topic_right)),
        }
    }

    /// Returns whether the account has a right to a group.
    #[must_use]
    pub fn may_for_group(&self, needed: u8, group: &[u8]) -> bool {
        self.grants(needed, *self.groups.get(group).unwrap_or(&self.group_right))
    }

    fn grants(&self, needed: u8, right: u8) -> bool {
        self.has_all || (right & needed != 0 && right & DENY == 0)
    }

    fn has_signed<const N: usize>(&self, request: &Signed<'_, N>, given: &[u8]) -> bool {
        let mut content = Vec::with_capacity(CONTENT_BYTES);
        let Proof { access_key, security_token, .. } = request.proof;
        for value in [access_key, security_token].into_iter().flatten().chain(request.values) {
            content.extend_from_slice(value);
        }
        let mut mac = self.keyed.clone();
        mac.update(&content);
        mac.update(request.body);
        let mut wanted = [0; SIGNATURE_BYTES];
        let size = STANDARD.encode_slice(mac.finalize().into_bytes(), &mut wanted);
        size == Ok(SIGNATURE_BYTES) && bool::from(wanted.ct_eq(given))
    }
}

/// The accounts of a broker with access control. Changed accounts are a new object.
#[derive(Default)]
pub struct Access {
    accounts: HashMap<Vec<u8>, Account>,
}

impl Access {
    /// Creates the table, by access key.
    #[must_use]
    pub fn new(accounts: HashMap<Vec<u8>, Account>) -> Self {
        Self { accounts }
    }

    /// Returns the account that has signed a request, or `None` if the signature is not valid.
    fn signer<const N: usize>(&self, request: &Signed<'_, N>) -> Option<&Account> {
        let account = self.accounts.get(request.proof.access_key?)?;
        account.has_signed(request, request.proof.signature?).then_some(account)
    }
}

/// Returns whether a request is plainly allowed: with access control, if its signer has the rights
/// that `has_rights` looks for; without, always.
#[must_use]
pub fn allows<const N: usize>(
    access: Option<&Access>,
    request: &Signed<'_, N>,
    has_rights: impl FnOnce(&Account) -> bool,
) -> bool {
    match access {
        Some(access) => access.signer(request).is_some_and(has_rights),
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
        Access::new(account.map(|account| (b"userKey1".to_vec(), account)).into_iter().collect())
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
        let is_signed = |request: &Signed<'_, 3>| allows(Some(&access), request, |_| true);
        assert!(is_signed(&signed(b"userKey1", SIGNATURE, b"body")));
        assert!(!is_signed(&signed(b"userKey2", SIGNATURE, b"body")));
        assert!(!is_signed(&signed(b"userKey1", SIGNATURE, b"bodY")));
        assert!(!is_signed(&signed(b"userKey1", &SIGNATURE[..27], b"body")));
        assert!(!is_signed(&signed(b"userKey1", &[SIGNATURE, b"="].concat(), b"body")));
        assert!(!is_signed(&signed(b"userKey1", b"", b"body")));
        let unsigned = Signed { proof: Proof::default(), values: [b"a"], body: b"" };
        assert!(!allows(Some(&access), &unsigned, |_| true));
        assert!(!allows(Some(&Access::default()), &unsigned, |_| true));
        assert!(allows(None, &unsigned, |_| false));
        assert!(allows(None, &signed(b"userKey1", b"wrong", b"body"), |_| false));
    }

    #[test]
    fn explicit_rights_replace_the_default_and_deny_wins() {
        let known = access(false);
        let account = &known.accounts[b"userKey1".as_slice()];
        assert!(account.may(PUB, b"Orders") && !account.may(SUB, b"Orders"));
        assert!(account.may(SUB, b"Other") && !account.may(PUB, b"Other"));
        assert!(account.may(SUB, b"%RETRY%h") && account.may_for_group(SUB, b"h"));
        assert!(!account.may(SUB, b"%RETRY%g") && !account.may_for_group(SUB, b"g"));
        assert!(access(true).accounts[b"userKey1".as_slice()].may(SUB, b"%RETRY%g"));
    }

    #[test]
    fn a_field_that_occurs_twice_or_is_unknown_is_left_to_python() {
        let mut proof = Proof::default();
        assert_eq!(proof.set(b"SecurityToken", b""), Some(()));
        assert_eq!(proof.set(b"SecurityToken", b"t"), None);
        assert_eq!(proof.set(b"cometmqForwarded", b"t"), None);
    }
}
