// SPDX-License-Identifier: MIT

package lock_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	lock "github.com/redis-lock/redis-lock/clients/go"
)

// certificate makes a key and a certificate for this host. It returns their files, and the pool that trusts it.
func certificate(t *testing.T) (keyFile, certFile string, trusted *x509.CertPool) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))
	file := func(kind string, content []byte) string {
		name := filepath.Join(t.TempDir(), kind+".pem")
		if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: content}), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	trusted = x509.NewCertPool()
	trusted.AddCert(must(x509.ParseCertificate(der)))
	return file("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(key))), file("CERTIFICATE", der), trusted
}

func TestLocksWorkOverTLS(t *testing.T) {
	key, cert, trusted := certificate(t)
	port := freePort()
	s := start(t, "--tls-port", fmt.Sprint(port), "--tls-key-file", key, "--tls-cert-file", cert, "--tls-ca-cert-file", cert,
		"--tls-auth-clients", "no")
	options := redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", port), TLSConfig: &tls.Config{RootCAs: trusted}}
	locks := locksOf(t, redis.NewClient(&options))
	hold := must(locks.Acquire(background, "a"))
	waited := make(chan *lock.Hold, 1)
	go func() { waited <- must(locks.Acquire(background, "a")) }()
	until(t, "a waiter", func() bool { return s.waiters("a") == 1 })
	release(t, hold)
	hold = <-waited
	if hold.ValidFor() <= 0 {
		t.Fatal("not safe")
	}
	release(t, hold)
}
