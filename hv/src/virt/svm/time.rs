//! Guests whose reads of the TSC exit: those of a lab machine with a modelled clock, which no TSC offset can follow while they run
//! (AMD APM 2, 15.9). RDPRU exits anyway, and so do accesses of the MSR.

use super::Svm;
use super::vmcb::{clean, misc1, misc2};

impl Svm {
    /// RDTSC and RDTSCP exit from now on, also after [`Virt::reset`](crate::virt::Virt::reset).
    pub fn intercept_tsc(&mut self) {
        self.block.vmcb.intercept_misc1 |= misc1::RDTSC;
        self.block.vmcb.intercept_misc2 |= misc2::RDTSCP;
        self.dirty(clean::INTERCEPTS);
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;

    use super::*;
    use crate::virt::Virt as _;
    use crate::virt::svm::{Features, IoMap, MsrMap};

    #[test]
    fn reads_exit_if_time_is_modelled_and_only_then() {
        let maps = (Arc::new(IoMap::intercept_all()), Arc::new(MsrMap::intercept_all()));
        let mut svm = Svm::new(Features::default(), maps.0, maps.1);
        let intercepted = |svm: &Svm| {
            let vmcb = &svm.block.vmcb;
            (vmcb.intercept_misc1 >> 14 & 1, vmcb.intercept_misc2 >> 7 & 1)
        };
        assert_eq!(intercepted(&svm), (0, 0));
        svm.intercept_tsc();
        svm.reset();
        svm.init();
        assert_eq!(intercepted(&svm), (1, 1), "also after a reset");
    }
}
