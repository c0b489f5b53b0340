// SPDX-License-Identifier: MIT

//go:build !go1.23

package lock

import (
	"net"
	"time"
)

// keepAlive has TCP look every 10 seconds. How often is the system's affair, before Go 1.23.
func keepAlive(conn *net.TCPConn) {
	_ = conn.SetKeepAlive(true)
	_ = conn.SetKeepAlivePeriod(10 * time.Second)
}
