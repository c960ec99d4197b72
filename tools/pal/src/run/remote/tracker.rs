//! Tells the monitor's words from the guests' on the console, and where the conversation is.
//!
//! Once the hypervisor has seen Ctrl-a p it holds the guests' output back until the monitor is left. So what comes from the
//! monitor's first line to its last is the monitor's alone. Both begin with `monitor: `, and the last says `Ctrl-a p` if the
//! guest that has the console does not run: then it stays with the monitor, which waits for Ctrl-a p and gives its prompt at once.

/// How the monitor's first line begins, with the line break before it.
const FIRST: &[u8] = b"\r\nmonitor: ";
/// How its first and its last line begin.
const LINE: &[u8] = b"monitor: ";
const PROMPT: &[u8] = b"monitor> ";
/// What is kept of a line; longer than all of the monitor's last lines.
const KEPT: usize = 256;

/// Whose words they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The guests'.
    Guests,
    /// The monitor's.
    Monitor,
    /// The monitor's, while it waits for Ctrl-a p.
    Resting,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// The guests have the console.
    #[default]
    Guests,
    /// The monitor was called and has not said anything yet.
    Called,
    /// In its first line.
    First,
    /// It serves someone.
    Inside,
    /// It was left, and waits for Ctrl-a p.
    Resting,
}

/// Follows the console's output.
#[derive(Debug, Default)]
pub struct Tracker {
    at: At,
    /// What may be the beginning of [`FIRST`], or the line so far.
    line: Vec<u8>,
    at_prompt: bool,
}

impl Tracker {
    /// Ctrl-a p is sent: the monitor comes. Within the monitor it leaves, which is seen in what it says.
    pub fn call(&mut self) {
        match self.at {
            At::Guests => (self.at, self.line) = (At::Called, Vec::new()),
            At::Resting => self.at = At::Inside,
            At::Called | At::First | At::Inside => {}
        }
        self.at_prompt = false;
    }

    /// The monitor was called, and has not been left.
    pub fn is_inside(&self) -> bool {
        matches!(self.at, At::Called | At::First | At::Inside)
    }

    /// The monitor was left while the guest that has the console does not run: what is typed is lost.
    pub fn is_resting(&self) -> bool {
        self.at == At::Resting
    }

    /// The monitor waits for a command, and none was sent since.
    pub fn at_prompt(&self) -> bool {
        self.at_prompt
    }

    /// A line was sent to the monitor.
    pub fn sent(&mut self) {
        self.at_prompt = false;
    }

    /// What was held back as the possible beginning of the monitor's words, when no more output comes.
    pub fn rest(&mut self) -> Vec<u8> {
        if self.at == At::Called { std::mem::take(&mut self.line) } else { Vec::new() }
    }

    /// Passes output on in pieces, with whose it is. All of one call to `sink` is from one stay in the monitor.
    pub fn feed(&mut self, bytes: &[u8], mut sink: impl FnMut(Whose, &[u8])) {
        let mut begin = 0;
        for (index, &byte) in bytes.iter().enumerate() {
            match self.at {
                At::Guests => break,
                At::Called => {
                    self.line.push(byte);
                    while !FIRST.starts_with(&self.line) {
                        sink(Whose::Guests, &[self.line.remove(0)]);
                    }
                    if self.line == FIRST {
                        sink(Whose::Monitor, FIRST);
                        (self.at, self.line) = (At::First, LINE.to_vec());
                    }
                    begin = index + 1;
                }
                At::Resting => {}
                At::First | At::Inside => {
                    if self.line.len() < KEPT {
                        self.line.push(byte);
                    }
                    if byte == b'\n' && self.line_ends() {
                        sink(Whose::Monitor, &bytes[begin..=index]);
                        begin = index + 1;
                    }
                    // Later it would be a line that is drawn again.
                    self.at_prompt |= self.at == At::Inside && self.line == PROMPT;
                }
            }
        }
        let whose = match self.at {
            At::Guests | At::Called => Whose::Guests,
            At::First | At::Inside => Whose::Monitor,
            At::Resting => Whose::Resting,
        };
        if begin < bytes.len() {
            sink(whose, &bytes[begin..]);
        }
    }

    /// A line of the monitor's is complete. True: it was the last.
    fn line_ends(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        if self.at == At::First {
            self.at = At::Inside;
            return false;
        }
        if !line.starts_with(LINE) {
            return false;
        }
        let rests = line.windows(8).any(|words| words == b"Ctrl-a p");
        (self.at, self.at_prompt) = (if rests { At::Resting } else { At::Guests }, false);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guests' words, the monitor's, and the resting monitor's, in chunks of some size.
    fn split(tracker: &mut Tracker, text: &str, size: usize) -> [String; 3] {
        let mut parts = [const { String::new() }; 3];
        for chunk in text.as_bytes().chunks(size) {
            tracker.feed(chunk, |whose, bytes| parts[whose as usize] += std::str::from_utf8(bytes).unwrap());
        }
        parts
    }

    #[test]
    fn a_session_leaves_no_trace_in_the_guests_output() {
        let session = "\r\nmonitor: guest is paused; `help` lists the commands\r\nmonitor> vms\r\n* guest\r\n\
                     monitor> quit\r\nmonitor: guest resumed\r\n";
        for size in 1..90 {
            let mut tracker = Tracker::default();
            assert_eq!(
                split(&mut tracker, "a\r\nmonitor: I am a guest\r\n", size)[1],
                "",
                "the monitor was not entered"
            );
            tracker.call();
            assert!(tracker.is_inside());
            let text = format!("before\r\r\nmon\r\nmonitor> no{session}\r\nmonitor: after\r\n");
            let [guests, monitor, resting] = split(&mut tracker, &text, size);
            assert_eq!(guests, "before\r\r\nmon\r\nmonitor> no\r\nmonitor: after\r\n", "{size}");
            assert_eq!((monitor.as_str(), resting.as_str()), (session, ""));
            assert!(!tracker.is_inside() && !tracker.is_resting());
        }
        let mut tracker = Tracker::default();
        tracker.call();
        assert_eq!(
            (split(&mut tracker, "end\r\n", 2)[0].as_str(), tracker.rest()),
            ("end", b"\r\n".to_vec())
        );
    }

    #[test]
    fn the_prompt_counts_at_the_beginning_of_a_line() {
        let mut tracker = Tracker::default();
        tracker.call();
        split(&mut tracker, "\r\nmonitor: guest monitor> x\r\n", 5);
        assert!(!tracker.at_prompt());
        split(&mut tracker, "monitor> ", 4);
        assert!(tracker.at_prompt());
        tracker.sent();
        // The line is drawn again before it is taken.
        split(&mut tracker, "x\x08\rmonitor> vms\x1b[K\r\nanswer\r\n", 3);
        assert!(!tracker.at_prompt() && tracker.is_inside());
        split(&mut tracker, "monitor> ", 100);
        assert!(tracker.at_prompt());
    }

    #[test]
    fn a_guest_that_is_paused_stays_with_the_monitor() {
        for hint in
            ["guest is paused; Ctrl-a p, then `resume`", "db is off; to start it, press Ctrl-a p and type"]
        {
            let mut tracker = Tracker::default();
            tracker.call();
            let hint = format!("monitor: {hint}\r\n");
            split(&mut tracker, "\r\nmonitor: x\r\nmonitor> quit\r\n", 7);
            assert_eq!(split(&mut tracker, &format!("{hint}{hint}"), 6), [String::new(), hint.clone(), hint]);
            assert!(tracker.is_resting() && !tracker.is_inside());
            tracker.call();
            assert!(tracker.is_inside() && !tracker.at_prompt());
            split(&mut tracker, "monitor> ", 2);
            assert!(tracker.at_prompt());
            let text = "resume\r\nmonitor: guest resumed\r\non";
            assert_eq!(split(&mut tracker, text, 9)[0], "on");
        }
    }
}
