// SPDX-License-Identifier: MIT

//! A program in a real terminal.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::until;

/// A terminal in a separate tmux server. It ends with its test.
pub struct Terminal {
    /// The folder of the socket. Outlives the folder of the test's server.
    own: TempDir,
}

impl Terminal {
    /// Starts a program in a terminal, in the folder `dir`.
    pub fn start(dir: &Path, program: &Command) -> Terminal {
        let terminal = Terminal { own: tempfile::tempdir().unwrap() };
        let words = std::iter::once(program.get_program()).chain(program.get_args());
        let words: Vec<&str> = words.map(|word| word.to_str().unwrap()).collect();
        // Keeps the terminal after the end of the program.
        let mut start = vec!["new-session", "-d", "-x", "200", "-y", "30", "-c", dir.to_str().unwrap()];
        start.extend(words);
        start.extend([";", "set-option", "-g", "remain-on-exit", "on"]);
        terminal.tmux(&start);
        terminal
    }

    /// Types a text.
    pub fn type_in(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// Presses a key, given by its name in tmux.
    pub fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-J"])
    }

    pub fn until_seen(&self, text: &str) {
        until(&format!("the terminal shows '{text}'"), || self.screen().contains(text));
    }

    pub fn until_gone(&self, text: &str) {
        until(&format!("the terminal no longer shows '{text}'"), || !self.screen().contains(text));
    }

    pub fn until_ended(&self) {
        until("the program has ended", || {
            self.tmux(&["display-message", "-p", "#{pane_dead}"]).trim() != "0"
        });
    }

    fn tmux(&self, args: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.arg("-u").arg("-S").arg(self.own.path().join("tmux")).args(["-f", "/dev/null"]).args(args);
        String::from_utf8(tmux.output().expect("tmux, see `make setup`").stdout).unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the terminal shows\n{}", self.screen().trim_end());
        }
        self.tmux(&["kill-server"]);
    }
}
