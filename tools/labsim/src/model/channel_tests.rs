//! Channels against a list of all lines, and against the time until which a channel is busy.

use proptest::prelude::*;

use super::*;

/// 1000 MHz and 16 000 MB/s: 4 cycles for a line.
fn four() -> Channel {
    Channel::new(16_000, 1000)
}

#[test]
fn a_line_takes_what_the_bandwidth_says() {
    // 32 GB/s at 2800 MHz: 5.6 cycles.
    assert_eq!(Channel::new(32_000, 2800).line, 5600);
    assert_eq!((four().line, Channel::new(u64::MAX, 1).line), (4000, 1));
}

#[test]
fn lines_wait_until_the_channel_is_free() {
    let channel = four();
    assert_eq!([100, 100, 101, 108, 112, 200].map(|now| channel.demand(now)), [0, 4, 7, 4, 4, 0]);
    channel.prefetch(204);
    channel.prefetch(204);
    assert_eq!([206, 216].map(|now| channel.demand(now)), [6, 0]);
    let carried = channel.carried();
    let expected =
        Carried { lines: 8, prefetched: 2, waits: 5, wait_cycles: 25, busy_cycles: 40, span: (100, 220) };
    assert_eq!(carried, expected);
    assert_eq!(four().carried(), Carried::default());
}

#[test]
fn who_is_behind_gets_the_gaps() {
    let channel = four();
    assert_eq!([1000, 1010, 1020].map(|now| channel.demand(now)), [0; 3]);
    // Before all, in the gaps of 6 cycles, of which the first then has 2, and behind all.
    assert_eq!([500, 1004, 1006, 1016, 1016].map(|now| channel.demand(now)), [0, 0, 8, 8, 12]);
}

#[test]
fn what_is_old_is_forgotten() {
    let channel = four();
    let now = 3 * HORIZON / MILLI;
    (0..now).step_by(100).for_each(|now| assert_eq!(channel.demand(now), 0));
    assert!(channel.state.lock().unwrap().busy.len() as u64 <= HORIZON / MILLI / 100 + 2);
    // Its own time is not known any more: it waits as if the channel had been busy, and is not charged for that.
    assert!(channel.demand(0) <= 4);
    assert_eq!(channel.demand(u64::MAX), 0);
    assert!(channel.carried().span.1 >= now);
}

/// Where a line goes beside all others: the earliest begin that overlaps none.
fn plain(lines: &[(u64, u64)], asked: u64, line: u64) -> u64 {
    let is_free = |start: u64| lines.iter().all(|(from, end)| start + line <= *from || *end <= start);
    let begins = lines.iter().map(|(_, end)| *end).filter(|end| *end >= asked).chain([asked]);
    begins.filter(|start| is_free(*start)).min().expect("behind all of them it is free")
}

proptest! {
    #[test]
    fn lines_are_where_a_plain_list_has_them(
        mb_s in 1000u64..90_000,
        asks in prop::collection::vec((0u64..300, any::<bool>()), 1..150),
    ) {
        let channel = Channel::new(mb_s, 1000);
        let (mut lines, mut wait) = (Vec::new(), 0);
        for (now, is_awaited) in asks {
            let asked = now * MILLI;
            let start = plain(&lines, asked, channel.line);
            lines.push((start, start + channel.line));
            if is_awaited {
                prop_assert_eq!(channel.demand(now), (start - asked) / MILLI);
                wait += start - asked;
            } else {
                channel.prefetch(now);
            }
        }
        let carried = channel.carried();
        prop_assert_eq!(carried.lines + carried.prefetched, lines.len() as u64);
        prop_assert_eq!(carried.wait_cycles, wait / MILLI);
        let last = lines.iter().map(|(_, end)| *end).max().unwrap();
        prop_assert_eq!(carried.span.1, last.div_ceil(MILLI));
        let busy = channel.state.lock().unwrap().busy.clone();
        let gaps = busy.iter().zip(busy.iter().skip(1)).map(|(one, two)| two.0 - one.1);
        prop_assert!(gaps.min().is_none_or(|gap| gap >= channel.line));
    }

    #[test]
    fn in_order_a_line_waits_until_those_before_it_are_done(
        mb_s in 1000u64..90_000,
        steps in prop::collection::vec(0u64..100, 1..300),
    ) {
        let channel = Channel::new(mb_s, 1000);
        let (mut now, mut busy_until) = (0, 0);
        for step in steps {
            now += step;
            let start = busy_until.max(now * MILLI);
            prop_assert_eq!(channel.demand(now), (start - now * MILLI) / MILLI);
            busy_until = start + channel.line;
        }
    }
}
