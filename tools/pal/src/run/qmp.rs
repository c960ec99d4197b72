//! QEMU's machine protocol (QMP), as far as a run needs it: start the machine, learn why it stopped.

use std::{
    io::{BufRead, BufReader, Write},
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
            writeln!(writer, r#"{{"event": "RESET", "data": {{"guest": true, "reason": "guest-reset"}}}}"#)
                .unwrap();
            writeln!(
                writer,
                r#"{{"event": "SHUTDOWN", "data": {{"guest": true, "reason": "guest-shutdown"}}}}"#
            )
            .unwrap();
        });
        let mut reports = Vec::new();
        converse(ours, |report| reports.push(report));
        qemu.join().unwrap();
        assert_eq!(reports, [Report::Started, Report::Reset, Report::Shutdown("guest-shutdown".into())]);
    }
}
