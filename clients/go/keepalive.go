// SPDX-License-Identifier: MIT

//go:build go1.23

package lock

import (
	"net"
	"time"
)

// keepAlive has TCP find within half a minute that nobody is there.
func keepAlive(conn *net.TCPConn) {
	_ = conn.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3})
}
