//! The emulated machine of these tests.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// QEMU's AMD machine without a window. It ends after `seconds`, and with the thread that starts it.
pub fn machine(seconds: u32) -> Command {
    let mut command = Command::new("timeout");
    command.arg(seconds.to_string());
    let machine =
        "qemu-system-x86_64 -machine q35 -accel tcg -cpu EPYC,+svm,+npt -m 256 -display none -no-reboot";
    command.args(machine.split(' '));
    // SAFETY: between fork and exec the closure makes one system call and touches no memory.
    unsafe {
        command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
    command
}
