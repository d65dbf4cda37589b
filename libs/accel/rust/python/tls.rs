// SPDX-License-Identifier: Apache-2.0
//! The classes `TlsContext` and `TlsSession`, which are described in `_native.pyi`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::tls::{Context, Fault, Session};

create_exception!(cometmq.accel, TlsFault, PyValueError);

#[pyclass(module = "cometmq.accel", frozen)]
pub(crate) struct TlsContext {
    context: Context,
}

#[pymethods]
impl TlsContext {
    #[new]
    #[pyo3(signature = (chain, key, *, trusted, is_required))]
    fn new(chain: &[u8], key: &[u8], trusted: Option<&[u8]>, is_required: bool) -> PyResult<Self> {
        let context =
            Context::new(chain, key, trusted, is_required).map_err(PyValueError::new_err)?;
        Ok(Self { context })
    }

    fn session(&self) -> PyResult<TlsSession> {
        let session = Session::new(&self.context).map_err(PyValueError::new_err)?;
        Ok(TlsSession { session, rest: vec![] })
    }
}

#[pyclass(module = "cometmq.accel")]
pub(crate) struct TlsSession {
    session: Session,
    /// The last plain bytes of a connection whose input has ended.
    rest: Vec<u8>,
}

#[pymethods]
impl TlsSession {
    #[getter]
    fn is_ready(&self) -> bool {
        self.session.is_ready()
    }

    #[getter]
    fn is_finished(&self) -> bool {
        self.session.is_finished()
    }

    #[getter]
    fn is_incompatible(&self) -> bool {
        self.session.fault().is_some_and(|fault| fault.is_incompatible)
    }

    fn decrypt<'py>(
        &mut self,
        py: Python<'py>,
        data: &[u8],
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let mut plain = std::mem::take(&mut self.rest);
        self.open(data, &mut plain).map_err(|fault| TlsFault::new_err(fault.reason))?;
        Ok((PyBytes::new(py, &plain), self.alert(py)))
    }

    fn encrypt<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let mut out = vec![];
        let is_taken = match data.cast::<PyBytes>() {
            Ok(data) => self.session.encrypt(data.as_bytes(), &mut out),
            Err(_) => self.session.encrypt(&PyBuffer::<u8>::get(data)?.to_vec(py)?, &mut out),
        };
        if !is_taken {
            return Err(TlsFault::new_err("nothing can be sent before the handshake"));
        }
        Ok(PyBytes::new(py, &out))
    }

    fn alert<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut out = vec![];
        self.session.take_output(&mut out);
        PyBytes::new(py, &out)
    }

    fn close<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut out = vec![];
        self.session.close(&mut out);
        PyBytes::new(py, &out)
    }
}

impl TlsSession {
    /// Decrypts received bytes; returns whether the input has ended. In that case, the session
    /// keeps the last plain bytes and the reason.
    pub(crate) fn receive(&mut self, data: &[u8], plain: &mut Vec<u8>) -> bool {
        let has_failed = self.open(data, plain).is_err();
        let has_ended = has_failed || self.session.is_finished();
        if has_ended && !has_failed {
            self.rest.extend_from_slice(plain);
        }
        has_ended
    }

    /// Encrypts plain bytes; drops them if the connection has failed.
    pub(crate) fn seal(&mut self, data: &[u8], out: &mut Vec<u8>) {
        self.session.encrypt(data, out);
    }

    /// A panic ends the connection that caused it, and no other.
    fn open(&mut self, data: &[u8], plain: &mut Vec<u8>) -> Result<(), Fault> {
        let session = &mut self.session;
        catch_unwind(AssertUnwindSafe(|| session.decrypt(data, plain))).unwrap_or_else(|_| {
            let fault = Fault { reason: "a bug in the native code".into(), is_incompatible: false };
            self.session.fail(fault.clone());
            Err(fault)
        })
    }
}
