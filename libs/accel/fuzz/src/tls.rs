// SPDX-License-Identifier: Apache-2.0
//! Fuzz test of TLS input. Whatever a peer sends, nothing may panic, and the decrypted bytes are
//! always a beginning of the bytes that the client has encrypted. The same seed produces the same
//! mutations.

use std::io::Write;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

use cometmq_accel::tls::{Context, Session};
use cometmq_accel::tls_clients::is_readable;

use crate::input::{Random, Seen, mutate};

/// A throw-away certificate and its key.
const PEM: &[u8] = include_bytes!("tls.pem");
const RECORDS_MAX: u32 = 40;
const CERTIFICATES: u32 = 400;

/// Trusts every server.
#[derive(Debug)]
struct Trusting;

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

fn client_config(versions: &[&'static rustls::SupportedProtocolVersion]) -> Arc<ClientConfig> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(versions)
        .expect("known versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting))
        .with_no_client_auth();
    Arc::new(config)
}

/// One connection: the bytes that its client has encrypted, and those that the server has
/// decrypted.
struct Connection {
    client: ClientConnection,
    session: Session,
    sent: Vec<u8>,
    received: Vec<u8>,
    has_failed: bool,
}

impl Connection {
    fn output(&mut self) -> Vec<u8> {
        let mut out = vec![];
        while self.client.wants_write() && self.client.write_tls(&mut out).is_ok() {}
        out
    }

    /// Passes bytes to the server in random pieces; returns the number of pieces.
    fn receive(&mut self, mut data: &[u8], random: &mut Random) -> u64 {
        let mut count = 0;
        while !data.is_empty() {
            let size = match random.below(4) {
                0 => data.len(),
                1 => 1,
                _ => 1 + random.below(data.len() as u32) as usize,
            };
            let (piece, rest) = data.split_at(size.min(data.len()));
            data = rest;
            count += 1;
            let before = self.received.len();
            if self.session.decrypt(piece, &mut self.received).is_err() {
                self.has_failed = true;
                self.received.truncate(before); // as the callers do
            } else {
                assert!(!self.has_failed, "a failed session goes on");
            }
        }
        assert!(self.sent.starts_with(&self.received), "received what was not sent");
        count
    }

    fn answer(&mut self) {
        let mut out = vec![];
        self.session.take_output(&mut out);
        let mut rest = &out[..];
        while !rest.is_empty() && self.client.read_tls(&mut rest).is_ok() {
            if self.client.process_new_packets().is_err() {
                return;
            }
        }
    }
}

/// Runs a series of inputs; the counters of the result are the pieces of connections and
/// certificates, and the records that arrived whole.
///
/// # Panics
///
/// If a session returns bytes that its peer has not encrypted.
#[must_use]
pub fn run(seed: u64, inputs: u64) -> Seen {
    let mut random = Random::new(seed);
    let context = Context::new(PEM, PEM, None, false).expect("a certificate and its key");
    let clients =
        [client_config(&[&rustls::version::TLS12]), client_config(&[&rustls::version::TLS13])];
    let certificate = CertificateDer::from_pem_slice(PEM).expect("a certificate");
    let mut so_far = Seen::default();
    while so_far.frames < inputs {
        let config = Arc::clone(&clients[random.below(2) as usize]);
        let name = ServerName::try_from("fuzz").expect("a name");
        let mut connection = Connection {
            client: ClientConnection::new(config, name).expect("a client"),
            session: Session::new(&context).expect("a session"),
            sent: vec![],
            received: vec![],
            has_failed: false,
        };
        shake(&mut connection, &mut random, &mut so_far);
        converse(&mut connection, &mut random, &mut so_far);
        for _ in 0..CERTIFICATES {
            let mut bytes = certificate.to_vec();
            mutate(&mut bytes, &mut random);
            let _ = is_readable(&bytes);
            so_far.frames += 1;
        }
    }
    so_far
}

/// Makes a handshake; one in four has a mutated flight.
fn shake(connection: &mut Connection, random: &mut Random, seen: &mut Seen) {
    let wrong = random.below(8);
    for flight in 0..4 {
        let mut data = connection.output();
        if flight == wrong && !data.is_empty() {
            mutate(&mut data, random);
        }
        seen.frames += connection.receive(&data, random);
        connection.answer();
        if connection.has_failed
            || (connection.session.is_ready() && !connection.client.wants_write())
        {
            return;
        }
    }
}

/// Sends records; the last one may be mutated or cut off.
fn converse(connection: &mut Connection, random: &mut Random, seen: &mut Seen) {
    if connection.client.is_handshaking() {
        return;
    }
    for _ in 0..random.below(RECORDS_MAX) {
        let text: Vec<u8> = (0..random.below(300)).map(|_| random.below(256) as u8).collect();
        let _ = connection.client.writer().write_all(&text);
        connection.sent.extend_from_slice(&text);
        let mut data = connection.output();
        let is_mutated = random.below(16) == 0;
        if is_mutated && !data.is_empty() {
            mutate(&mut data, random);
        }
        seen.frames += connection.receive(&data, random);
        if !is_mutated && !connection.has_failed && connection.received == connection.sent {
            seen.staged += 1;
        }
        connection.answer();
    }
    if random.below(2) == 0 {
        connection.client.send_close_notify();
        let data = connection.output();
        seen.frames += connection.receive(&data, random);
    }
}

#[cfg(test)]
mod tests {
    use super::run;

    #[test]
    fn a_short_run_finds_nothing() {
        let seen = run(1, 20_000);
        assert!(seen.staged > 100, "{seen:?}");
    }
}
