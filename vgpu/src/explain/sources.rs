//! Where the answer comes from: a running scheduler, an API server, or a file.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail, ensure};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::client::Body;
use kube::config::AuthInfo;
use kube::{Client, Config};
use kube_access::AccessError;
use kube_api::config::DeviceConfig;
use kube_api::object::{Node, Pod, ResourceQuota};
use kube_api::request::Defaults;
use kube_api::resource_claims::GROUP;
use kube_api::vendor::{Switches, Vendors};
use scheduler::explain::{AnswerDetail, Explained, View, explain};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::explain::ExplainArgs;

/// How many objects one answer of an API server holds.
const PAGE: u32 = 500;

/// More than any cluster's state has.
const MOST_STATE_BYTES: u64 = 4 << 30;

/// Asks where the arguments say.
pub(super) async fn ask(
    args: &ExplainArgs,
    namespace: Option<&str>,
    name: &str,
) -> anyhow::Result<Explained> {
    if let Some(server) = &args.server {
        return from_scheduler(args, server, namespace.unwrap_or("default"), name).await;
    }
    let (pod, view) = match &args.state {
        Some(file) => from_file(args, file, namespace.unwrap_or("default"), name)?,
        None => from_cluster(args, namespace, name).await?,
    };
    let detail = if args.all {
        AnswerDetail::all()
    } else {
        AnswerDetail::default()
    };
    Ok(explain(&view, &pod, detail))
}

async fn from_scheduler(
    args: &ExplainArgs,
    server: &str,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Explained> {
    let server = server.trim_end_matches('/');
    ensure!(
        server.starts_with("http://") || server.starts_with("https://"),
        "--server {server:?} is no address such as http://127.0.0.1:8080"
    );
    let url = server.parse().with_context(|| {
        format!("--server {server:?} is no address such as http://127.0.0.1:8080")
    })?;
    let path = format!("/explain?pod={namespace}/{name}&all={}", args.all);
    let mut config = Config::new(url);
    let (mut status, mut body) = answer(&config, &path, server).await?;
    // A token goes only to a scheduler that asks for one.
    if status == http::StatusCode::UNAUTHORIZED {
        config.auth_info = token(args, &config.cluster_url, server).await?;
        (status, body) = answer(&config, &path, server).await?;
    }
    if status.is_success() {
        return serde_json::from_slice(&body)
            .with_context(|| format!("{server} answered with something else than an explanation: is it a scheduler of the same version?"));
    }
    let said: Option<Value> = serde_json::from_slice(&body).ok();
    let reason = said.as_ref().and_then(|said| said.get("Error")?.as_str());
    match reason {
        Some(reason) => bail!("{server}: {reason}"),
        None => bail!("{server} answered {status}: is it a scheduler?"),
    }
}

async fn answer(
    config: &Config,
    path: &str,
    server: &str,
) -> anyhow::Result<(http::StatusCode, Vec<u8>)> {
    let client = Client::try_from(config.clone())
        .with_context(|| format!("the token for {server} cannot be had"))?;
    let request = http::Request::get(path)
        .header("accept", "application/json")
        .body(Body::empty())?;
    let answer = client
        .send(request)
        .await
        .with_context(|| format!("cannot ask {server}"))?;
    let status = answer.status();
    let body = answer.into_body().collect_bytes().await;
    let body = body.with_context(|| format!("{server} broke off its answer"))?;
    Ok((status, body.to_vec()))
}

/// Whether what is sent there stays on this machine or is encrypted.
fn keeps_secrets(url: &http::Uri) -> bool {
    let host = url.host().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    url.scheme_str() == Some("https")
        || host == "localhost"
        || address.is_ok_and(|address| address.is_loopback())
}

/// The token of the file, or of the kubeconfig's user.
async fn token(args: &ExplainArgs, url: &http::Uri, server: &str) -> anyhow::Result<AuthInfo> {
    ensure!(
        keeps_secrets(url),
        "{server} asks for a token, which would cross the network unencrypted: run \
         kubectl -n NAMESPACE port-forward deploy/vgpu-scheduler 9395, and give --server http://127.0.0.1:9395"
    );
    if let Some(file) = &args.token_file {
        let shown = file.display();
        let text =
            std::fs::read_to_string(file).with_context(|| format!("--token-file {shown}"))?;
        let token = text.trim();
        ensure!(
            !token.is_empty(),
            "--token-file {shown} is empty; it holds one token"
        );
        return Ok(AuthInfo {
            token: Some(token.to_owned().into()),
            ..AuthInfo::default()
        });
    }
    let asks = || format!("{server} asks for a token");
    let user = config(args).await.with_context(asks)?.auth_info;
    ensure!(
        user.token.is_some()
            || user.token_file.is_some()
            || user.exec.is_some()
            || user.auth_provider.is_some(),
        "{server} asks for a token, and the kubeconfig's user has none (it has a certificate or a password): give \
         --token-file FILE, for example of kubectl create token ACCOUNT"
    );
    Ok(AuthInfo {
        token: user.token,
        token_file: user.token_file,
        exec: user.exec,
        auth_provider: user.auth_provider,
        ..AuthInfo::default()
    })
}

/// The settings that the computation here uses.
fn settings(args: &ExplainArgs) -> anyhow::Result<(Arc<Vendors>, Defaults)> {
    let config = match &args.device_config {
        None => DeviceConfig::standard(),
        Some(file) => {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            DeviceConfig::parse(&text).with_context(|| file.display().to_string())?
        }
    };
    let everything = Switches {
        ascend: true,
        iluvatar: true,
    };
    let vendors = Vendors::new(config, everything).context("the device configuration")?;
    let defaults = Defaults {
        node_policy: args.node_scheduler_policy.clone(),
        device_policy: args.gpu_scheduler_policy.clone(),
    };
    Ok((Arc::new(vendors), defaults))
}

fn view(args: &ExplainArgs, objects: Objects) -> anyhow::Result<View> {
    let (vendors, defaults) = settings(args)?;
    let mut view = View::of(
        objects.nodes,
        &objects.pods,
        objects.quotas,
        vendors,
        defaults,
    );
    view.scheduler_name.clone_from(&args.scheduler_name);
    view.node_selector.clone_from(&args.node_label_selector);
    view.notes = objects.notes;
    view.claims = objects.claims;
    Ok(view)
}

#[derive(Default)]
struct Objects {
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    quotas: Vec<ResourceQuota>,
    claims: Option<Vec<Value>>,
    notes: Vec<String>,
}

async fn from_cluster(
    args: &ExplainArgs,
    namespace: Option<&str>,
    name: &str,
) -> anyhow::Result<(Pod, View)> {
    let config = config(args).await?;
    let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
    let server = config.cluster_url.to_string();
    let client = Client::try_from(config)?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pod = pods
        .get_opt(name)
        .await
        .map_err(|error| refused(error, &server, "read the pod"))?
        .with_context(|| format!("there is no pod {name} in namespace {namespace} ({server})"))?;
    let placed = ListParams::default()
        .fields("spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed");
    let mut objects = Objects {
        nodes: list(&Api::all(client.clone()), ListParams::default())
            .await
            .map_err(|error| refused(error, &server, "list nodes"))?,
        pods: list(&Api::all(client.clone()), placed)
            .await
            .map_err(|error| refused(error, &server, "list pods"))?,
        ..Objects::default()
    };
    if !pod.spec.resource_claims.is_empty() {
        let kind = GroupVersionKind::gvk(GROUP, "v1", "ResourceClaim");
        let resource = ApiResource::from_gvk(&kind);
        let claims: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), &namespace, &resource);
        match list(&claims, ListParams::default()).await {
            Ok(claims) => {
                let values = claims.into_iter().map(serde_json::to_value);
                objects.claims = Some(values.collect::<Result<_, _>>()?);
            }
            Err(error) => objects.notes.push(format!(
                "ResourceClaims could not be read ({error}): none was looked at"
            )),
        }
    }
    let quotas: Api<ResourceQuota> = Api::namespaced(client, &namespace);
    match list(&quotas, ListParams::default()).await {
        Ok(quotas) => objects.quotas = quotas,
        Err(error) => objects.notes.push(format!(
            "quotas could not be read ({error}): none was looked at"
        )),
    }
    Ok((pod, view(args, objects)?))
}

async fn config(args: &ExplainArgs) -> Result<Config, AccessError> {
    kube_access::config(
        args.kubeconfig.as_deref(),
        args.context.as_deref(),
        "give --kubeconfig FILE, --server URL or --state FILE",
    )
    .await
}

fn refused(error: kube::Error, server: &str, what: &str) -> anyhow::Error {
    match &error {
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => anyhow!(
            "this account may not {what} ({}); use an account with that right, or ask the scheduler: --server URL",
            status.message
        ),
        kube::Error::Api(status) => anyhow!("cannot {what}: {}", status.message),
        _ => anyhow::Error::from(error).context(format!("cannot {what} from {server}")),
    }
}

/// All of them, page by page.
async fn list<K>(api: &Api<K>, params: ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = params.limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&params).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

fn from_file(
    args: &ExplainArgs,
    file: &Path,
    namespace: &str,
    name: &str,
) -> anyhow::Result<(Pod, View)> {
    let shown = file.display();
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin()
            .take(MOST_STATE_BYTES)
            .read_to_string(&mut text)
    } else {
        File::open(file).and_then(|file| file.take(MOST_STATE_BYTES).read_to_string(&mut text))
    };
    read.with_context(|| format!("cannot read {shown}"))?;
    let objects = objects(&text).with_context(|| format!("cannot understand {shown}"))?;
    let found = objects.pods.iter().find(|pod| {
        let meta = &pod.metadata;
        meta.name.as_deref() == Some(name) && namespace_of(pod) == namespace
    });
    let pod = found
        .cloned()
        .with_context(|| format!("{shown} has no pod {name} in namespace {namespace}"))?;
    Ok((pod, view(args, objects)?))
}

fn namespace_of(pod: &Pod) -> &str {
    match pod.metadata.namespace.as_deref() {
        None | Some("") => "default",
        Some(namespace) => namespace,
    }
}

/// A state as `--embedded` reads it, or a list as kubectl prints it.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StateFile {
    nodes: Option<Vec<Node>>,
    pods: Option<Vec<Pod>>,
    resource_quotas: Option<Vec<ResourceQuota>>,
    items: Option<Vec<Value>>,
}

fn objects(text: &str) -> anyhow::Result<Objects> {
    let state: StateFile = serde_json::from_str(text).context(
        "expected {\"nodes\":[…],\"pods\":[…],\"resourceQuotas\":[…]}, or a list as kubectl get -o json prints it",
    )?;
    let mut objects = Objects {
        nodes: state.nodes.unwrap_or_default(),
        pods: state.pods.unwrap_or_default(),
        quotas: state.resource_quotas.unwrap_or_default(),
        claims: None,
        notes: Vec::new(),
    };
    for (position, item) in state.items.into_iter().flatten().enumerate() {
        let kind = item.get("kind").and_then(Value::as_str).unwrap_or_default();
        let at = || format!("items[{position}]");
        match kind {
            "Node" => objects
                .nodes
                .push(serde_json::from_value(item).with_context(at)?),
            "Pod" => objects
                .pods
                .push(serde_json::from_value(item).with_context(at)?),
            "ResourceClaim" => objects.claims.get_or_insert_default().push(item),
            "ResourceQuota" => objects
                .quotas
                .push(serde_json::from_value(item).with_context(at)?),
            _ => {}
        }
    }
    for pod in &mut objects.pods {
        let namespace = namespace_of(pod).to_owned();
        pod.metadata.namespace = Some(namespace);
    }
    for quota in &mut objects.quotas {
        if quota
            .metadata
            .namespace
            .as_deref()
            .unwrap_or_default()
            .is_empty()
        {
            quota.metadata.namespace = Some("default".to_owned());
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leaves_this_machine_over_tls_alone() {
        for (url, expected) in [
            ("http://127.0.0.1:9395", true),
            ("http://127.8.9.1:9395", true),
            ("http://localhost:9395", true),
            ("http://[::1]:9395", true),
            ("https://scheduler.example.com", true),
            ("http://10.0.0.5:9395", false),
            ("http://[fd00::1]:9395", false),
            ("http://localhost.example.com:9395", false),
            ("http://127.0.0.1.example.com", false),
        ] {
            assert_eq!(keeps_secrets(&url.parse().unwrap()), expected, "{url}");
        }
    }
}
