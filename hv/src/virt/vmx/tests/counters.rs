//! Performance counters: entries and exits switch them between guests and host.

use super::controls::{entry, exit as exit_control};
use super::field::host;
use super::*;

const SWITCHING: Features = Features { switches_counters: true, ..FEATURES };

fn words() -> [bool; 2] {
    let exit = field(control::EXIT_CONTROLS) as u32 & exit_control::LOAD_PERF_GLOBAL_CTRL != 0;
    let entry = field(control::ENTRY_CONTROLS) as u32 & entry::LOAD_PERF_GLOBAL_CTRL != 0;
    [entry, exit]
}

/// A VCPU that is away from its PCPU, so that its VMCS is written whole at the next entry.
fn descheduled(features: Features, switch: Option<[u64; 2]>) -> Scene {
    let mut scene = Scene::new(features, Roots::Nested(Hpa(0x5000)));
    scene.vmx.put(&mut scene.cpu);
    let Scene { vmx, cpu } = scene;
    let mut scene = Scene { vmx: vmx.counted(switch), cpu };
    scene.vmx.set_efer(efer::LME | efer::LMA | efer::NXE | efer::SCE);
    assert!(matches!(scene.run(reason::IO, &[]), Ended::Io(_)));
    scene
}

#[test]
fn entries_load_the_guests_counters_and_exits_the_hosts() {
    let mut scene = descheduled(SWITCHING, Some([0x3_0000_0005, 0xa]));
    assert_eq!(words(), [true, true]);
    assert_eq!(field(guest::PERF_GLOBAL_CTRL), 0x3_0000_0005);
    assert_eq!(field(host::PERF_GLOBAL_CTRL), 0xa);
    // The guest's own change of its mode keeps them.
    scene.vmx.set_efer(efer::LME | efer::LMA | efer::NXE);
    assert!(matches!(scene.run(reason::IO, &[]), Ended::Io(_)));
    assert_eq!(words(), [true, true]);
}

#[test]
fn without_counters_or_without_the_controls_nothing_is_switched() {
    for (features, switch) in [(SWITCHING, None), (FEATURES, Some([1, 2]))] {
        let _scene = descheduled(features, switch);
        assert_eq!(words(), [false, false]);
    }
}
