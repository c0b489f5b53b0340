// SPDX-License-Identifier: MIT

//! Runs `lockrun` as shells and cron do.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::support::cluster::Cluster;
use crate::support::programs::{tool, Printed, Run};
use crate::support::proxy::Proxy;
use crate::support::sentinel::{Watched, NAME};
use crate::support::tls::Certificates;
use crate::support::tmux::Terminal;
use crate::support::{until, Flavor, Server};

crate::on_every_server!(
    the_commands_exit_status_is_returned,
    the_environment_describes_the_lock,
    a_busy_lock_ends_short_waits,
    errors_are_reported,
    exclusive_runs_exclude_and_shared_runs_overlap,
    signals_reach_the_command,
    a_signal_ends_the_wait,
    a_long_wait_names_the_holder,
    a_broken_lock_ends_the_command_tree,
    a_frozen_server_ends_the_command,
    a_lost_connection_keeps_the_lock,
    a_refused_call_is_retried,
    an_absent_server_is_retried,
    nested_waits_are_refused,
    operators_see_the_name,
    an_unknown_primary_is_an_error,
    a_primary_that_one_sentinel_learns_is_retried,
    a_killed_lockrun_ends_its_command,
    waits_and_holds_survive_a_failover,
    lockrun_finds_the_cluster_node,
    credentials_are_used,
    certificates_are_verified,
    only_the_commands_exit_counts,
    a_late_grant_is_checked_again,
    unread_output_blocks_nothing,
    a_lost_lock_ends_every_descendant,
    a_silent_server_does_not_delay_the_exit,
    lockrun_is_transparent_in_a_terminal,
);

/// A server with a folder in which `lockrun` runs.
struct Shell {
    server: Server,
}

impl Shell {
    fn new(flavor: Flavor) -> Shell {
        Shell { server: Server::with_module(flavor, &[]) }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tool("lockrun");
        command.args(["-u", &self.server.url()]).args(arguments);
        command.current_dir(self.server.dir.path());
        command
    }

    /// The beginning of a command line for the shell.
    fn line(&self) -> String {
        format!("{} -u {}", tool("lockrun").get_program().to_str().unwrap(), self.server.url())
    }

    /// The beginning of a command line whose shell ignores a signal.
    fn ignoring(&self, signal: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("trap '' {signal}; exec {} \"$@\"", self.line()), "sh"]).args(arguments);
        command.current_dir(self.server.dir.path());
        command
    }

    fn spawn(&self, arguments: &[&str]) -> Run {
        Run::spawn(self.command(arguments))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.spawn(arguments).finish()
    }

    fn path(&self, file: &str) -> PathBuf {
        self.server.dir.path().join(file)
    }

    /// Asserts that the lock is free and that the server has no state left.
    fn assert_nothing_stays(mut self) {
        assert_eq!(self.server.client().call("LOCK.INFO k"), "nil");
        self.server.assert_healthy();
    }
}

/// Exit status and everything printed, for comparison.
fn status_and_text(output: &Output) -> (Option<i32>, String) {
    let Printed { stdout, stderr } = Printed::new(output);
    // The status that a shell would report.
    let by_signal = output.status.signal().map(|signal| 128 + signal);
    (output.status.code().or(by_signal), stdout + &stderr)
}

/// Text that a command writes into a file as soon as it runs.
fn written(run: &mut Run, path: &Path) -> String {
    run.until("the command has written", || fs::read_to_string(path).is_ok_and(|text| text.ends_with('\n')));
    fs::read_to_string(path).unwrap().trim().to_owned()
}

/// State of a process as shown by `ps`; `None` if the process does not exist.
fn state_of(pid: impl std::fmt::Display) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

fn is_running(pid: &str) -> bool {
    // A zombie has ended, even if it is never reaped.
    state_of(pid).is_some_and(|state| state != 'Z')
}

fn the_commands_exit_status_is_returned(flavor: Flavor) {
    let shell = Shell::new(flavor);
    for (arguments, status) in [
        (&["k", "true"][..], 0),
        (&["k", "sh", "-c", "exit 7"], 7),
        (&["k", "-c", "exit 8"], 8),
        (&["-c", "kill -9 $$", "k"], 137),
        (&["k", "/there/is/nothing"], 127),
        (&["k", "/"], 126),
        (&["-s", "--", "k", "true"], 0),
    ] {
        assert_eq!(shell.run(arguments).status.code(), Some(status), "{arguments:?}");
        assert_eq!(shell.server.client().call("LOCK.INFO k"), "nil", "{arguments:?}");
    }
    let output = shell.run(&["-v", "k", "echo", "-n", "inside"]);
    let (status, printed) = status_and_text(&output);
    assert_eq!(status, Some(0));
    for word in ["inside", "waiting", "acquired after", "running echo", "ended with status 0", "released"] {
        assert!(printed.contains(word), "{printed}");
    }
    shell.assert_nothing_stays();
}

fn the_environment_describes_the_lock(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let script = "echo $LOCK_KEY; echo $LOCK_OWNER; echo $LOCK_TOKEN; read wait <done";
    assert!(Command::new("mkfifo").arg(shell.path("done")).status().unwrap().success());
    let script = format!("({script}) >out.new & sleep 0; wait; mv out.new out");
    let mut run = shell.spawn(&["--owner", "report", "k", "-c", &script]);
    let mut a = shell.server.client();
    run.until("lockrun holds the lock", || a.call("LOCK.INFO k") != "nil");
    let info = a.call("LOCK.INFO k");
    fs::write(shell.path("done"), "\n").unwrap();
    assert_eq!(status_and_text(&run.finish()), (Some(0), String::new()));
    let out = fs::read_to_string(shell.path("out")).unwrap();
    let [key, owner, token] = out.lines().collect::<Vec<_>>()[..] else { panic!("{out}") };
    assert_eq!(key, "k");
    assert!(owner.starts_with("report:") && owner.len() == "report:".len() + 36, "{owner}");
    for known in [owner, token] {
        assert!(info.contains(known), "{known} is not in {info}");
    }
    shell.assert_nothing_stays();
}

fn a_busy_lock_ends_short_waits(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    assert_eq!(a.call("LOCK.ACQUIRE k alice"), "1");
    for (arguments, status) in [
        (&["-n", "k", "touch", "ran"][..], 1),
        (&["-w", "0", "k", "touch", "ran"], 1),
        (&["-w", "0.2", "k", "touch", "ran"], 1),
        (&["-n", "-E", "9", "k", "touch", "ran"], 9),
        (&["-n", "-s", "-E", "0", "k", "touch", "ran"], 0),
    ] {
        assert_eq!(status_and_text(&shell.run(arguments)), (Some(status), String::new()), "{arguments:?}");
    }
    assert!(!shell.path("ran").exists());
    assert_eq!(a.call("LOCK.RELEASE k alice"), "0");
    assert_eq!(shell.run(&["-n", "k", "touch", "ran"]).status.code(), Some(0));
    assert!(shell.path("ran").exists());
    shell.assert_nothing_stays();
}

fn errors_are_reported(flavor: Flavor) {
    let shell = Shell::new(flavor);
    assert_eq!(shell.server.client().call("SET text x"), "OK");
    let without = Server::start(flavor, &[]);
    let without = without.url();
    let url_of = |listener: &TcpListener| format!("redis://{}", listener.local_addr().unwrap());
    let silence = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = url_of(&silence);
    for (arguments, status, words) in [
        (&["-n"][..], 64, "required"),
        (&["-w", "soon", "k", "touch", "ran"], 64, "not a number of seconds"),
        (&["--lease", "0.1", "k", "touch", "ran"], 64, "must be at least 1"),
        (&["--limit", "0", "k", "touch", "ran"], 64, "--limit"),
        (&["--limit", "2", "-x", "k", "touch", "ran"], 64, "cannot be used with"),
        (&["-u", "redis://127.0.0.1:1", "k", "touch", "ran"], 69, "127.0.0.1:1: Connection refused"),
        (&["-u", "gopher://x", "k", "touch", "ran"], 64, "URL"),
        (&["-u", "redis://a,redis://b", "k", "touch", "ran"], 64, "several URLs"),
        (&["-u", &without, "k", "touch", "ran"], 69, "no LOCK commands"),
        (&["text", "touch", "ran"], 69, "WRONGTYPE"),
        (&["--cacert", "/there/is/none", "k", "touch", "ran"], 64, "No such file"),
        (&["--cacert", "/dev/null", "k", "touch", "ran"], 64, "no certificate"),
        (&["-u", "unix:///tmp/x", "--cluster", "k", "touch", "ran"], 64, "a host and a port"),
        (&["-u", &silent, "k", "touch", "ran"], 69, "no answer in time"),
    ] {
        let mut command = tool("lockrun");
        if !arguments.contains(&"-u") {
            command = shell.command(&[]);
        }
        command.args(arguments).current_dir(shell.server.dir.path());
        let (found, printed) = status_and_text(&Run::spawn(command).finish());
        assert_eq!(found, Some(status), "{arguments:?}: {printed}");
        assert!(printed.contains(words), "{arguments:?}: {printed}");
        assert!(!printed.contains("--text"), "an option for packagers: {printed}");
    }
    // The server sends an error and closes the connection, which may overtake the error.
    let mut a = shell.server.client();
    assert_eq!(a.call("CONFIG SET maxclients 1"), "OK");
    let (found, printed) = status_and_text(&shell.run(&["k", "touch", "ran"]));
    let is_clear = ["max number of clients", "reset", "closed", "pipe", "end of file"]
        .iter()
        .any(|words| printed.contains(words));
    assert!(found == Some(69) && is_clear, "{found:?}: {printed}");
    assert_eq!(a.call("CONFIG SET maxclients 1000"), "OK");
    assert!(!shell.path("ran").exists());
    shell.assert_nothing_stays();
}

fn exclusive_runs_exclude_and_shared_runs_overlap(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let script = "mkdir inside && sleep 0.05 && rmdir inside && echo done >>done.log";
    let runs: Vec<Run> = (0..6).map(|_| shell.spawn(&["k", "-c", script])).collect();
    for run in runs {
        assert_eq!(status_and_text(&run.finish()), (Some(0), String::new()));
    }
    assert_eq!(fs::read_to_string(shell.path("done.log")).unwrap(), "done\n".repeat(6));
    // Each reader ends only when both are inside.
    let reader = |own: &str, other: &str| {
        let script = format!("touch {own}; until [ -e {other} ]; do sleep 0.01; done");
        shell.spawn(&["-s", "k", "-c", &script])
    };
    for run in [reader("a", "b"), reader("b", "a")] {
        assert_eq!(status_and_text(&run.finish()), (Some(0), String::new()));
    }
    // Two commands run at a time. The third starts when one of them has ended.
    let script = |own: &str| format!("touch {own}; until [ -e end-{own} ]; do sleep 0.01; done");
    let mut runs: Vec<Run> =
        ["c", "d"].map(|own| shell.spawn(&["--limit", "2", "k", "-c", &script(own)])).into();
    until("two run", || ["c", "d"].iter().all(|own| shell.path(own).exists()));
    assert_eq!(shell.run(&["-n", "--limit", "2", "k", "true"]).status.code(), Some(1));
    assert_eq!(shell.run(&["-n", "--limit", "3", "k", "true"]).status.code(), Some(0));
    runs.push(shell.spawn(&["--limit", "2", "k", "-c", &script("e")]));
    until("the third waits", || shell.server.client().info("lock", "lock_waiters") == "1");
    assert!(!shell.path("e").exists());
    for own in ["end-d", "end-c", "end-e"] {
        fs::write(shell.path(own), "").unwrap();
    }
    for run in runs {
        assert_eq!(status_and_text(&run.finish()), (Some(0), String::new()));
    }
    shell.assert_nothing_stays();
}

fn signals_reach_the_command(flavor: Flavor) {
    let shell = Shell::new(flavor);
    for (trap, signal, status) in [
        ("trap 'exit 5' TERM", libc::SIGTERM, 5),
        ("trap 'exit 6' USR1", libc::SIGUSR1, 6),
        ("trap 'exit 7' HUP", libc::SIGHUP, 7),
        ("true", libc::SIGINT, 130),
    ] {
        let script = format!("exec 2>/dev/null; {trap}; echo $$ >pid; while :; do sleep 0.01; done");
        let mut run = shell.spawn(&["k", "-c", &script]);
        let pid = written(&mut run, &shell.path("pid"));
        run.signal(signal);
        assert_eq!(status_and_text(&run.finish()), (Some(status), String::new()), "{trap}");
        assert!(!is_running(&pid), "{trap}");
        fs::remove_file(shell.path("pid")).unwrap();
    }
    // A signal that is ignored at the start stays ignored, as with `nohup lockrun`.
    let script = "echo $$ >pid; until [ -e done ]; do sleep 0.01; done";
    let nohup = shell.ignoring("HUP", &["k", "-c", script]);
    let mut run = Run::spawn(nohup);
    written(&mut run, &shell.path("pid"));
    run.signal(libc::SIGHUP);
    run.signal(libc::SIGCONT);
    fs::write(shell.path("done"), "").unwrap();
    assert_eq!(status_and_text(&run.finish()), (Some(0), String::new()));
    shell.assert_nothing_stays();
}

fn a_signal_ends_the_wait(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    assert_eq!(a.call("LOCK.ACQUIRE k alice"), "1");
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut run = shell.spawn(&["k", "touch", "ran"]);
        run.until("lockrun waits", || a.info("lock", "lock_waiters") == "1");
        run.signal(signal);
        assert_eq!(run.finish().status.signal(), Some(signal));
        until("there are no waiters", || a.info("lock", "lock_waiters") == "0");
    }
    // No call was sent, so there is nothing to cancel.
    let refuses = TcpListener::bind("127.0.0.1:0").unwrap();
    let sentinel = format!("redis://{}", refuses.local_addr().unwrap());
    let mut command = tool("lockrun");
    command.args(["-v", "-u", &sentinel, "--sentinel", NAME, "k", "true"]);
    let run = Run::spawn(command);
    drop(refuses.accept().unwrap());
    run.signal(libc::SIGTERM);
    let output = run.finish();
    assert_eq!(output.status.signal(), Some(libc::SIGTERM));
    assert!(!status_and_text(&output).1.contains("cancellation of the wait"), "{output:?}");
    // The grant arrives while lockrun is suspended and told to end. The unused grant is released.
    let mut run = shell.spawn(&["k", "touch", "ran"]);
    run.until("lockrun waits", || a.info("lock", "lock_waiters") == "1");
    run.stop();
    assert_eq!(a.call("LOCK.RELEASE k alice"), "0");
    run.signal(libc::SIGTERM);
    run.signal(libc::SIGCONT);
    run.finish();
    until("the lock is free", || a.call("LOCK.INFO k") == "nil");
    shell.assert_nothing_stays();
}

fn a_long_wait_names_the_holder(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    assert_eq!(a.call("ACL SETUSER cron on >secret ~k +@all -lock.info"), "OK");
    for owner in [&b"al\x1bice"[..], b"bob"] {
        assert_eq!(a.call_args(&[b"LOCK.ACQUIRE", b"k", owner, b"SHARED"]), "1");
    }
    let (line, file) = (shell.line(), |name: &str| fs::read_to_string(shell.path(name)).unwrap());
    let cron = line.replace("redis://", "redis://cron:secret@");
    let script = format!("{line} -q k true 2>quiet & {line} k true 2>loud & {cron} k true 2>cron & wait");
    let mut sh = Command::new("sh");
    sh.args(["-c", &script]).current_dir(shell.server.dir.path());
    let mut run = Run::spawn(sh);
    run.until("all wait", || a.info("lock", "lock_waiters") == "3");
    run.until("two have said why", || ["loud", "cron"].iter().all(|name| file(name).ends_with('\n')));
    for owner in [&b"al\x1bice"[..], b"bob"] {
        assert_eq!(a.call_args(&[b"LOCK.RELEASE", b"k", owner]), "0");
    }
    assert_eq!(status_and_text(&run.finish()), (Some(0), String::new()));
    for (name, holders) in [("loud", r#""al\u{1b}ice" and 1 more"#), ("cron", "another owner")] {
        let said = file(name);
        let is_clear = said.starts_with("lockrun: k: still waiting after ")
            && said.ends_with(&format!(" s; held by {holders}\n"));
        assert!(is_clear && said.lines().count() == 1, "{said}");
    }
    assert_eq!(file("quiet"), "");
    shell.assert_nothing_stays();
}

fn a_broken_lock_ends_the_command_tree(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    // The children would outlive the shell, and one of them ignores SIGTERM.
    for (deaf, killed) in [("", false), ("trap '' TERM; ", true)] {
        let script = format!("{deaf}sleep 1000 & echo $$ $! >pids; wait; sleep 1000");
        let mut run = shell.spawn(&["-k", "0.2", "k", "-c", &script]);
        let pids = written(&mut run, &shell.path("pids"));
        assert_eq!(a.call("LOCK.BREAK k"), "1");
        let (status, printed) = status_and_text(&run.finish());
        assert_eq!(status, Some(75), "{printed}");
        assert!(printed.contains("lost the lock k: it was broken"), "{printed}");
        assert_eq!(printed.contains("SIGKILL"), killed, "{printed}");
        for pid in pids.split(' ') {
            assert!(!is_running(pid), "{pid} of {pids} still runs");
        }
        fs::remove_file(shell.path("pids")).unwrap();
    }
    // The command exits by itself after the loss, before lockrun notices the loss.
    let mut run =
        shell.spawn(&["--lease", "300", "k", "-c", "echo $$ >pids; until [ -e done ]; do sleep 0.01; done"]);
    written(&mut run, &shell.path("pids"));
    assert_eq!(a.call("LOCK.BREAK k"), "1");
    fs::write(shell.path("done"), "").unwrap();
    let (status, printed) = status_and_text(&run.finish());
    assert!(status == Some(75) && printed.contains("broken"), "{status:?}: {printed}");
    shell.assert_nothing_stays();
}

fn a_frozen_server_ends_the_command(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut run = shell.spawn(&["--lease", "1", "k", "-c", "echo $$ >pid; exec sleep 1000"]);
    let pid = written(&mut run, &shell.path("pid"));
    shell.server.signal(libc::SIGSTOP);
    until("the command has ended", || !is_running(&pid));
    shell.server.signal(libc::SIGCONT);
    let (status, printed) = status_and_text(&run.finish());
    assert_eq!(status, Some(75), "{printed}");
    assert!(printed.contains("unreachable for a whole lease"), "{printed}");
    until("the lock is free", || shell.server.client().call("LOCK.INFO k") == "nil");
    shell.assert_nothing_stays();
}

fn a_lost_connection_keeps_the_lock(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    assert_eq!(a.call("LOCK.ACQUIRE k alice"), "1");
    let script = "echo $$ >pid; until [ -e done ]; do sleep 0.01; done";
    let mut run = shell.spawn(&["--lease", "2", "k", "-c", script]);
    run.until("lockrun waits", || a.info("lock", "lock_waiters") == "1");
    assert_ne!(a.call("CLIENT KILL TYPE normal SKIPME yes"), "0");
    run.until("lockrun waits again", || {
        a.info("lock", "lock_waiters") == "1" && a.call("LOCK.INFO k").contains("waiters, 1")
    });
    assert_eq!(a.call("LOCK.RELEASE k alice"), "0");
    written(&mut run, &shell.path("pid"));
    for _ in 0..3 {
        until("lockrun is connected", || a.call("CLIENT KILL TYPE normal SKIPME yes") != "0");
    }
    let renewed: i64 = a.info("lock", "lock_renewals").parse().unwrap();
    run.until("lockrun renews the lease", || {
        a.info("lock", "lock_renewals").parse::<i64>().unwrap() > renewed + 1
    });
    fs::write(shell.path("done"), "").unwrap();
    let (status, printed) = status_and_text(&run.finish());
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.contains("trying again"), "{printed}");
    shell.assert_nothing_stays();
}

fn a_refused_call_is_retried(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    assert_eq!(a.call("CONFIG SET min-replicas-to-write 1"), "OK");
    let mut run = shell.spawn(&["k", "touch", "ran"]);
    run.until("lockrun has tried three times", || {
        let errors = a.call("INFO errorstats");
        let count = errors.split("errorstat_NOREPLICAS:count=").nth(1).and_then(|rest| rest.lines().next());
        count.is_some_and(|count| count.trim().parse::<u32>().unwrap() >= 3)
    });
    assert!(!shell.path("ran").exists());
    // A call that was not sent is not cancelled.
    assert!(!a.call("INFO commandstats").to_lowercase().contains("lock.cancel"));
    assert_eq!(a.call("CONFIG SET min-replicas-to-write 0"), "OK");
    let (status, printed) = status_and_text(&run.finish());
    assert!(status == Some(0) && printed.contains("NOREPLICAS"), "{status:?}: {printed}");
    assert_eq!(printed.matches("trying again").count(), 1, "{printed}");
    shell.assert_nothing_stays();
}

fn an_absent_server_is_retried(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let absent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let proxy = Proxy::freezable(absent);
    let mut command = tool("lockrun");
    command.args([
        "-u",
        &format!("redis://127.0.0.1:{}", proxy.port),
        "-n",
        "--retry",
        "60",
        "k",
        "touch",
        "ran",
    ]);
    command.current_dir(shell.server.dir.path());
    let mut run = Run::spawn(command);
    run.until("lockrun has tried three times", || proxy.connections_made() >= 3);
    assert!(!shell.path("ran").exists());
    proxy.redirect_to(shell.server.port);
    let (status, printed) = status_and_text(&run.finish());
    assert!(status == Some(0) && printed.contains("trying again"), "{status:?}: {printed}");
    assert!(shell.path("ran").exists());
    shell.assert_nothing_stays();
}

fn nested_waits_are_refused(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let line = shell.line();
    let nested = |inner: &str| status_and_text(&shell.run(&["k", "-c", inner]));
    // The name of a process may have any bytes.
    let renamed = format!("sh -c 'printf \"\\377\" >/proc/$$/comm; {line} k true; exit $?'");
    let through_other = format!("{line} other {line} k true");
    for inner in [format!("{line} k true"), format!("{line} -s k true"), through_other, renamed] {
        let (status, printed) = nested(&inner);
        assert!(status == Some(64) && printed.contains("holds the lock already"), "{status:?}: {printed}");
    }
    assert_eq!(nested(&format!("{line} other true")), (Some(0), String::new()));
    assert_eq!(nested(&format!("{line}/1 k true")), (Some(0), String::new()), "another database");
    for limit in ["-n", "-w 0"] {
        let busy = nested(&format!("{line} {limit} -E 9 k true"));
        assert_eq!(busy, (Some(9), String::new()), "there is no wait");
    }
    // A writer in vain would block all later readers meanwhile.
    for inner in [format!("{line} -w 60 k true"), format!("{line} -s -w 60 k true"), format!("{line} k true")]
    {
        let (status, printed) = status_and_text(&shell.run(&["-s", "k", "-c", &inner]));
        assert!(status == Some(64) && printed.contains("holds the lock already"), "{status:?}: {printed}");
    }
    let shared = status_and_text(&shell.run(&["-s", "k", "-c", &format!("{line} -n -s k true")]));
    assert_eq!(shared, (Some(0), String::new()), "readers share the lock");
    // A daemon inherits the environment, and outlives the lock.
    let daemon = format!("(until [ -e done ]; do sleep 0.01; done; {line} k touch ran) >/dev/null 2>&1 &");
    let (status, printed) = nested(&daemon);
    assert_eq!((status, printed.as_str()), (Some(0), ""));
    fs::write(shell.path("done"), "").unwrap();
    until("the daemon has the lock", || shell.path("ran").exists());
    until("it is released", || shell.server.client().call("LOCK.INFO k") == "nil");
    shell.assert_nothing_stays();
}

fn operators_see_the_name(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    a.call("LOCK.ACQUIRE k alice");
    let mut run = shell.spawn(&["--owner", "nightly", "k", "true"]);
    run.until("lockrun waits", || a.call("LOCK.WAITERS k").contains("name, lockrun:nightly"));
    assert!(a.call("LOCK.SESSION LIST").contains("lockrun:nightly"));
    a.call("LOCK.RELEASE k alice");
    assert_eq!(status_and_text(&run.finish()), (Some(0), String::new()));
    shell.assert_nothing_stays();
}

fn an_unknown_primary_is_an_error(flavor: Flavor) {
    let mut watched = Watched::start(flavor);
    let proxies =
        watched.sentinels.iter().map(|sentinel| Proxy::freezable(sentinel.port)).collect::<Vec<_>>();
    let urls = proxies.iter().map(|proxy| format!("redis://127.0.0.1:{}", proxy.port)).collect::<Vec<_>>();
    let mut command = tool("lockrun");
    command.args(["-u", &urls.join(","), "--sentinel", "typo", "k", "true"]);
    let (status, printed) = status_and_text(&Run::spawn(command).finish());
    assert!(status == Some(69) && printed.contains("no Sentinel knows typo"), "{status:?}: {printed}");
    // The session and the acquire may each search once. Searches repeat at least once a second, for up to 20 s.
    let made: Vec<u64> = proxies.iter().map(Proxy::connections_made).collect();
    assert!(made.iter().all(|made| (1..=2).contains(made)), "{made:?}");
    watched.assert_healthy();
}

/// A Sentinel that does not know the primary yet is no reason to give up while another one does not reply.
fn a_primary_that_one_sentinel_learns_is_retried(flavor: Flavor) {
    let mut watched = Watched::start(flavor);
    let absent = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let proxy = Proxy::freezable(absent);
    let addresses = format!("redis://127.0.0.1:{},{}", proxy.port, watched.sentinels[0].url());
    let mut command = tool("lockrun");
    command.args(["-u", &addresses, "--sentinel", "later", "-n", "--retry", "60", "k", "true"]);
    let mut run = Run::spawn(command);
    run.until("lockrun has tried three times", || proxy.connections_made() >= 3);
    let primary = watched.primary_address().port();
    let monitor = format!("SENTINEL MONITOR later 127.0.0.1 {primary} 1");
    assert_eq!(watched.sentinels[0].client().call(&monitor), "OK");
    let (status, printed) = status_and_text(&run.finish());
    assert!(status == Some(0) && printed.contains("trying again"), "{status:?}: {printed}");
    watched.assert_healthy();
}

#[test]
fn bash_completes_the_command() {
    let script = r#"
        . <("$0" --text bash)
        complete_last() {
            COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
            _lockrun_command lockrun "${COMP_WORDS[COMP_CWORD]}" ""
            echo "${COMPREPLY[0]-}"
        }
        complete_last lockrun --shar
        complete_last lockrun -w 5 -u redis : //localhost : 1 job : 1 basenam
        complete_last lockrun key sort --rever
    "#;
    let mut bash = Command::new("bash");
    bash.args(["-c", script]).arg(tool("lockrun").get_program());
    assert_eq!(status_and_text(&Run::spawn(bash).finish()), (Some(0), "--shared\nbasename\n\n".to_owned()));
}

fn a_killed_lockrun_ends_its_command(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut run = shell.spawn(&["--lease", "5", "k", "-c", "echo $$ >pid; exec sleep 1000"]);
    let pid = written(&mut run, &shell.path("pid"));
    run.kill();
    until("the command has ended", || !is_running(&pid));
    let mut a = shell.server.client();
    assert_ne!(a.call("LOCK.INFO k"), "nil");
    assert_eq!(a.call("LOCK.BREAK k"), "1");
    shell.assert_nothing_stays();
}

fn waits_and_holds_survive_a_failover(flavor: Flavor) {
    let mut watched = Watched::start(flavor);
    let dir = tempfile::tempdir().unwrap();
    let sentinels = watched.addresses();
    let spawn = |script: &str| {
        let mut command = tool("lockrun");
        command.args(["-u", &sentinels, "--sentinel", NAME, "--lease", "30", "k", "-c", script]);
        command.current_dir(dir.path());
        Run::spawn(command)
    };
    let mut holder = spawn("echo $$ >pid; until [ -e done ]; do sleep 0.01; done");
    written(&mut holder, &dir.path().join("pid"));
    let mut waiter = spawn("[ -e done ] && echo $$ >second");
    let waits = |watched: &Watched| watched.client().call("LOCK.INFO k").contains("waiters, 1");
    waiter.until("the second waits", || waits(&watched));
    watched.fail_over();
    waiter.until("the second waits at the new primary", || waits(&watched));
    fs::write(dir.path().join("done"), "").unwrap();
    let (status, printed) = status_and_text(&holder.finish_within(Duration::from_secs(60)));
    assert!(
        status == Some(0) && printed.lines().all(|line| line.ends_with("trying again")),
        "{status:?}: {printed}"
    );
    let (status, printed) = status_and_text(&waiter.finish());
    assert!(status == Some(0) && printed.contains("trying again"), "{status:?}: {printed}");
    assert!(dir.path().join("second").exists());
    watched.assert_healthy();
}

fn lockrun_finds_the_cluster_node(flavor: Flavor) {
    let cluster = Cluster::start(flavor);
    let url = cluster.nodes[0].url();
    for (key, node) in [("a", 1), ("b", 0), ("c", 0), ("d", 1)] {
        let mut node = cluster.nodes[node].client();
        assert_eq!(node.call(&format!("LOCK.ACQUIRE {key} alice")), "1");
        let mut command = tool("lockrun");
        command.args(["-u", &url, "--cluster", key, "true"]);
        let mut run = Run::spawn(command);
        run.until("lockrun waits", || node.info("lock", "lock_waiters") == "1");
        assert_eq!(node.call(&format!("LOCK.RELEASE {key} alice")), "0");
        assert_eq!(status_and_text(&run.finish()), (Some(0), String::new()), "{key}");
        assert_eq!(node.call(&format!("LOCK.INFO {key}")), "nil");
    }
    // lockrun skips an unreachable node of --cluster. Without --cluster, it suggests the option.
    let at = |url: &str, arguments: &[&str]| {
        let mut command = tool("lockrun");
        command.args(["-u", url]).args(arguments).args(["a", "true"]);
        status_and_text(&Run::spawn(command).finish())
    };
    assert_eq!(at(&format!("redis://127.0.0.1:1,{url}"), &["--cluster", "-n"]), (Some(0), String::new()));
    let (status, printed) = at(&url, &[]);
    assert!(status == Some(69) && printed.contains("try --cluster"), "{status:?}: {printed}");
    cluster.assert_healthy();
}

fn credentials_are_used(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    assert_eq!(a.call("ACL SETUSER cron on >secret ~job:* +@all -@dangerous"), "OK");
    assert_eq!(a.call("CONFIG SET requirepass hidden"), "OK");
    let at = |user: &str| format!("redis://{user}127.0.0.1:{}", shell.server.port);
    let run = |url: &str, password: &str, key: &str| {
        let mut command = tool("lockrun");
        command.env("REDIS_URL", url).env("REDISCLI_AUTH", password).args([key, "true"]);
        status_and_text(&Run::spawn(command).finish())
    };
    assert_eq!(run(&at(""), "hidden", "k"), (Some(0), String::new()));
    assert_eq!(run(&at(":hidden@"), "", "k"), (Some(0), String::new()));
    assert_eq!(run(&at("cron:secret@"), "", "job:1"), (Some(0), String::new()));
    for (url, key, word) in [
        (at(""), "k", "NOAUTH"),
        (at("cron:wrong@"), "job:1", "WRONGPASS"),
        (at("cron:secret@"), "k", "NOPERM"),
    ] {
        assert_eq!(a.call("ACL LOG RESET"), "OK");
        let (status, printed) = run(&url, "", key);
        // lockrun fails at once, as servers may count failed logins.
        let log = a.call("ACL LOG");
        assert!(
            log.contains("count, 1,") == (word != "NOAUTH") && log.matches("reason").count() < 2,
            "{log}"
        );
        assert_eq!(status, Some(69), "{printed}");
        assert!(printed.contains(word) || printed.contains("uthentication"), "{word}: {printed}");
        assert!(!printed.contains("secret") && !printed.contains("wrong@"), "{printed}");
    }
    assert_eq!(a.call_args(&[b"CONFIG", b"SET", b"requirepass", b""]), "OK");
    shell.assert_nothing_stays();
}

fn certificates_are_verified(flavor: Flavor) {
    let certificates = Certificates::sign();
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    let port = certificates.serve(&shell.server);
    let run = |arguments: &[&str]| {
        let mut command = tool("lockrun");
        command.args(["-u", &format!("rediss://localhost:{port}")]).args(arguments).args(["k", "true"]);
        status_and_text(&Run::spawn(command).finish())
    };
    let (ca, cert, key) =
        (certificates.file("ca.crt"), certificates.file("client.crt"), certificates.file("client.key"));
    let with_client = ["--cacert", &ca, "--cert", &cert, "--key", &key];
    assert_eq!(run(&with_client), (Some(0), String::new()));
    for (arguments, words) in [(&with_client[..2], "ertificate"), (&with_client[2..], "ertificate")] {
        let (status, printed) = run(arguments);
        assert!(status == Some(69) && printed.contains(words), "{arguments:?}: {status:?}: {printed}");
    }
    let (status, printed) = run(&[]);
    assert!(status == Some(69) && printed.contains("pass its CA with --cacert"), "{status:?}: {printed}");
    assert_eq!(a.call("CONFIG SET tls-port 0"), "OK");
    shell.assert_nothing_stays();
    for (constraint, words) in [("CA:TRUE", "basicConstraints=CA:FALSE"), ("CA:FALSE", "")] {
        // A server loads other certificates only while its port is open.
        let (shell, certificates) = (Shell::new(flavor), Certificates::self_signed(constraint));
        let mut a = shell.server.client();
        assert_eq!(a.call("CONFIG SET tls-auth-clients no"), "OK");
        let (certificate, port) = (certificates.file("ca.crt"), certificates.serve(&shell.server));
        let mut command = tool("lockrun");
        command.args(["-u", &format!("rediss://localhost:{port}"), "--cacert", &certificate, "k", "true"]);
        let (status, printed) = status_and_text(&Run::spawn(command).finish());
        let wanted = if words.is_empty() { 0 } else { 69 };
        assert!(status == Some(wanted) && printed.contains(words), "{constraint}: {status:?}: {printed}");
        assert_eq!(a.call("CONFIG SET tls-port 0"), "OK");
        shell.assert_nothing_stays();
    }
}

fn lockrun_is_transparent_in_a_terminal(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"]);
    let terminal = Terminal::start(shell.server.dir.path(), &bash);
    let lockrun = shell.line();
    let run = |line: &str| {
        terminal.type_in(&format!("{lockrun} {line}"));
        terminal.press("Enter");
    };
    terminal.type_in("PS1='ready> '; clear");
    terminal.press("Enter");
    terminal.until_seen("ready> ");
    // The command reads the terminal's input.
    run("k -c 'read word; echo got $word'");
    until("lockrun holds the lock", || a.call("LOCK.INFO k") != "nil");
    terminal.type_in("hello");
    terminal.press("Enter");
    terminal.until_seen("got hello");
    until("the lock is free", || a.call("LOCK.INFO k") == "nil");
    // Ctrl-C reaches the command once, and the shell sees its status.
    run("k -c 'trap \"echo int; exit 3\" INT; touch trapped; while :; do sleep 0.01; done'; echo status $?");
    until("the command runs", || shell.path("trapped").exists());
    terminal.press("C-c");
    terminal.until_seen("status 3");
    assert_eq!(
        terminal.screen().lines().filter(|line| line.ends_with("int")).count(),
        1,
        "{}",
        terminal.screen()
    );
    // Ctrl-C also ends a loop. A pipeline works, too.
    terminal.type_in("clear");
    terminal.press("Enter");
    terminal.type_in(&format!("for i in 1 2 3; do {lockrun} k sleep 1000; echo next; done"));
    terminal.press("Enter");
    until("lockrun holds the lock", || a.call("LOCK.INFO k") != "nil");
    terminal.press("C-c");
    until("the lock is free", || a.call("LOCK.INFO k") == "nil");
    // Earlier input would go to the program that still reads the terminal.
    let until_prompt =
        || until("the shell is back", || terminal.screen().trim_end().lines().last() == Some("ready>"));
    until_prompt();
    assert!(!terminal.screen().lines().any(|line| line == "next"), "{}", terminal.screen());
    run("k echo  through a pipe | cat");
    until("cat has it", || terminal.screen().lines().any(|line| line == "through a pipe"));
    // Ctrl-Z stops lockrun and the command, and both resume, unless the lock was lost meanwhile.
    for (lost, end) in [(false, "goes on"), (true, "lost the lock")] {
        terminal.type_in("clear");
        terminal.press("Enter");
        run(&format!("--lease 300 k -c 'touch reads-{lost}; read word; echo goes on'"));
        // Before the command starts, a loss would only repeat the wait.
        until("the command runs", || shell.path(&format!("reads-{lost}")).exists());
        terminal.press("C-z");
        terminal.until_seen("Stopped");
        until_prompt();
        if lost {
            assert_eq!(a.call("LOCK.BREAK k"), "1");
        }
        terminal.type_in("fg");
        terminal.press("Enter");
        until("lockrun is in the foreground", || {
            terminal.screen().lines().any(|line| line.starts_with(&lockrun))
        });
        if !lost {
            terminal.press("Enter");
        }
        terminal.until_seen(end);
        until("the lock is free", || a.call("LOCK.INFO k") == "nil");
        until_prompt();
    }
    terminal.type_in("exit 0");
    terminal.press("Enter");
    terminal.until_ended();
    shell.assert_nothing_stays();
}

fn only_the_commands_exit_counts(flavor: Flavor) {
    let shell = Shell::new(flavor);
    // An orphan that ends by an unnamed signal is not the command.
    let script = "(sh -c 'kill -40 $$' &); sleep 0.3; touch done";
    assert_eq!(status_and_text(&shell.run(&["k", "-c", script])).0, Some(0));
    assert!(shell.path("done").exists());
    assert_eq!(shell.run(&["k", "-c", "kill -40 $$"]).status.code(), Some(168));
    // The parent process may ignore SIGCHLD.
    let careless = shell.ignoring("CHLD", &["k", "-c", "exit 3"]);
    assert_eq!(Run::spawn(careless).finish().status.code(), Some(3));
    // An argument may have any bytes.
    use std::os::unix::ffi::OsStrExt;
    let bytes = std::ffi::OsStr::from_bytes(b"\xff");
    let mut command = shell.command(&[]);
    command.arg(bytes).arg("touch").arg(bytes);
    assert_eq!(Run::spawn(command).finish().status.code(), Some(0));
    assert!(shell.server.dir.path().join(bytes).exists());
    shell.assert_nothing_stays();
}

fn a_late_grant_is_checked_again(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    assert_eq!(a.call("LOCK.ACQUIRE k bob"), "1");
    let proxy = Proxy::loses_the_reply_to(shell.server.port, "LOCK.ACQUIRE");
    let mut command = tool("lockrun");
    command.args(["-u", &format!("redis://127.0.0.1:{}", proxy.port), "k", "touch", "ran"]);
    command.current_dir(shell.server.dir.path());
    let mut run = Run::spawn(command);
    run.until("lockrun waits", || a.info("lock", "lock_waiters") == "1");
    run.stop();
    // The grant's reply is lost and the hold is broken. The server replies to the retry as before.
    assert_eq!(a.call("LOCK.RELEASE k bob"), "0");
    until("the reply is lost", || proxy.has_lost_a_reply());
    assert_eq!(a.call("LOCK.BREAK k"), "1");
    assert_eq!(a.call("LOCK.ACQUIRE k bob"), "1");
    run.signal(libc::SIGCONT);
    run.until("lockrun waits again", || a.info("lock", "lock_waiters") == "1");
    assert!(!shell.path("ran").exists());
    assert_eq!(a.call("LOCK.RELEASE k bob"), "0");
    assert_eq!(status_and_text(&run.finish()).0, Some(0));
    assert!(shell.path("ran").exists());
    shell.assert_nothing_stays();
}

fn unread_output_blocks_nothing(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let lockrun = shell.line();
    for script in [
        // The reader has closed the pipe.
        format!("{lockrun} -v k touch ran 2>&1 | true; until [ -e ran ]; do sleep 0.01; done"),
        // The reader does not read, and the pipe is full.
        format!(
            "rm ran; mkfifo full; exec 3<>full; head -c 65536 /dev/zero >&3; {lockrun} -v k touch ran 2>&3"
        ),
    ] {
        let mut sh = Command::new("sh");
        sh.args(["-c", &script]).current_dir(shell.server.dir.path());
        assert!(Run::spawn(sh).finish().status.success(), "{script}");
        assert!(shell.path("ran").exists(), "{script}");
        until("the lock is free", || shell.server.client().call("LOCK.INFO k") == "nil");
    }
    shell.assert_nothing_stays();
}

fn a_lost_lock_ends_every_descendant(flavor: Flavor) {
    let shell = Shell::new(flavor);
    let mut a = shell.server.client();
    let lockrun = shell.line();
    // The command starts an inner lockrun, whose command ignores SIGTERM, and a process in its own session.
    // Its name is not UTF-8.
    let deaf = "trap '' TERM; printf '\\377' >/proc/$$/comm; echo $$ >deaf; while :; do sleep 0.01; done";
    let script = format!("setsid sh -c 'echo $$ >away; exec sleep 1000' & {lockrun} -k 0.1 inner -c \"$0\"");
    let mut run = shell.spawn(&["-k", "0.3", "k", "sh", "-c", &script, deaf]);
    let pids = ["deaf", "away"].map(|file| written(&mut run, &shell.path(file)));
    assert_eq!(a.call("LOCK.BREAK k"), "1");
    assert_eq!(status_and_text(&run.finish()).0, Some(75));
    for pid in pids {
        assert!(!is_running(&pid), "{pid}");
    }
    until("the inner lock is free", || {
        a.call("LOCK.INFO inner") == "nil" || a.call("LOCK.BREAK inner") == "1"
    });
    // A foreign value at the lock's key is a loss, too.
    let mut run = shell.spawn(&["--lease", "300", "k", "-c", "echo $$ >pid; exec sleep 1000"]);
    let pid = written(&mut run, &shell.path("pid"));
    assert_eq!(a.call("SET k text"), "OK");
    assert_eq!(status_and_text(&run.finish()).0, Some(75));
    assert!(!is_running(&pid));
    assert_eq!(a.call("DEL k"), "1");
    shell.assert_nothing_stays();
}

fn a_silent_server_does_not_delay_the_exit(flavor: Flavor) {
    let shell = Shell::new(flavor);
    // The command ended while lockrun held the lock, so its status counts.
    let script = format!("kill -STOP {}; exit 4", shell.server.pid());
    let mut run = shell.spawn(&["--lease", "600", "k", "-c", &script]);
    let pid = shell.server.pid();
    run.until("the server is stopped", || state_of(pid) == Some('T'));
    let (status, printed) = status_and_text(&run.finish());
    assert!(status == Some(4) && printed.contains("its lease will end it"), "{status:?}: {printed}");
    // The Sentinel does not reply.
    let frozen = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", frozen.local_addr().unwrap());
    let mut command = tool("lockrun");
    command.args(["-n", "-u", &url, "--sentinel", "locks", "k", "true"]);
    let (status, printed) = status_and_text(&Run::spawn(command).finish());
    assert!(status == Some(69) && printed.contains("no answer in time"), "{status:?}: {printed}");
    // The server may or may not have received the release.
    shell.server.signal(libc::SIGCONT);
    shell.server.client().call("LOCK.BREAK k");
    shell.assert_nothing_stays();
}
