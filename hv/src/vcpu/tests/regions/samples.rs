//! Samples of accesses, and the flushes that they owe.

use super::*;
use crate::region::Space;

#[test]
fn a_sample_that_has_cleared_accessed_bits_has_processors_flush() {
    for mode in [Mode::Nested, Mode::Shadow, Mode::Agile(Agile::default())] {
        let mut scene = Scene::in_mode("balance,spaces=vm", mode);
        let sample = |scene: &mut Scene| {
            let Machine { vm, vcpu, .. } = &mut scene.machine;
            let mut slot = vm.regions.lock(|| unreachable!("the lock is free"));
            let records = slot.as_mut().unwrap();
            let (scan, changes) = vm.sample(vcpu.id, &mut vcpu.work, records, Space::VM, 0);
            assert!(scan.is_complete);
            (scan.accessed > 0, changes.flush)
        };
        scene.access(REGIONS[0]);
        assert_eq!(sample(&mut scene), (true, true), "{mode:?}");
        assert_eq!(sample(&mut scene), (false, false), "{mode:?}: nothing was accessed since");
        // The model's processor has remembered the translation.
        scene.processor.flush(crate::paging::range::Flush::All);
        scene.shadow_processor.flush(TlbFlush::All);
        scene.access(REGIONS[0]);
        assert_eq!(sample(&mut scene), (true, true), "{mode:?}");
    }
}
