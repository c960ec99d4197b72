//! What a guest wants of the fast memory, by a hypercall ([`abi::hypercall::TIER_TARGET`]).
//!
//! Called by `vcpu::hypercall`, and at a reset. What must hold: a call takes no lock and leaves one number, which the next pass reads. So a
//! guest that calls all the time slows no other VM down, and its E-state changes as seldom as without.

use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use abi::hypercall;
use abi::tiers::Sharing;

use super::Tiers;
use super::sharing::Target;

/// Why a target is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetError {
    /// More than all of its hot pages.
    Invalid,
    /// The VM uses no fast memory.
    NoTiers,
    /// The machine's policy goes by no targets.
    Policy,
}

impl TargetError {
    /// The number for it, as the C header has it.
    pub const fn number(self) -> u64 {
        match self {
            TargetError::Invalid => hypercall::KVM_EINVAL,
            TargetError::NoTiers => hypercall::TIER_ENODEV,
            TargetError::Policy => hypercall::KVM_EOPNOTSUPP,
        }
    }
}

/// What the guest has said last.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Per mille; 0: nothing in particular.
    per_mille: AtomicU16,
    calls: AtomicU64,
}

impl Wanted {
    /// The target.
    pub(super) fn target(&self) -> Option<Target> {
        Target::new(self.per_mille.load(Ordering::Relaxed).into())
    }

    /// Calls so far, refused ones, too.
    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

/// Reads the argument of the hypercall.
///
/// # Errors
/// It is above the largest target.
fn parse(per_mille: u64) -> Result<Option<Target>, TargetError> {
    match per_mille {
        0 => Ok(None),
        _ => Target::new(per_mille).map(Some).ok_or(TargetError::Invalid),
    }
}

/// The guest of a VM wants `per_mille` of its hot pages in fast memory from the next pass on; 0: nothing in particular.
///
/// # Errors
/// See [`TargetError`]; nothing has changed.
pub fn want(tiers: Option<&Tiers>, per_mille: u64) -> Result<(), TargetError> {
    let target = parse(per_mille);
    let Some(tiers) = tiers else { return target.and(Err(TargetError::NoTiers)) };
    tiers.wanted.calls.fetch_add(1, Ordering::Relaxed);
    let target = target?;
    if tiers.pool.sharing() != Sharing::EstateQos {
        return Err(TargetError::Policy);
    }
    tiers.wanted.per_mille.store(target.map_or(0, Target::per_mille), Ordering::Relaxed);
    Ok(())
}

impl Tiers {
    /// The guest is reset, and what it wanted is forgotten.
    pub fn reset(&self) {
        self.wanted.per_mille.store(0, Ordering::Relaxed);
    }
}
