//! The routes of the assigner's page, over a [`DeviceSource`]. They only read.

use std::convert::Infallible;
use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use futures_util::Stream;

use super::DeviceSource;
use super::view::{DeviceDetail, DeviceList, PART, device_detail, device_list};
use crate::frame::Shell;
use crate::pages::{GonePart, ProblemPage};
use crate::serve::list::{ListQueryResult, addressed, asked};
use crate::serve::stream::stream;
use crate::serve::{dressed, print, shown};

/// The topics of the stream.
const TOPICS: [&str; 1] = ["devices"];

type SharedDeviceSource = Arc<dyn DeviceSource>;

#[derive(Debug, Template)]
#[template(path = "assigner/devices.html")]
struct DevicesPage {
    shell: Shell,
    list: DeviceList,
}

#[derive(Debug, Template)]
#[template(path = "assigner/devices_part.html")]
struct DevicesPart {
    list: DeviceList,
}

#[derive(Debug, Template)]
#[template(path = "assigner/device.html")]
struct DevicePage {
    shell: Shell,
    device: DeviceDetail,
}

#[derive(Debug, Template)]
#[template(path = "assigner/device_part.html")]
struct DevicePart {
    device: DeviceDetail,
}

/// The routes of the assigner's page: `/`, and everything else below `/page/`. The caller merges them with the other
/// routes of its listener.
pub fn router(source: Arc<dyn DeviceSource>) -> Router {
    let routes = Router::new()
        .route("/", get(devices))
        .route(PART, get(devices_part))
        .route("/page/devices/{uuid}", get(device))
        .route("/page/part/devices/{uuid}", get(device_part))
        .route("/page/events", get(events))
        .with_state(source);
    dressed(routes)
}

async fn events(
    State(site): State<SharedDeviceSource>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let changed = site.changes();
    let version = changed.clone();
    stream(changed, &TOPICS, move || vec![*version.borrow()])
}

fn shell(title: &str, seen: u64) -> Shell {
    Shell {
        title: title.to_owned(),
        brand: "vgpu assigner",
        seen,
        topics: TOPICS.join(" "),
        ..Shell::default()
    }
}

async fn devices(State(site): State<SharedDeviceSource>, query: ListQueryResult) -> Response {
    let inventory = site.inventory();
    shown(&DevicesPage {
        shell: shell("GPU Device Assignment", inventory.version),
        list: device_list(&inventory, &asked(query)),
    })
}

async fn devices_part(
    State(site): State<SharedDeviceSource>,
    headers: HeaderMap,
    query: ListQueryResult,
) -> Response {
    let query = asked(query);
    let list = device_list(&site.inventory(), &query);
    addressed(&headers, &query, "/", shown(&DevicesPart { list }))
}

fn found(site: &SharedDeviceSource, uuid: &str) -> (u64, Option<DeviceDetail>) {
    let inventory = site.inventory();
    let history = site.history(uuid).unwrap_or_default();
    (inventory.version, device_detail(&inventory, uuid, &history))
}

async fn device(State(site): State<SharedDeviceSource>, Path(uuid): Path<String>) -> Response {
    match found(&site, &uuid) {
        (seen, Some(device)) => shown(&DevicePage {
            shell: shell(&format!("{uuid} – GPU Device Assignment"), seen),
            device,
        }),
        (seen, None) => print(
            StatusCode::NOT_FOUND,
            &ProblemPage {
                shell: shell("Not found – GPU Device Assignment", seen),
                heading: "Not found".to_owned(),
                what: format!("There is no device {uuid}."),
            },
        ),
    }
}

async fn device_part(State(site): State<SharedDeviceSource>, Path(uuid): Path<String>) -> Response {
    match found(&site, &uuid).1 {
        Some(device) => shown(&DevicePart { device }),
        None => shown(&GonePart {
            id: "device",
            what: format!("Device {uuid} does not exist any more."),
        }),
    }
}
