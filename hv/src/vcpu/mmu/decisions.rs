//! What agile paging has decided at an exit, until the run loop has traced it.
//!
//! Decisions are made deep in a fault or before an entry, where no host is at hand that takes events. So they are noted here, at
//! most one of each kind, and [`trace`] hands them over before the entry that follows. Where nothing is traced they
//! stay here, and nothing reads them.

use records::trace::What;

use crate::arch::addr::Gpa;
use crate::paging::engine::Engine;
use crate::vcpu::Vcpu;
use crate::vcpu::host::Host;
use crate::virt::Virt;

/// Decisions since the last entry.
#[derive(Debug, Default)]
pub struct Decisions {
    /// Tables that are nested now, and the write that decided it.
    nested: Option<(u64, Gpa)>,
    /// Tables that are shadowed again.
    shadowed: u64,
    /// An address space, and its engine from now on.
    space: Option<(u64, Engine)>,
}

impl Decisions {
    /// A write at `gpa` has made this many tables nested.
    pub(super) fn nest(&mut self, tables: u64, gpa: Gpa) {
        self.nested = (tables > 0).then_some((tables, gpa)).or(self.nested);
    }

    /// This many are shadowed again.
    pub(super) fn shadow(&mut self, tables: u64) {
        self.shadowed = self.shadowed.saturating_add(tables);
    }

    /// The address space at this CR3 has another engine.
    pub(super) fn space(&mut self, root: u64, engine: Engine) {
        self.space = Some((root, engine));
    }

    /// Takes them as events, each with its address.
    fn take(&mut self) -> [Option<(What, u64)>; 3] {
        let Decisions { nested, shadowed, space } = core::mem::take(self);
        let count = |tables: u64| u8::try_from(tables).unwrap_or(u8::MAX);
        [
            nested.map(|(tables, gpa)| (What::Nest(count(tables)), gpa.0)),
            (shadowed > 0).then(|| (What::Shadow(count(shadowed)), 0)),
            space.map(|(root, engine)| (What::Space(engine as u8), root)),
        ]
    }
}

/// Gives the decisions since the last entry to the host that traces.
#[cold]
pub fn trace<V: Virt, H: Host>(vcpu: &mut Vcpu<V>, host: &mut H) {
    let now = host.tsc();
    for (what, at) in vcpu.mmu.decisions.take().into_iter().flatten() {
        host.trace(what, vcpu.id, now, 0, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_an_event_once() {
        let mut decisions = Decisions::default();
        assert_eq!(decisions.take(), [None; 3]);
        decisions.nest(3, Gpa(0x5008));
        decisions.nest(0, Gpa(0x6000));
        decisions.shadow(200);
        decisions.shadow(100);
        decisions.space(0x1000, Engine::Shadow);
        let events = [(What::Nest(3), 0x5008), (What::Shadow(255), 0), (What::Space(1), 0x1000)];
        assert_eq!(decisions.take(), events.map(Some));
        assert_eq!(decisions.take(), [None; 3]);
    }
}
