// SPDX-License-Identifier: MIT
//! A model of the session protocol: a server, clients, and a network between them. README.md has the rules.

pub mod calls;
pub mod client;
mod client_steps;
mod handlers;
pub mod lock;
pub mod network;
mod normal_form;
pub mod properties;
pub mod rules;
pub mod scenario;
pub mod scenarios;
pub mod search;
pub mod server;
mod timers;
pub mod world;
