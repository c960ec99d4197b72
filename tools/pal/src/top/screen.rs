//! The terminal: draws the screen, and takes keys.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use ratatui::{
    Frame, Terminal,
    backend::Backend,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    layout::{Constraint, Layout},
    style::{Modifier, Style},
    text::{Line, Text},
    widgets::Paragraph,
};

use super::{
    LOOK, Watched,
    args::parse_delay,
    draw::{self, View},
    state::{Order, State},
    take,
};

/// The first refresh does not wait for a long delay.
const FIRST: Duration = Duration::from_millis(500);

/// Shows what comes until a person leaves, `over` is set, the last refresh is drawn, or there is no more. That, if so.
///
/// # Errors
/// The terminal fails.
pub fn show<B: Backend>(
    terminal: &mut Terminal<B>,
    lines: &Receiver<Watched>,
    mut view: View,
    mut left: u64,
    over: &AtomicBool,
) -> Result<Option<Watched>>
where
    B::Error: Send + Sync + 'static,
{
    let (mut state, mut shown) = (State::default(), State::default());
    let mut next = Instant::now() + FIRST.min(Duration::from_secs_f64(view.delay));
    let mut redraw = true;
    loop {
        if redraw {
            terminal.draw(|frame| render(frame, &shown, &mut view))?;
        }
        if left == 0 || over.load(Ordering::Acquire) {
            return Ok(None);
        }
        if let Some(end) = take(&mut state, lines, (Instant::now() + LOOK).min(next)) {
            return Ok(Some(end));
        }
        redraw = false;
        while event::poll(Duration::ZERO)? {
            redraw = true;
            let delay = view.delay;
            match event::read()? {
                Event::Key(key) if !press(key, &mut view) => return Ok(None),
                _ => {}
            }
            if view.delay != delay {
                next = Instant::now() + Duration::from_secs_f64(view.delay);
            }
        }
        if Instant::now() >= next {
            next = Instant::now() + Duration::from_secs_f64(view.delay);
            let now = state.refresh();
            if !view.paused {
                shown = now;
                left -= 1;
            }
            redraw = true;
        }
    }
}

/// Draws everything. Only attributes are used, no colours, so that it looks the same wherever it is.
fn render(frame: &mut Frame<'_>, state: &State, view: &mut View) {
    let (title, head) = draw::head(state, view);
    let heights = [Constraint::Length(head.len() as u16 + 1), Constraint::Length(1), Constraint::Min(0)];
    let [above, titles, table] = Layout::vertical(heights).areas(frame.area());
    view.columns = table.width.into();
    let rows = draw::rows(state, view);
    view.scroll = view.scroll.min(rows.len().saturating_sub(table.height.into()));
    let bold = Style::default().add_modifier(Modifier::BOLD);
    let lines = std::iter::once(Line::from(title).style(bold)).chain(head.into_iter().map(Line::from));
    frame.render_widget(Paragraph::new(Text::from_iter(lines)), above);
    let reversed = Style::default().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(draw::titles(view)).style(reversed), titles);
    let rows = rows.into_iter().skip(view.scroll).map(|row| {
        // What belongs to a VM is indented.
        let is_vm = !row.starts_with(' ') && !view.help;
        let line = Line::from(row);
        if is_vm { line.style(bold) } else { line }
    });
    frame.render_widget(Paragraph::new(Text::from_iter(rows)), table);
}

/// A key was pressed. False: leave.
fn press(key: KeyEvent, view: &mut View) -> bool {
    if key.kind == KeyEventKind::Release {
        return true;
    }
    let code = match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        // A line feed, which scripts send for Enter.
        KeyCode::Char('j') if key.modifiers.contains(KeyModifiers::CONTROL) => KeyCode::Enter,
        _ if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        code => code,
    };
    view.message = None;
    if let Some(typed) = view.typed.take() {
        type_delay(typed, code, view);
        return true;
    }
    match code {
        KeyCode::Char('q') => return false,
        KeyCode::Char('h' | '?') => (view.help, view.scroll) = (!view.help, 0),
        KeyCode::Char('d' | 's') => view.typed = Some(String::new()),
        KeyCode::Char('p' | ' ') => view.paused = !view.paused,
        KeyCode::Char('<') | KeyCode::Left => view.order = view.order.next(false),
        KeyCode::Char('>') | KeyCode::Right => view.order = view.order.next(true),
        KeyCode::Char('R') => view.reversed = !view.reversed,
        KeyCode::Char('1') => view.vcpus = !view.vcpus,
        KeyCode::Char('r') => view.regions = !view.regions,
        KeyCode::Char('f') => view.memory = !view.memory,
        KeyCode::Char('x') => view.reasons = !view.reasons,
        KeyCode::Up => view.scroll = view.scroll.saturating_sub(1),
        KeyCode::Down => view.scroll += 1,
        KeyCode::PageUp => view.scroll = view.scroll.saturating_sub(10),
        KeyCode::PageDown => view.scroll += 10,
        KeyCode::Esc => view.help = false,
        KeyCode::Char(key) => match order(key) {
            Some(order) => view.order = order,
            None => view.message = Some(format!("`{key}` is no key here; h shows them")),
        },
        _ => {}
    }
    true
}

/// What a letter sorts by.
fn order(key: char) -> Option<Order> {
    Some(match key {
        'N' => Order::Name,
        'P' => Order::Cpu,
        'E' => Order::Exits,
        'T' => Order::Misses,
        'W' => Order::Walks,
        'M' => Order::Memory,
        _ => return None,
    })
}

/// A key while a delay is typed.
fn type_delay(mut typed: String, key: KeyCode, view: &mut View) {
    match key {
        KeyCode::Enter if typed.is_empty() => return,
        KeyCode::Enter => {
            match parse_delay(&typed) {
                Ok(delay) => view.delay = delay,
                Err(why) => view.message = Some(why),
            }
            return;
        }
        KeyCode::Esc => return,
        KeyCode::Backspace => drop(typed.pop()),
        KeyCode::Char(c) if (c.is_ascii_digit() || c == '.') && typed.len() < 8 => typed.push(c),
        _ => {}
    }
    view.typed = Some(typed);
}

#[cfg(test)]
mod tests {
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::state::tests::example;

    fn keys(view: &mut View, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x7f' => KeyCode::Backspace,
                key => KeyCode::Char(key),
            };
            assert!(press(KeyEvent::new(code, KeyModifiers::NONE), view), "{key:?} leaves");
        }
    }

    /// The screen of this size as lines.
    fn screen(state: &State, view: &mut View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| render(frame, state, view)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    #[test]
    fn keys_change_the_view() {
        let mut view = View::new("lab", 1.0);
        keys(&mut view, "E");
        assert_eq!(view.order, Order::Exits);
        keys(&mut view, ">R1xp");
        assert_eq!((view.order, view.reversed), (Order::Misses, true));
        assert!(!view.vcpus && !view.reasons && view.paused);
        keys(&mut view, "<N h");
        assert!(view.order == Order::Name && !view.paused && view.help);
        keys(&mut view, "d12\x7f.5\n");
        assert_eq!((view.delay, &view.typed, &view.message), (1.5, &None, &None));
        // While a number is typed no letter is a command, and what is no delay is refused.
        keys(&mut view, "sq0\n");
        assert!(view.delay == 1.5 && view.message.as_deref() == Some("a delay is 0.1 to 3600 seconds"));
        keys(&mut view, "z");
        assert!(view.message.as_deref().is_some_and(|text| text.contains("`z`")));
        let leaves = |code, modifiers| !press(KeyEvent::new(code, modifiers), &mut View::new("", 1.0));
        assert!(leaves(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(leaves(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!leaves(KeyCode::F(1), KeyModifiers::NONE));
        keys(&mut view, "d7");
        assert!(press(KeyEvent::new(KeyCode::Char('j'), KeyModifiers::CONTROL), &mut view));
        assert_eq!((view.delay, view.typed), (7.0, None));
    }

    #[test]
    fn a_small_terminal_shows_it() {
        let mut view = View::new("lab", 1.0);
        let shown = screen(&example(), &mut view, 80, 24);
        assert_eq!(shown[0], "pal top: lab, qemu-svm, lab zen3, mode switch=50, 0.0 s");
        assert_eq!(
            shown[4],
            "VM*                %CPU MODE      SW/S  EXITS/S   IPC  MISS/KI   %WALK   SHADOW"
        );
        assert!(
            shown[5].starts_with("web                60.0 shadow     100    50100  0.50     3.00    25.0")
        );
        assert_eq!(shown[10], "  exits/s page_fault 200000  cpuid 100");
        view.help = true;
        let help = screen(&example(), &mut view, 80, 24);
        assert!(help.iter().any(|line| line.starts_with("q, Ctrl-c     leave")), "{help:?}");
        assert!(help.last().unwrap().starts_with("A dash") || help[23].is_empty(), "{help:?}");
    }

    #[test]
    fn a_map_of_memory_is_as_wide_as_the_terminal() {
        let mut state = example();
        let (accessed, hot) = (vec![255; 64], vec![0; 64]);
        state.add(
            &serde_json::json!({ "v": 1, "t": "tiers", "vm": "web", "machine_ns": 1, "span_ns": 1, "accessed": accessed,
                "hot_parts": hot })
            .to_string(),
        );
        for (width, cells) in [(80, 64), (50, 32), (12, 6)] {
            let shown = screen(&state, &mut View::new("lab", 1.0), width, 24);
            let map = format!("    |{}|", "▒".repeat(cells));
            assert!(shown.contains(&map), "{width}: {shown:#?}");
        }
    }

    #[test]
    fn titles_are_set_off_without_colours() {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| render(frame, &example(), &mut View::new("lab", 1.0))).unwrap();
        let buffer = terminal.backend().buffer();
        assert!(buffer[(0, 4)].modifier.contains(Modifier::REVERSED));
        let plain = ratatui::style::Color::Reset;
        assert!(buffer.content().iter().all(|cell| cell.fg == plain && cell.bg == plain));
    }

    #[test]
    fn any_size_can_be_drawn_and_scrolled() {
        let mut view = View::new("lab", 1.0);
        for (width, height) in [(1, 1), (3, 200), (200, 3), (80, 8)] {
            view.scroll = usize::MAX / 2;
            screen(&example(), &mut view, width, height);
        }
        view.scroll = 1000;
        let shown = screen(&example(), &mut view, 80, 7);
        assert_eq!(view.scroll, 4, "the last lines: {shown:?}");
        assert_eq!(shown[6], "  exits/s page_fault 200000  cpuid 100");
    }
}
