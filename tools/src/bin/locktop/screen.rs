// SPDX-License-Identifier: MIT

//! Draws the screen.

use std::time::Duration;

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Table, TableState, Wrap};
use ratatui::Frame;

use crate::state::{Lock, State};
use crate::tree::{self, Node};

/// The content of the screen.
pub(crate) struct View<'a> {
    pub address: &'a str,
    pub state: &'a State,
    pub selected: usize,
    /// The error of the last update.
    pub error: Option<&'a str>,
    pub paused: bool,
    /// The lock to break if the user confirms it.
    pub question: Option<&'a Lock>,
    /// The outcome of the last command.
    pub message: &'a str,
}

const HEAD: Style = Style::new().add_modifier(Modifier::REVERSED);
const KEY: Style = Style::new().fg(Color::Cyan);
const OWNER: Style = Style::new().fg(Color::Yellow);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
const PALE: Style = Style::new().fg(Color::DarkGray);

/// A wait of at least this many milliseconds is highlighted.
const LONG_WAIT_MS: i64 = 10_000;

/// Draws the whole screen.
pub(crate) fn draw(frame: &mut Frame, view: &View) {
    let rows = u16::try_from(view.state.locks.len()).unwrap_or(u16::MAX).saturating_add(1);
    let whole = frame.area();
    let table = rows.clamp(3, (whole.height / 2).max(3));
    let [head, locks, below, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(table),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(whole);
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(below);
    frame.render_widget(Paragraph::new(summary(view)), head);
    draw_locks(frame, locks, view);
    if !view.state.locks.is_empty() {
        draw_selected(frame, left, view);
        draw_tree(frame, right, view);
    }
    let foot_line = match view.error {
        Some(error) => Line::styled(error.to_owned(), BAD),
        None if view.paused => Line::styled("paused; space resumes", BAD),
        None if view.message.is_empty() => Line::styled("↑↓ select   b break   space pause   q quit", PALE),
        None => Line::raw(view.message.to_owned()),
    };
    frame.render_widget(foot_line, foot);
    if let Some(lock) = view.question {
        draw_question(frame, lock);
    }
}

fn summary(view: &View) -> Vec<Line<'static>> {
    let state = view.state;
    let figure = |name: &str| state.figure(name);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let number = |name: &str, style| Span::styled(figure(name).to_string(), style);
    let plain = Style::new();
    let figures = vec![
        Span::raw("waiters "),
        number("lock_waiters", bold),
        Span::raw(format!(" (max {})   contended locks ", figure("lock_waiters_max"))),
        number("lock_contended_locks", bold),
        Span::raw("   deadlocks "),
        number("lock_deadlocks", plain),
        Span::raw("   expired leases "),
        number("lock_leases_run_out", plain),
        Span::raw("   internal errors "),
        number("lock_internal_errors", if figure("lock_internal_errors") == 0 { plain } else { BAD }),
    ];
    let waits = format!(
        "waits so far: p50 {}, p99 {}, longest {}",
        micros(figure("lock_wait_us_p50")),
        micros(figure("lock_wait_us_p99")),
        micros(figure("lock_wait_us_max")),
    );
    vec![
        Line::from(vec![Span::styled("locktop", bold), Span::raw(format!("  {}   {waits}", view.address))]),
        Line::from(figures),
    ]
}

fn draw_locks(frame: &mut Frame, area: Rect, view: &View) {
    let rows = view.state.locks.iter().map(|lock| {
        let holder = lock.holders.first();
        let more = lock.holders.len().saturating_sub(1);
        let name = holder.map_or_else(|| "-".to_owned(), |holder| holder.owner.clone());
        let long = if lock.longest_ms >= LONG_WAIT_MS { BAD } else { Style::new() };
        Row::new([
            Line::styled(lock.key.clone(), KEY),
            Line::raw(lock.mode.clone()),
            Line::styled(if more == 0 { name } else { format!("{name} and {more} more") }, OWNER),
            Line::raw(holder.and_then(|holder| holder.since_ms).map_or_else(|| "-".to_owned(), millis))
                .right_aligned(),
            Line::raw(holder.map_or_else(|| "-".to_owned(), |holder| millis(holder.ttl_ms))).right_aligned(),
            Line::raw(lock.waiting.to_string()).right_aligned(),
            Line::styled(millis(lock.longest_ms), long).right_aligned(),
        ])
    });
    let widths = [
        Constraint::Fill(3),
        Constraint::Length(9),
        Constraint::Fill(4),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(7),
    ];
    let right = |name: &'static str| Line::raw(name).right_aligned();
    let head = Row::new([
        Line::raw("LOCK"),
        Line::raw("MODE"),
        Line::raw("HOLDER"),
        right("HELD"),
        right("LEASE"),
        right("WAITERS"),
        right("LONGEST"),
    ]);
    let table = Table::new(rows, widths)
        .header(head.style(HEAD))
        .row_highlight_style(Style::new().add_modifier(Modifier::BOLD))
        .highlight_symbol("▸ ");
    let mut selected =
        TableState::new().with_selected((!view.state.locks.is_empty()).then_some(view.selected));
    frame.render_stateful_widget(table, area, &mut selected);
    if view.state.locks.is_empty() {
        let [_, empty] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
        frame.render_widget(Line::styled("  No lock has waiters.", PALE), empty);
    }
}

fn draw_selected(frame: &mut Frame, area: Rect, view: &View) {
    let Some(lock) = view.state.locks.get(view.selected) else { return };
    let connection =
        |text: &Option<String>| text.as_ref().map_or_else(String::new, |text| format!(", {text}"));
    let mut lines = Vec::new();
    for holder in &lock.holders {
        let watched = if holder.watchdog { ", renewed by the server" } else { "" };
        lines.push(Line::from(vec![
            Span::raw("held by "),
            Span::styled(holder.owner.clone(), OWNER),
            Span::raw(format!(
                ", holds {}{}, lease {}{watched}{}",
                holder.holds,
                holder.since_ms.map_or_else(String::new, |since| format!(", for {}", millis(since))),
                millis(holder.ttl_ms),
                connection(&holder.connection),
            )),
        ]));
    }
    for (nth, waiter) in lock.waiters.iter().enumerate() {
        let until = match waiter.remaining_ms {
            -1 => "no limit".to_owned(),
            left => format!("{} left", millis(left)),
        };
        lines.push(Line::from(vec![
            Span::raw(format!("{}. ", nth + 1)),
            Span::styled(waiter.owner.clone(), OWNER),
            Span::raw(format!(
                ", {}, waiting for {}, {until}{}",
                waiter.mode,
                millis(waiter.waited_ms),
                connection(&waiter.connection)
            )),
        ]));
    }
    let block = Block::new().borders(Borders::TOP).title(Line::styled(format!(" {} ", lock.key), KEY));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }).block(block), area);
}

fn draw_tree(frame: &mut Frame, area: Rect, view: &View) {
    let selected = view.state.locks.get(view.selected);
    let lines = tree::lines(&view.state.locks);
    let drawn = lines.iter().map(|line| {
        let node = match &line.node {
            Node::Owner(name) => Span::styled(name.clone(), OWNER),
            Node::Lock(key) if selected.is_some_and(|lock| lock.key == *key) => {
                Span::styled(key.clone(), KEY.bold())
            }
            Node::Lock(key) => Span::styled(key.clone(), KEY),
            Node::More(count) => Span::raw(format!("and {count} more")),
        };
        Line::from(vec![Span::styled(line.branches.clone(), PALE), node])
    });
    let block = Block::new().borders(Borders::TOP | Borders::LEFT).title(" blockers ");
    frame.render_widget(Paragraph::new(drawn.collect::<Vec<_>>()).block(block), area);
}

fn draw_question(frame: &mut Frame, lock: &Lock) {
    let holders = names(lock);
    let lines = vec![
        Line::from(vec![Span::raw("Break the lock "), Span::styled(lock.key.clone(), KEY), Span::raw("?")]),
        Line::raw(format!("{holders} would lose it at once, and the next waiter would get it.")),
        Line::raw(""),
        Line::styled("y breaks it, any other key cancels", BAD),
    ];
    let width = lines.iter().map(Line::width).max().unwrap_or_default() + 4;
    let area = frame.area();
    let width = u16::try_from(width).unwrap_or(u16::MAX).min(area.width);
    let height = 6.min(area.height);
    let middle = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, middle);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().border_style(BAD)), middle);
}

fn names(lock: &Lock) -> String {
    match lock.holders.as_slice() {
        [] => "Nobody".to_owned(),
        [holder] => holder.owner.clone(),
        [holder, more @ ..] => format!("{} and {} more", holder.owner, more.len()),
    }
}

fn micros(us: i64) -> String {
    short(Duration::from_micros(us.unsigned_abs()))
}

fn millis(ms: i64) -> String {
    short(Duration::from_millis(ms.unsigned_abs()))
}

/// A duration in at most six characters.
fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if time.as_millis() == 0 => format!("{}µs", time.as_micros()),
        0 => format!("{}ms", time.as_millis()),
        1..10 => format!("{}.{}s", seconds, time.subsec_millis() / 100),
        10..600 => format!("{seconds}s"),
        600..36_000 => format!("{}min", seconds / 60),
        36_000..360_000 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (ms, expected) in [
            (0, "0µs"),
            (7, "7ms"),
            (9_999, "9.9s"),
            (59_000, "59s"),
            (600_000, "10min"),
            (36_000_000, "10h"),
            (864_000_000, "10d"),
        ] {
            assert_eq!(millis(ms), expected);
        }
    }
}
