// SPDX-License-Identifier: MIT

//! Installs the packages that `make dist` builds, and tests the image of the `Dockerfile` as far as possible without Docker.

use std::fs;
use std::path::Path;
use std::process::Command;

use redis_lock_test_kit::artifacts::example;

use crate::support::programs::{Printed, Run};
use crate::support::server::module;
use crate::support::{root, Flavor, Server};

crate::on_every_server!(
    the_image_does_not_run_as_root,
    the_mounted_module_is_loaded,
    probes_report_the_state
);

/// `tests/scripts/packages.sh` explains its checks, and skips those that this machine cannot run.
#[test]
fn long_packages_install_and_start_a_server() {
    let mut script = Command::new("sh");
    script.arg("tests/scripts/packages.sh").current_dir(root()).env_remove("CARGO_TARGET_DIR");
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

/// The folder with the modules of the image `redis:8`.
const BUNDLED: &str = "/usr/local/lib/redis/modules";

/// The options that its entrypoint adds for them.
fn bundled_modules(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.flat_map(|file| ["--loadmodule".to_owned(), file.to_str().unwrap().to_owned()]).collect()
}

/// Starts a server twice, with a `CONFIG REWRITE` between.
fn assert_rewrite_keeps_the_configuration(flavor: Flavor, arguments: &[String]) -> Server {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let server = Server::start(flavor, &arguments);
    assert_eq!(server.client().call("CONFIG REWRITE"), "OK");
    let server = Server::start_in(flavor, server.stop(), &arguments);
    let mut client = server.client();
    assert_eq!(client.call("LOCK.ACQUIRE k alice"), "1");
    assert_eq!(client.call("CONFIG GET appendonly"), "[appendonly, yes]");
    server
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
        let paths = ["/etc/redis-lock", "/usr/share", "/data", BUNDLED];
        paths.iter().fold(text.to_owned(), |text, path| text.replace(path, &format!("{root}{path}")))
    };
    let installed = dir.path().join("usr/share/redis-lock");
    fs::create_dir_all(&installed).unwrap();
    let packaged = include_str!("../../tools/packaging/redis-lock.conf").replace("@MODULES@", root);
    fs::write(installed.join("redis-lock.conf"), packaged).unwrap();
    std::os::unix::fs::symlink(module(), dir.path().join("redis-lock.so")).unwrap();
    let bundled = dir.path().join(&BUNDLED[1..]);
    fs::create_dir_all(&bundled).unwrap();
    std::os::unix::fs::symlink(example("libempty.so"), bundled.join("empty.so")).unwrap();
    let mut step = Command::new("sh");
    step.args(["-c", &format!("chown() {{ :; }}; {}", in_root(&last_instruction("RUN")))]);
    let written = Run::spawn(step).finish();
    assert!(written.status.success(), "{}", Printed::new(&written));

    let mut arguments: Vec<String> = command[1..].iter().map(|argument| in_root(argument)).collect();
    arguments.extend(bundled_modules(&bundled));
    assert_rewrite_keeps_the_configuration(flavor, &arguments);
}

const COMPOSE: &str = include_str!("../../docs/setups/containers/compose.yml");
const KUBERNETES: &str = include_str!("../../docs/setups/containers/kubernetes.yml");

/// The lists of words in a template that begin so, for example `command: [`.
fn lists(template: &str, start: &str) -> Vec<Vec<String>> {
    template
        .lines()
        .filter_map(|line| line.split_once(start))
        .map(|(_, list)| serde_json::from_str(&format!("[{}]", list.rsplit_once(']').unwrap().0)).unwrap())
        .collect()
}

/// The number after a name in a template.
fn number(template: &str, name: &str) -> u64 {
    let (_, rest) = template.split_once(name).unwrap();
    rest.trim_start().chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// Starts a server as the image's entrypoint does with the command of the template.
fn the_mounted_module_is_loaded(flavor: Flavor) {
    let program = flavor.program();
    let [command] = &lists(COMPOSE, "command: [")[..] else { panic!("no command") };
    let (command, drops_root) =
        run_entrypoint(program.file_name().unwrap().to_str().unwrap(), command.clone());
    assert!(drops_root, "{command:?} runs as root");
    assert_eq!(command[1..], ["/etc/redis-lock/server.conf"]);
    let dir = tempfile::tempdir().unwrap();
    let config = include_str!("../../docs/setups/containers/conf/server.conf")
        .replace("/usr/lib/redis/modules/redis-lock.so", module().to_str().unwrap())
        .replace("/data", dir.path().to_str().unwrap());
    let file = dir.path().join("server.conf");
    fs::write(&file, config).unwrap();
    assert_eq!(lists(COMPOSE, "tmpfs: [")[..], [[BUNDLED]]);
    let server = assert_rewrite_keeps_the_configuration(flavor, &[file.to_str().unwrap().to_owned()]);
    let mut client = server.client();
    for seconds in
        [number(COMPOSE, "stop_grace_period:"), number(KUBERNETES, "terminationGracePeriodSeconds:")]
    {
        let timeout: u64 = client
            .call("CONFIG GET shutdown-timeout")
            .trim_matches(['[', ']'])
            .split_once(", ")
            .unwrap()
            .1
            .parse()
            .unwrap();
        assert!(seconds > 2 * timeout, "the server is killed after {seconds} s");
    }
}

/// Runs the probes of both templates, with the real redis-cli or with one that prints the reply of another state.
fn probes_report_the_state(flavor: Flavor) {
    let [ready, alive] = &lists(KUBERNETES, "exec: { command: [")[..] else { panic!("no probes") };
    let health = &lists(COMPOSE, "test: [")[0];
    assert_eq!(health[1..], ready[..]);
    let server = Server::with_module(flavor, &[]);
    let real = format!("command redis-cli -p {} \"$@\"", server.port);
    let passes = |probe: &[String], cli: &str| {
        let script = format!("redis-cli() {{ {cli}; }}\n{}", probe[2]);
        Command::new("bash").args(["-c", &script]).status().unwrap().success()
    };
    let says = |reply: &str| format!("echo '{reply}'");
    for (cli, is_ready, is_alive) in [
        (real.clone(), true, true),
        (says("LOADING Redis is loading the dataset in memory"), false, true),
        (says("BUSY Redis is busy running a script."), false, true),
    ] {
        assert_eq!(passes(ready, &cli), is_ready, "{cli}");
        assert_eq!(passes(alive, &cli), is_alive, "{cli}");
    }
    drop(server);
    assert!(!passes(ready, &real) && !passes(alive, &real), "a probe passes without a server");
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
