//! Claims, their templates and DeviceClasses as a user writes them: what our driver could never give is found here,
//! before a pod waits for it. Only what is about our driver is read; the API server judges the rest.

use serde_json::Value;

use super::parameters::{Parameters, ParametersError, Source};
use super::{CLASS, CORES, DRIVER, MEMORY, MIG_CLASS, SHARES, UUID};
use crate::quantity::{Quantity, shortened};

/// The kind of an object that may name our driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// A ResourceClaim.
    Claim,
    /// A ResourceClaimTemplate.
    Template,
    /// A DeviceClass.
    Class,
}

/// What a request asks for by its DeviceClass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClassKind {
    /// A share of a whole GPU.
    Gpu,
    /// A MIG instance.
    Instance,
}

/// What is refused: where it is in the object, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct Unacceptable {
    /// The field, from the object's root.
    pub path: String,
    /// What was read, what is accepted and what to do.
    pub why: Why,
}

/// Why our driver could not give what a claim asks for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// The opaque parameters.
    #[error("the parameters {0}")]
    Parameters(#[from] ParametersError),
    /// A share without a limit.
    #[error("true is not served: a share is always limited; leave it out")]
    AdminAccess,
    /// A capacity that our devices do not have.
    #[error(
        "{0:?} is no capacity of a device of {DRIVER}; accepted: memory (bytes, such as 4Gi), cores (percent of a GPU's \
         compute time, 0 to 100) and shares (1)"
    )]
    UnknownCapacity(String),
    /// An amount of memory that no device gives.
    #[error("{0:?} is no amount of memory; accepted: a number of bytes above 0, such as 4Gi")]
    Memory(String),
    /// A share of compute time that no device gives.
    #[error(
        "{0:?} is no share of a GPU's compute time; accepted: percent from 0 (no limit) to 100"
    )]
    Cores(String),
    /// Another number of shares than one.
    #[error("{0:?} is not accepted; each device is one share: write 1, or leave it out")]
    Shares(String),
    /// A capacity that no MIG instance has.
    #[error(
        "{0:?} is no capacity of a MIG instance of {DRIVER}; accepted: memory (bytes, such as 10Gi) and cores (percent of \
         the GPU's compute time, 0 to 100): the instance has at least as much. An instance belongs to one claim"
    )]
    InstanceCapacity(String),
}

/// Finds the first thing that our driver could not give. Returns warnings for what it may not be able to give.
///
/// # Errors
/// What is refused.
pub fn check(kind: Written, object: &Value) -> Result<Vec<String>, Unacceptable> {
    let (devices, path) = match kind {
        Written::Claim => (object.pointer("/spec/devices"), "spec.devices"),
        Written::Template => (object.pointer("/spec/spec/devices"), "spec.spec.devices"),
        Written::Class => (object.get("spec"), "spec"),
    };
    let Some(devices) = devices else {
        return Ok(Vec::new());
    };
    for (at, entry) in list(devices, "config") {
        let Some(opaque) = entry.get("opaque").filter(|it| is(it, "driver", DRIVER)) else {
            continue;
        };
        let parameters = opaque.get("parameters").unwrap_or(&Value::Null);
        Parameters::default()
            .changed_by(parameters, source(kind))
            .map_err(|why| Unacceptable {
                path: format!("{path}.config[{at}].opaque.parameters"),
                why: why.into(),
            })?;
    }
    let mut warnings = Vec::new();
    for (at, request) in list(devices, "requests") {
        let name = request.get("name").and_then(Value::as_str);
        let (of, path) = (path, format!("{path}.requests[{at}]"));
        // Until v1beta1 the fields of `exactly` are the request's own.
        let exactly = match request.get("exactly") {
            Some(exactly) => (exactly, format!("{path}.exactly")),
            None => (request, path.clone()),
        };
        let alternatives = list(request, "firstAvailable")
            .map(|(at, one)| (one, format!("{path}.firstAvailable[{at}]")));
        for (asked, path) in std::iter::once(exactly).chain(alternatives) {
            let Some(class) = class(asked) else {
                continue;
            };
            amounts(class, asked, &path)?;
            let alternative = asked.get("name").and_then(Value::as_str);
            let judged = floor(class, devices, name.unwrap_or_default(), alternative, asked);
            judged.map_err(|(at, why)| Unacceptable {
                path: format!("{of}.config[{at}].opaque.parameters.floor"),
                why: why.into(),
            })?;
            // The counters keep instances apart.
            if class == ClassKind::Instance {
                continue;
            }
            let is_all = is(asked, "allocationMode", "All");
            let count = asked.get("count").and_then(Value::as_u64).unwrap_or(1);
            if count > 1 && !is_all && !are_apart(devices, name.unwrap_or_default()) {
                warnings.push(format!(
                    "{path}.count: {count} shares may be of one GPU, and the node then refuses the claim; ask for \
                     different GPUs by constraints: [{{requests: [{}], distinctAttribute: {UUID}}}]",
                    shortened(name.unwrap_or_default())
                ));
            }
        }
    }
    Ok(warnings)
}

fn source(kind: Written) -> Source {
    match kind {
        Written::Claim | Written::Template => Source::Claim,
        Written::Class => Source::Class,
    }
}

/// What a request asks for; `None` if it is not for us to judge, such as a DeviceClass of an operator.
fn class(asked: &Value) -> Option<ClassKind> {
    match asked.get("deviceClassName").and_then(Value::as_str)? {
        CLASS => Some(ClassKind::Gpu),
        MIG_CLASS => Some(ClassKind::Instance),
        _ => None,
    }
}

/// Compares the floor that the claim's configuration gives a request with the request's cap. Answers with the place of
/// the entry that is wrong.
fn floor(
    class: ClassKind,
    devices: &Value,
    request: &str,
    alternative: Option<&str>,
    asked: &Value,
) -> Result<(), (usize, ParametersError)> {
    let whole = alternative.map(|alternative| format!("{request}/{alternative}"));
    let mut all = Parameters::default();
    let mut set_by = 0;
    for (at, entry) in list(devices, "config") {
        let Some(opaque) = entry.get("opaque").filter(|it| is(it, "driver", DRIVER)) else {
            continue;
        };
        let mut named = list(entry, "requests").peekable();
        let is_meant = |(_, one): (usize, &Value)| {
            one.as_str()
                .is_some_and(|one| one == request || whole.as_deref() == Some(one))
        };
        if named.peek().is_some() && !named.any(is_meant) {
            continue;
        }
        let parameters = opaque.get("parameters").unwrap_or(&Value::Null);
        all = all
            .changed_by(parameters, Source::Claim)
            .map_err(|why| (at, why))?;
        if parameters.get("floor").is_some() {
            set_by = at;
        }
    }
    if class == ClassKind::Instance {
        return all.of_instance().map(drop).map_err(|why| (set_by, why));
    }
    let amounts = asked.pointer("/capacity/requests");
    let cores = [CORES, "gpu.vgpu.io/cores"]
        .iter()
        .find_map(|name| amounts?.get(name));
    let percent = cores.and_then(|cores| {
        let text = match cores {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let amount = Quantity(text).parse().ok()?.rounded_up();
        u32::try_from(amount).ok()
    });
    // Without an amount nothing is charged, and there is no cap.
    all.under_cap(percent.unwrap_or(0))
        .map(drop)
        .map_err(|why| (set_by, why))
}

/// Checks the amounts of one request for a device of ours.
fn amounts(class: ClassKind, asked: &Value, path: &str) -> Result<(), Unacceptable> {
    if asked.get("adminAccess") == Some(&Value::Bool(true)) {
        return Err(Unacceptable {
            path: format!("{path}.adminAccess"),
            why: Why::AdminAccess,
        });
    }
    let capacities = asked.pointer("/capacity/requests");
    for (name, amount) in capacities.and_then(Value::as_object).into_iter().flatten() {
        let refused = |why: fn(String) -> Why, read: &str| {
            Err(Unacceptable {
                path: format!("{path}.capacity.requests[{}]", shortened(name)),
                why: why(shortened(read)),
            })
        };
        let read = match amount {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let parsed = Quantity(read.clone()).parse().ok();
        let least = parsed.filter(|amount| !amount.is_negative());
        // kube-scheduler rounds an amount up to the next step.
        let whole = least.map(|amount| amount.rounded_up());
        match name.strip_prefix("gpu.vgpu.io/").unwrap_or(name) {
            MEMORY if whole.is_some_and(|bytes| bytes > 0) => {}
            MEMORY => return refused(Why::Memory, &read),
            CORES if whole.is_some_and(|percent| percent <= 100) => {}
            CORES => return refused(Why::Cores, &read),
            _ if class == ClassKind::Instance => return refused(Why::InstanceCapacity, name),
            SHARES if whole == Some(1) => {}
            SHARES => return refused(Why::Shares, &read),
            _ => return refused(Why::UnknownCapacity, name),
        }
    }
    Ok(())
}

/// Whether a constraint keeps the shares of this request on different GPUs.
fn are_apart(devices: &Value, request: &str) -> bool {
    list(devices, "constraints").any(|(_, constraint)| {
        let mut named = list(constraint, "requests").peekable();
        let covers = named.peek().is_none() || named.any(|(_, one)| *one == request);
        covers && is(constraint, "distinctAttribute", UUID)
    })
}

fn is(value: &Value, field: &str, text: &str) -> bool {
    value.get(field).and_then(Value::as_str) == Some(text)
}

fn list<'v>(value: &'v Value, field: &str) -> impl Iterator<Item = (usize, &'v Value)> {
    let list = value.get(field).and_then(Value::as_array);
    list.into_iter().flatten().enumerate()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(exactly: &Value, config: &Value) -> Value {
        json!({"devices": {"config": config, "requests": [{"name": "gpu", "exactly": exactly}]}})
    }

    fn ours(more: &Value) -> Value {
        let mut exactly =
            json!({"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 1});
        for (name, value) in more.as_object().unwrap() {
            exactly[name] = value.clone();
        }
        exactly
    }

    fn with(parameters: &Value) -> Value {
        json!([{"opaque": {"driver": DRIVER, "parameters": parameters}}])
    }

    fn judged(kind: Written, spec: Value) -> Result<Vec<String>, String> {
        let object = match kind {
            Written::Claim | Written::Class => json!({"spec": spec}),
            Written::Template => json!({"spec": {"spec": spec}}),
        };
        check(kind, &object).map_err(|why| why.to_string())
    }

    #[test]
    fn what_the_driver_gives_is_accepted() {
        let amounts = json!({"memory": "4Gi", "cores": "30", "gpu.vgpu.io/shares": "1"});
        let asked = ours(&json!({"capacity": {"requests": amounts}}));
        let parameters = with(
            &json!({"apiVersion": "gpu.vgpu.io/v1", "kind": "ShareParameters", "priority": 1}),
        );

        let spec = claim(&asked, &parameters);
        assert_eq!(judged(Written::Claim, spec.clone()), Ok(Vec::new()));
        assert_eq!(judged(Written::Template, spec), Ok(Vec::new()));
        assert_eq!(
            judged(Written::Class, json!({"config": parameters})),
            Ok(Vec::new())
        );
        assert_eq!(judged(Written::Claim, json!({})), Ok(Vec::new()));
        assert_eq!(check(Written::Template, &json!(null)), Ok(Vec::new()));
    }

    #[test]
    fn what_other_drivers_get_is_left_to_them() {
        let foreign =
            json!([{"opaque": {"driver": "gpu.example.com", "parameters": {"kind": "X"}}}]);
        let asked = json!({"deviceClassName": "gpu.example.com", "adminAccess": true,
            "capacity": {"requests": {"wheels": "4"}}});

        let spec = claim(&asked, &foreign);
        assert_eq!(judged(Written::Claim, spec), Ok(Vec::new()));
    }

    #[test]
    fn refusals_name_the_field_what_was_read_and_what_is_accepted() {
        let wrong = with(
            &json!({"apiVersion": "gpu.vgpu.io/v1", "kind": "ShareParameters", "priority": 10}),
        );
        for (kind, path) in [
            (Written::Claim, "spec.devices.config[0].opaque.parameters: "),
            (
                Written::Template,
                "spec.spec.devices.config[0].opaque.parameters: ",
            ),
        ] {
            let why = judged(kind, claim(&ours(&json!({})), &wrong)).unwrap_err();
            assert!(why.starts_with(path), "{why}");
            assert!(
                why.contains("priority 10") && why.contains("accepted"),
                "{why}"
            );
        }
        let why = judged(Written::Class, json!({"config": wrong})).unwrap_err();
        assert!(
            why.starts_with("spec.config[0].opaque.parameters: "),
            "{why}"
        );

        let at = "spec.devices.requests[0].exactly.";
        for (more, says) in [
            (json!({"adminAccess": true}), "adminAccess: true"),
            (
                json!({"capacity": {"requests": {"gpumem": "4Gi"}}}),
                "capacity.requests[gpumem]: \"gpumem\" is no capacity",
            ),
            (
                json!({"capacity": {"requests": {"memory": "0"}}}),
                "capacity.requests[memory]: \"0\" is no amount",
            ),
            (
                json!({"capacity": {"requests": {"memory": "-1Gi"}}}),
                "\"-1Gi\"",
            ),
            (
                json!({"capacity": {"requests": {"cores": "101"}}}),
                "capacity.requests[cores]: \"101\"",
            ),
            (
                json!({"capacity": {"requests": {"cores": "much"}}}),
                "\"much\"",
            ),
            (
                json!({"capacity": {"requests": {"gpu.vgpu.io/shares": 2}}}),
                "[gpu.vgpu.io/shares]: \"2\"",
            ),
        ] {
            let why = judged(Written::Claim, claim(&ours(&more), &json!([]))).unwrap_err();
            assert!(why.starts_with(at) && why.contains(says), "{why}");
        }
    }

    #[test]
    fn floor_above_the_cap_is_refused_at_its_field() {
        let fields =
            json!({"apiVersion": "gpu.vgpu.io/v1", "kind": "ShareParameters", "floor": 30});
        let mut config = with(&fields);
        let cores = |cores: &str| ours(&json!({"capacity": {"requests": {"cores": cores}}}));

        let spec = claim(&cores("30"), &config);
        assert_eq!(judged(Written::Template, spec), Ok(Vec::new()));
        for (asked, says) in [
            (cores("29"), "cores, is 29 %"),
            (ours(&json!({})), "cores, is 0 %"),
        ] {
            let why = judged(Written::Template, claim(&asked, &config)).unwrap_err();
            let at = "spec.spec.devices.config[0].opaque.parameters.floor: ";
            assert!(why.starts_with(at) && why.contains(says), "{why}");
        }
        // It is another request's.
        config[0]["requests"] = json!(["other"]);
        let spec = claim(&cores("29"), &config);
        assert_eq!(judged(Written::Claim, spec), Ok(Vec::new()));
    }

    #[test]
    fn claim_of_a_mig_instance_is_judged_as_the_driver_does() {
        let mig = |more: &Value| {
            let mut asked = ours(more);
            asked["deviceClassName"] = json!(MIG_CLASS);
            asked
        };
        let with_amounts = |amounts: Value| mig(&json!({"capacity": {"requests": amounts}}));
        let fields = |more: Value| {
            let mut fields = json!({"apiVersion": "gpu.vgpu.io/v1", "kind": "ShareParameters"});
            let more = more.as_object().unwrap().clone();
            fields.as_object_mut().unwrap().extend(more);
            with(&fields)
        };
        // A selector is kube-scheduler's to judge, whatever it says, and several instances are always different ones.
        let chosen = mig(
            &json!({"count": 2, "selectors": [{"cel": {"expression": "?"}}],
            "capacity": {"requests": {"memory": "10Gi", "gpu.vgpu.io/cores": "40"}}}),
        );
        let spec = claim(&chosen, &fields(json!({"priority": 2})));
        assert_eq!(judged(Written::Claim, spec.clone()), Ok(Vec::new()));
        assert_eq!(judged(Written::Template, spec), Ok(Vec::new()));

        let at = "spec.devices.requests[0].exactly.";
        for (asked, says) in [
            (mig(&json!({"adminAccess": true})), "adminAccess: true"),
            (
                with_amounts(json!({"memory": "0"})),
                "capacity.requests[memory]: \"0\" is no amount",
            ),
            (with_amounts(json!({"cores": "101"})), "\"101\""),
            (
                with_amounts(json!({"shares": "1"})),
                "[shares]: \"shares\" is no capacity of a MIG instance",
            ),
            (
                with_amounts(json!({"gpu.vgpu.io/profile": "1"})),
                "accepted: memory",
            ),
        ] {
            let why = judged(Written::Claim, claim(&asked, &json!([]))).unwrap_err();
            assert!(why.starts_with(at) && why.contains(says), "{why}");
        }
        // No amount makes room for a floor.
        let asked = with_amounts(json!({"cores": "40"}));
        for (more, says) in [
            (
                json!({"floor": 20}),
                ".floor: the parameters have the floor 20, but the hardware",
            ),
            (
                json!({"priority": 10}),
                ": the parameters have the priority 10",
            ),
            (json!({"profile": "1g"}), "unknown field `profile`"),
        ] {
            let why = judged(Written::Template, claim(&asked, &fields(more))).unwrap_err();
            let at = "spec.spec.devices.config[0].opaque.parameters";
            assert!(why.starts_with(at) && why.contains(says), "{why}");
        }
        // An alternative, and the fields of v1beta1.
        let wrong = with_amounts(json!({"shares": "1"}));
        let first = json!({"devices": {"requests": [{"name": "gpu", "firstAvailable": [wrong]}]}});
        let why = judged(Written::Claim, first).unwrap_err();
        assert!(
            why.starts_with("spec.devices.requests[0].firstAvailable[0].capacity"),
            "{why}"
        );
        let why = judged(Written::Claim, json!({"devices": {"requests": [wrong]}})).unwrap_err();
        assert!(
            why.starts_with("spec.devices.requests[0].capacity"),
            "{why}"
        );
    }

    #[test]
    fn alternatives_and_older_versions_are_read_too() {
        let wrong = ours(&json!({"capacity": {"requests": {"cores": "200"}}}));
        let first = json!({"devices": {"requests": [{"name": "gpu", "firstAvailable": [
            {"name": "a", "deviceClassName": "gpu.example.com"}, wrong]}]}});
        let why = judged(Written::Claim, first).unwrap_err();
        assert!(
            why.starts_with("spec.devices.requests[0].firstAvailable[1].capacity"),
            "{why}"
        );

        let mut beta = wrong;
        beta["name"] = json!("gpu");
        let why = judged(Written::Claim, json!({"devices": {"requests": [beta]}})).unwrap_err();
        assert!(
            why.starts_with("spec.devices.requests[0].capacity"),
            "{why}"
        );
    }

    #[test]
    fn several_gpus_without_the_constraint_are_warned_of() {
        let two = claim(&ours(&json!({"count": 2})), &json!([]));
        let warnings = judged(Written::Claim, two.clone()).unwrap();
        assert!(
            warnings.len() == 1 && warnings[0].contains("distinctAttribute: gpu.vgpu.io/uuid"),
            "{warnings:?}"
        );

        for requests in [json!(["gpu"]), json!([]), json!(null)] {
            let mut apart = two.clone();
            apart["devices"]["constraints"] =
                json!([{"requests": requests, "distinctAttribute": UUID}]);
            assert_eq!(judged(Written::Claim, apart), Ok(Vec::new()));
        }
    }
}
