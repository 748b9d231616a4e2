//! Reads single fields of a pod: its identity, its containers, annotations and amounts. Does not know what they mean
//! for a vendor.

use placement::{DevicePolicy, Kind, Weights};

use crate::object::{Container, Pod};
use crate::quantity::{Amount, Form, MIB, shortened};
use crate::quota_scopes::traits;

/// Why a pod's request cannot be read. The pod fits nowhere until it is changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// An invalid amount of this resource.
    #[error("container {container}: {resource}: {problem}")]
    Amount {
        /// Name of the container.
        container: String,
        /// Name of the resource.
        resource: String,
        /// The value that was read and the values that are accepted.
        problem: String,
    },
    /// An annotation with an unknown value.
    #[error("invalid {key} annotation {value:?}: {problem}")]
    Annotation {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
        /// The values that are accepted.
        problem: String,
    },
}

/// The pod's rules for every vendor, from its annotations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PodRules {
    /// The order of devices.
    pub(crate) policy: DevicePolicy,
    /// The weights in a device's score.
    pub(crate) weights: Weights,
}

/// The pod's identity. A pod without a uid is identified by namespace and name.
pub fn identity(pod: &Pod) -> placement::Pod {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    match pod.metadata.uid.as_deref() {
        Some(uid) if !uid.is_empty() => placement::Pod {
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            traits: traits(pod),
        },
        _ => placement::Pod {
            traits: traits(pod),
            ..placement::Pod::named(namespace, name)
        },
    }
}

/// The containers in the order of every list by container: init containers and sidecars, then app containers.
pub(crate) fn in_order(pod: &Pod) -> impl Iterator<Item = (&Container, Kind)> {
    let before = pod.spec.init_containers.iter().map(|container| {
        let kind = if container.is_sidecar() {
            Kind::Sidecar
        } else {
            Kind::Init
        };
        (container, kind)
    });
    let beside = pod.spec.containers.iter();
    before.chain(beside.map(|container| (container, Kind::App)))
}

/// The annotation, unless it is empty.
pub(crate) fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    let text = pod.metadata.annotations.as_ref()?.get(key)?.trim();
    (!text.is_empty()).then_some(text)
}

/// The non-empty parts of a comma-separated list.
pub fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

/// The entries of all lists under these keys.
pub(crate) fn listed(pod: &Pod, keys: &[String]) -> Vec<String> {
    keys.iter()
        .filter_map(|key| annotation(pod, key))
        .flat_map(list)
        .map(str::to_owned)
        .collect()
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
pub(crate) fn truth(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// The amount of a resource, as it is written.
pub(crate) fn amount(
    container: &Container,
    resource: Option<&str>,
) -> Result<Option<Amount>, RequestError> {
    let Some(resource) = resource else {
        return Ok(None);
    };
    let Some(quantity) = container.amount(resource) else {
        return Ok(None);
    };
    quantity
        .parse()
        .map(Some)
        .map_err(|error| wrong_amount(container, resource, error.to_string()))
}

/// The whole amount of a resource.
pub(crate) fn whole(
    container: &Container,
    resource: Option<&str>,
) -> Result<Option<i64>, RequestError> {
    let Some(amount) = amount(container, resource)? else {
        return Ok(None);
    };
    match amount.whole().and_then(|whole| i64::try_from(whole).ok()) {
        Some(whole) => Ok(Some(whole)),
        None => {
            let resource = resource.unwrap_or_default();
            let written = written(container, resource);
            Err(wrong_amount(
                container,
                resource,
                format!("{written} is no whole number; write one such as 1"),
            ))
        }
    }
}

/// The amount of a memory resource in MiB: with a binary suffix a number of bytes, otherwise a number of units.
pub(crate) fn mebibytes(
    container: &Container,
    resource: Option<&str>,
    unit_mib: u64,
) -> Result<Option<u64>, RequestError> {
    const MIB_BYTES: i128 = MIB as i128;
    const MOST_MIB: i128 = i32::MAX as i128;
    let Some(amount) = amount(container, resource)? else {
        return Ok(None);
    };
    let resource = resource.unwrap_or_default();
    let wrong = |problem: &str| {
        let written = written(container, resource);
        Err(wrong_amount(
            container,
            resource,
            format!("{written} {problem}"),
        ))
    };
    if amount.is_negative() {
        return wrong("is below 0; write 0 for the whole device, or a number of MiB");
    }
    let Some(whole) = amount.whole() else {
        return wrong("is no whole number; write a number of MiB such as 3000, or 16Gi");
    };
    let mib = match amount.form {
        Form::Binary if whole % MIB_BYTES == 0 => whole / MIB_BYTES,
        Form::Binary => return wrong("is no whole number of MiB; write one such as 16Gi or 512Mi"),
        Form::Decimal => whole.saturating_mul(i128::from(unit_mib)),
    };
    match u64::try_from(mib) {
        Ok(mib) if i128::from(mib) <= MOST_MIB => Ok(Some(mib)),
        _ => wrong(
            "is more than 2147483647 MiB, the most of one device; a number without a suffix counts MiB, so write 16Gi for 16 GiB",
        ),
    }
}

fn written(container: &Container, resource: &str) -> String {
    container
        .amount(resource)
        .map(|quantity| shortened(&quantity.0))
        .unwrap_or_default()
}

pub(crate) fn wrong_amount(container: &Container, resource: &str, problem: String) -> RequestError {
    RequestError::Amount {
        container: container.name.clone(),
        resource: resource.to_owned(),
        problem,
    }
}
