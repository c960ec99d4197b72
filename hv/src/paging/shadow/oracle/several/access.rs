//! An access by a VCPU: by what its processor remembers, through the shadow tables, and with the engine's help.

use super::{Fault, Several};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Hpa};
use crate::paging::model::Modelled;
use crate::paging::shadow::oracle::{Outcome, by_p2m};
use crate::paging::shadow::{PageFault, ShadowOutcome, TlbFlush};

/// Attempts of an access, each of which may be undone by what others do.
const ATTEMPTS: usize = 60;

impl<F: Modelled> Several<F> {
    /// The guest accesses the page of a probe. If that goes through: where it led, and whether the hypervisor makes the access.
    pub(super) fn access(
        &mut self,
        v: usize,
        probe: usize,
        access: Access,
    ) -> Result<Option<(Hpa, bool)>, Fault> {
        let access = Access { user: access.user && self.world.cpus[v].borrow().state.cpl == 3, ..access };
        let gva = self.world.cpus[v].borrow().probes[probe].gva;
        let world = self.world.clone();
        self.pass(v);
        for _ in 0..ATTEMPTS {
            if world.random.borrow_mut().once_in(4) {
                world.race();
            }
            let start = world.changes.borrow().len();
            let touched = world.cpus[v].borrow_mut().touch(probe, access);
            let mut cpu = world.cpus[v].borrow_mut();
            let code = match touched {
                Ok(hpa) => {
                    world.log(|| format!("    VCPU {v}: {gva} {access:?}: {hpa}"));
                    cpu.judge(&world, probe, access, Outcome::Done(hpa), None)?;
                    cpu.check_bits(&world, probe, access)?;
                    cpu.accessed(&world, probe);
                    return Ok(Some((hpa, false)));
                }
                Err(code) => code,
            };
            if cpu.delivers(&world, code) {
                world.log(|| format!("    VCPU {v}: {gva} {access:?}: fault {code:#x}"));
                cpu.judge(&world, probe, access, Outcome::PageFault(code), None)?;
                cpu.faulted(&world, probe);
                return Ok(None);
            }
            drop(cpu);
            let outcome = self.fault(v, PageFault::new(gva, access));
            let outcome = match outcome {
                ShadowOutcome::InPhase => self.fault_in_phase(v, PageFault::new(gva, access))?,
                outcome => outcome,
            };
            world.log(|| format!("    VCPU {v}: {gva} {access:?}: {outcome:x?}"));
            let p2m = world.p2m.borrow();
            let outcome = match outcome {
                ShadowOutcome::Filled { .. } | ShadowOutcome::Retry => continue,
                ShadowOutcome::EmulateWrite(gpa) => {
                    drop(p2m);
                    if self.agile_write(v, gpa) {
                        continue;
                    }
                    if self.is_unknown() && self.make_unsync(v, gpa) {
                        continue;
                    }
                    let hpa = world.p2m.borrow().translate(gpa).writable();
                    return match hpa {
                        Some(hpa) => Ok(Some((hpa, true))),
                        None => Err(format!("a write to {gpa} is to be emulated")),
                    };
                }
                ShadowOutcome::Touched { .. } | ShadowOutcome::InPhase => {
                    unreachable!("it was one of a phase")
                }
                ShadowOutcome::Closed(gpa, home) => {
                    drop(p2m);
                    self.serve_closed(v, gpa, home)?;
                    continue;
                }
                ShadowOutcome::GuestFault(code) => Outcome::PageFault(code),
                ShadowOutcome::TableNotRam(table) => by_p2m(&p2m, table, Access::WRITE),
                ShadowOutcome::Mmio(gpa)
                | ShadowOutcome::RomWrite(gpa)
                | ShadowOutcome::WriteProtected(gpa)
                | ShadowOutcome::NotMapped(gpa) => Outcome::Stopped(gpa, p2m.translate(gpa).opened()),
            };
            drop(p2m);
            let mut cpu = world.cpus[v].borrow_mut();
            // What the engine says is so now, or was while it looked.
            cpu.judge(&world, probe, access, outcome, Some(start))?;
            if matches!(outcome, Outcome::PageFault(_)) {
                cpu.has_faulted = true;
                cpu.faulted(&world, probe);
            }
            return Ok(None);
        }
        Err(format!("VCPU {v}: {gva} {access:?} faults for ever"))
    }

    fn is_unknown(&mut self) -> bool {
        self.unknown.as_mut().is_some_and(|count| {
            *count += 1;
            count.is_multiple_of(3)
        })
    }

    fn make_unsync(&mut self, v: usize, gpa: Gpa) -> bool {
        self.engine(v, |shadow, p2m, memory, _| {
            let flush = shadow.make_unsync(p2m, memory, gpa);
            (flush.is_some(), flush.unwrap_or(TlbFlush::None))
        })
    }
}
