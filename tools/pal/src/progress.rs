//! What a run without a terminal says when nothing has been heard of it for a while: where it is, and for how long.
//!
//! Whatever takes long is a [`Phase`]. They nest, and the innermost is what the line names. One thread looks after all of
//! them; it starts with the first.

use std::{
    env,
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Overrides [`INTERVAL`]: seconds, 0 for never.
const VARIABLE: &str = "PAL_PROGRESS";
/// The silence after which a line is due.
const INTERVAL: Duration = Duration::from_secs(30);
/// How often the thread looks.
const LOOK: Duration = Duration::from_millis(250);

static BOARD: Mutex<Board> = Mutex::new(Board { phases: Vec::new(), heard: None, number: 0 });

/// What goes on now.
struct Board {
    /// The innermost is the last.
    phases: Vec<Entry>,
    /// When anything was shown last.
    heard: Option<Instant>,
    /// Of the next phase.
    number: u64,
}

struct Entry {
    number: u64,
    text: String,
    since: Instant,
}

/// Something that takes long, until this is dropped.
pub struct Phase(u64);

impl Phase {
    /// It begins now.
    pub fn begin(text: &str) -> Phase {
        static THREAD: Once = Once::new();
        THREAD.call_once(|| {
            if let Some(interval) = interval(env::var(VARIABLE).ok().as_deref()) {
                // Without the thread there are no lines, which is no reason to fail.
                let _ = thread::Builder::new().name("progress".into()).spawn(move || watch(interval));
            }
        });
        let mut board = board();
        board.number += 1;
        let number = board.number;
        board.phases.push(Entry { number, text: text.to_owned(), since: Instant::now() });
        Phase(number)
    }

    /// Something else goes on from now on.
    pub fn becomes(&self, text: &str) {
        if let Some(entry) = board().phases.iter_mut().find(|entry| entry.number == self.0) {
            (entry.text, entry.since) = (text.to_owned(), Instant::now());
        }
    }
}

impl Drop for Phase {
    fn drop(&mut self) {
        board().phases.retain(|entry| entry.number != self.0);
    }
}

/// Something was shown: the silence begins again.
pub fn heard() {
    board().heard = Some(Instant::now());
}

fn board() -> MutexGuard<'static, Board> {
    BOARD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn interval(variable: Option<&str>) -> Option<Duration> {
    match variable.and_then(|text| text.parse().ok()) {
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None => Some(INTERVAL),
    }
}

fn watch(interval: Duration) {
    loop {
        thread::sleep(LOOK);
        let line = board().due(Instant::now(), interval);
        if let Some(line) = line {
            eprintln!("pal: {line}");
        }
    }
}

impl Board {
    /// The line that is due, if one is. It counts as heard.
    fn due(&mut self, now: Instant, interval: Duration) -> Option<String> {
        let Entry { text, since, .. } = self.phases.last()?;
        let silent_since = self.heard.map_or(*since, |heard| heard.max(*since));
        if now.saturating_duration_since(silent_since) < interval {
            return None;
        }
        let line = format!("{text} ({} s)", now.saturating_duration_since(*since).as_secs());
        self.heard = Some(now);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_after_each_silence_names_the_innermost_phase() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let entry = |number, text: &str, seconds| Entry { number, text: text.into(), since: at(seconds) };
        let mut board = Board { phases: vec![], heard: None, number: 0 };
        let due = |board: &mut Board, seconds| board.due(at(seconds), INTERVAL);
        assert_eq!(due(&mut board, 100), None, "nothing goes on");
        board.phases.push(entry(1, "testing", 100));
        assert_eq!(due(&mut board, 129), None);
        assert_eq!(due(&mut board, 130).as_deref(), Some("testing (30 s)"));
        assert_eq!(due(&mut board, 131), None);
        board.heard = Some(at(150));
        assert_eq!(due(&mut board, 179), None, "something was heard");
        board.phases.push(entry(2, "building", 175));
        assert_eq!(due(&mut board, 181), None, "it has just begun");
        assert_eq!(due(&mut board, 205).as_deref(), Some("building (30 s)"));
        board.phases.pop();
        assert_eq!(due(&mut board, 235).as_deref(), Some("testing (135 s)"));
    }

    #[test]
    fn the_interval_is_the_persons() {
        assert_eq!(interval(None), Some(INTERVAL));
        assert_eq!(interval(Some("5")), Some(Duration::from_secs(5)));
        assert_eq!(interval(Some("0")), None);
        assert_eq!(interval(Some("often")), Some(INTERVAL));
    }
}
