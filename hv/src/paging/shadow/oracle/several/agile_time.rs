//! Agile paging: it comes into force and ends, on either machine, and time passes for it.

use super::Several;
use crate::arch::addr::Gpa;
use crate::paging::model::Modelled;
use crate::paging::random::Random;
use crate::paging::shadow::TlbFlush;
use crate::paging::shadow::oracle::layout;

impl<F: Modelled> Several<F> {
    /// VCPU `v` leads the VM to agile paging, or back to shadow tables, or changes what stays unsync there.
    pub(super) fn change_engine(&mut self, v: usize, random: &mut Random) {
        if self.agile.is_none() && random.once_in(2) {
            return self.keep_upper(v, random);
        }
        if self.agile.is_none() {
            return self.begin_agile(v, random);
        }
        self.call_off_all_but(v);
        self.end_agile(v);
        self.keep_upper(v, random);
    }

    /// VCPU `v` leads the VM to agile paging.
    pub(super) fn begin_agile(&mut self, v: usize, random: &mut Random) {
        self.end_phase();
        self.call_off_all_but(v);
        let times = layout::agile_times(random);
        (self.agile, self.keeps_upper) = (Some(times), false);
        self.engine(v, |shadow, _, memory, state| {
            ((), shadow.begin_agile(times, state.features.physical_bits, memory))
        });
    }

    /// Tables above level 1 stay unsync from now on, or not. The other VCPUs run on.
    pub(super) fn keep_upper(&mut self, v: usize, random: &mut Random) {
        self.keeps_upper = random.once_in(2);
        let times = self.keeps_upper.then(|| layout::agile_times(random));
        self.engine(v, |shadow, _, memory, state| {
            ((), shadow.set_upper(times, state.features.physical_bits, memory))
        });
    }

    /// No VCPU uses the shadow tables until it has looked for its root again.
    pub(super) fn end_agile(&mut self, v: usize) {
        if self.agile.take().is_some() {
            let reload = self.engine(v, |shadow, _, _, _| shadow.end_agile());
            self.reload(v, Some(reload));
        }
    }

    /// Time passes.
    pub(super) fn pass(&mut self, v: usize) {
        self.now += 1;
        let now = self.now;
        if self.agile.is_some() || self.keeps_upper {
            self.engine(v, |shadow, _, memory, _| {
                let root = shadow.root_table();
                ((), shadow.agile_time(memory, root, 1, now, now.is_multiple_of(3)))
            });
        }
    }

    /// A write has exited: whether the guest may make it by itself now.
    pub(super) fn agile_write(&mut self, v: usize, gpa: Gpa) -> bool {
        let now = self.now;
        (self.agile.is_some() || self.keeps_upper)
            && self.engine(v, |shadow, p2m, _, _| {
                let flush = shadow.agile_write(p2m, gpa, now, false);
                (flush.is_some(), flush.unwrap_or(TlbFlush::None))
            })
    }
}
