// SPDX-License-Identifier: Apache-2.0
//! The class `Sockets`, which is described in `_native.pyi`: reads and writes sockets that the
//! transports of an event loop own.

use std::io::{ErrorKind, Read, Result, Write};
use std::mem::ManuallyDrop;
use std::net::TcpStream;
use std::os::fd::{FromRawFd, RawFd};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

/// Size of one read; a longer input takes several turns of the loop.
const READ_BYTES_MAX: usize = 256 << 10;
/// Size of all reads of one call, which share it equally.
const TURN_BYTES: usize = 4 << 20;

/// Nonblocking sockets.
#[pyclass(module = "cometmq.accel")]
pub(crate) struct Sockets {
    buffer: Vec<u8>,
}

#[pymethods]
impl Sockets {
    #[new]
    fn new() -> Self {
        Self { buffer: vec![0; READ_BYTES_MAX] }
    }

    /// Reads once from each socket.
    fn receive<'py>(&mut self, py: Python<'py>, fds: Vec<RawFd>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        let share = (TURN_BYTES / fds.len().max(1)).clamp(1, READ_BYTES_MAX);
        let buffer = &mut self.buffer[..share];
        for fd in fds {
            match retry(|| borrowed(fd)?.read(buffer)) {
                Ok(0) => list.append(py.None())?,
                Ok(count) => list.append(PyBytes::new(py, &buffer[..count]))?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    list.append(PyBytes::new(py, b""))?;
                }
                Err(_) => list.append(py.None())?,
            }
        }
        Ok(list)
    }

    /// Writes to a socket; returns the number of bytes that the kernel has taken.
    #[allow(clippy::unused_self)] // a method, because a connection is given one object
    fn send(&self, fd: RawFd, data: &[u8]) -> usize {
        write(fd, data)
    }

    /// Writes the bytes of each row to the socket of its connection.
    #[allow(clippy::unused_self)]
    fn send_rows(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyList>,
    ) -> PyResult<(usize, Vec<(usize, usize)>)> {
        let name = pyo3::intern!(py, "direct_fd");
        let (mut total, mut unsent, mut full) = (0, vec![], vec![]);
        for (index, row) in rows.iter().enumerate() {
            let row = row.cast::<PyTuple>()?;
            let fd: RawFd = row.get_item(0)?.getattr(name)?.extract()?;
            let data = row.get_item(1)?;
            let data = data.cast::<PyBytes>()?.as_bytes();
            // Later bytes for a socket must not overtake bytes that it has not taken.
            let sent = if full.contains(&fd) { 0 } else { write(fd, data) };
            total += sent;
            if sent < data.len() {
                full.push(fd);
                unsent.push((index, sent));
            }
        }
        Ok((total, unsent))
    }
}

/// Writes as much as the kernel takes. An error is left to the transport, whose next operation on
/// the socket meets it as well.
fn write(fd: RawFd, data: &[u8]) -> usize {
    retry(|| borrowed(fd)?.write(data)).unwrap_or(0)
}

fn retry(mut attempt: impl FnMut() -> Result<usize>) -> Result<usize> {
    loop {
        match attempt() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Returns a socket without its ownership.
#[allow(unsafe_code)]
fn borrowed(fd: RawFd) -> Result<ManuallyDrop<TcpStream>> {
    if fd < 0 {
        return Err(ErrorKind::NotConnected.into());
    }
    // SAFETY: `ManuallyDrop` never closes the descriptor, and the value does not leave the caller.
    // Only the loop's thread, which is in this call, closes sockets of the loop, and a connection
    // gives up its descriptor before its transport closes it. With any other descriptor, the system
    // call would fail or transfer bytes, but never touch memory other than the given slice.
    Ok(ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) }))
}
