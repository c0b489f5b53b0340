// SPDX-License-Identifier: MIT

//! Installs the packages that `make dist` builds, and tests the image of the `Dockerfile` as far as possible without Docker.

use std::fs;
use std::process::Command;

use crate::support::programs::{Printed, Run};
use crate::support::server::module;
use crate::support::{Flavor, Server};

crate::on_every_server!(the_image_does_not_run_as_root);

/// `tests/scripts/packages.sh` explains its checks, and skips those that this machine cannot run.
#[test]
fn long_packages_install_and_start_a_server() {
    let mut script = Command::new("sh");
    script
        .arg("tests/scripts/packages.sh")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("CARGO_TARGET_DIR");
    assert!(script.status().unwrap().success());
}

const DOCKERFILE: &str = include_str!("../../Dockerfile");

/// The text of the last such instruction in the Dockerfile, in one line.
fn last_instruction(name: &str) -> String {
    let text = DOCKERFILE.replace("\\\n", " ");
    let line = text.lines().rev().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}")).to_owned()
}

/// The arguments that Docker passes to the entrypoint: a list unchanged, other commands through a shell.
fn arguments_of_the_entrypoint() -> Vec<String> {
    let command = last_instruction("CMD");
    let shell = |text: String| vec!["/bin/sh".to_owned(), "-c".to_owned(), text];
    serde_json::from_str(&command).unwrap_or_else(|_| shell(command))
}

/// Follows the entrypoints of the official Redis and Valkey images. An option or a `.conf` file is for the server, and only
/// a command that begins with the server's name drops root. Returns the command and whether it drops root.
fn run_entrypoint(server: &str, mut arguments: Vec<String>) -> (Vec<String>, bool) {
    if arguments[0].starts_with('-') || arguments[0].ends_with(".conf") {
        arguments.insert(0, server.to_owned());
    }
    let drops_root = arguments[0] == server;
    (arguments, drops_root)
}

fn the_image_does_not_run_as_root(flavor: Flavor) {
    let program = flavor.program();
    let (command, drops_root) =
        run_entrypoint(program.file_name().unwrap().to_str().unwrap(), arguments_of_the_entrypoint());
    assert!(drops_root, "{command:?} runs as root");
    assert!(!DOCKERFILE.contains("\nENTRYPOINT"), "the image has an entrypoint of its own");

    // Runs the Dockerfile's step that writes the configuration in a folder.
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().to_str().unwrap();
    let in_root = |text: &str| {
        let paths = ["/etc/redis-lock", "/usr/share", "/data"];
        paths.iter().fold(text.to_owned(), |text, path| text.replace(path, &format!("{root}{path}")))
    };
    let installed = dir.path().join("usr/share/redis-lock");
    fs::create_dir_all(&installed).unwrap();
    let packaged = include_str!("../../tools/packaging/redis-lock.conf").replace("@MODULES@", root);
    fs::write(installed.join("redis-lock.conf"), packaged).unwrap();
    std::os::unix::fs::symlink(module(), dir.path().join("redis-lock.so")).unwrap();
    let mut step = Command::new("sh");
    step.args(["-c", &format!("chown() {{ :; }}; {}", in_root(&last_instruction("RUN")))]);
    let written = Run::spawn(step).finish();
    assert!(written.status.success(), "{}", Printed::new(&written));

    let arguments: Vec<String> = command[1..].iter().map(|argument| in_root(argument)).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let server = Server::start(flavor, &arguments);
    let mut client = server.client();
    assert_eq!(client.call("LOCK.ACQUIRE k alice"), "1");
    assert_eq!(client.call("CONFIG GET appendonly"), "[appendonly, yes]");
    assert_eq!(client.call("CONFIG REWRITE"), "OK");
}

/// The server in the container has no protected mode: any client that reaches the port has full access.
#[test]
fn the_image_listens_on_localhost_only() {
    let published: Vec<&str> = DOCKERFILE.lines().filter(|line| line.contains("docker run")).collect();
    assert!(!published.is_empty());
    for line in published {
        assert!(line.contains("-p 127.0.0.1:") || line.contains("--requirepass"), "{line}");
    }
}
