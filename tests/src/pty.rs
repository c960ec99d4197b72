//! A person at a terminal: pal on a pseudo-terminal.

use std::{
    fs::File,
    io::{Read, Write},
    process::{Child, Command},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::{
    fs::{Mode, OFlags},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize},
};

use crate::{
    context::{Context, quick_boot},
    screen,
};

/// A running `pal` with a terminal.
pub struct Person {
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    /// Everything that was shown.
    pub shown: String,
    /// How much of it has been waited for.
    seen: usize,
    child: Child,
    terminal: File,
    /// How long anything may take.
    patience: Duration,
}

impl Person {
    /// Starts `pal run` with these options on the case's machine.
    pub fn start(context: &Context, options: &[&str]) -> Result<Self> {
        Self::types_pal(context, &[&["run"], &context.place()[..], quick_boot(options), options].concat())
    }

    /// Starts `pal` with these arguments.
    pub fn types_pal(context: &Context, arguments: &[&str]) -> Result<Self> {
        Self::types_pal_on(context, None, arguments)
    }

    /// Starts `pal` with these arguments on a terminal of this many columns and rows; `None`: one that does not know.
    pub fn types_pal_on(context: &Context, size: Option<(usize, usize)>, arguments: &[&str]) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = File::from(rustix::fs::open(name.as_c_str(), flags, Mode::empty())?);
        if let Some((columns, rows)) = size {
            let (ws_col, ws_row) = (columns as u16, rows as u16);
            tcsetwinsize(&terminal, Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })?;
        }
        let mut command = Command::new(&context.pal);
        command.args(arguments).env("TERM", "vt100");
        command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal.try_clone()?);
        let child = command.spawn().context("cannot start pal")?;
        let keyboard = File::from(master);
        let mut reader = keyboard.try_clone()?;
        let (sender, screen) = channel();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(size @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..size].to_vec()).is_err() {
                    break;
                }
            }
        });
        // Nothing should come near it, however busy this machine is.
        let patience = Duration::from_secs(if context.on_bochs() { 900 } else { 300 });
        Ok(Self { keyboard, screen, shown: String::new(), seen: 0, child, terminal, patience })
    }

    /// Types text.
    pub fn types(&mut self, text: &str) -> Result<()> {
        Ok(self.keyboard.write_all(text.as_bytes())?)
    }

    /// Waits until `part` is shown after what was waited for before.
    pub fn sees(&mut self, part: &str) -> Result<()> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(at) = self.shown[self.seen..].find(part) {
                self.seen += at + part.len();
                return Ok(());
            }
            match self.screen.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    bail!("never saw {part:?}\n--- shown\n{}", self.shown)
                }
            }
        }
    }

    /// Waits until what a full-screen program has drawn is as wanted, and returns its lines.
    pub fn draws(&mut self, what: &str, wanted: impl Fn(&[String]) -> bool) -> Result<Vec<String>> {
        let deadline = Instant::now() + self.patience;
        loop {
            let lines = screen::lines(&self.shown);
            if wanted(&lines) {
                self.seen = self.shown.len();
                return Ok(lines);
            }
            match self.screen.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    bail!("never drew {what}\n--- screen\n{}", lines.join("\n"))
                }
            }
        }
    }

    /// True if the terminal is in its ordinary mode: lines and echo.
    pub fn terminal_is_sane(&self) -> Result<bool> {
        let modes = tcgetattr(&self.terminal)?.local_modes;
        Ok(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG))
    }

    /// The process id of pal.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for pal's end and returns its exit status.
    pub fn ends(&mut self) -> Result<Option<i32>> {
        let deadline = Instant::now() + self.patience;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            thread::sleep(Duration::from_millis(20));
        }
        bail!("pal does not end\n--- shown\n{}", self.shown)
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
