//! Network devices and their switch.

use proptest::prelude::*;

use super::driver::BUFFERS;
use super::switch::{FRAME_MAX, FRAME_MIN, Port, QUEUE_FRAMES};
use super::*;

fn port(switch: &Switch, vm: u32) -> (Port, Arc<AtomicU32>) {
    let word = Arc::new(AtomicU32::new(0));
    (switch.plug(Waker { vm, word: word.clone(), bit: 4 }).unwrap(), word)
}

fn mac(n: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, n]
}

fn frame(to: [u8; 6], from: [u8; 6], len: usize, byte: u8) -> Vec<u8> {
    let mut frame = [to, from].concat();
    frame.resize(len.max(12), byte);
    frame
}

fn send(port: &Port, frame: &[u8]) -> Woken {
    let mut woken = Woken::default();
    port.send(frame, &mut woken);
    woken
}

fn receive(port: &Port) -> Option<Vec<u8>> {
    let mut bytes = [0; FRAME_MAX];
    port.receive(&mut bytes).map(|len| bytes[..len].to_vec())
}

#[test]
fn a_switch_learns() {
    let switch = Switch::default();
    let ports: Vec<_> = (0..3).map(|vm| port(&switch, vm)).collect();
    let hello = frame([0xff; 6], mac(0), 60, 1);
    assert_eq!(send(&ports[0].0, &hello), Woken(0b110), "a broadcast reaches all others");
    assert_eq!(ports[1].1.load(Ordering::Relaxed), 4);
    assert_eq!((receive(&ports[1].0), receive(&ports[2].0)), (Some(hello.clone()), Some(hello)));
    let unknown = frame(mac(9), mac(1), 60, 2);
    assert_eq!(send(&ports[1].0, &unknown), Woken(0b101), "and so does an unknown address");
    let known = frame(mac(0), mac(2), 60, 3);
    assert_eq!(send(&ports[2].0, &known), Woken(0b001));
    assert_eq!(send(&ports[1].0, &frame(mac(2), mac(1), 60, 4)), Woken(0b100));
    // It moves.
    assert_eq!(send(&ports[2].0, &frame(mac(1), mac(0), 60, 5)), Woken(0b010));
    assert_eq!(send(&ports[1].0, &frame(mac(0), mac(1), 60, 6)), Woken(0b100));
    // To oneself: nowhere.
    assert_eq!(send(&ports[1].0, &frame(mac(1), mac(1), 60, 6)), Woken(0));
    // Group addresses are never learned.
    assert_eq!(send(&ports[0].0, &frame(mac(1), [1, 0, 0, 0, 0, 1], 60, 7)), Woken(0b010));
    assert_eq!(send(&ports[1].0, &frame([1, 0, 0, 0, 0, 1], mac(1), 60, 8)), Woken(0b101));
}

#[test]
fn ports_come_and_go() {
    let switch = Switch::default();
    let (a, _) = port(&switch, 0);
    let (b, _) = port(&switch, 1);
    let _ = send(&b, &frame(mac(9), mac(1), 60, 0));
    drop(b);
    assert_eq!(send(&a, &frame(mac(1), mac(0), 60, 0)), Woken(0));
    let (c, _) = port(&switch, 2);
    assert!(!c.has_frames(), "nothing is left of the last one");
    assert_eq!(send(&a, &frame(mac(1), mac(0), 60, 0)), Woken(0b100));
}

#[test]
fn impossible_frames_are_lost_and_so_is_what_finds_no_room() {
    let switch = Switch::default();
    let (a, _) = port(&switch, 0);
    let (b, _) = port(&switch, 1);
    for len in [0, 5, 11, 12, FRAME_MIN - 1, FRAME_MAX + 1] {
        assert_eq!(send(&a, &vec![0xff; len]), Woken(0));
    }
    assert!(!b.has_frames());
    for n in 0..QUEUE_FRAMES + 3 {
        let expected = Woken(if n < QUEUE_FRAMES { 2 } else { 0 });
        assert_eq!(send(&a, &frame([0xff; 6], mac(0), FRAME_MIN + n, n as u8)), expected);
    }
    assert_eq!(b.lost(), 3);
    for n in 0..QUEUE_FRAMES {
        assert_eq!(receive(&b), Some(frame([0xff; 6], mac(0), FRAME_MIN + n, n as u8)));
    }
    assert_eq!(receive(&b), None);
}

proptest! {
    /// Every frame arrives once, in order, at each addressed port, as long as there is room.
    #[test]
    fn frames_arrive_in_order(ops in prop::collection::vec((0usize..4, 0u8..6, any::<bool>()), 0..200)) {
        let switch = Switch::default();
        let ports: Vec<_> = (0..4).map(|vm| port(&switch, vm).0).collect();
        let mut model = vec![std::collections::VecDeque::new(); 4];
        let mut seen = [None; 6];
        for (n, (from, to, read)) in ops.into_iter().enumerate() {
            if read {
                prop_assert_eq!(receive(&ports[from]), model[from].pop_front());
                continue;
            }
            let sent = frame(mac(to), mac(from as u8), FRAME_MIN + n, n as u8);
            let woken = send(&ports[from], &sent);
            seen[from] = Some(from);
            let receivers: Vec<_> =
                (0..4).filter(|&port| port != from && seen[usize::from(to)].is_none_or(|at| at == port)).collect();
            prop_assert_eq!(woken.0, receivers.iter().map(|port| 1u64 << port).sum::<u64>());
            receivers.iter().for_each(|&port| model[port].push_back(sent.clone()));
        }
    }
}

/// Two VMs with a card each at the same switch.
fn two_vms() -> [Driver; 2] {
    let switch = Switch::default();
    [0, 1].map(|vm| {
        let mut devices = Builder::new(vm);
        devices.net(Mac(mac(vm as u8)), &switch).unwrap();
        Driver::new(devices.build())
    })
}

/// Sends a frame with its header, in two buffers.
fn transmit(driver: &mut Driver, frame: &[u8]) {
    driver.put(BUFFERS, &[0; 12]);
    driver.put(BUFFERS + 0x100, frame);
    let readable = vec![(BUFFERS, 12), (BUFFERS + 0x100, frame.len() as u32)];
    assert_eq!(driver.request(1, &Chain { readable, ..Chain::default() }), 0);
}

#[test]
fn frames_pass_from_vm_to_vm() {
    let [mut a, mut b] = two_vms();
    let sent = frame(mac(1), mac(0), 1000, 0x5a);
    transmit(&mut a, &sent);
    assert!(a.woken.contains(1) && !a.woken.contains(0));
    assert!(b.devices.wants_service());
    // No buffer yet: the frame waits, and the device does not ask to be served again in vain.
    let _nothing_woken = b.devices.serve_next(&b.memory, &mut b.messages);
    assert!(!b.devices.wants_service() && b.interrupts().is_empty());
    b.add(0, &Chain { writable: vec![(BUFFERS, 12), (BUFFERS + 12, 1514)], ..Chain::default() });
    b.notify(0);
    assert_eq!(b.used(0), [(0, 1012)]);
    assert_eq!(b.interrupts(), [0x52]);
    assert_eq!(b.bytes(BUFFERS, 12), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(b.bytes(BUFFERS + 12, 1000), sent);
    // With a buffer: the VM is woken and finds it.
    b.add(0, &Chain { writable: vec![(BUFFERS, 1526)], ..Chain::default() });
    b.notify(0);
    assert!(b.used(0).is_empty());
    transmit(&mut a, &sent);
    let _nothing_woken = b.devices.serve_next(&b.memory, &mut b.messages);
    assert_eq!(b.used(0).len(), 1);
}

#[test]
fn a_card_has_an_address_and_a_link() {
    let [a, _] = two_vms();
    let config = function::CONFIG.start;
    assert_eq!((0..6).map(|n| a.read(config + n, 1) as u8).collect::<Vec<_>>(), mac(0));
    assert_eq!(a.read(config + 6, 2), 1);
    assert_ne!(Mac::of("alpha", 0), Mac::of("beta", 0));
    assert_ne!(Mac::of("alpha", 0), Mac::of("alpha", 1));
    assert_eq!(Mac::of("alpha", 0).0[0] & 3, 2, "one station, locally administered");
}

#[test]
fn malformed_chains_of_a_sender_do_not_reach_the_receiver() {
    let [mut a, b] = two_vms();
    for readable in [vec![], vec![(BUFFERS, 5)], vec![(BUFFERS, 12)], vec![(BUFFERS, 20000)]] {
        let mut chain = Chain { readable, ..Chain::default() };
        if chain.readable.is_empty() {
            chain.writable = vec![(BUFFERS, 8)];
        }
        assert_eq!(a.request(1, &chain), 0);
    }
    assert!(!a.needs_reset() && !b.devices.wants_service());
    // A buffer that is too small for what arrives is a mistake, though.
    let [mut a, mut b] = two_vms();
    b.add(0, &Chain { writable: vec![(BUFFERS, 100)], ..Chain::default() });
    b.notify(0);
    transmit(&mut a, &frame(mac(1), mac(0), 89, 0));
    let _nothing_woken = b.devices.serve_next(&b.memory, &mut b.messages);
    assert!(b.needs_reset() && !a.needs_reset());
}
