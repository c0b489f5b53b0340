// SPDX-License-Identifier: MIT

//! Manual pages and shell completions, generated from the options.

use std::io::{self, Write};

use clap::{Command, ValueEnum};
use clap_complete::Shell;

/// A text for packagers.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Text {
    /// A manual page
    Man,
    /// Completion for bash
    Bash,
    /// Completion for fish
    Fish,
    /// Completion for zsh
    Zsh,
}

/// The text that a command line of only `--text TEXT` requests. Packagers use it, so it is no option of the parser.
#[must_use]
pub fn requested() -> Option<Text> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [option, text] if option == "--text" => Text::from_str(text.to_str()?, true).ok(),
        _ => None,
    }
}

/// Writes the manual page or a completion script of a command to the standard output. `more` is appended to the manual page, in
/// roff.
///
/// # Errors
///
/// If the standard output cannot be written.
pub fn write(text: Text, mut command: Command, more: &str) -> io::Result<()> {
    let mut made = Vec::new();
    let shell = match text {
        Text::Man => {
            clap_mangen::Man::new(command).render(&mut made)?;
            made.extend_from_slice(more.as_bytes());
            return io::stdout().write_all(&made);
        }
        Text::Bash => Shell::Bash,
        Text::Fish => Shell::Fish,
        Text::Zsh => Shell::Zsh,
    };
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut made);
    io::stdout().write_all(&made)
}
