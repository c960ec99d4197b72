//! The way of standard input to the guest's console, through a thread that blocks on both.

use std::{
    fs::File,
    io::{Read, stdin},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
};

use super::{
    keys::{Action, HELP, Keys},
    remote::hub::Hub,
    session::Event,
    verdict::Stop,
};
use crate::ui::Ui;

/// Passes a person's keys to the console. `watched` becomes true when they ask for the monitor, whose words come between
/// the guest's.
pub fn type_keys(
    console: &File,
    mut keys: Keys,
    hub: &Hub,
    watched: &AtomicBool,
    ui: &Ui,
    events: &Sender<Event>,
) {
    let mut buffer = [0; 256];
    let mut told = false;
    while let Ok(size @ 1..) = stdin().lock().read(&mut buffer) {
        for byte in &buffer[..size] {
            let sent = match keys.typed(*byte) {
                Action::Pass => hub.try_send(console, &[*byte]),
                Action::Send(bytes) => hub.try_send(console, bytes),
                Action::Quit => {
                    let _ = events.send(Event::Stop(Stop::Quit));
                    return;
                }
                Action::Help => {
                    ui.say(&format!("\n{HELP}"));
                    Ok(true)
                }
                Action::Monitor => {
                    watched.store(true, Ordering::Relaxed);
                    hub.call(console)
                }
                Action::NoMonitor => {
                    ui.say("this machine has no hypervisor, so there is no monitor");
                    Ok(true)
                }
                Action::Nothing => Ok(true),
            };
            match sent {
                Ok(true) => told = false,
                Ok(false) if told => {}
                Ok(false) => {
                    told = true;
                    ui.say("another shell is at the monitor, and the guest paused: this key is lost");
                }
                Err(_) => return,
            }
        }
    }
}

/// Passes standard input to the console until it ends; the guest goes on.
pub fn pipe_input(console: &File, keys: &Keys, hub: &Hub) {
    let mut buffer = [0; 1024];
    while let Ok(size @ 1..) = stdin().lock().read(&mut buffer) {
        let mut bytes = Vec::with_capacity(2 * size);
        for byte in &buffer[..size] {
            match keys.piped(*byte) {
                Action::Send(literal) => bytes.extend_from_slice(literal),
                _ => bytes.push(*byte),
            }
        }
        if hub.send(console, &bytes).is_err() {
            return;
        }
    }
}
