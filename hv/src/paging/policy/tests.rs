//! Policies on traces: a line for each event, with what the policy must want after it.

use super::*;

/// Plays `trace`, one event a line: `start` or the number of exits that were made, then the engine that must be wanted, and
/// after how many exits the policy must ask to be told (`-` for never).
fn play(mode: &str, trace: &str) {
    let mut policy = Policy::new(mode.parse().unwrap());
    let mut sample = Sample::default();
    for (n, line) in trace.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let event = if words[0] == "start" { Event::Start } else { Event::Exits };
        sample.exits = words[0].parse().unwrap_or(0);
        let decision = policy.on(event, &sample);
        let next = match decision.next {
            Next::Never => "-".to_string(),
            Next::Exits(exits) => exits.to_string(),
        };
        assert_eq!([decision.engine.name(), &next], words[1..], "{mode}, line {}", n + 1);
        sample.engine = decision.engine;
    }
}

#[test]
fn fixed_modes_never_change() {
    play("nested", "start nested -");
    play("shadow", "start shadow -");
}

#[test]
fn switch_takes_turns() {
    play(
        "switch=50",
        "start nested 50\n50 shadow 50\n50 nested 50\n50 shadow 50\nstart shadow 50\n50 nested 50",
    );
}

#[test]
fn a_policy_stays_within_its_modes_engines() {
    for word in ["nested", "shadow", "switch=1"] {
        let mode: Mode = word.parse().unwrap();
        let mut policy = Policy::new(mode);
        let mut sample =
            Sample { engine: engines_of(mode).choose(Engine::Nested).unwrap(), exits: 1, period: None };
        for event in [Event::Start, Event::Exits, Event::Exits, Event::Exits] {
            sample.engine = policy.on(event, &sample).engine;
            assert!(engines_of(mode).contains(sample.engine), "{word}");
        }
    }
}
