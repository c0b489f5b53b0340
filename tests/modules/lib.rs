// SPDX-License-Identifier: MIT

//! The modules are the examples of this package; the package itself has no code.
