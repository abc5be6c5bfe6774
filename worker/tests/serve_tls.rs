//! `serve`: TLS. The certificates of `tests/data/tls` are their own roots: `openssl req -x509 -newkey ec -pkeyopt
//! ec_paramgen_curve:P-256 -nodes -days 36500 -subj /CN=first -addext subjectAltName=DNS:localhost -addext
//! basicConstraints=critical,CA:FALSE`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use worker_orcd::serve::{Ended, Tls};

use http::{Reply, Served, request};

#[path = "support/http.rs"]
mod http;

fn data(file: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls");
    folder.join(file)
}

/// Asks a server that has the certificate `name`; None if it has another one.
fn ask(served: &Served, name: &str, text: &str) -> Option<Reply> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(data(name)).expect("a certificate");
    roots.add(certificate).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = "localhost".try_into().expect("a name");
    let connection = ClientConnection::new(Arc::new(config), host).expect("a client");
    let mut stream = StreamOwned::new(connection, served.connect());
    stream.write_all(text.as_bytes()).ok()?;
    Some(Reply::read(stream))
}

#[test]
fn connections_are_encrypted() {
    let tls = Tls::read(&data("first.crt"), &data("first.key")).expect("a certificate");
    let served = Served::with(|setup| {
        setup.options.tls = Some(tls);
        setup.options.header_timeout = Duration::from_millis(200);
    });
    assert!(
        served.url.starts_with("https://127.0.0.1:"),
        "{}",
        served.url
    );
    let body = json!({ "model": "scripted", "prompt": "say hi", "stream": true });
    let text = request("POST /v1/completions", &[], &body.to_string());

    let reply = ask(&served, "first.crt", &text).expect("an answer");

    assert_eq!(reply.events().last().map(String::as_str), Some("[DONE]"));
    let plain = served.request("GET /health/live", &[], "");
    assert_eq!(plain.status, 0, "{plain:?}");
    // Who never begins is left.
    assert_eq!(Reply::read(served.connect()).status, 0);
    served.stop();
    assert_eq!(served.ended(), Ended::Drained);
}

#[test]
fn a_certificate_is_replaced_while_the_server_runs() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tls");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (certificate, key) = (folder.join("certificate"), folder.join("key"));
    let copy = |name: &str, kind: &str, target: &Path| {
        std::fs::copy(data(&format!("{name}.{kind}")), target).expect("a file");
    };
    copy("first", "crt", &certificate);
    copy("first", "key", &key);
    let tls = Tls::read(&certificate, &key).expect("a certificate");
    let reload = tls.clone();
    let served = Served::with(|setup| setup.options.tls = Some(tls));
    let live = request("GET /health/live", &[], "");
    let has = |name: &str| ask(&served, name, &live).is_some_and(|reply| reply.status == 200);
    assert!(has("first.crt") && !has("second.crt"));

    copy("second", "crt", &certificate);
    let message = reload.reload().expect_err("a key of another certificate");
    assert!(message.contains("certificate: "), "{message}");
    assert!(has("first.crt"), "it is still in use");
    copy("second", "key", &key);
    reload.reload().expect("they belong together");

    assert!(has("second.crt") && !has("first.crt"));
    std::fs::write(&key, "junk").expect("a file");
    let message = reload.reload().expect_err("no key");
    assert!(
        message.ends_with("key: no private key is in the file"),
        "{message}"
    );
    std::fs::write(&certificate, "junk").expect("a file");
    let message = reload.reload().expect_err("no certificate");
    assert!(
        message.ends_with("certificate: no certificate is in the file"),
        "{message}"
    );
    assert!(has("second.crt"));
}
