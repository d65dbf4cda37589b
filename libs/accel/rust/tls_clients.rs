// SPDX-License-Identifier: Apache-2.0
//! Decides which client certificates a server accepts.
//!
//! webpki verifies certificates of version 3. `OpenSSL` and Java accept two more kinds, which are
//! common where certificates are made by hand: certificates of version 1, which `openssl x509 -req`
//! creates, and certificates that are themselves in the file of trusted ones. A certificate of
//! version 1 must be trusted itself, or be issued directly by a trusted one; it cannot contain
//! rules that would have to be followed.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};

const INTEGER: u8 = 0x02;
const BITS: u8 = 0x03;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xA0;

/// Verifies the certificates of clients.
#[derive(Debug)]
pub struct ClientVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    trusted: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientVerifier {
    /// Creates a verifier that trusts these certificates.
    ///
    /// # Errors
    /// Returns why none of them can be used.
    pub fn new(
        trusted: &[CertificateDer<'static>],
        is_required: bool,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(trusted.iter().cloned());
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
        let builder = if is_required { builder } else { builder.allow_unauthenticated() };
        let inner = builder.build().map_err(|error| error.to_string())?;
        Ok(Self {
            inner,
            trusted: trusted.to_vec(),
            algorithms: provider.signature_verification_algorithms,
        })
    }

    fn verify_plain(&self, cert: &Certificate<'_>, now: UnixTime) -> Result<(), CertificateError> {
        let now = now.as_secs();
        if now < cert.not_before {
            return Err(CertificateError::NotValidYet);
        }
        if now > cert.not_after {
            return Err(CertificateError::Expired);
        }
        let mut fault = CertificateError::UnknownIssuer;
        for trusted in &self.trusted {
            if trusted.as_ref() == cert.whole {
                return Ok(());
            }
            let Some(issuer) = Certificate::read(trusted) else { continue };
            if issuer.subject == cert.issuer && now <= issuer.not_after {
                if self.is_signed(cert, &issuer) {
                    return Ok(());
                }
                fault = CertificateError::BadSignature;
            }
        }
        Err(fault)
    }

    fn is_signed(&self, cert: &Certificate<'_>, issuer: &Certificate<'_>) -> bool {
        self.algorithms.all.iter().any(|algorithm| {
            algorithm.signature_alg_id().as_ref() == cert.signature_algorithm
                && algorithm.public_key_alg_id().as_ref() == issuer.key_algorithm
                && algorithm.verify_signature(issuer.key, cert.body, cert.signature).is_ok()
        })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        match Certificate::read(end_entity) {
            Some(cert) if cert.is_plain() || self.trusted.iter().any(|one| one == end_entity) => {
                self.verify_plain(&cert, now)?;
                Ok(ClientCertVerified::assertion())
            }
            _ => self.inner.verify_client_cert(end_entity, intermediates, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(plain) = Certificate::read(cert).filter(Certificate::is_plain) else {
            return verify_tls12_signature(message, cert, signed, &self.algorithms);
        };
        let mapping = self.algorithms.mapping.iter();
        let mut candidates = mapping
            .filter(|(scheme, _)| *scheme == signed.scheme)
            .flat_map(|(_, algorithms)| *algorithms)
            .filter(|one| one.public_key_alg_id().as_ref() == plain.key_algorithm);
        if candidates
            .any(|one| one.verify_signature(plain.key, message, signed.signature()).is_ok())
        {
            return Ok(HandshakeSignatureValid::assertion());
        }
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let Some(plain) = Certificate::read(cert).filter(Certificate::is_plain) else {
            return verify_tls13_signature(message, cert, signed, &self.algorithms);
        };
        let key = SubjectPublicKeyInfoDer::from(plain.key_info);
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }
}

/// The parts of a certificate (RFC 5280, 4.1) that matter if it has no extensions.
struct Certificate<'a> {
    whole: &'a [u8],
    /// The signed part.
    body: &'a [u8],
    signature_algorithm: &'a [u8],
    signature: &'a [u8],
    version: u8,
    issuer: &'a [u8],
    not_before: u64,
    not_after: u64,
    subject: &'a [u8],
    /// Subject public key info, with its tag.
    key_info: &'a [u8],
    key_algorithm: &'a [u8],
    key: &'a [u8],
}

impl<'a> Certificate<'a> {
    fn read(whole: &'a [u8]) -> Option<Self> {
        let mut outer = Der(whole);
        let mut rest = Der(outer.take(SEQUENCE)?);
        if !outer.0.is_empty() {
            return None;
        }
        let body = rest.whole(SEQUENCE)?;
        let signature_algorithm = rest.take(SEQUENCE)?;
        let signature = rest.bits()?;
        let mut inner = Der(Der(body).take(SEQUENCE)?);
        let version = match inner.take(VERSION) {
            Some(value) => Der(value).take(INTEGER)?.first()?.checked_add(1)?,
            None => 1,
        };
        inner.take(INTEGER)?; // serial number
        if inner.take(SEQUENCE)? != signature_algorithm || !rest.0.is_empty() {
            return None;
        }
        let issuer = inner.take(SEQUENCE)?;
        let mut validity = Der(inner.take(SEQUENCE)?);
        let (not_before, not_after) = (validity.time()?, validity.time()?);
        let subject = inner.take(SEQUENCE)?;
        let key_info = inner.whole(SEQUENCE)?;
        let mut key_parts = Der(Der(key_info).take(SEQUENCE)?);
        let key_algorithm = key_parts.take(SEQUENCE)?;
        let key = key_parts.bits()?;
        if version < 3 && !inner.0.is_empty() {
            return None; // only version 3 has extensions
        }
        Some(Self {
            whole,
            body,
            signature_algorithm,
            signature,
            version,
            issuer,
            not_before,
            not_after,
            subject,
            key_info,
            key_algorithm,
            key,
        })
    }

    fn is_plain(&self) -> bool {
        self.version == 1
    }
}

/// Returns whether a certificate can be read.
#[cfg(feature = "fuzz")]
#[must_use]
pub fn is_readable(whole: &[u8]) -> bool {
    Certificate::read(whole).is_some()
}

/// Reads DER values in order.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Returns the content of the next value, which must have this tag; otherwise reads nothing.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (start, end) = self.extent(tag)?;
        let content = &self.0[start..end];
        self.0 = &self.0[end..];
        Some(content)
    }

    /// Returns the next value with its tag and length.
    fn whole(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (_, end) = self.extent(tag)?;
        let value = &self.0[..end];
        self.0 = &self.0[end..];
        Some(value)
    }

    /// Returns the bytes of a bit string without unused bits.
    fn bits(&mut self) -> Option<&'a [u8]> {
        self.take(BITS)?.strip_prefix(&[0])
    }

    /// Returns where the content of the next value starts and ends.
    fn extent(&self, tag: u8) -> Option<(usize, usize)> {
        let [first, short, ..] = *self.0 else { return None };
        let (start, size) = if short < 0x80 {
            (2, usize::from(short))
        } else {
            let width = usize::from(short - 0x80);
            if !(1..=3).contains(&width) {
                return None;
            }
            let bytes = self.0.get(2..2 + width)?;
            (2 + width, bytes.iter().fold(0, |size, byte| size << 8 | usize::from(*byte)))
        };
        (first == tag && size <= self.0.len() - start).then_some((start, start + size))
    }

    /// Returns a time in seconds since 1970.
    fn time(&mut self) -> Option<u64> {
        let (text, year) = if let Some(text) = self.take(UTC_TIME) {
            let year = number(text.get(..2)?)?;
            (text.get(2..)?, if year < 50 { 2000 + year } else { 1900 + year })
        } else {
            let text = self.take(GENERALIZED_TIME)?;
            (text.get(4..)?, number(text.get(..4)?)?)
        };
        if text.len() != 11 || text[10] != b'Z' || year < 1970 {
            return None;
        }
        let mut parts = text[..10].chunks(2).map(number);
        let (month, day) = (parts.next()??, parts.next()??);
        let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
        if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        // Days since 1970-01-01 of the proleptic Gregorian calendar; years begin in March.
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let days =
            year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 719_469;
        Some(((days * 24 + hour) * 60 + minute) * 60 + second)
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |value, digit| {
        digit.is_ascii_digit().then(|| value * 10 + u64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::{Der, GENERALIZED_TIME, UTC_TIME};

    fn time_of(tag: u8, text: &str) -> Option<u64> {
        let value = [&[tag, text.len() as u8], text.as_bytes()].concat();
        Der(&value).time()
    }

    #[test]
    fn times_are_seconds_since_1970() {
        assert_eq!(time_of(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(time_of(UTC_TIME, "000229120000Z"), Some(951_825_600));
        assert_eq!(time_of(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(time_of(GENERALIZED_TIME, "20991231235959Z"), Some(4_102_444_799));
        assert_eq!(time_of(GENERALIZED_TIME, "19691231235959Z"), None);
        assert_eq!(time_of(UTC_TIME, "701301000000Z"), None);
        assert_eq!(time_of(UTC_TIME, "7001010000Z"), None);
        assert_eq!(time_of(UTC_TIME, "70010100000aZ"), None);
    }
}
