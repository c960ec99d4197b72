//! The person's terminal in raw mode, so that every key reaches the guest.

use std::io::{IsTerminal, stdin};

use anyhow::{Context, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Raw mode; the former mode comes back when this is dropped, on panics and handled signals too.
pub struct Raw {
    former: Termios,
}

impl Raw {
    /// Switches standard input, which must be a terminal, to raw mode.
    ///
    /// # Errors
    /// The terminal refuses.
    pub fn enter() -> Result<Self> {
        let former = tcgetattr(stdin()).context("cannot read the terminal's mode")?;
        let mut raw = former.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).context("cannot set the terminal's mode")?;
        Ok(Self { former })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.former);
    }
}

/// Words that tell the default guest about the person's terminal.
pub fn describe() -> String {
    if !stdin().is_terminal() {
        return String::new();
    }
    let mut words = String::new();
    let known = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
    if let Some(name) = std::env::var("TERM").ok().filter(|name| !name.is_empty() && name.chars().all(known))
    {
        words += &format!(" pal.term={name}");
    }
    if let Ok(size) = tcgetwinsize(stdin())
        && size.ws_row > 0
        && size.ws_col > 0
    {
        words += &format!(" pal.size={}x{}", size.ws_row, size.ws_col);
    }
    words
}
