// SPDX-License-Identifier: MIT

//! `locktop`: shows locks, their waiters and their blockers.

mod options;
mod screen;
mod serve;
mod sort;
mod state;
mod tree;

use std::io::{self, IsTerminal};
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use clap::{CommandFactory, Parser};
use nix::sys::signal::{SigSet, Signal};
use ratatui::backend::TestBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::text::Span;
use ratatui::{DefaultTerminal, Terminal};
use redis_lock_tools::link::{describe, Caller, Link};
use redis_lock_tools::texts;

use options::Options;
use screen::View;
use sort::{Column, Sort};
use state::{Lock, State};

/// The minimum width and height of a terminal for the confirmation.
const MIN_QUESTION_SIZE: (u16, u16) = (40, 8);

/// The width of the output with `--batch`, unless `COLUMNS` sets another.
const BATCH_WIDTH: u16 = 120;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(text) = options.text {
        return end(texts::write(text, Options::command(), options::MANUAL));
    }
    if options.serve.is_some() {
        return match serve::run(options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("locktop: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let batch = options.batch;
    match Top::begin(options) {
        Err(error) => {
            eprintln!("locktop: {error}");
            ExitCode::FAILURE
        }
        Ok(top) if batch => end(top.print()),
        Ok(mut top) => {
            if !io::stdout().is_terminal() {
                eprintln!("locktop: output is not a terminal; use --batch");
                return ExitCode::FAILURE;
            }
            if let Err(error) = end_at_signals() {
                return end(Err(error.into()));
            }
            let result = ratatui::try_init().and_then(|mut terminal| top.run(&mut terminal));
            ratatui::restore();
            end(result)
        }
    }
}

/// Restores the terminal when a signal ends this program, or when the terminal is closed. Uses a separate thread, as the drawing
/// thread may block forever in a read from a closed terminal.
fn end_at_signals() -> nix::Result<()> {
    let signals: SigSet =
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM].into_iter().collect();
    signals.thread_block()?;
    thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            leave(128 + signal as i32);
        }
    });
    Ok(())
}

/// Ends this program, even if the drawing thread is blocked.
fn leave(status: i32) -> ! {
    ratatui::restore();
    // The drawing thread shows the cursor when it ends, but it may be blocked.
    let _ = execute!(io::stdout(), Show);
    process::exit(status)
}

/// The key presses of the user. A separate thread reads them, so that the user can quit while the server does not reply.
fn user_events(asking: Arc<AtomicBool>, typing: Arc<AtomicBool>) -> Receiver<io::Result<Event>> {
    let (sender, events) = mpsc::channel();
    // Whether the text of a search may follow: then letters are not keys.
    let mut is_search = false;
    thread::spawn(move || loop {
        let event = event::read();
        is_search &= asking.load(Ordering::Acquire);
        if let (true, Ok(Event::Key(key))) = (asking.load(Ordering::Acquire), &event) {
            let is_text = is_search || typing.load(Ordering::Acquire);
            if is_quit_key(key) && (!is_text || key.modifiers.contains(KeyModifiers::CONTROL)) {
                leave(0);
            }
            is_search |= key.code == KeyCode::Char('/');
        }
        let is_over = event.is_err();
        if sender.send(event).is_err() || is_over {
            return;
        }
    });
    events
}

/// Whether a key ends the program, outside of the confirmation.
fn is_quit_key(key: &KeyEvent) -> bool {
    let keys = match key.modifiers.contains(KeyModifiers::CONTROL) {
        true => [KeyCode::Char('c'); 2],
        false => [KeyCode::Char('q'), KeyCode::Esc],
    };
    key.kind == KeyEventKind::Press && keys.contains(&key.code)
}

fn end(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has closed the pipe.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("locktop: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The running program.
struct Top {
    options: Options,
    address: String,
    caller: Caller,
    state: State,
    /// The key of the selected lock. The selection stays on it when other locks appear and disappear.
    selected: Option<Vec<u8>>,
    /// The lock to break if the user confirms it.
    question: Option<Lock>,
    sort: Sort,
    /// Shows only locks whose key, holders or waiters contain this text.
    search: String,
    /// Whether the user is typing the search.
    is_searching: bool,
    /// The number of locks that the table has room for.
    page: usize,
    message: String,
    error: Option<String>,
    paused: bool,
    /// Whether a call to the server is in progress.
    asking: Arc<AtomicBool>,
    /// Whether letters belong to a search or a confirmation.
    typing: Arc<AtomicBool>,
}

impl Top {
    fn begin(options: Options) -> Result<Top, String> {
        let mut caller = Caller::new(&options.server)?;
        let read = |link: &mut Link| State::read(link, options.most, &options.pattern);
        let state = caller.ask(read).map_err(|error| describe(&error))?;
        Ok(Top {
            address: options.server.address(),
            options,
            caller,
            state,
            selected: None,
            question: None,
            sort: Sort::default(),
            search: String::new(),
            is_searching: false,
            page: 1,
            message: String::new(),
            error: None,
            paused: false,
            asking: Arc::default(),
            typing: Arc::default(),
        })
    }

    /// Draws the screen until the user quits.
    fn run(&mut self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        let user = user_events(Arc::clone(&self.asking), Arc::clone(&self.typing));
        let mut next = Instant::now() + self.options.delay;
        loop {
            let size = terminal.draw(|frame| screen::draw(frame, &self.view()))?.area;
            self.page = usize::from(screen::table_rows(size.height, self.shown().len()));
            let large_enough = size.width >= MIN_QUESTION_SIZE.0 && size.height >= MIN_QUESTION_SIZE.1;
            match user.recv_timeout(next.saturating_duration_since(Instant::now())).ok().transpose()? {
                Some(Event::Key(key))
                    if key.kind == KeyEventKind::Press && self.handle_key(key, large_enough) =>
                {
                    return Ok(())
                }
                _ => {}
            }
            if Instant::now() >= next {
                // During the confirmation and the typing of a search the locks do not change.
                if !self.paused && !self.is_searching && self.question.is_none() {
                    self.refresh();
                }
                next = Instant::now() + self.options.delay;
            }
        }
    }

    /// Prints the screen once.
    fn print(&self) -> io::Result<()> {
        let width = std::env::var("COLUMNS")
            .ok()
            .and_then(|width| width.parse().ok())
            .unwrap_or(BATCH_WIDTH)
            .clamp(60, 500);
        // The queue has at most 20 waiters, and in a narrow table the tree is below it.
        let needed =
            tree::lines(&self.state.locks).len().max(self.state.locks.len()) + self.state.locks.len() + 72;
        let height = u16::try_from(needed).unwrap_or(u16::MAX).min(1000);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(io::Error::other)?;
        terminal.draw(|frame| screen::draw(frame, &self.view())).map_err(io::Error::other)?;
        let buffer = terminal.backend().buffer();
        let mut lines: Vec<String> = (0..height.saturating_sub(1))
            .map(|y| {
                // A wide character occupies two cells.
                let (mut line, mut x) = (String::new(), 0);
                while x < usize::from(width) {
                    let symbol = buffer.content[usize::from(y) * usize::from(width) + x].symbol();
                    line.push_str(symbol);
                    x += Span::raw(symbol).width().max(1);
                }
                line.trim_end().to_owned()
            })
            .collect();
        // Removes lines that contain only the separator between the two columns.
        while lines.last().is_some_and(|line| line.trim_matches([' ', '│']).is_empty()) {
            lines.pop();
        }
        io::Write::write_all(&mut io::stdout(), (lines.join("\n") + "\n").as_bytes())
    }

    fn view(&self) -> View<'_> {
        View {
            address: &self.address,
            state: &self.state,
            locks: self.shown(),
            sort: self.sort,
            search: (self.is_searching || !self.search.is_empty()).then_some(&self.search),
            is_searching: self.is_searching,
            selected: self.selected_index(),
            error: self.error.as_deref(),
            paused: self.paused,
            question: self.question.as_ref(),
            message: &self.message,
        }
    }

    /// The locks that match the search, in the order of the table.
    fn shown(&self) -> Vec<&Lock> {
        let wanted = self.search.to_lowercase();
        let mut shown: Vec<&Lock> = self.state.locks.iter().filter(|lock| lock.mentions(&wanted)).collect();
        self.sort.apply(&mut shown);
        shown
    }

    /// The position of the selected lock in the table.
    fn selected_index(&self) -> usize {
        let shown = self.shown();
        let selected = self.selected.as_ref();
        selected.and_then(|key| shown.iter().position(|lock| lock.raw == *key)).unwrap_or(0)
    }

    /// Reads the state again. If the server is unreachable, the old state stays on the screen, with the error.
    fn refresh(&mut self) {
        let Options { most, pattern, .. } = &self.options;
        let read = |link: &mut Link| State::read(link, *most, pattern);
        // In a search or a confirmation, the same keys have another meaning.
        let is_typing = self.is_searching || !self.search.is_empty() || self.question.is_some();
        self.typing.store(is_typing, Ordering::Release);
        self.asking.store(true, Ordering::Release);
        let read = self.caller.ask(read);
        self.asking.store(false, Ordering::Release);
        match read {
            Ok(state) => (self.state, self.error) = (state, None),
            Err(error) => self.error = Some(describe(&error)),
        }
    }

    /// Handles a key. Returns true if the program should exit.
    fn handle_key(&mut self, key: KeyEvent, large_enough: bool) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return is_quit_key(&key);
        }
        if let Some(asked) = self.question.take() {
            if key.code == KeyCode::Char('y') {
                self.break_lock(&asked);
            }
            return false;
        }
        self.message.clear();
        if self.is_searching {
            match key.code {
                KeyCode::Char(letter) => self.search.push(letter),
                KeyCode::Backspace => drop(self.search.pop()),
                KeyCode::Enter => {
                    self.is_searching = false;
                    self.select(self.selected_index());
                }
                KeyCode::Esc => (self.is_searching, self.search) = (false, String::new()),
                _ => {}
            }
            return false;
        }
        match key.code {
            KeyCode::Esc if !self.search.is_empty() => self.search.clear(),
            _ if is_quit_key(&key) => return true,
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected_index().saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected_index() + 1),
            KeyCode::PageUp => self.select(self.selected_index().saturating_sub(self.page)),
            KeyCode::PageDown => self.select(self.selected_index() + self.page),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Char('/') => self.is_searching = true,
            KeyCode::Char('r') => self.sort.reverse(),
            KeyCode::Char(letter) if Column::of_key(letter).is_some() => {
                self.sort = Column::of_key(letter).map_or(self.sort, Sort::by);
            }
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('b') if !large_enough => {
                "terminal is too small for the confirmation".clone_into(&mut self.message)
            }
            KeyCode::Char('b') => self.ask_about_selected(),
            _ => {}
        }
        false
    }

    fn select(&mut self, at: usize) {
        let shown = self.shown();
        let selected = shown.get(at.min(shown.len().saturating_sub(1))).map(|lock| lock.raw.clone());
        self.selected = selected;
    }

    /// Asks for confirmation to break the selected lock. Shows a message instead if the user has not chosen the selected lock.
    fn ask_about_selected(&mut self) {
        let at = self.selected_index();
        let Some(lock) = self.shown().get(at).map(|lock| (*lock).clone()) else { return };
        if !lock.has_known_holders() {
            "lock has too many holders to show; break it with redis-cli".clone_into(&mut self.message);
            return;
        }
        if self.selected.as_ref().is_some_and(|selected| *selected != lock.raw) {
            "selected lock no longer has waiters; select again".clone_into(&mut self.message);
            self.select(at);
            return;
        }
        self.question = Some(lock);
        self.select(at);
    }

    /// Breaks a lock, if its holders are still those on the screen.
    fn break_lock(&mut self, lock: &Lock) {
        let broken = |link: &mut Link| state::break_lock(link, &lock.raw, &state::holders_id(&lock.holders));
        self.asking.store(true, Ordering::Release);
        self.message = match self.caller.ask(broken) {
            Ok(None) => format!("{} has other holders now; nothing was broken", lock.key),
            Ok(Some(holders)) => format!("{} was broken; holders that lost it: {holders}", lock.key),
            Err(error) => describe(&error),
        };
        self.refresh();
    }
}
