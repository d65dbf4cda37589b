// SPDX-License-Identifier: Apache-2.0
//! The server's end of TLS connections, without sockets: rustls implements TLS, and this module
//! passes bytes to and from it.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::crypto::ring::{Ticketer, default_provider, sign::any_supported_type};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, ServerConfig, ServerConnection};

use crate::tls_clients::ClientVerifier;

/// The certificate, the key and the rules of a server.
#[derive(Clone)]
pub struct Context {
    config: Arc<ServerConfig>,
}

impl Context {
    /// Reads files in PEM form. With `trusted`, clients are asked for a certificate that these
    /// authorities have issued; if one is not `required`, they may also present none.
    ///
    /// # Errors
    /// Returns why the files cannot be used.
    pub fn new(
        chain: &[u8],
        key: &[u8],
        trusted: Option<&[u8]>,
        is_required: bool,
    ) -> Result<Self, String> {
        let chain = certificates(chain)?;
        if chain.is_empty() {
            return Err("there is no certificate".into());
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| format!("the key cannot be read: {error}"))?;
        let key = any_supported_type(&key)
            .map_err(|_| "the key is neither RSA, nor P-256, P-384 or Ed25519".to_owned())?;
        let provider = Arc::new(default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match trusted {
            None => builder.with_no_client_auth(),
            Some(trusted) => {
                let roots = certificates(trusted)?;
                let verifier = ClientVerifier::new(&roots, is_required, &provider)?;
                builder.with_client_cert_verifier(Arc::new(verifier))
            }
        };
        // `with_single_cert` would refuse certificates of version 1, which clients accept.
        let identity = SingleCertAndKey::from(CertifiedKey::new(chain, key));
        let mut config = builder.with_cert_resolver(Arc::new(identity));
        // New keys for each context: nobody resumes a session that older rules have admitted.
        config.ticketer = Ticketer::new().map_err(|error| error.to_string())?;
        // gRPC clients need it to see why they are refused.
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { config: Arc::new(config) })
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("a certificate cannot be read: {error}"))
}

/// The error that ends a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The reason.
    pub reason: String,
    /// Whether rustls supports nothing that the peer offers; another library might.
    pub is_incompatible: bool,
}

/// The server's end of one connection.
pub struct Session {
    tls: ServerConnection,
    fault: Option<Fault>,
    is_finished: bool,
}

impl Session {
    /// Starts a connection.
    ///
    /// # Errors
    /// Returns the reason if rustls cannot start one.
    pub fn new(context: &Context) -> Result<Self, String> {
        let mut tls = ServerConnection::new(Arc::clone(&context.config))
            .map_err(|error| error.to_string())?;
        tls.set_buffer_limit(None); // the caller bounds unsent output
        Ok(Self { tls, fault: None, is_finished: false })
    }

    /// Returns whether the handshake is complete.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.tls.is_handshaking()
    }

    /// Returns whether the peer has announced the end of its input; later bytes are ignored.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Returns why the connection must end, if it must.
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    /// Ends the session: every further call fails with this error.
    pub fn fail(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// Decrypts received bytes, and appends the plain bytes to `plain`.
    ///
    /// # Errors
    /// Returns why the connection must end; `take_output` then returns the alert for the
    /// peer.
    pub fn decrypt(&mut self, mut data: &[u8], plain: &mut Vec<u8>) -> Result<(), Fault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        while !data.is_empty() && !self.is_finished {
            // It takes a part: at most one record is kept in memory.
            let taken = self.tls.read_tls(&mut data).map_err(|error| error.to_string());
            let state = match taken {
                Ok(0) => break,
                Ok(_) => self.tls.process_new_packets().map_err(|error| fault_of(&error)),
                Err(reason) => Err(Fault { reason, is_incompatible: false }),
            };
            let state = state.inspect_err(|fault| self.fault = Some(fault.clone()))?;
            let start = plain.len();
            plain.resize(start + state.plaintext_bytes_to_read(), 0);
            let read = self.tls.reader().read_exact(&mut plain[start..]);
            debug_assert!(read.is_ok(), "rustls has announced these bytes");
            self.is_finished = state.peer_has_closed();
        }
        Ok(())
    }

    /// Appends plain bytes as TLS records to `out`, after the bytes that TLS itself has to send.
    /// Before the end of the handshake, does nothing and returns false.
    pub fn encrypt(&mut self, data: &[u8], out: &mut Vec<u8>) -> bool {
        if !self.is_ready() || self.tls.writer().write_all(data).is_err() {
            return false;
        }
        self.take_output(out);
        true
    }

    /// Appends the bytes that TLS itself has to send.
    pub fn take_output(&mut self, out: &mut Vec<u8>) {
        while self.tls.wants_write() && self.tls.write_tls(out).is_ok_and(|count| count > 0) {}
    }

    /// Appends the alert that announces the end of the output.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        self.tls.send_close_notify();
        self.take_output(out);
    }
}

fn fault_of(error: &Error) -> Fault {
    Fault {
        reason: error.to_string(),
        is_incompatible: matches!(error, Error::PeerIncompatible(_) | Error::NoApplicationProtocol),
    }
}
