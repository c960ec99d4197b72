//! The way of standard input to the guest's console, through a thread that blocks on both.

use std::{
    fs::File,
    io::{Read, Write, stdin},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
};

use super::{
    keys::{Action, HELP, Keys, MONITOR},
    session::Event,
    verdict::Stop,
};
use crate::ui::Ui;

/// Passes a person's keys to the console. `watched` becomes true when they ask for the monitor, whose words come between
/// the guest's.
pub fn type_keys(mut console: File, mut keys: Keys, watched: &AtomicBool, ui: &Ui, events: &Sender<Event>) {
    let mut buffer = [0; 256];
    while let Ok(size @ 1..) = stdin().lock().read(&mut buffer) {
        for byte in &buffer[..size] {
            let sent = match keys.typed(*byte) {
                Action::Pass => console.write_all(&[*byte]),
                Action::Send(bytes) => console.write_all(bytes),
                Action::Quit => {
                    let _ = events.send(Event::Stop(Stop::Quit));
                    return;
                }
                Action::Help => {
                    ui.say(&format!("\n{HELP}"));
                    Ok(())
                }
                Action::Monitor => {
                    watched.store(true, Ordering::Relaxed);
                    console.write_all(MONITOR)
                }
                Action::NoMonitor => {
                    ui.say("this machine has no hypervisor, so there is no monitor");
                    Ok(())
                }
                Action::Nothing => Ok(()),
            };
            if sent.is_err() {
                return;
            }
        }
    }
}

/// Passes standard input to the console until it ends; the guest goes on.
pub fn pipe_input(mut console: File, keys: &Keys) {
    let mut buffer = [0; 1024];
    while let Ok(size @ 1..) = stdin().lock().read(&mut buffer) {
        let mut bytes = Vec::with_capacity(2 * size);
        for byte in &buffer[..size] {
            match keys.piped(*byte) {
                Action::Send(literal) => bytes.extend_from_slice(literal),
                _ => bytes.push(*byte),
            }
        }
        if console.write_all(&bytes).is_err() {
            return;
        }
    }
}
