//! What an access to memory does, as page walks, permission checks and exits describe it (AMD APM 2, 5.6; Intel SDM 3, 4.6).

/// What an access to guest memory did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// A write (or a read-modify-write).
    pub write: bool,
    /// An instruction fetch.
    pub execute: bool,
    /// Made at CPL 3 (explicit user access).
    pub user: bool,
}

impl Access {
    /// A supervisor data read.
    pub const READ: Access = Access { write: false, execute: false, user: false };
    /// A supervisor data write.
    pub const WRITE: Access = Access { write: true, execute: false, user: false };
    /// A supervisor instruction fetch.
    pub const FETCH: Access = Access { write: false, execute: true, user: false };

    /// The same access made with user privilege.
    pub const fn user(self) -> Access {
        Access { user: true, ..self }
    }
}
