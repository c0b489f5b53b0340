// SPDX-License-Identifier: MIT

//! Runs every terminal transcript of README and docs as written, and compares the output with the page.
//!
//! A code block with lines that begin with redis-cli's prompt or with `$ ` is a transcript. Comments before a block add
//! hidden context: `<!-- terminal: bob -->` selects another terminal, and `<!-- before: COMMAND -->` runs a command first.
//! Each section begins with empty servers and new terminals. A block without a prompt but with a terminal comment is further
//! output of that terminal. `<!-- session: name -->` leaves a block to another test.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::cli;
use crate::support::client::PATIENCE;
use crate::support::programs::tool;
use crate::support::{root, until, Flavor, Server};

crate::on_every_server!(
    readme_transcripts_are_right,
    guide_transcripts_are_right,
    operations_transcripts_are_right,
    tools_transcripts_are_right,
    sessions_transcripts_are_right,
);

fn readme_transcripts_are_right(flavor: Flavor) {
    Page::new(flavor).play("README.md", 6);
}

fn guide_transcripts_are_right(flavor: Flavor) {
    Page::new(flavor).play("docs/guide.md", 20);
}

fn operations_transcripts_are_right(flavor: Flavor) {
    Page::new(flavor).play("docs/operations.md", 2);
}

fn tools_transcripts_are_right(flavor: Flavor) {
    Page::new(flavor).play("docs/tools.md", 3);
}

fn sessions_transcripts_are_right(flavor: Flavor) {
    Page::new(flavor).play("docs/sessions.md", 1);
}

const PROMPT: &str = "127.0.0.1:6379> ";
const SHELL: &str = "$ ";

/// A primary with two replicas, which some transcripts need, and the terminals of a section.
struct Page {
    server: Server,
    _replicas: [Server; 2],
    terminals: Vec<Terminal>,
    /// The newest token that was granted. It replaces the token on the page.
    token: String,
}

/// A terminal in which a page runs its commands: redis-cli or a shell.
struct Terminal {
    name: String,
    child: Child,
    stdin: ChildStdin,
    printed: Arc<Mutex<Vec<u8>>>,
    /// The output that the terminal must have printed so far.
    expected: String,
}

/// A code block of the page.
#[derive(Default)]
struct Block {
    terminal: Option<String>,
    before: Vec<String>,
    lines: Vec<String>,
    /// Whether another test runs the block.
    elsewhere: bool,
}

impl Page {
    fn new(flavor: Flavor) -> Page {
        let server = Server::with_module(flavor, &["--repl-diskless-sync-delay", "0"]);
        let port = server.port.to_string();
        let replicas = [(); 2].map(|()| Server::with_module(flavor, &["--replicaof", "127.0.0.1", &port]));
        for replica in &replicas {
            let mut client = replica.client();
            until("a replica is in sync", || client.info("replication", "master_link_status") == "up");
        }
        let mut a = server.client();
        until("both acknowledge", || a.call("SET warm up") == "OK" && a.call("WAIT 2 1000") == "2");
        Page { server, _replicas: replicas, terminals: Vec::new(), token: String::new() }
    }

    /// Runs all transcripts of a page. Fails if the page has fewer than the given number.
    fn play(mut self, page: &str, minimum: usize) {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let mut transcripts = 0;
        for section in text.split("\n## ") {
            self.start_section();
            for block in blocks(section) {
                if block.is_transcript() {
                    self.run(&block);
                    transcripts += 1;
                }
            }
        }
        assert!(transcripts >= minimum, "{transcripts} transcripts on {page}");
        self.start_section();
        self.server.assert_healthy();
    }

    fn start_section(&mut self) {
        self.terminals.clear();
        let mut a = self.server.client();
        for setting in ["lock.events no", "lock.quarantine 0"] {
            assert_eq!(a.call(&format!("CONFIG SET {setting}")), "OK");
        }
        until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
        assert_eq!(a.call("FLUSHALL"), "OK");
    }

    fn run(&mut self, block: &Block) {
        let mut a = self.server.client();
        for command in &block.before {
            let reply = a.call(command);
            assert!(!reply.starts_with("ERR"), "{command}: {reply}");
            if let Some((_, token)) = reply.split_once("token, ") {
                self.token = digits(token);
            }
        }
        let shell = block.lines.iter().any(|line| line.starts_with(SHELL));
        let name = block.terminal.clone().unwrap_or_else(|| if shell { "shell" } else { "first" }.to_owned());
        let at = match self.terminals.iter().position(|terminal| terminal.name == name) {
            Some(at) => at,
            None => {
                self.terminals.push(Terminal::open(&name, shell, &self.server));
                self.terminals.len() - 1
            }
        };
        let prompt = if shell { SHELL } else { PROMPT };
        let mut has_reply = true;
        for line in &block.lines {
            let Some(typed) = line.strip_prefix(prompt) else {
                self.terminals[at].expect(line);
                has_reply = true;
                continue;
            };
            self.terminals[at].until_printed();
            self.token = self.terminals[at].token().unwrap_or_else(|| self.token.clone());
            let typed = typed.split_once("   # ").map_or(typed, |(typed, _comment)| typed);
            let typed = with_token(typed, &self.token);
            let waiters = a.number_of_waiters();
            writeln!(self.terminals[at].stdin, "{typed}").unwrap();
            has_reply = !typed.contains(" BLOCK ");
            if !has_reply && block.lines.last() == Some(line) {
                until(&format!("'{typed}' waits"), || a.number_of_waiters() > waiters);
                has_reply = true;
            }
        }
        assert!(has_reply, "the page shows no reply to {:?}", block.lines);
        self.terminals[at].until_printed();
    }
}

impl Block {
    fn is_transcript(&self) -> bool {
        let begins = |prompt: &str| self.lines.iter().any(|line| line.starts_with(prompt));
        !self.elsewhere && (self.terminal.is_some() || begins(PROMPT) || begins(SHELL))
    }
}

impl Terminal {
    fn open(name: &str, shell: bool, server: &Server) -> Terminal {
        let mut program;
        if shell {
            let bin = server.dir.path().join("bin");
            if !bin.exists() {
                fs::create_dir(&bin).unwrap();
                let cli = bin.join("redis-cli");
                fs::write(
                    &cli,
                    format!(
                        "#!/bin/sh\nexec /usr/bin/env PATH=\"$OLD_PATH\" redis-cli -p {} \"$@\"\n",
                        server.port
                    ),
                )
                .unwrap();
                fs::set_permissions(cli, fs::Permissions::from_mode(0o755)).unwrap();
                for name in ["lockrun", "locktop"] {
                    std::os::unix::fs::symlink(tool(name).get_program(), bin.join(name)).unwrap();
                }
            }
            let path = std::env::var("PATH").unwrap();
            program = Command::new("sh");
            // Both outputs go to one stream, so that their order is kept.
            program
                .args(["-c", "exec sh 2>&1"])
                .env("OLD_PATH", &path)
                .env("PATH", format!("{}:{path}", bin.display()))
                .env("REDIS_URL", server.url())
                .current_dir(server.dir.path());
        } else {
            program = Command::new("redis-cli");
            program.args(["--no-raw", "-p", &server.port.to_string()]);
        }
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let printed = Arc::new(Mutex::new(Vec::new()));
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for mut output in outputs {
            let printed = printed.clone();
            thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = output.read(&mut bytes) {
                    printed.lock().unwrap().extend_from_slice(&bytes[..read]);
                }
            });
        }
        Terminal {
            name: name.to_owned(),
            stdin: child.stdin.take().unwrap(),
            child,
            printed,
            expected: String::new(),
        }
    }

    fn expect(&mut self, line: &str) {
        self.expected.push_str(line);
        self.expected.push('\n');
    }

    /// Waits until the terminal has printed exactly the expected text.
    fn until_printed(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let printed = self.text();
            let (found, wanted) = (timeless(&printed), timeless(&self.expected));
            if matches(&found, &wanted) {
                return;
            }
            if Instant::now() > deadline {
                panic!("terminal {}:\n{found}\nbut the page shows\n{wanted}", self.name);
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.printed.lock().unwrap().clone()).unwrap()
    }

    /// The newest fencing token in the terminal's output.
    fn token(&self) -> Option<String> {
        self.text()
            .rsplit_once("\"token\"\n")
            .map(|(_, text)| digits(text.split_once("(integer) ").unwrap().1))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn blocks(section: &str) -> Vec<Block> {
    let (mut blocks, mut block, mut inside) = (Vec::new(), Block::default(), false);
    for line in section.lines() {
        let comment = |what: &str| {
            Some(line.strip_prefix("<!-- ")?.strip_prefix(what)?.strip_suffix(" -->")?.to_owned())
        };
        if line.starts_with("```") {
            inside = !inside;
            if !inside {
                blocks.push(std::mem::take(&mut block));
            }
        } else if inside {
            block.lines.push(line.to_owned());
        } else if let Some(terminal) = comment("terminal: ") {
            block.terminal = Some(terminal);
        } else if let Some(command) = comment("before: ") {
            block.before.push(command);
        } else if comment("session: ").is_some() {
            block.elsewhere = true;
        }
    }
    blocks
}

fn digits(text: &str) -> String {
    text.chars().take_while(char::is_ascii_digit).collect()
}

/// A command with the token that was actually granted.
fn with_token(typed: &str, token: &str) -> String {
    let words =
        typed.split(' ').map(|word| if word.len() == 16 && digits(word) == word { token } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Removes empty lines, and replaces numbers that vary between runs by `N`.
fn timeless(text: &str) -> String {
    let shown = |line: &&str| !line.trim_end().is_empty() && !line.starts_with("Reading messages");
    let shown = text.lines().filter(shown).collect::<Vec<_>>().join("\n");
    cli::timeless(&shown).lines().map(without_times).collect::<Vec<_>>().join("\n")
}

/// Replaces wall-clock milliseconds, tokens and remaining times by `N`.
fn without_times(line: &str) -> String {
    let mut shown = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(|char: char| char.is_ascii_digit()) {
        let number = digits(&rest[at..]);
        let after = &rest[at + number.len()..];
        shown.push_str(&rest[..at]);
        shown.push_str(if number.len() > 12 || after.starts_with(" ms, try") { "N" } else { &number });
        rest = after;
    }
    shown + rest
}

/// Whether all lines are equal, where `…` matches any text.
fn matches(found: &str, wanted: &str) -> bool {
    let same = |(found, wanted): (&str, &str)| match wanted.split_once('…') {
        None => found == wanted,
        Some((before, after)) => {
            let after = after.rsplit('…').next().unwrap_or(after);
            found.starts_with(before) && found.ends_with(after)
        }
    };
    found.lines().count() == wanted.lines().count() && found.lines().zip(wanted.lines()).all(same)
}
