//! The kubelet's side: how it finds the driver, and both versions of each service.

use super::*;
use crate::dra::service::Registered;
use crate::proto::dra_health::NodeWatchResourcesRequest;
use crate::proto::dra_health::dra_resource_health_client::DraResourceHealthClient;
use crate::proto::dra_health_v1;
use crate::proto::dra_health_v1::dra_resource_health_client::DraResourceHealthClient as DraResourceHealthClientV1;
use crate::proto::dra_v1beta1;
use crate::proto::dra_v1beta1::dra_plugin_client::DraPluginClient as DraPluginClientV1beta1;
use crate::proto::plugin_registration::registration_client::RegistrationClient;
use crate::proto::plugin_registration::{InfoRequest, RegistrationStatus};

#[tokio::test]
async fn kubelet_finds_the_driver_and_takes_it() {
    let world = World::new();
    let driver = world.driver().await;
    let mut registration = driver.sockets.registration();
    let mut kubelet = RegistrationClient::new(connect(&driver.finding).await.unwrap());

    let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();

    assert_eq!(info.r#type, "DRAPlugin");
    assert_eq!(info.name, "gpu.vgpu.io");
    assert_eq!(info.endpoint, driver.calls.display().to_string());
    assert_eq!(
        info.supported_versions,
        [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth"
        ]
    );
    assert_eq!(*registration.borrow_and_update(), Registered::NotYet);
    let status = RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    kubelet.notify_registration_status(status).await.unwrap();
    assert_eq!(*registration.borrow_and_update(), Registered::Accepted);

    // A kubelet that begins anew may clear its folder.
    std::fs::remove_file(&driver.finding).unwrap();
    eventually(|| driver.finding.exists()).await;
    let (finding, calls) = (driver.finding.clone(), driver.calls.clone());
    driver.end().await;
    assert!(!finding.exists() && !calls.exists());
}

#[tokio::test]
async fn older_kubelets_are_served_too() {
    let world = World::new();
    world.objects.claim("share", &[("gpu", 1, 1024, 0)]);
    world.objects.pod(&[("work", &[("share", None)])]);
    let driver = world.driver().await;
    let mut kubelet = DraPluginClientV1beta1::new(connect(&driver.calls).await.unwrap());
    let claim = || dra_v1beta1::Claim {
        namespace: String::from("default"),
        uid: String::from("u-share"),
        name: String::from("share"),
    };

    let request = dra_v1beta1::NodePrepareResourcesRequest {
        claims: vec![claim()],
    };
    let answer = kubelet.node_prepare_resources(request).await.unwrap();

    let answer = answer.into_inner().claims.remove("u-share").unwrap();
    assert_eq!(answer.error, "");
    assert_eq!(answer.devices[0].device_name, device_name(GPUS[1]));
    let request = dra_v1beta1::NodeUnprepareResourcesRequest {
        claims: vec![claim()],
    };
    let answer = kubelet.node_unprepare_resources(request).await.unwrap();
    assert_eq!(answer.into_inner().claims["u-share"].error, "");
    driver.end().await;
}

#[tokio::test]
async fn kubelet_hears_of_every_change_of_health() {
    let world = World::new();
    let driver = world.driver().await;
    let mut kubelet = DraResourceHealthClient::new(connect(&driver.calls).await.unwrap());
    let request = NodeWatchResourcesRequest {};
    let mut stream = kubelet
        .node_watch_resources(request)
        .await
        .unwrap()
        .into_inner();
    // The GPUs and their health are told as soon as there is a listener, perhaps twice.
    let first = stream.message().await.unwrap().unwrap();
    assert!(first.devices.iter().all(|it| it.health == 1));

    world.makes_sick(1);

    let told = async {
        loop {
            let next = stream.message().await.unwrap().unwrap();
            let health: Vec<i32> = next.devices.iter().map(|it| it.health).collect();
            if health == [1, 2] {
                return next.devices[1].message.clone();
            }
        }
    };
    let told = tokio::time::timeout(Duration::from_secs(30), told).await;
    assert_eq!(told.unwrap(), "XID 79");
    // Newer kubelets ask for the same by another name.
    let mut newer = DraResourceHealthClientV1::new(connect(&driver.calls).await.unwrap());
    let request = dra_health_v1::NodeWatchResourcesRequest {};
    let stream = newer.node_watch_resources(request).await.unwrap();
    let first = stream.into_inner().message().await.unwrap().unwrap();
    let said = first.devices.iter();
    let said: Vec<(i32, &str)> = said.map(|it| (it.health, it.message.as_str())).collect();
    assert_eq!(said, [(1, ""), (2, "XID 79")]);
    driver.end().await;
}
