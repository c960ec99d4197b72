//! The console on a port that follows a script: who gets what is typed, and whose output is shown.

use super::*;
use std::collections::VecDeque;

#[derive(Default)]
struct Script {
    typed: VecDeque<u8>,
    shown: Vec<u8>,
    room: usize,
}

impl Port for Script {
    fn read(&mut self) -> Option<u8> {
        self.typed.pop_front()
    }
    fn write(&mut self, byte: u8) -> bool {
        let taken = self.shown.len() < self.room;
        if taken {
            self.shown.push(byte);
        }
        taken
    }
    fn finish(&mut self, byte: u8) {
        self.shown.push(byte);
    }
}

fn console(typed: &[u8], room: usize) -> Console<Script> {
    Console::new(Script { typed: typed.iter().copied().collect(), shown: vec![], room }, 2, 1, true)
}

#[test]
fn one_guest_has_the_input() {
    let console = console(b"ab", 0);
    assert!(!console.has_input(1));
    assert!(console.drain() && console.has_input(1) && !console.has_input(0));
    assert_eq!(
        (console.read(0), console.read(1), console.read(1), console.read(1)),
        (None, Some(b'a'), Some(b'b'), None)
    );
    assert!(!console.has_input(1));
}

#[test]
fn input_beyond_the_queue_stays_in_the_port() {
    let typed: Vec<u8> = (0..600).map(|i| (i % 100) as u8 + 32).collect();
    let console = console(&typed, 0);
    console.drain();
    assert_eq!(console.state.lock().port.typed.len(), 600 - 256);
    let got: Vec<u8> = core::iter::from_fn(|| console.read(1)).collect();
    assert_eq!(got, typed);
}

#[test]
fn what_follows_the_escape_is_for_the_monitor() {
    let console = console(b"x\x01phelp\x01p", 0);
    console.drain();
    assert!(console.wants_monitor());
    assert_eq!((console.read(1), console.read(1)), (Some(b'x'), None));
    console.enter_monitor();
    assert!(!console.wants_monitor());
    let keys: Vec<Key> = core::iter::from_fn(|| console.key()).collect();
    assert_eq!(
        keys,
        [b'h', b'e', b'l', b'p'].map(Key::Byte).into_iter().chain([Key::Monitor]).collect::<Vec<_>>()
    );
    console.state.lock().port.typed.push_back(b'w');
    console.drain();
    console.leave_monitor();
    assert!(console.drain());
    console.state.lock().port.typed.push_back(b'y');
    assert_eq!((console.read(1), console.read(1)), (Some(b'w'), Some(b'y')));
}

#[test]
fn a_request_that_comes_while_the_monitor_is_left_is_not_lost() {
    let console = console(b"\x01p", 0);
    console.drain();
    console.enter_monitor();
    console.state.lock().port.typed.extend(b"gg\x01phelp");
    // The guest that runs again looks for input before the monitor is left.
    assert_eq!(console.read(1), None);
    console.leave_monitor();
    assert!(console.wants_monitor());
    console.enter_monitor();
    let keys: Vec<Key> = core::iter::from_fn(|| console.key()).collect();
    assert_eq!(keys, b"help".map(Key::Byte));
    console.leave_monitor();
    assert!(!console.wants_monitor() && console.drain());
    assert_eq!([(); 3].map(|()| console.read(1)), [Some(b'g'), Some(b'g'), None]);
}

#[test]
fn output_waits_behind_the_monitor() {
    let console = console(b"", 9999);
    console.enter_monitor();
    console.show(b'm');
    let kept = (0..).take_while(|_| !console.write(1, b'a').is_full).count();
    assert_eq!(kept, BEHIND);
    assert!(!console.is_writable(1) && console.is_writable(0));
    assert_eq!(console.state.lock().port.shown, b"m");
    console.leave_monitor();
    assert!(console.is_writable(1), "the one that did not fit");
    assert_eq!(console.state.lock().port.shown.len(), 1 + BEHIND + 1);
    assert!(!console.write(1, b'b').is_full);
    assert_eq!(console.state.lock().port.shown.last(), Some(&b'b'));
}

#[test]
fn only_the_focus_is_shown_and_all_lines_are_recorded() {
    let console = console(b"", 99);
    let lines: Vec<_> = [(0, b'o'), (1, b'i'), (0, b'\n'), (1, b'\n')]
        .into_iter()
        .filter_map(|(guest, byte)| console.write(guest, byte).line)
        .map(|line| line.to_vec())
        .collect();
    assert_eq!(lines, [b"o\n".to_vec(), b"i\n".to_vec()]);
    assert_eq!(console.state.lock().port.shown, b"i\n");
    console.set_focus(0);
    assert!(!console.write(0, b'z').is_full);
    assert_eq!(console.state.lock().port.shown, b"i\nz");
    let long = (0..600).filter_map(|_| console.write(1, b'a').line).count();
    assert_eq!(long, 2, "no line is longer than can be kept");
}

#[test]
fn the_last_line_of_a_guest_is_recorded() {
    let console = console(b"", 0);
    assert!(console.write(1, b'a').is_full);
    assert_eq!(console.finish(1, Some(b'b')), None);
    assert_eq!(console.state.lock().port.shown, b"ab");
    assert_eq!(console.finish(1, None).unwrap().as_slice(), b"ab");
    assert_eq!((console.finish(1, None), console.finish(9, None)), (None, None));
    assert_eq!(console.finish(0, Some(b'\n')).unwrap().as_slice(), b"\n");
    assert_eq!(console.state.lock().port.shown, b"ab", "not the one that is shown");
}

#[test]
fn a_port_that_does_not_move_holds_one_byte() {
    let console = console(b"", 1);
    assert!(!console.write(1, b'a').is_full);
    assert!(console.write(1, b'b').is_full);
    assert!(!console.is_writable(1) && console.is_writable(0));
    console.state.lock().port.room = 9;
    assert!(console.is_writable(1));
    assert_eq!(console.state.lock().port.shown, b"ab");
}
