//! What the person sees on standard error: messages, and spinners while something takes time.

use std::{
    borrow::Cow,
    io::{IsTerminal, Write, stderr},
    process::{Command, Output, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::progress::{self, Phase};

/// Spinners on the terminal.
static STEPS: AtomicU32 = AtomicU32::new(0);
/// Messages that wait while something else has the terminal.
static HELD: Mutex<Option<String>> = Mutex::new(None);

fn held() -> MutexGuard<'static, Option<String>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Messages wait from now on: something else has the terminal.
pub fn hold() {
    *held() = Some(String::new());
}

/// The terminal is free: messages that waited are shown.
pub fn release() {
    if let Some(lines) = held().take() {
        let _ = stderr().write_all(lines.as_bytes());
    }
}

/// The style of messages, fixed at start.
#[derive(Clone, Copy)]
pub struct Ui {
    terminal: bool,
    colour: bool,
    /// Nothing is said but warnings and errors.
    quiet: bool,
    /// How often `--verbose` was given.
    pub verbose: u8,
}

impl Ui {
    /// Looks at standard error and at NO_COLOR.
    pub fn new(verbose: u8) -> Self {
        let terminal = stderr().is_terminal();
        Self { terminal, colour: terminal && std::env::var_os("NO_COLOR").is_none(), quiet: false, verbose }
    }

    /// For what another command does many times: warnings and errors only.
    pub fn quiet() -> Self {
        Self { quiet: true, ..Self::new(0) }
    }

    /// A message of one or more lines.
    pub fn say(&self, text: &str) {
        if !self.quiet {
            self.line("36", "pal:", text);
        }
    }

    /// Something that the person should look at; the run goes on.
    pub fn warn(&self, text: &str) {
        self.line("33", "pal: warning:", text);
    }

    /// Why the run ended badly.
    pub fn error(&self, text: &str) {
        self.line("31", "pal: error:", text);
    }

    /// A message for `--verbose`.
    pub fn detail(&self, text: &str) {
        if self.verbose > 0 {
            self.say(text);
        }
    }

    fn line(&self, colour: &str, label: &str, text: &str) {
        // One write, so that lines of several threads do not mix. In a raw terminal a line feed alone does not
        // return to the first column.
        let end = if self.terminal { "\r\n" } else { "\n" };
        // In the place of a spinner, which comes back below.
        let begin = if STEPS.load(Ordering::Relaxed) > 0 { "\r\x1b[K" } else { "" };
        let text = text.trim_end().lines().collect::<Vec<_>>().join(end);
        let line = if self.colour {
            format!("{begin}\x1b[1;{colour}m{label}\x1b[0m {text}{end}")
        } else {
            format!("{begin}{label} {text}{end}")
        };
        match held().as_mut() {
            Some(lines) => lines.push_str(&line),
            None => drop(stderr().write_all(line.as_bytes())),
        }
        progress::heard();
    }

    /// Whether standard error is a terminal, where spinners show what goes on.
    pub fn has_terminal(&self) -> bool {
        self.terminal
    }

    /// Shows that something goes on, until the result is dropped: by a spinner, or without a terminal by a line now and then
    /// while nothing else is said.
    pub fn step(&self, text: &str) -> Step {
        if !self.terminal {
            self.detail(text);
            return Step { bar: None, _phase: Some(Phase::begin(text)) };
        }
        let bar = ProgressBar::new_spinner().with_message(text.to_owned());
        let template =
            if self.colour { "{spinner:.cyan} {msg} ({elapsed})" } else { "{spinner} {msg} ({elapsed})" };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is constant"));
        bar.enable_steady_tick(Duration::from_millis(100));
        STEPS.fetch_add(1, Ordering::Relaxed);
        Step { bar: Some(bar), _phase: None }
    }

    /// Runs a program under a spinner and returns what it printed.
    ///
    /// # Errors
    /// The program does not start or fails; the error carries the end of its output.
    pub fn run(&self, text: &str, command: &mut Command) -> Result<Output> {
        let _step = self.step(text);
        let name = command.get_program().to_string_lossy().into_owned();
        let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
        if !output.status.success() {
            let mut what = String::from_utf8_lossy(&output.stdout).into_owned();
            what.push_str(&String::from_utf8_lossy(&output.stderr));
            let lines: Vec<_> = what.lines().collect();
            let from = lines.len().saturating_sub(60);
            anyhow::bail!("{text}: {name} failed ({})\n{}", output.status, lines[from..].join("\n"));
        }
        Ok(output)
    }
}

/// A word of a command that a person may type, as a shell reads it.
pub fn shell_word(text: &str) -> Cow<'_, str> {
    // A zero cannot be typed at all; it is left as it is.
    shlex::Quoter::new().allow_nul(true).quote(text).unwrap_or(Cow::Borrowed(text))
}

/// A running step; ends its spinner when dropped.
pub struct Step {
    bar: Option<ProgressBar>,
    _phase: Option<Phase>,
}

impl Step {
    /// Something else goes on from now on.
    pub fn becomes(&self, text: &'static str) {
        if let Some(bar) = &self.bar {
            bar.set_message(text);
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
            STEPS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        for (text, word) in [("a/b-1.ext4", "a/b-1.ext4"), ("a b", "'a b'"), ("", "''"), ("$x", "'$x'")] {
            assert_eq!(shell_word(text), word);
        }
        for text in ["a b", "a'b", "it's \"$HOME\" `x`\\", "*", "~", "a\nb", "!x"] {
            let shell = Command::new("sh").args(["-c", &format!("printf %s {}", shell_word(text))]).output();
            assert_eq!(String::from_utf8(shell.unwrap().stdout).unwrap(), text);
        }
    }
}
