//! RESET and INIT, which need no processor.

use super::*;
use crate::guest::msr::index;
use crate::virt::state::cr0;

#[test]
fn init_leaves_msrs_and_caches_alone_and_reset_does_not() {
    let maps = (Arc::new(IoMap::intercept_all()), Arc::new(MsrMap::intercept_all()));
    let mut svm = Svm::new(Features::default(), maps.0, maps.1);
    let msrs = [
        (index::LSTAR, 0x1111),
        (index::KERNEL_GS_BASE, 0x2222),
        (index::SYSENTER_EIP, 0x3333),
        (index::PAT, 0x0101_0101_0101_0101),
    ];
    for (msr, value) in msrs {
        assert!(svm.set_switched_msr(msr, value));
    }
    assert!(svm.set_switched_msr(index::GS_BASE, 0x4444));
    svm.set_cr0(cr0::PE | cr0::TS | cr0::CD);
    svm.inject(Event::Nmi);
    svm.init();
    let cr0 = cr0::ET | cr0::CD;
    assert_eq!(ArchState::load(&svm), ArchState { cr0, ..ArchState::reset() });
    assert!(!svm.event_pending());
    for (msr, value) in msrs {
        assert_eq!(svm.switched_msr(msr), Some(value), "{msr:#x}");
    }
    assert_eq!(svm.switched_msr(index::GS_BASE), Some(0), "a segment's base");
    svm.reset();
    assert_eq!(ArchState::load(&svm), ArchState::reset());
    for (msr, _) in msrs {
        let after = if msr == index::PAT { 0x0007_0406_0007_0406 } else { 0 };
        assert_eq!(svm.switched_msr(msr), Some(after), "{msr:#x}");
    }
}
