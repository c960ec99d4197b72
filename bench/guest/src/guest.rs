//! What the first process of a guest owes it: file systems at the start, power off at the end, also after a panic. And
//! what the figures depend on: kernel, processor, settings.

use std::{fs, panic, process, ptr};

use crate::{clock, report};

/// True if the kernel started this program as its first process.
pub fn is_first_process() -> bool {
    process::id() == 1
}

/// Mounts what the rows need, quietens the kernel, and makes sure that a panic ends the guest. A lab machine that waits for a session
/// (`--lab-from session`) models from here on: what the rows prepare finds its way into caches and TLBs, the boot does not.
pub fn prepare() {
    clock::mark::<{ abi::lab::MARK_MODEL }>(0);
    panic::set_hook(Box::new(|panic| {
        report::error(&panic.to_string());
        // A child that panics ends with SIGABRT, which its parent reports.
        if is_first_process() {
            power_off();
        }
    }));
    for (kind, at) in [(c"proc", c"/proc"), (c"sysfs", c"/sys")] {
        // SAFETY: all texts are C strings; these file systems take no data.
        let result = unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), 0, ptr::null()) };
        if result != 0 {
            report::error(&format!("cannot mount {at:?}: {}", std::io::Error::last_os_error()));
        }
    }
    // Messages in the middle of a row would be part of its figures.
    const CONSOLE_LEVEL: libc::c_int = 8;
    // SAFETY: sets a level; this action uses no buffer.
    unsafe { libc::klogctl(CONSOLE_LEVEL, ptr::null_mut(), 1) };
}

/// Reports what the figures depend on.
pub fn describe() {
    let file = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    report::info("kernel", &file("/proc/version"));
    report::info("command-line", &file("/proc/cmdline"));
    report::info("thp", &file("/sys/kernel/mm/transparent_hugepage/enabled"));
    report::info("clocksource", &file("/sys/devices/system/clocksource/clocksource0/current_clocksource"));
    let cpuinfo = file("/proc/cpuinfo");
    for (key, name) in [("model name", "cpu"), ("flags", "cpu-flags"), ("bugs", "cpu-bugs")] {
        let line = cpuinfo.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'));
        report::info(name, line.unwrap_or_default().trim());
    }
}

/// Waits until all output has left the machine. A serial port sends for long after it was written, and would interrupt what
/// is measured next.
pub fn drain() {
    // SAFETY: touches no memory. Where the output is no terminal it fails at once.
    let _result = unsafe { libc::tcdrain(libc::STDOUT_FILENO) };
}

/// Ends the machine, after everything written has left it.
pub fn power_off() -> ! {
    drain();
    // SAFETY: neither call touches memory; the first one does not return if it works.
    unsafe {
        libc::reboot(libc::RB_POWER_OFF);
        libc::_exit(1)
    }
}
