// SPDX-License-Identifier: MIT

//! Draws the screen.

use std::time::Duration;

use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Table, TableState, Wrap};
use ratatui::Frame;

use crate::sort::{Column, Sort};
use crate::state::{missing, Connection, Lock, State};
use crate::tree::{self, Node};

/// The content of the screen.
pub(crate) struct View<'a> {
    pub address: &'a str,
    pub state: &'a State,
    /// The locks of the table.
    pub locks: Vec<&'a Lock>,
    pub sort: Sort,
    /// The text that the locks of the table contain.
    pub search: Option<&'a str>,
    /// Whether the user is typing the search.
    pub is_searching: bool,
    /// The position of the selected lock in the table.
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

/// From this width on, the table has all columns.
const WIDE: u16 = 100;

/// Below this width, the table has only the most important columns, and the tree is below the queue.
const NARROW: u16 = 80;

/// The number of locks for which the table has room.
pub(crate) fn table_rows(height: u16, locks: usize) -> u16 {
    let rows = u16::try_from(locks).unwrap_or(u16::MAX).saturating_add(1);
    rows.clamp(3, (height / 2).max(3)) - 1
}

/// Draws the whole screen.
pub(crate) fn draw(frame: &mut Frame, view: &View) {
    let whole = frame.area();
    let rows = table_rows(whole.height, view.locks.len());
    let hidden = hidden_locks(view, usize::from(rows));
    let [head, locks, note, below, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(rows + 1),
        Constraint::Length(u16::from(!hidden.is_empty())),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(whole);
    let is_narrow = whole.width < NARROW;
    let [left, right] = if is_narrow {
        let selected =
            view.locks.get(view.selected).map_or(0, |lock| lock.holders.len() + lock.waiters.len());
        // A long line needs two rows.
        let needed = u16::try_from(2 * selected + 1).unwrap_or(u16::MAX).min(below.height / 2);
        Layout::vertical([Constraint::Length(needed), Constraint::Min(0)]).areas(below)
    } else {
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(below)
    };
    frame.render_widget(Paragraph::new(summary(view, whole.width)), head);
    draw_locks(frame, locks, view);
    frame.render_widget(Line::styled(hidden, PALE), note);
    if !view.locks.is_empty() {
        draw_selected(frame, left, view);
        draw_tree(frame, right, view, if is_narrow { Borders::TOP } else { Borders::TOP | Borders::LEFT });
    }
    let foot_line = match (view.error, view.search) {
        (_, Some(search)) if view.is_searching => {
            Line::raw(format!("/{search}▏  Enter keeps, Esc ends the search"))
        }
        (Some(error), _) => Line::styled(error.to_owned(), BAD),
        _ if view.paused => Line::styled("paused; space resumes", BAD),
        _ if !view.message.is_empty() => Line::raw(view.message.to_owned()),
        (_, Some(search)) => Line::raw(format!("/{search}   Esc ends the search")),
        _ => Line::styled("↑↓ select  / search  nhewl sort  b break  space pause  q quit", PALE),
    };
    frame.render_widget(foot_line, foot);
    if let Some(lock) = view.question {
        draw_question(frame, lock);
    }
}

/// The numbers of locks that are not on the screen, with the reason.
fn hidden_locks(view: &View, rows: usize) -> String {
    let counts = [
        (i64::try_from(view.locks.len().saturating_sub(rows)).unwrap_or(i64::MAX), "above or below"),
        (
            missing(i64::try_from(view.state.locks.len()).unwrap_or(i64::MAX), view.locks.len()),
            "do not match /",
        ),
        (view.state.hidden_locks(), "not listed (--most, --match, database)"),
    ];
    let shown = counts.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> = shown.map(|(count, reason)| format!("{count} {reason}")).collect();
    if texts.is_empty() {
        String::new()
    } else {
        format!("  … locks not shown: {}", texts.join(", "))
    }
}

fn summary(view: &View, width: u16) -> Vec<Line<'static>> {
    let state = view.state;
    let figure = |name: &str| state.figure(name);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let number = |name: &str, style| Span::styled(figure(name).to_string(), style);
    let plain = Style::new();
    let errors =
        number("lock_internal_errors", if figure("lock_internal_errors") == 0 { plain } else { BAD });
    let role = if state.is_replica() { "  replica" } else { "" };
    let head = vec![
        Span::styled("locktop", bold),
        Span::raw(format!("  {}", view.address)),
        Span::styled(role, BAD),
    ];
    if width < WIDE {
        let figures = vec![
            Span::raw("waiters "),
            number("lock_waiters", bold),
            Span::raw("  contended locks "),
            number("lock_contended_locks", bold),
            Span::raw("  deadlocks "),
            number("lock_deadlocks", plain),
            Span::raw("  errors "),
            errors,
        ];
        return vec![Line::from(head), Line::from(figures)];
    }
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
        errors,
    ];
    let waits = format!(
        "   waits so far: p50 {}, p99 {}, longest {}",
        micros(figure("lock_wait_us_p50")),
        micros(figure("lock_wait_us_p99")),
        micros(figure("lock_wait_us_max")),
    );
    vec![Line::from(head) + Span::raw(waits), Line::from(figures)]
}

/// A column of the table of locks.
struct TableColumn {
    name: &'static str,
    sorts: Option<Column>,
    width: Constraint,
    /// The minimum width of the terminal.
    from: u16,
    cell: fn(&Lock) -> Line<'static>,
}

const COLUMNS: [TableColumn; 8] = [
    TableColumn {
        name: "LOCK",
        sorts: Some(Column::Name),
        width: Constraint::Fill(3),
        from: 0,
        cell: |lock| Line::styled(lock.key.clone(), KEY),
    },
    TableColumn {
        name: "MODE",
        sorts: None,
        width: Constraint::Length(9),
        from: NARROW,
        cell: |lock| Line::raw(lock.mode.clone()),
    },
    TableColumn {
        name: "HOLDER",
        sorts: None,
        width: Constraint::Fill(4),
        from: 0,
        cell: |lock| Line::styled(holder_names(lock).unwrap_or_else(|| "-".to_owned()), OWNER),
    },
    TableColumn {
        name: "ADDRESS",
        sorts: None,
        width: Constraint::Length(21),
        from: WIDE,
        cell: |lock| {
            let address = lock.holders.first().and_then(|holder| holder.connection.address.clone());
            Line::raw(address.unwrap_or_else(|| "-".to_owned()))
        },
    },
    TableColumn {
        name: "HELD",
        sorts: Some(Column::Held),
        width: Constraint::Length(7),
        from: NARROW,
        cell: |lock| time(lock.holders.first().and_then(|holder| holder.since_ms)),
    },
    TableColumn {
        name: "LEASE",
        sorts: Some(Column::Lease),
        width: Constraint::Length(7),
        from: 0,
        cell: |lock| time(lock.holders.first().map(|holder| holder.ttl_ms)),
    },
    TableColumn {
        name: "WAITERS",
        sorts: Some(Column::Waiters),
        width: Constraint::Length(8),
        from: 0,
        cell: |lock| Line::raw(lock.waiting.to_string()).right_aligned(),
    },
    TableColumn {
        name: "LONGEST",
        sorts: Some(Column::Longest),
        width: Constraint::Length(8),
        from: 0,
        cell: |lock| {
            let long = if lock.longest_ms >= LONG_WAIT_MS { BAD } else { Style::new() };
            Line::styled(millis(lock.longest_ms), long).right_aligned()
        },
    },
];

/// A time of the table.
fn time(ms: Option<i64>) -> Line<'static> {
    Line::raw(ms.map_or_else(|| "-".to_owned(), millis)).right_aligned()
}

fn draw_locks(frame: &mut Frame, area: Rect, view: &View) {
    let columns = || COLUMNS.iter().filter(|column| area.width >= column.from);
    let rows = view.locks.iter().map(|lock| Row::new(columns().map(|column| (column.cell)(lock))));
    let heads = columns().map(|column| {
        let mark = match view.sort {
            Sort { column: sorted, is_descending } if Some(sorted) == column.sorts => {
                if is_descending {
                    "▾"
                } else {
                    "▴"
                }
            }
            _ => "",
        };
        let head = Line::raw(format!("{}{mark}", column.name));
        if matches!(column.width, Constraint::Length(7 | 8)) {
            head.right_aligned()
        } else {
            head
        }
    });
    let table = Table::new(rows, columns().map(|column| column.width))
        .header(Row::new(heads).style(HEAD))
        .row_highlight_style(Style::new().add_modifier(Modifier::BOLD))
        .highlight_symbol("▸ ");
    let mut selected = TableState::new().with_selected((!view.locks.is_empty()).then_some(view.selected));
    frame.render_stateful_widget(table, area, &mut selected);
    if view.locks.is_empty() {
        let [_, empty] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
        let text = match view.state.locks.is_empty() {
            true if view.state.is_replica() => {
                "  The server is a replica; connect to its primary to see waiters."
            }
            true => "  No lock has waiters.",
            false => "  No lock matches the search.",
        };
        frame.render_widget(Line::styled(text, PALE), empty);
    }
}

fn draw_selected(frame: &mut Frame, area: Rect, view: &View) {
    let Some(lock) = view.locks.get(view.selected) else { return };
    let connection = |connection: &Connection| match connection.client {
        Some(_) => format!(", {connection}"),
        None => String::new(),
    };
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

fn draw_tree(frame: &mut Frame, area: Rect, view: &View, borders: Borders) {
    let selected = view.locks.get(view.selected);
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
    let block = Block::new().borders(borders).title(" blockers ");
    frame.render_widget(Paragraph::new(drawn.collect::<Vec<_>>()).block(block), area);
}

fn draw_question(frame: &mut Frame, lock: &Lock) {
    let holders = holder_names(lock).unwrap_or_else(|| "Nobody".to_owned());
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

/// The first holder, and the number of the others.
fn holder_names(lock: &Lock) -> Option<String> {
    match lock.holders.as_slice() {
        [] if lock.holder_count > 0 && !lock.has_known_holders() => {
            Some(format!("{} holders", lock.holder_count))
        }
        [] => None,
        [holder] => Some(holder.owner.clone()),
        [holder, more @ ..] => Some(format!("{} and {} more", holder.owner, more.len())),
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
