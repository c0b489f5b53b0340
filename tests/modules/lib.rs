// SPDX-License-Identifier: MIT

//! The examples of this package are modules; the package has no other code.
