//! QEMU's machine protocol (QMP), as far as a run needs it: start the machine, learn why it stopped, or where it is.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
};

use serde_json::Value;

/// What QEMU reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The machine is complete and runs: from here on, what happens is the guest's doing.
    Started,
    /// The machine was reset, by the guest.
    Reset,
    /// The machine stopped: "guest-shutdown", "guest-reset", "guest-panic", or a reason on QEMU's side.
    Shutdown(String),
    /// Where its processors are, after [`ask_processors`].
    Processors(Vec<Processor>),
}

/// A processor of the machine, at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    /// The address of an instruction that it executes next or has just executed, in the guest or in the hypervisor.
    pub rip: u64,
    /// It waits for an interrupt.
    pub halted: bool,
}

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}{}", self.rip, if self.halted { " (halted)" } else { "" })
    }
}

/// What the answer to [`ask_processors`] is told by.
const PROCESSORS: &str = "processors";

/// Asks where the processors are. The answer is a report of [`converse`], unless QEMU does not answer.
///
/// # Errors
/// QEMU has closed the connection.
pub fn ask_processors(mut stream: &UnixStream) -> io::Result<()> {
    let request = serde_json::json!({
        "execute": "human-monitor-command",
        "arguments": { "command-line": "info registers -a" },
        "id": PROCESSORS,
    });
    writeln!(stream, "{request}")
}

/// The processors of an answer, a dump of all their registers.
fn processors(dump: &str) -> Vec<Processor> {
    let mut processors = Vec::new();
    for word in dump.split_ascii_whitespace() {
        let Some((name, value)) = word.split_once('=') else { continue };
        match name {
            // EIP outside of 64-bit mode.
            "RIP" | "EIP" => {
                processors.extend(u64::from_str_radix(value, 16).map(|rip| Processor { rip, halted: false }))
            }
            "HLT" => {
                if let Some(last) = processors.last_mut() {
                    last.halted = value != "0";
                }
            }
            _ => {}
        }
    }
    processors
}

/// Talks to QEMU until it closes the connection.
pub fn converse(stream: UnixStream, mut report: impl FnMut(Report)) {
    let Ok(mut writer) = stream.try_clone() else { return };
    // Answers come in order: to qmp_capabilities, then to cont.
    let mut answers = 0;
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
        let request = if message.get("QMP").is_some() {
            "qmp_capabilities"
        } else if message.get("id").and_then(Value::as_str) == Some(PROCESSORS) {
            let dump = message.get("return").and_then(Value::as_str).unwrap_or_default();
            report(Report::Processors(processors(dump)));
            continue;
        } else if message.get("return").is_some() {
            answers += 1;
            match answers {
                1 => "cont",
                2 => {
                    report(Report::Started);
                    continue;
                }
                _ => continue,
            }
        } else {
            if let Some(event) = event(&message) {
                report(event);
            }
            continue;
        };
        if writeln!(writer, "{{\"execute\":\"{request}\"}}").is_err() {
            return;
        }
    }
}

fn event(message: &Value) -> Option<Report> {
    let data = message.get("data");
    let field = |name: &str| data.and_then(|data| data.get(name));
    match message.get("event")?.as_str()? {
        "SHUTDOWN" => {
            Some(Report::Shutdown(field("reason").and_then(Value::as_str).unwrap_or("unknown").to_owned()))
        }
        "RESET" if field("guest").and_then(Value::as_bool) == Some(true) => Some(Report::Reset),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let qemu = std::thread::spawn(move || {
            let mut reader = BufReader::new(theirs.try_clone().unwrap());
            let mut writer = theirs;
            let mut line = String::new();
            writeln!(writer, r#"{{"QMP": {{"version": {{}}}}}}"#).unwrap();
            for expected in ["qmp_capabilities", "cont"] {
                line.clear();
                reader.read_line(&mut line).unwrap();
                assert!(line.contains(expected), "{line}");
                writeln!(writer, r#"{{"event": "RESUME"}}"#).unwrap();
                writeln!(writer, r#"{{"return": {{}}}}"#).unwrap();
            }
            line.clear();
            reader.read_line(&mut line).unwrap();
            assert!(line.contains("info registers -a"), "{line}");
            let id = serde_json::from_str::<Value>(&line).unwrap()["id"].clone();
            // Two of three processors in a dump as QEMU has it, the second outside of 64-bit mode.
            let dump = "CPU#0\r\nRAX=0 RBX=ffff\r\nRIP=ffffffff81000010 RFL=00000246 [---Z-P-] CPL=0 II=0 HLT=1\r\n\
                        CPU#1\r\nEAX=0\r\nEIP=00008000 EFL=00000002 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=0\r\n\
                        CPU#2\r\nRIP=what HLT";
            writeln!(writer, "{}", serde_json::json!({"return": dump, "id": id})).unwrap();
            writeln!(writer, r#"{{"event": "RESET", "data": {{"guest": true, "reason": "guest-reset"}}}}"#)
                .unwrap();
            writeln!(
                writer,
                r#"{{"event": "SHUTDOWN", "data": {{"guest": true, "reason": "guest-shutdown"}}}}"#
            )
            .unwrap();
        });
        let mut reports = Vec::new();
        let asks = ours.try_clone().unwrap();
        converse(ours, |report| {
            if report == Report::Started {
                ask_processors(&asks).unwrap();
            }
            reports.push(report);
        });
        qemu.join().unwrap();
        let processors = vec![
            Processor { rip: 0xffff_ffff_8100_0010, halted: true },
            Processor { rip: 0x8000, halted: false },
        ];
        let shutdown = Report::Shutdown("guest-shutdown".into());
        assert_eq!(reports, [Report::Started, Report::Processors(processors), Report::Reset, shutdown]);
    }
}
