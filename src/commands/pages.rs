// SPDX-License-Identifier: MIT

//! The generated parts of the pages in `docs/commands`. Their source is the specifications of the commands.
//! The test compares them with the pages. `GENERATE_PAGES=1 cargo test --lib pages` writes them.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::COMMANDS;
use crate::server::registration::command::{Spec, SINCE};

/// The marks around the generated parts.
const HEAD: [&str; 2] = ["<!-- begin: generated from the command's specification -->", "<!-- end -->"];
const ARGUMENTS: [&str; 2] =
    ["<!-- begin arguments: generated from the command's specification -->", "<!-- end arguments -->"];
const LIST: [&str; 2] = ["<!-- begin: generated from the commands' specifications -->", "<!-- end -->"];

/// The maximum line length, as in the checks of the documentation.
const WIDTH: usize = 130;

/// The maximum line length of the syntax.
const SYNTAX_WIDTH: usize = 100;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/commands")
}

fn name(command: &Spec) -> String {
    command.title().to_ascii_lowercase()
}

/// Wraps the text into lines of at most [`WIDTH`]. All lines but the first begin with `indent`.
fn fill(text: &str, indent: &str) -> String {
    let (mut filled, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        if width > 0 && width + 1 + word.len() > WIDTH {
            write!(filled, "\n{indent}{word}").unwrap();
            width = indent.len() + word.len();
        } else {
            let space = if width == 0 { "" } else { " " };
            write!(filled, "{space}{word}").unwrap();
            width += space.len() + word.len();
        }
    }
    filled
}

/// Splits the syntax of an argument between its alternatives if it is longer than a line.
fn pieces(syntax: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    let mut depth = 0;
    for word in syntax.split(' ') {
        let piece = pieces.last_mut().unwrap();
        let space = if piece.is_empty() { "" } else { " " };
        write!(piece, "{space}{word}").unwrap();
        depth += word.matches(['<', '[']).count();
        depth -= word.matches(['>', ']']).count();
        if word == "|" && depth == 1 && syntax.len() > SYNTAX_WIDTH {
            pieces.push(String::new());
        }
    }
    pieces
}

/// The title, syntax, summary and properties of a command.
fn head(command: &Spec) -> String {
    let title = command.title();
    let mut syntax = vec![title.clone()];
    syntax.extend(command.arguments.iter().flat_map(|argument| pieces(&argument.syntax())));
    // Lines break between options and between the alternatives of a long argument.
    let (mut lines, mut line) = (Vec::new(), String::new());
    for part in syntax {
        if !line.is_empty() && line.len() + 1 + part.len() > SYNTAX_WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(title.len())));
        }
        line = if line.is_empty() { part } else { format!("{line} {part}") };
    }
    lines.push(line);
    let categories: Vec<String> = command
        .categories
        .to_str()
        .unwrap()
        .split(' ')
        .chain(["lock"])
        .map(|name| format!("`@{name}`"))
        .collect();
    let facts = [
        fill(command.about(), ""),
        format!("* **Available since**: {}", SINCE.to_str().unwrap()),
        fill(&format!("* **Time complexity**: {}", command.complexity.to_str().unwrap()), "  "),
        format!("* **ACL categories**: {}", categories.join(", ")),
    ];
    format!("# {title}\n\n```\n{}\n```\n\n{}\n\n{}\n", lines.join("\n"), facts[0], facts[1..].join("\n"))
}

fn arguments(command: &Spec) -> String {
    let mut generated = String::new();
    for (title, list) in [
        ("Required arguments", command.arguments.positional),
        ("Optional arguments", command.arguments.options),
    ] {
        if !list.is_empty() {
            writeln!(generated, "## {title}\n").unwrap();
            for argument in list {
                let syntax = argument.syntax_without_brackets();
                writeln!(generated, "{}", fill(&format!("* `{syntax}`: {}.", argument.meaning()), "  "))
                    .unwrap();
            }
            generated.push('\n');
        }
    }
    generated.trim_end().to_owned() + "\n"
}

/// The list of all pages.
fn list() -> String {
    let line = |command: &&Spec| {
        fill(&format!("* [`{}`]({}.md): {}", command.title(), name(command), command.about()), "  ") + "\n"
    };
    COMMANDS.iter().map(line).collect()
}

/// Replaces the part of the page between these marks.
fn replace_between(page: &str, [begin, end]: [&str; 2], generated: &str) -> String {
    let (before, rest) = page.split_once(begin).unwrap_or_else(|| panic!("no {begin} in {page}"));
    let (_, after) = rest.split_once(end).unwrap_or_else(|| panic!("no {end} in {page}"));
    format!("{before}{begin}\n{generated}{end}{after}")
}

#[test]
fn pages_match_the_specifications() {
    let mut pages = vec![("README.md".to_owned(), vec![(LIST, list())])];
    for command in COMMANDS {
        let mut generated = vec![(HEAD, head(command))];
        if command.arguments.iter().next().is_some() {
            generated.push((ARGUMENTS, arguments(command)));
        }
        pages.push((format!("{}.md", name(command)), generated));
    }
    let there = std::fs::read_dir(folder()).unwrap().count();
    assert_eq!(there, pages.len(), "a page without a command");
    for (file, generated) in pages {
        let path = folder().join(&file);
        let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        let wanted = generated
            .iter()
            .fold(page.clone(), |page, (marks, generated)| replace_between(&page, *marks, generated));
        if std::env::var_os("GENERATE_PAGES").is_some() {
            std::fs::write(&path, wanted).unwrap();
        } else {
            assert_eq!(page, wanted, "{file} is out of date: see src/commands/pages.rs");
        }
    }
}
