// SPDX-License-Identifier: MIT

//! Histories that once failed.
