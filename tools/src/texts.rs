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
pub fn write(text: Text, command: Command, more: &str) -> io::Result<()> {
    io::stdout().write_all(&generated(text, command, more)?)
}

fn generated(text: Text, mut command: Command, more: &str) -> io::Result<Vec<u8>> {
    let mut made = Vec::new();
    let shell = match text {
        Text::Man => {
            clap_mangen::Man::new(command).render(&mut made)?;
            made.extend_from_slice(more.as_bytes());
            return Ok(made);
        }
        Text::Bash => Shell::Bash,
        Text::Fish => Shell::Fish,
        Text::Zsh => Shell::Zsh,
    };
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut made);
    if shell == Shell::Zsh {
        // With two colons, zsh takes the first positional argument for the command, such as the key of `lockrun`.
        made = String::from_utf8_lossy(&made).replace("'*::", "'*:::").into_bytes();
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ValueHint};

    use super::*;

    #[test]
    fn zsh_completes_the_command() {
        let command = Arg::new("command").num_args(1..).trailing_var_arg(true);
        let command = command.value_hint(ValueHint::CommandWithArguments);
        let tool = Command::new("tool").arg(Arg::new("key")).arg(command);
        let script = String::from_utf8(generated(Text::Zsh, tool, "").unwrap()).unwrap();
        assert!(script.contains("'*:::command:_cmdambivalent'"), "{script}");
    }
}
