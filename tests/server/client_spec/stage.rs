// SPDX-License-Identifier: MIT

//! Plays a scenario: a server, drivers behind proxies, and steps.
//!
//! Packages with sessions get error replies without their text, as only the codes are part of the protocol.
//!
//! A step has one of these forms:
//! * `on`, `do` and further fields: a request to driver `a` or `b` of the package, or to driver `other` of another package.
//!   `is` lists the accepted answers. With `later` the request continues under that name until a step `ends` it. `token:
//!   grows` expects a token above all earlier ones. `heard` lists events that the listener must have received. `owner_of`
//!   names the request whose owner is used.
//!   With `until` the request is repeated until that is the answer.
//! * `pending`: the named requests have no answer yet.
//! * `owners` or `waiters` of a lock, `are`: waits until the lock has that number of owners or waiters.
//! * `server`, `says`: a command on the test's own connection, and its reply.
//! * `calls` of a command since the scenario began: `at_least` waits for that number, `at_most` checks it.
//! * `connections` of a driver since the scenario began: `at_most` is checked.
//! * `reconnections` of a driver, `vary_by`: breaks its connections until the times to its next `LOCK.EVENTS` differ by that
//!   time in ms.
//! * `fault`: `freeze`, `freeze old`, `thaw`, `break`, `sick`, `well`, and `lose the reply to` a `command` affect the
//!   connections of a driver. A `sick` connection ends with its first call. `kill` affects the driver's process. `restart`,
//!   `failover`, `stall`, `resume` and `busy` (with a script, `for` a time in ms) affect the server.
//! * `repeat`, `steps`: plays the steps that number of times. `pause`: waits that time in ms before an absence is checked.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::driver::{Driver, Package};
use crate::support::proxy::Proxy;
use crate::support::{until, Client, Flavor, Server};

/// The permissions that the packages need, including the commands that client libraries send when they connect.
const APP: &str =
    "ACL SETUSER app on >secret resetkeys ~k resetchannels -@all +lock.acquire +lock.release +lock.renew \
                   +lock.cancel +lock.info +lock.session|open +lock.session|close +lock.events +ping +select \
                   +client|setname";

pub fn play(scenario: &Value, package: Package) {
    if !package.is_built() {
        return;
    }
    let mut stage = Stage::of(scenario, package);
    stage.play(&scenario["steps"]);
    stage.end();
}

struct Stage {
    package: Package,
    primary: Server,
    replica: Option<Server>,
    client: Client,
    drivers: BTreeMap<String, (Driver, Proxy)>,
    /// Requests without an answer yet: the driver, and the number of the request.
    pending: HashMap<String, (String, u64)>,
    last: HashMap<String, String>,
    owners: HashMap<String, String>,
    token: i64,
}

impl Stage {
    fn of(scenario: &Value, package: Package) -> Stage {
        let steps = scenario["steps"].to_string();
        let args = ["--appendonly", "yes", "--appendfsync", "always"];
        let primary = Server::with_module(Flavor::Redis7, &args);
        let replica = steps.contains("\"failover\"").then(|| {
            let replica = Server::with_module(Flavor::Redis7, &args);
            replica.follow(&primary);
            replica
        });
        let mut client = primary.client();
        assert_eq!(client.call(APP), "OK");
        let mut drivers = BTreeMap::new();
        for name in ["a", "b", "other"] {
            if !steps.contains(&format!("\"on\":\"{name}\"")) {
                continue;
            }
            let proxy = Proxy::freezable(primary.port);
            proxy.hide_prose();
            let user = scenario["users"][name].as_str();
            let user = user.map_or_else(String::new, |user| format!("{user}:secret@"));
            let url = format!("redis://{user}127.0.0.1:{}", proxy.port);
            let package = if name == "other" { package.other() } else { package };
            let settings = scenario["settings"].as_object().into_iter().flatten();
            let settings =
                settings.map(|(name, ms)| (format!("REDIS_LOCK_{}", name.to_uppercase()), ms.to_string()));
            drivers.insert(name.to_owned(), (Driver::start_with(package, &url, settings), proxy));
        }
        Stage {
            package,
            primary,
            replica,
            client,
            drivers,
            pending: HashMap::new(),
            last: HashMap::new(),
            owners: HashMap::new(),
            token: 0,
        }
    }

    fn play(&mut self, steps: &Value) {
        for step in steps.as_array().unwrap() {
            if std::env::var_os("SHOW_STEPS").is_some() {
                eprintln!("{step}");
            }
            self.step(step);
        }
    }

    fn step(&mut self, step: &Value) {
        let text = |name: &str| step[name].as_str();
        if let Some(times) = step["repeat"].as_u64() {
            (0..times).for_each(|_| self.play(&step["steps"]));
        } else if let Some(outcome) = text("release_if") {
            if self.last[text("was").unwrap()] == outcome {
                self.ask(&serde_json::json!({"on": step["on"], "do": "release", "as": step["as"], "is": "released"}));
            }
        } else if text("do").is_some() {
            self.ask(step);
        } else if let Some(name) = text("ends") {
            let (driver, number) = self.pending.remove(name).unwrap();
            let answer = self.drivers[&driver].0.answer(number);
            self.last.insert(name.to_owned(), answer["is"].as_str().unwrap_or_default().to_owned());
            self.check(step, &answer);
        } else if let Some(names) = step["pending"].as_array() {
            for name in names {
                let (driver, number) = &self.pending[name.as_str().unwrap()];
                assert!(!self.drivers[driver].0.has_answered(*number), "{name} already has an answer");
            }
        } else if let Some(lock) = text("owners") {
            let (command, are) = (format!("LOCK.INFO {lock}"), step["are"].as_u64().unwrap());
            until(&format!("{are} hold {lock}"), || match self.client.call_value(&command) {
                redis::Value::Nil => are == 0,
                other => owners_in(&other) == are,
            });
        } else if let Some(lock) = text("waiters") {
            let (command, are) = (format!("LOCK.WAITERS {lock}"), step["are"].as_u64().unwrap());
            until(&format!("{are} wait for {lock}"), || match self.client.call_value(&command) {
                redis::Value::Array(waiters) => waiters.len() as u64 == are,
                _ => are == 0,
            });
        } else if let Some(command) = text("server") {
            assert_eq!(self.client.call(command), text("says").unwrap(), "{command}");
        } else if let Some(command) = text("calls") {
            let mut calls = || calls_of(&mut self.client, command);
            if let Some(least) = step["at_least"].as_u64() {
                until(&format!("{command} was called {least} times"), || calls() >= least);
            }
            if let Some(most) = step["at_most"].as_u64() {
                assert!(calls() <= most, "{command} was called {} times", calls());
            }
        } else if let Some(driver) = text("connections") {
            let (made, most) = (self.drivers[driver].1.connections_made(), step["at_most"].as_u64().unwrap());
            assert!(made <= most, "{driver} made {made} connections");
        } else if let Some(driver) = text("reconnections") {
            let (mut shortest, mut longest) = (Duration::MAX, Duration::ZERO);
            let wanted = Duration::from_millis(step["vary_by"].as_u64().unwrap());
            until(&format!("reconnections vary by {wanted:?}"), || {
                let before = calls_of(&mut self.client, "lock.events");
                let broken = Instant::now();
                self.drivers[driver].1.break_all();
                until("the reader reconnects", || calls_of(&mut self.client, "lock.events") > before);
                let pause = broken.elapsed();
                (shortest, longest) = (shortest.min(pause), longest.max(pause));
                // The first call confirms, and the second one waits in the server.
                until("the reader waits", || calls_of(&mut self.client, "lock.events") > before + 1);
                longest - shortest >= wanted
            });
        } else if let Some(ms) = step["pause"].as_u64() {
            std::thread::sleep(Duration::from_millis(ms));
        } else if let Some(fault) = text("fault") {
            self.fault(fault, step);
        } else {
            panic!("an unknown step: {step}");
        }
    }

    fn ask(&mut self, step: &Value) {
        let mut request = step.clone();
        let fields = request.as_object_mut().unwrap();
        for ours in ["on", "is", "until", "later", "token", "heard"] {
            fields.remove(ours);
        }
        if let Some(name) = fields.remove("owner_of") {
            fields.insert("owner".to_owned(), self.owners[name.as_str().unwrap()].clone().into());
        }
        let on = step["on"].as_str().unwrap();
        let driver = &mut self.drivers.get_mut(on).unwrap().0;
        if step["until"].is_string() {
            return until(&format!("{step}"), || {
                let number = driver.ask(request.clone());
                driver.answer(number)["is"] == step["until"]
            });
        }
        if let Some(heard) = step["heard"].as_array() {
            // A listener may be called a moment after the call that has caused an event.
            return until(&format!("{step}"), || {
                let number = driver.ask(request.clone());
                let answer = driver.answer(number);
                let events = answer["events"].as_array();
                heard.iter().all(|event| events.is_some_and(|events| events.contains(event)))
            });
        }
        let number = driver.ask(request);
        if let Some(name) = step["later"].as_str() {
            self.pending.insert(name.to_owned(), (on.to_owned(), number));
            return;
        }
        let answer = driver.answer(number);
        if step["do"] == "owner" || step["do"] == "hand over" {
            let owner = answer["owner"].as_str().expect("no owner").to_owned();
            self.owners.insert(step["as"].as_str().unwrap().to_owned(), owner);
        }
        self.check(step, &answer);
    }

    fn check(&mut self, step: &Value, answer: &Value) {
        let is = &answer["is"];
        let wanted = &step["is"];
        let right = wanted == is || wanted.as_array().is_some_and(|wanted| wanted.contains(is));
        assert!(right, "{:?}: {step} got {answer}", self.package);
        if step["token"] == "grows" {
            let token = answer["token"].as_i64().unwrap_or_else(|| panic!("no token in {answer}"));
            assert!(token > self.token, "{token} after {}", self.token);
            self.token = token;
        }
    }

    fn fault(&mut self, fault: &str, step: &Value) {
        let to = step["to"].as_str().unwrap_or_default();
        match fault {
            "freeze" => self.drivers[to].1.freeze(),
            "freeze old" => self.drivers[to].1.freeze_old(),
            "thaw" => self.drivers[to].1.thaw(),
            "break" => self.drivers[to].1.break_all(),
            "sick" => {
                self.drivers[to].1.set_failing(true);
                self.drivers[to].1.break_all();
            }
            "well" => self.drivers[to].1.set_failing(false),
            "lose the reply to" => self.drivers[to].1.lose_the_reply_to(step["command"].as_str().unwrap()),
            "happened" => assert!(self.drivers[to].1.has_lost_a_reply(), "no reply was lost"),
            "kill" => self.drivers.get_mut(to).unwrap().0.kill(),
            "restart" => {
                let args = [
                    "--appendonly",
                    "yes",
                    "--loadmodule",
                    crate::support::server::module().to_str().unwrap(),
                ];
                let old = std::mem::replace(&mut self.primary, Server::start(Flavor::Redis7, &[]));
                self.primary = Server::start_in(Flavor::Redis7, old.stop(), &args);
                self.use_primary();
            }
            "failover" => {
                let replica = self.replica.take().unwrap();
                let (mut theirs, port) = (replica.client(), replica.port);
                until("the replica is online", || {
                    self.client.call("INFO replication").contains("state=online")
                });
                let reply = self.client.call(&format!("FAILOVER TO 127.0.0.1 {port}"));
                assert_eq!(reply, "OK");
                until("the replica is the primary", || theirs.info("replication", "role") == "master");
                self.replica = Some(std::mem::replace(&mut self.primary, replica));
                self.use_primary();
            }
            "stall" => self.primary.signal(libc::SIGSTOP),
            "resume" => self.primary.signal(libc::SIGCONT),
            "busy" => {
                let mut runs = self.primary.client();
                let time = step["for"].to_string();
                let script = b"local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end \
                    local till = now() + ARGV[1] while now() < till do end";
                assert_eq!(self.client.call("CONFIG SET busy-reply-threshold 50"), "OK");
                runs.send_args(&[b"EVAL", script, b"0", time.as_bytes()]);
                until("the server replies BUSY", || self.client.call("PING").contains("BUSY"));
                // The script continues although its client has disconnected.
            }
            other => panic!("an unknown fault: {other}"),
        }
    }

    fn use_primary(&mut self) {
        self.client = self.primary.client();
        for (_, proxy) in self.drivers.values() {
            proxy.redirect_to(self.primary.port);
        }
    }

    /// Closes the drivers and checks that they leave nothing behind.
    fn end(mut self) {
        for (name, (mut driver, proxy)) in std::mem::take(&mut self.drivers) {
            if driver.is_running() {
                let number = driver.ask(serde_json::json!({"do": "close"}));
                assert_eq!(driver.answer(number)["is"], "closed", "{name}");
                let number = driver.ask(serde_json::json!({"do": "no such thing"}));
                assert_eq!(driver.answer(number)["is"], "unknown", "{name}");
            }
            driver.finish();
            drop(proxy);
        }
        until("there are no waiters", || self.client.info("lock", "lock_waiters") == "0");
        until("there are no subscribers", || self.client.call("PUBSUB CHANNELS") == "[]");
        self.primary.assert_healthy();
    }
}

fn owners_in(info: &redis::Value) -> u64 {
    match crate::support::client::fields(info).get("holders") {
        Some(redis::Value::Array(holders)) => holders.len() as u64,
        other => panic!("no holders in {other:?}"),
    }
}

/// Number of calls of a command.
fn calls_of(client: &mut Client, command: &str) -> u64 {
    let stats = client.call("INFO commandstats");
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}
