// SPDX-License-Identifier: MIT

//! `locktop`: shows who waits for which lock, and who is in the way.

mod options;
mod screen;
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
use redis::RedisResult;
use redis_lock_tools::link::{in_words, Link, Way};
use redis_lock_tools::place::SOON;
use redis_lock_tools::texts;

use options::Options;
use screen::View;
use state::{Holder, Lock, State};

/// How wide and high a terminal must be to show a question.
const QUESTION: (u16, u16) = (40, 8);

/// What is printed with `--batch` is as wide as this, unless `COLUMNS` says otherwise.
const WIDTH: u16 = 120;

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(text) = options.text {
        return end(texts::write(text, Options::command(), options::MANUAL));
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
                eprintln!("locktop: the output is no terminal; try --batch");
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

/// Leaves the terminal as it was when a signal ends this program, or the terminal itself has gone. Not by the thread that draws: of a
/// terminal that has gone that one may read without an end.
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

/// Ends this program, whatever the thread that draws does.
fn leave(status: i32) -> ! {
    ratatui::restore();
    // Who draws would have shown it at its end.
    let _ = execute!(io::stdout(), Show);
    process::exit(status)
}

/// What the user does. A thread of its own reads it, so that the user can leave while a server is asked that is silent.
fn user(asking: Arc<AtomicBool>) -> Receiver<io::Result<Event>> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || loop {
        let event = event::read();
        if asking.load(Ordering::Acquire) && matches!(&event, Ok(Event::Key(key)) if ends(key)) {
            leave(0);
        }
        let is_over = event.is_err();
        if tell.send(event).is_err() || is_over {
            return;
        }
    });
    told
}

/// Whether a key ends the program, unless it is the answer to a question.
fn ends(key: &KeyEvent) -> bool {
    let keys = match key.modifiers.contains(KeyModifiers::CONTROL) {
        true => [KeyCode::Char('c'); 2],
        false => [KeyCode::Char('q'), KeyCode::Esc],
    };
    key.kind == KeyEventKind::Press && keys.contains(&key.code)
}

fn end(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("locktop: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What is shown, and where it comes from.
struct Top {
    options: Options,
    place: String,
    way: Way,
    link: Option<Link>,
    state: State,
    /// The key of the lock that the cursor is at; it stays there when others come and go.
    chosen: Option<Vec<u8>>,
    /// The lock that is to be broken, if the answer is yes.
    question: Option<Lock>,
    news: String,
    trouble: Option<String>,
    paused: bool,
    /// The server is asked.
    asking: Arc<AtomicBool>,
}

impl Top {
    fn begin(options: Options) -> Result<Top, String> {
        let way = Way::to(&options.place)?;
        let mut link = None;
        let read = |link: &mut Link| State::read(link, options.most, &options.pattern);
        let state = Top::ask(&way, &mut link, read).map_err(|error| in_words(&error))?;
        Ok(Top {
            place: options.place.shown(),
            options,
            way,
            link,
            state,
            chosen: None,
            question: None,
            news: String::new(),
            trouble: None,
            paused: false,
            asking: Arc::default(),
        })
    }

    /// Shows it, until the user has seen enough.
    fn run(&mut self, terminal: &mut DefaultTerminal) -> io::Result<()> {
        let user = user(Arc::clone(&self.asking));
        let mut next = Instant::now() + self.options.delay;
        loop {
            let size = terminal.draw(|frame| screen::draw(frame, &self.view()))?.area;
            let large_enough = size.width >= QUESTION.0 && size.height >= QUESTION.1;
            match user.recv_timeout(next.saturating_duration_since(Instant::now())).ok().transpose()? {
                Some(Event::Key(key))
                    if key.kind == KeyEventKind::Press && self.pressed(key, large_enough) =>
                {
                    return Ok(())
                }
                _ => {}
            }
            if Instant::now() >= next {
                // What is asked about stays as it is shown.
                if !self.paused && self.question.is_none() {
                    self.look();
                }
                next = Instant::now() + self.options.delay;
            }
        }
    }

    /// Prints what would be shown.
    fn print(&self) -> io::Result<()> {
        let width = std::env::var("COLUMNS")
            .ok()
            .and_then(|width| width.parse().ok())
            .unwrap_or(WIDTH)
            .clamp(60, 500);
        let needed =
            tree::lines(&self.state.locks).len().max(self.state.locks.len()) + self.state.locks.len() + 24;
        let height = u16::try_from(needed).unwrap_or(u16::MAX).min(1000);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).map_err(io::Error::other)?;
        terminal.draw(|frame| screen::draw(frame, &self.view())).map_err(io::Error::other)?;
        let buffer = terminal.backend().buffer();
        let mut lines: Vec<String> = (0..height.saturating_sub(1))
            .map(|y| {
                // A wide letter has the next cell, too.
                let (mut line, mut x) = (String::new(), 0);
                while x < usize::from(width) {
                    let symbol = buffer.content[usize::from(y) * usize::from(width) + x].symbol();
                    line.push_str(symbol);
                    x += Span::raw(symbol).width().max(1);
                }
                line.trim_end().to_owned()
            })
            .collect();
        // The line between the two columns goes down to the bottom.
        while lines.last().is_some_and(|line| line.trim_matches([' ', '│']).is_empty()) {
            lines.pop();
        }
        io::Write::write_all(&mut io::stdout(), (lines.join("\n") + "\n").as_bytes())
    }

    fn view(&self) -> View<'_> {
        View {
            place: &self.place,
            state: &self.state,
            chosen: self.at(),
            trouble: self.trouble.as_deref(),
            paused: self.paused,
            question: self.question.as_ref(),
            news: &self.news,
        }
    }

    /// Where the cursor is.
    fn at(&self) -> usize {
        self.chosen
            .as_ref()
            .and_then(|key| self.state.locks.iter().position(|lock| lock.raw == *key))
            .unwrap_or(0)
    }

    /// Looks again. If the server cannot be reached, what is shown stays, with the reason.
    fn look(&mut self) {
        let Options { most, pattern, .. } = &self.options;
        let read = |link: &mut Link| State::read(link, *most, pattern);
        self.asking.store(true, Ordering::Release);
        let read = Top::ask(&self.way, &mut self.link, read);
        self.asking.store(false, Ordering::Release);
        match read {
            Ok(state) => (self.state, self.trouble) = (state, None),
            Err(error) => self.trouble = Some(in_words(&error)),
        }
    }

    /// Asks over the connection that there is, or over a new one.
    fn ask<T>(
        way: &Way,
        link: &mut Option<Link>,
        question: impl FnOnce(&mut Link) -> RedisResult<T>,
    ) -> RedisResult<T> {
        let mut open = match link.take() {
            Some(open) => open,
            None => way.connect(SOON)?,
        };
        let answer = question(&mut open);
        // After an answer of the server, a refusal too, the connection is as good as before.
        if answer.as_ref().err().is_none_or(|error| error.code().is_some()) {
            *link = Some(open);
        }
        answer
    }

    /// True if that was the end.
    fn pressed(&mut self, key: KeyEvent, large_enough: bool) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return ends(&key);
        }
        if let Some(asked) = self.question.take() {
            if key.code == KeyCode::Char('y') {
                self.break_lock(&asked);
            }
            return false;
        }
        self.news.clear();
        match key.code {
            _ if ends(&key) => return true,
            KeyCode::Up | KeyCode::Char('k') => self.choose(self.at().saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(self.at() + 1),
            KeyCode::Home => self.choose(0),
            KeyCode::End => self.choose(usize::MAX),
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('b') if !large_enough => {
                "the terminal is too small to ask".clone_into(&mut self.news)
            }
            KeyCode::Char('b') => self.ask_about_the_chosen(),
            _ => {}
        }
        false
    }

    fn choose(&mut self, at: usize) {
        let last = self.state.locks.len().saturating_sub(1);
        self.chosen = self.state.locks.get(at.min(last)).map(|lock| lock.raw.clone());
    }

    /// Never about a lock that the cursor has come to by itself.
    fn ask_about_the_chosen(&mut self) {
        let at = self.at();
        let Some(lock) = self.state.locks.get(at) else { return };
        if self.chosen.as_ref().is_some_and(|chosen| *chosen != lock.raw) {
            "nobody waits for the chosen lock any more; choose again".clone_into(&mut self.news);
            self.choose(at);
            return;
        }
        self.question = Some(lock.clone());
        self.choose(at);
    }

    /// Breaks a lock, if those still hold it who were shown.
    fn break_lock(&mut self, lock: &Lock) {
        let broken = |link: &mut Link| {
            let owners =
                |holders: &[Holder]| holders.iter().map(|holder| holder.owner.clone()).collect::<Vec<_>>();
            if owners(&state::holders(link, &lock.raw)?) != owners(&lock.holders) {
                return Ok(None);
            }
            link.call_within::<i64>(Some(SOON), redis::cmd("LOCK.BREAK").arg(&lock.raw)).map(Some)
        };
        self.asking.store(true, Ordering::Release);
        self.news = match Top::ask(&self.way, &mut self.link, broken) {
            Ok(None) => format!("{} is held by others now; nothing was broken", lock.key),
            Ok(Some(holders)) => format!("{} is broken; {holders} lost it", lock.key),
            Err(error) => in_words(&error),
        };
        self.look();
    }
}
