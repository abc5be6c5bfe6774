//! TLS: certificate and key of a server, which can be read again while it runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Certificate and key of a server. Clones share them.
#[derive(Clone)]
pub struct Tls(Arc<Files>);

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Reads a chain of certificates and its private key, both PEM. An error names the file, or says that they do not
    /// belong together.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, String> {
        let config = RwLock::new(config(certificate, key)?);
        Ok(Self(Arc::new(Files {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            config,
        })))
    }

    /// Reads the files again, for connections from now on. After an error the former ones stay in use.
    pub fn reload(&self) -> Result<(), String> {
        let config = config(&self.0.certificate, &self.0.key)?;
        *self
            .0
            .config
            .write()
            .unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let config = self.0.config.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&config).into()
    }
}

fn config(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>, String> {
    let failed =
        |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let chain = CertificateDer::pem_file_iter(certificate);
    let chain = chain.and_then(|chain| chain.collect::<Result<Vec<_>, _>>());
    let chain = chain.map_err(|error| failed(certificate, &error))?;
    if chain.is_empty() {
        return Err(failed(certificate, &"no certificate is in the file"));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        pem::Error::NoItemsFound => failed(key, &"no private key is in the file"),
        error => failed(key, &error),
    })?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| failed(certificate, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
