// SPDX-License-Identifier: Apache-2.0
//! An address with its port, in the form that records and message ids contain.

/// Size of an IPv4 address with its port.
pub const HOST_V4_BYTES: usize = 8;
/// Size of an IPv6 address with its port.
pub const HOST_V6_BYTES: usize = 20;
/// The bit of sysFlag for a sender with an IPv6 address.
pub const BORN_HOST_V6: i32 = 0x10;
/// The bit of sysFlag for a broker with an IPv6 address.
pub const STORE_HOST_V6: i32 = 0x20;

/// A packed address with its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// An IPv4 address.
    V4([u8; HOST_V4_BYTES]),
    /// An IPv6 address.
    V6([u8; HOST_V6_BYTES]),
}

impl Default for Host {
    fn default() -> Self {
        Self::V4([0; HOST_V4_BYTES])
    }
}

impl Host {
    /// Returns the host in this packed form; `None` if it has another size.
    #[must_use]
    pub fn new(packed: &[u8]) -> Option<Self> {
        match packed.len() {
            HOST_V4_BYTES => packed.try_into().ok().map(Self::V4),
            HOST_V6_BYTES => packed.try_into().ok().map(Self::V6),
            _ => None,
        }
    }

    /// Returns the packed form.
    #[must_use]
    pub fn packed(&self) -> &[u8] {
        match self {
            Self::V4(bytes) => bytes,
            Self::V6(bytes) => bytes,
        }
    }

    /// Returns the size of the packed form.
    #[inline]
    #[must_use]
    pub const fn size(&self) -> usize {
        match self {
            Self::V4(_) => HOST_V4_BYTES,
            Self::V6(_) => HOST_V6_BYTES,
        }
    }

    /// Returns `bit` if this is an IPv6 address, and otherwise 0.
    #[inline]
    pub(crate) const fn flag(&self, bit: i32) -> i32 {
        match self {
            Self::V4(_) => 0,
            Self::V6(_) => bit,
        }
    }
}
