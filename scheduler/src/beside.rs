//! The health of the kube-scheduler in the same pod. A probe of the kubelet asks this process for it, because one probe
//! has to answer for both: a kube-scheduler without its extender must end, so that another replica gets its Lease.

use std::fmt;
use std::time::Duration;

use axum::http::uri::PathAndQuery;
use axum::http::{Request, Uri};
use tokio::time::timeout;

/// How long kube-scheduler may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The kube-scheduler beside this process.
#[derive(Clone)]
pub struct Beside {
    client: kube::Client,
    path: String,
}

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Beside").field(&self.path).finish()
    }
}

impl Beside {
    /// Asks at this address, such as `https://127.0.0.1:10259/healthz`.
    ///
    /// # Errors
    ///
    /// No client can be made.
    pub fn new(address: &Uri) -> Result<Self, kube::Error> {
        let mut config = kube::Config::new(without_path(address));
        config.default_retry = false;
        config.connect_timeout = Some(PATIENCE);
        config.read_timeout = Some(PATIENCE);
        // kube-scheduler signs its certificate itself. The kubelet does not verify it in a probe, either: the answer is
        // a single bit, and comes from the same pod.
        config.accept_invalid_certs = true;
        config.root_cert = Some(Vec::new());
        Ok(Self {
            client: kube::Client::try_from(config)?,
            path: address.path().to_owned(),
        })
    }

    /// Whether it says that it is healthy.
    ///
    /// # Errors
    ///
    /// Its answer, or why there is none.
    pub(crate) async fn is_healthy(&self) -> anyhow::Result<()> {
        let request = Request::get(&self.path).body(Vec::new())?;
        match timeout(PATIENCE, self.client.request_text(request)).await {
            Ok(answered) => Ok(answered.map(drop)?),
            Err(_elapsed) => anyhow::bail!("no answer within {} s", PATIENCE.as_secs()),
        }
    }
}

/// The address without its path: a client would put the path before every other one.
fn without_path(address: &Uri) -> Uri {
    let mut parts = address.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static("/"));
    Uri::from_parts(parts).unwrap_or_else(|_| address.clone())
}
