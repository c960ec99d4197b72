//! Exceptions and their vectors (AMD APM 2, 8.2; Intel SDM 3, 6.15).

use super::addr::Gva;

/// Exception vectors that the hypervisor names.
#[allow(missing_docs)]
pub mod vector {
    pub const DE: u8 = 0;
    pub const DB: u8 = 1;
    pub const NMI: u8 = 2;
    pub const BP: u8 = 3;
    pub const OF: u8 = 4;
    pub const BR: u8 = 5;
    pub const UD: u8 = 6;
    pub const NM: u8 = 7;
    pub const DF: u8 = 8;
    pub const TS: u8 = 10;
    pub const NP: u8 = 11;
    pub const SS: u8 = 12;
    pub const GP: u8 = 13;
    pub const PF: u8 = 14;
    pub const MF: u8 = 16;
    pub const AC: u8 = 17;
    pub const MC: u8 = 18;
    pub const XM: u8 = 19;
}

/// An exception to be delivered to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exception {
    /// Vector, 0 to 31.
    pub vector: u8,
    /// Error code, if this vector pushes one.
    pub error: Option<u32>,
    /// New CR2, for #PF.
    pub cr2: Option<u64>,
}

impl Exception {
    /// #UD
    pub const UD: Exception = Exception { vector: vector::UD, error: None, cr2: None };
    /// #GP(0)
    pub const GP0: Exception = Exception { vector: vector::GP, error: Some(0), cr2: None };
    /// #SS(0)
    pub const SS0: Exception = Exception { vector: vector::SS, error: Some(0), cr2: None };

    /// #PF with this error code at this address.
    pub const fn page_fault(gva: Gva, error: u32) -> Exception {
        Exception { vector: vector::PF, error: Some(error), cr2: Some(gva.0) }
    }
}
