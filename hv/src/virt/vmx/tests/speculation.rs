//! What is done before entries where the processor leaks.

use super::*;
use crate::virt::speculation::Measures;

/// Executions of VERW and writes of FLUSH_CMD so far.
fn done() -> (usize, u32) {
    modelled::with(|it| (it.cleared.len(), it.l1d_flushes))
}

fn guarded(measures: Measures) -> Scene {
    let mut scene = Scene::nested();
    scene.vmx.put(&mut scene.cpu);
    let Scene { vmx, cpu } = scene;
    modelled::with(|it| it.cleared.clear());
    Scene { vmx: vmx.guarded(&measures), cpu }
}

#[test]
fn buffers_are_cleared_before_each_entry() {
    let mut scene = guarded(Measures { clear_buffers: true, ..Measures::default() });
    for entries in 1..=4 {
        // Frequent exits and rare ones, with the VCPU on its PCPU and after it was away.
        let reason = if entries % 2 == 0 { reason::CPUID } else { reason::IO };
        assert!(matches!(scene.run(reason, &[]), Ended::Io(_) | Ended::Other));
        assert_eq!(done(), (entries, 0));
        if entries == 2 {
            scene.vmx.put(&mut scene.cpu);
        }
    }
    scene.vmx.init();
    assert!(matches!(scene.run(reason::IO, &[]), Ended::Io(_)));
    assert_eq!(done(), (5, 0), "INIT does not end it");
}

#[test]
fn the_l1_cache_is_flushed_when_the_host_has_used_the_processor() {
    let mut scene = guarded(Measures { flush_l1d: true, clear_buffers: true, ..Measures::default() });
    assert!(matches!(scene.run(reason::IO, &[]), Ended::Io(_)));
    assert!(matches!(scene.run(reason::IO, &[]), Ended::Io(_)));
    assert_eq!(done(), (2, 1), "the guest's own exits leave its own data");
    scene.vmx.load_host_state(&mut scene.cpu);
    assert!(matches!(scene.run(reason::IO, &[]), Ended::Io(_)));
    assert_eq!(done(), (3, 2));
    scene.vmx.put(&mut scene.cpu);
    assert!(matches!(scene.run(reason::IO, &[]), Ended::Io(_)));
    assert_eq!(done(), (4, 3));
    // The flush comes first: VERW is the last thing before the entry.
    assert_eq!(modelled::with(|it| it.cleared.clone()), [1, 1, 2, 3]);
}

#[test]
fn what_needs_nothing_gets_nothing() {
    let mut scene = guarded(Measures::default());
    for _ in 0..3 {
        scene.vmx.load_host_state(&mut scene.cpu);
        assert!(matches!(scene.run(reason::IO, &[]), Ended::Io(_)));
    }
    assert_eq!(done(), (0, 0));
}
