// SPDX-License-Identifier: MIT

//! Messages on the standard error. A thread writes them, so that a full pipe without a reader never blocks the program.

use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The maximum number of messages that wait for a slow reader. Further ones are dropped.
const MAX_PENDING: usize = 100;

/// The maximum time that [`flush`] waits for a slow reader.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

static WRITER: Mutex<Option<Writer>> = Mutex::new(None);

struct Writer {
    messages: SyncSender<String>,
    done: Receiver<()>,
}

/// Queues a message for the standard error.
pub(crate) fn print(message: &str) {
    let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    let writer = writer.get_or_insert_with(start_writer);
    let _ = writer.messages.try_send(format!("lockrun: {message}\n"));
}

/// Waits until all messages are written, or until [`FLUSH_TIMEOUT`] has passed.
pub(crate) fn flush() {
    let writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Writer { messages, done }) = writer {
        drop(messages);
        let _ = done.recv_timeout(FLUSH_TIMEOUT);
    }
}

fn start_writer() -> Writer {
    let (messages, queued) = mpsc::sync_channel::<String>(MAX_PENDING);
    let (all_written, done) = mpsc::channel();
    thread::spawn(move || {
        for message in queued {
            let _ = io::stderr().write_all(message.as_bytes());
        }
        let _ = all_written.send(());
    });
    Writer { messages, done }
}
