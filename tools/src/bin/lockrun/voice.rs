// SPDX-License-Identifier: MIT

//! What is said on the standard error. Nobody may listen, and the pipe be full: that must not keep anything waiting.

use std::io::{self, Write};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// As many sentences wait for a slow reader; what is more is not said.
const WAITING: usize = 100;

/// How long the end of the program waits for a slow reader.
const PATIENCE: Duration = Duration::from_millis(500);

static SPEAKER: Mutex<Option<Speaker>> = Mutex::new(None);

struct Speaker {
    sentences: SyncSender<String>,
    done: Receiver<()>,
}

/// Says a sentence, as soon as somebody listens.
pub(crate) fn say(sentence: &str) {
    let mut speaker = SPEAKER.lock().unwrap_or_else(PoisonError::into_inner);
    let speaker = speaker.get_or_insert_with(begin);
    let _ = speaker.sentences.try_send(format!("lockrun: {sentence}\n"));
}

/// Waits until all is said, or nobody listens.
pub(crate) fn finish() {
    let speaker = SPEAKER.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Speaker { sentences, done }) = speaker {
        drop(sentences);
        let _ = done.recv_timeout(PATIENCE);
    }
}

fn begin() -> Speaker {
    let (sentences, to_say) = mpsc::sync_channel::<String>(WAITING);
    let (all_said, done) = mpsc::channel();
    thread::spawn(move || {
        for sentence in to_say {
            let _ = io::stderr().write_all(sentence.as_bytes());
        }
        let _ = all_said.send(());
    });
    Speaker { sentences, done }
}
