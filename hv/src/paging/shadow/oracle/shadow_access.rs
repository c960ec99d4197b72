//! An access of the machine under test while shadow tables translate.

use super::machine::Machine;
use super::{Guest, Outcome, Walked, by_p2m};
use crate::arch::Access;
use crate::arch::addr::Gva;
use crate::arch::state::cr4;
use crate::paging::guest_walk::{PagingState, error_code};
use crate::paging::model::Modelled;
use crate::paging::shadow::model::Registers;
use crate::paging::shadow::{AddressSpace, HardwareControls, PageFault, ShadowOutcome, exiting_faults};

impl<F: Modelled> Machine<'_, F> {
    /// An access on shadow tables: as the processor makes it, and what the hypervisor does about its faults.
    pub(super) fn shadow_access(
        &mut self,
        p2m: &Guest,
        state: &PagingState,
        gva: Gva,
        access: Access,
    ) -> Result<(Outcome, bool), String> {
        let hardware = HardwareControls::of(state);
        let registers = Registers {
            smep: hardware.cr4 & cr4::SMEP != 0,
            smap: hardware.cr4 & cr4::SMAP != 0,
            ac: state.may_override_smap(),
        };
        for round in 0..12 {
            let code = match self.processor.access(&self.arena, self.root, registers, gva, access) {
                Ok(hpa) => {
                    if round > 0 {
                        self.compare_walk(p2m, state, gva, access, Some(hpa))?;
                    }
                    return Ok((Outcome::Done(hpa), false));
                }
                Err(code) => code,
            };
            if F::FILTERS_FAULTS
                && exiting_faults(state.cr4, state.efer, self.physical_bits)
                    .is_some_and(|bits| code & bits == 0)
            {
                self.delivered = true;
                return Ok((Outcome::PageFault(code), false));
            }
            let unknown = self.is_unknown();
            let memory = Walked::new(p2m, &self.host, !self.walks_rom);
            let (outcome, flush) =
                self.shadow.fault(AddressSpace::new(p2m, &memory, state), PageFault::new(gva, access));
            self.processor.flush(flush);
            let stopped = |gpa| Ok((Outcome::Stopped(gpa, p2m.translate(gpa)), false));
            return match outcome {
                ShadowOutcome::Filled { .. } => continue,
                ShadowOutcome::GuestFault(code) => {
                    if code & error_code::PRESENT == 0 {
                        self.compare_walk(p2m, state, gva, access, None)?;
                    }
                    Ok((Outcome::PageFault(code), false))
                }
                ShadowOutcome::TableNotRam(table) => Ok((by_p2m(p2m, table, Access::WRITE), false)),
                ShadowOutcome::EmulateWrite(gpa)
                    if let Some(flush) = self.shadow.agile_write(p2m, gpa, self.now, unknown) =>
                {
                    self.processor.flush(flush);
                    continue;
                }
                ShadowOutcome::EmulateWrite(gpa)
                    if unknown && let Some(flush) = self.shadow.make_unsync(p2m, &memory, gpa) =>
                {
                    self.processor.flush(flush);
                    continue;
                }
                ShadowOutcome::EmulateWrite(gpa) => match p2m.translate(gpa).writable() {
                    Some(hpa) => Ok((Outcome::Done(hpa), true)),
                    None => Err(format!("a write to {gpa} is to be emulated")),
                },
                ShadowOutcome::Mmio(gpa)
                | ShadowOutcome::RomWrite(gpa)
                | ShadowOutcome::WriteProtected(gpa)
                | ShadowOutcome::NotMapped(gpa) => stopped(gpa),
                ShadowOutcome::InPhase | ShadowOutcome::Touched { .. } => Err("no phase has begun".into()),
                ShadowOutcome::Closed(gpa, home) => Err(format!("{gpa} is closed to all but {home}")),
                ShadowOutcome::Retry => Err("there is no other processor".into()),
            };
        }
        Err("the access faults for ever".into())
    }

    fn is_unknown(&mut self) -> bool {
        self.faults.as_mut().is_some_and(|faults| {
            *faults += 1;
            faults.is_multiple_of(2)
        })
    }
}

#[cfg(not(test))]
impl<F: Modelled> Machine<'_, F> {
    /// Fuzz targets do without the lab machine's model.
    fn compare_walk(
        &self,
        _: &Guest,
        _: &PagingState,
        _: Gva,
        _: Access,
        _: Option<crate::arch::addr::Hpa>,
    ) -> Result<(), String> {
        Ok(())
    }
}
