// SPDX-License-Identifier: MIT

//! The page: an HTTP server that shows the locks, and exports metrics.
//!
//! Requests are checked against other websites that the operator's browser has open. The host must be a known one, so that no
//! website can point its own name at this server. A request from another origin is refused.

mod listener;
mod report;

use std::io::{self, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest, Request, State};
use axum::http::header::{self, HeaderMap, HeaderName};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use redis::RedisResult;
use redis_lock_tools::link::{describe, Caller};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::options::Options;
use crate::state::{break_lock, escape};
use listener::{LimitedListener, Peer};
use report::{read_metrics, Report};

const PAGE: &str = include_str!("page.html");

/// Stands in the page for a random value, which only the page's own script and style have.
const NONCE: &str = "{nonce}";

/// The maximum size of a request to break a lock.
const MAX_BODY: usize = 1 << 20;

/// The maximum number of connections of viewers. Further ones are closed.
const MAX_CONNECTIONS: usize = 256;

/// The time after which a connection is closed. Each serves one request.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(60);

/// The maximum number of threads that wait for the server with the locks: one each for the state, the metrics and a break.
const MAX_THREADS: usize = 3;

const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONNECTION, "close"),
    (header::CACHE_CONTROL, "no-store"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Serves the page until a signal ends the program.
pub(crate) fn run(options: Options) -> Result<(), String> {
    let address = options.serve.clone().unwrap_or_default();
    let failed = |error: io::Error| format!("--serve {address}: {error}");
    let (state, metrics) = (Polled::new(&options)?, Polled::new(&options)?);
    let listener = TcpListener::bind(&address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    let mut hosts = options.hosts.clone();
    hosts.extend([host_name(&address).to_owned(), host_name(&bound.to_string()).to_owned()]);
    hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
    let site = Arc::new(Site { options, hosts, state, metrics, breaking: Arc::default() });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_THREADS)
        .build()
        .map_err(failed)?;
    say(&format!("serving http://{bound}/"));
    runtime
        .block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            serve(LimitedListener::new(listener, MAX_CONNECTIONS, CONNECTION_LIFETIME), site).await
        })
        .map_err(failed)
}

async fn serve(listener: LimitedListener, site: Arc<Site>) -> io::Result<()> {
    axum::serve(listener, router(site).into_make_service_with_connect_info::<Peer>()).await
}

/// Prints a line, even if nobody reads the output.
fn say(text: &str) {
    let _ = writeln!(io::stdout(), "locktop: {text}");
}

fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/state.json", get(state))
        .route("/metrics", get(metrics))
        .route("/break", post(break_one))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(Arc::clone(&site), check))
        .with_state(site)
}

/// The options and the polls, shared by the handlers.
struct Site {
    options: Options,
    /// The host names of this server.
    hosts: Vec<String>,
    state: Polled,
    metrics: Polled,
    /// Held during a break.
    breaking: Arc<Mutex<()>>,
}

/// A text that all viewers share. It is read again when it is requested and older than the interval.
struct Polled(Arc<Mutex<Poll>>);

struct Poll {
    caller: Caller,
    read_at: Option<Instant>,
    text: Result<Bytes, String>,
}

impl Polled {
    fn new(options: &Options) -> Result<Polled, String> {
        let caller = Caller::new(&options.server)?;
        let poll = Poll { caller, read_at: None, text: Err("not read yet".to_owned()) };
        Ok(Polled(Arc::new(Mutex::new(poll))))
    }

    /// Returns the text. Concurrent calls wait for one read, which occupies one thread.
    async fn get(
        &self,
        interval: Duration,
        read: impl FnOnce(&mut Caller) -> RedisResult<String> + Send + 'static,
    ) -> Result<Bytes, Refusal> {
        let mut poll = Arc::clone(&self.0).lock_owned().await;
        let text = if poll.read_at.is_some_and(|at| at.elapsed() < interval) {
            poll.text.clone()
        } else {
            in_background(move || {
                poll.text = read(&mut poll.caller).map(Bytes::from).map_err(|error| describe(&error));
                poll.read_at = Some(Instant::now());
                poll.text.clone()
            })
            .await?
        };
        text.map_err(|error| Refusal(StatusCode::SERVICE_UNAVAILABLE, error))
    }
}

/// An answer other than the requested one.
#[derive(Debug)]
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1 + "\n").into_response()
    }
}

/// Refuses requests that a foreign website may have caused, and adds headers to every response.
async fn check(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let mut response = match site.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(text) => Refusal(StatusCode::FORBIDDEN, text).into_response(),
    };
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

impl Site {
    fn check(&self, headers: &HeaderMap) -> Result<(), String> {
        let host = single(headers, &header::HOST)?.ok_or("request has no host")?;
        let name = host_name(host);
        if !self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            let name = escape(name.as_bytes());
            return Err(format!("host {name} is not served; if it is this server, add --allow-host {name}"));
        }
        match single(headers, &header::ORIGIN)? {
            Some(origin) if !is_own(origin, host) => {
                Err(format!("origin {} is not this page", escape(origin.as_bytes())))
            }
            _ => Ok(()),
        }
    }
}

/// The value of a header that occurs at most once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, String> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(HeaderValue::to_str).transpose();
    match (first, values.next()) {
        (Ok(value), None) => Ok(value),
        _ => Err(format!("header {name} is invalid")),
    }
}

/// The host in `host` or `host:port`. An IPv6 address is in brackets.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Whether an origin is that of the page at a host. A proxy may add TLS.
fn is_own(origin: &str, host: &str) -> bool {
    let rest = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    rest.is_some_and(|rest| rest.eq_ignore_ascii_case(host))
}

async fn page() -> Response {
    let nonce = uuid::Uuid::new_v4().simple().to_string();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, policy),
    ];
    (headers, PAGE.replace(NONCE, &nonce)).into_response()
}

async fn state(State(site): State<Arc<Site>>) -> Result<Response, Refusal> {
    let reader = Arc::clone(&site);
    let read = move |caller: &mut Caller| caller.ask(|link| Report::read(link, &reader.options));
    let text = site.state.get(site.options.delay, read).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}

async fn metrics(State(site): State<Arc<Site>>) -> Result<Response, Refusal> {
    let text = site.metrics.get(site.options.delay, read_metrics).await?;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    let failed = |_| Refusal(StatusCode::INTERNAL_SERVER_ERROR, "locktop has a defect".to_owned());
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

/// A request to break a lock.
#[derive(Deserialize)]
struct BreakRequest {
    /// The key, in hexadecimal.
    id: String,
    /// The key as displayed, which the user has typed.
    confirm: String,
    /// The holders that the user has seen.
    holders_id: String,
}

async fn break_one(
    State(site): State<Arc<Site>>,
    ConnectInfo(Peer(peer)): ConnectInfo<Peer>,
    request: Request,
) -> Result<String, Refusal> {
    if !site.options.allow_break {
        let text = "page is read-only; start locktop with --allow-break to break locks";
        return Err(Refusal(StatusCode::FORBIDDEN, text.to_owned()));
    }
    if !request.headers().contains_key(header::ORIGIN) {
        return Err(Refusal(StatusCode::FORBIDDEN, "request has no origin; use the page".to_owned()));
    }
    // Read only now, as others must not make this program wait for a body.
    let request = Json::<BreakRequest>::from_request(request, &()).await;
    let Json(request) = request.map_err(|rejection| Refusal(rejection.status(), rejection.body_text()))?;
    let Some(key) = from_hex(&request.id) else {
        return Err(Refusal(StatusCode::BAD_REQUEST, "id is not hexadecimal".to_owned()));
    };
    let name = escape(&key);
    if request.confirm != name {
        return Err(Refusal(StatusCode::BAD_REQUEST, format!("confirmation differs from the key {name}")));
    }
    let breaking = Arc::clone(&site.breaking).lock_owned().await;
    // The result is printed even if the browser does not wait for it.
    let broken = in_background(move || {
        let _breaking = breaking;
        let caller = Caller::new(&site.options.server);
        let mut caller = caller.map_err(|error| Refusal(StatusCode::BAD_GATEWAY, error))?;
        let broken = caller.ask(|link| break_lock(link, &key, &request.holders_id));
        match broken {
            Ok(None) => {
                let text = format!("{name} has other holders now; nothing was broken");
                Err(Refusal(StatusCode::CONFLICT, text))
            }
            Ok(Some(holders)) => {
                let text = format!("{name} was broken; holders that lost it: {holders}");
                say(&format!("{text}; asked by {peer}"));
                Ok(text + "\n")
            }
            Err(error) => {
                let text = describe(&error);
                say(&format!("{name}: it is unknown whether it was broken: {text}; asked by {peer}"));
                Err(Refusal(StatusCode::BAD_GATEWAY, text))
            }
        }
    });
    broken.await?
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|letter| letter.to_digit(16)).collect();
    let pairs = digits?;
    pairs.chunks(2).map(|pair| u8::try_from(pair.first()? * 16 + pair.get(1)?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use clap::Parser;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn host_has_no_port() {
        for (host, name) in [
            ("a", "a"),
            ("a:80", "a"),
            ("[::1]:80", "[::1]"),
            ("[::1]", "[::1]"),
            ("127.0.0.1:8380", "127.0.0.1"),
        ] {
            assert_eq!(host_name(host), name);
        }
    }

    #[test]
    fn only_the_own_origin_is_accepted() {
        assert!(is_own("http://a:1", "a:1") && is_own("https://A", "a"));
        for origin in ["null", "http://a", "http://a:1.evil", "http://b:1", "ftp://a:1", "a:1"] {
            assert!(!is_own(origin, "a:1"), "{origin}");
        }
    }

    #[test]
    fn waiting_viewers_occupy_one_thread() {
        let options = Options::parse_from(["locktop"]);
        let (state, metrics) = (Polled::new(&options).unwrap(), Polled::new(&options).unwrap());
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(2).build().unwrap();
        let interval = Duration::from_secs(3600);
        let read = |text: &'static str| move |_: &mut Caller| Ok(text.to_owned());
        runtime.block_on(async {
            let state = Arc::new(state);
            let (go_on, held) = mpsc::channel::<()>();
            let slow = move |_: &mut Caller| {
                let _ = held.recv();
                Ok("state".to_owned())
            };
            let first = Arc::clone(&state);
            let mut viewers = vec![tokio::spawn(async move { first.get(interval, slow).await })];
            viewers.extend((0..20).map(|_| {
                let state = Arc::clone(&state);
                tokio::spawn(async move { state.get(interval, read("another read")).await })
            }));
            let scrape = timeout(Duration::from_secs(30), metrics.get(interval, read("metrics"))).await;
            assert_eq!(scrape.expect("a thread is free").unwrap(), "metrics");
            drop(go_on);
            let mut texts = Vec::new();
            for viewer in viewers {
                texts.push(viewer.await.unwrap().unwrap());
            }
            assert!(texts.iter().all(|text| text == "state"), "{texts:?}");
            assert!(texts.iter().all(|text| text.as_ptr() == texts[0].as_ptr()), "viewers share the bytes");
        });
    }

    #[test]
    fn connection_ends_during_a_request() {
        let options = Options::parse_from(["locktop", "--serve", "localhost:0", "--allow-break"]);
        let (state, metrics) = (Polled::new(&options).unwrap(), Polled::new(&options).unwrap());
        let (breaking, hosts) = (Arc::default(), vec!["localhost".to_owned()]);
        let site = Arc::new(Site { options, hosts, state, metrics, breaking: Arc::clone(&breaking) });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let _another_break = breaking.lock().await;
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut viewer = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let listener = LimitedListener::new(listener, 1, Duration::from_millis(100));
            tokio::spawn(serve(listener, site));
            let body = r#"{"id":"61","confirm":"a","holders_id":""}"#;
            let head = "POST /break HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nContent-Type: application/json";
            // The beginning of another request waits until the first one has an answer.
            let sent = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}GET /", body.len());
            viewer.write_all(sent.as_bytes()).await.unwrap();
            let end = timeout(Duration::from_secs(30), viewer.read_to_end(&mut Vec::new())).await;
            assert!(end.is_ok(), "the connection ends");
        });
    }

    #[test]
    fn keys_are_hexadecimal() {
        assert_eq!(from_hex("00fF"), Some(vec![0, 255]));
        assert_eq!(from_hex(""), Some(Vec::new()));
        for text in ["0", "0g", "é0"] {
            assert_eq!(from_hex(text), None, "{text}");
        }
    }
}
