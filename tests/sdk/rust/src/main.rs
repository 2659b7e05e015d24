// A TLS handshake with Rust's own TLS, as Rust clients do it: `tls-client CA.crt HOST PORT`.
// Prints the negotiated protocol, or the reason of the refusal with exit code 1.
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let (authority, host, port) = (&arguments[1], arguments[2].clone(), &arguments[3]);
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority).expect("the CA's file") {
        roots.add(certificate.expect("PEM")).expect("a certificate");
    }
    let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut socket = TcpStream::connect(format!("127.0.0.1:{port}")).expect("a connection");
    let name = ServerName::try_from(host).expect("a host name");
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).expect("a client");
    let mut stream = rustls::Stream::new(&mut connection, &mut socket);
    if let Err(error) = stream.flush().and_then(|()| stream.conn.complete_io(stream.sock).map(|_| ())) {
        eprintln!("{error}");
        std::process::exit(1);
    }
    println!("{:?}", connection.protocol_version().expect("a finished handshake"));
}
