//! Changes between nested and shadow tables in the handling of exits.

use core::num::NonZeroU32;

use super::wrmsr;
use crate::guest::config::Mode;
use crate::vcpu::mmu::set_mode;
use crate::vcpu::testing::Machine;
use crate::virt::state::efer;
use crate::virt::{Exit, Roots};

const EFER: u32 = 0xc000_0080;

#[test]
fn a_root_that_is_to_be_loaded_is_forgotten_with_the_shadow_tables() {
    let mut machine = Machine::with(
        "shadow_pages = 16\n",
        &[
            |f| {
                assert!(matches!(f.roots, Some(Roots::Shadow(_))));
                // The root depends on NXE; but the next entry uses nested tables again.
                wrmsr(f, EFER, efer::NXE)
            },
            |f| {
                assert!(matches!(f.roots, Some(Roots::Nested(_))));
                wrmsr(f, EFER, 0)
            },
            |f| {
                assert!(matches!(f.roots, Some(Roots::Shadow(_))));
                Exit::Shutdown
            },
        ],
    );
    set_mode(&mut machine.vcpu, &machine.vm, Mode::Switch(NonZeroU32::MIN), || 0).unwrap();
    machine.play();
}
