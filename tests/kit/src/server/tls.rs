// SPDX-License-Identifier: MIT

//! A certificate authority, with certificates for a server and for a client.

use std::process::Command;

use tempfile::TempDir;

use super::Server;

const SIGN: &str = "
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.crt
for name in server client; do
    openssl req -newkey rsa:2048 -nodes -subj /CN=$name -keyout $name.key -out $name.csr
    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\\n' >$name.ext
    openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile $name.ext -out $name.crt
done
";

pub struct Certificates(TempDir);

impl Certificates {
    pub fn sign() -> Certificates {
        Certificates::create(SIGN)
    }

    /// The certificate of the server is its own authority, with this constraint.
    pub fn self_signed(constraint: &str) -> Certificates {
        Certificates::create(&format!(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
             -addext basicConstraints=critical,{constraint} -keyout server.key -out server.crt; cp server.crt ca.crt"
        ))
    }

    fn create(script: &str) -> Certificates {
        let dir = tempfile::tempdir().unwrap();
        let made = Command::new("sh").args(["-euc", script]).current_dir(dir.path()).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        Certificates(dir)
    }

    pub fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(name)).unwrap()
    }

    /// Makes the server accept TLS too, from clients with a certificate of the authority. Returns the port.
    pub fn serve(&self, server: &Server) -> u16 {
        let mut client = server.client();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        // The server accepts the three settings only in one call.
        let files =
            [("tls-cert-file", "server.crt"), ("tls-key-file", "server.key"), ("tls-ca-cert-file", "ca.crt")];
        let set = files.map(|(setting, name)| format!("{setting} {}", self.file(name))).join(" ");
        assert_eq!(client.call(&format!("CONFIG SET {set}")), "OK");
        assert_eq!(client.call(&format!("CONFIG SET tls-port {port}")), "OK");
        port
    }
}
