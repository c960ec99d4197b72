//! Where QEMU's processors are when the time of a run is over.

use std::{
    os::unix::net::UnixStream,
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use super::{
    super::qmp::{self, Processor, Report},
    Event,
};

/// How long QEMU may take to say it.
const ANSWER: Duration = Duration::from_secs(2);

/// Asks QEMU by its machine protocol. None: it says nothing in time.
pub fn processors(stream: &UnixStream, inbox: &Receiver<Event>) -> Vec<Processor> {
    match qmp::ask_processors(stream) {
        Ok(()) => wait(inbox, Instant::now() + ANSWER),
        Err(_) => Vec::new(),
    }
}

/// Waits for the answer until then. The other events come too late for the run, and do not prolong the wait, however many they are.
fn wait(inbox: &Receiver<Event>, until: Instant) -> Vec<Processor> {
    while let Some(left) = until.checked_duration_since(Instant::now())
        && let Ok(event) = inbox.recv_timeout(left)
    {
        if let Event::Emulator(Report::Processors(processors)) = event {
            return processors;
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn an_answer_is_waited_for_no_longer_than_it_may_take() {
        let (events, inbox) = channel();
        let processor = Processor { rip: 0x10, halted: false };
        let send = || {
            events.send(Event::Begin).unwrap();
            events.send(Event::Emulator(Report::Processors(vec![processor.clone()]))).unwrap();
        };
        send();
        assert_eq!(wait(&inbox, Instant::now() + ANSWER), std::slice::from_ref(&processor));
        send();
        let over = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(wait(&inbox, over), [], "its time is over");
        drop(events);
        assert_eq!(wait(&inbox, Instant::now() + ANSWER), [processor]);
        assert_eq!(wait(&inbox, Instant::now() + ANSWER), [], "QEMU is gone");
    }
}
