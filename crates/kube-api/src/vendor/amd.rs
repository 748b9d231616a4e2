//! AMD: compute is asked in percent of a device and given in compute units; the allocation names the product.

use placement::{Ask, Compute, Device, Grant, NodeView};

use super::{Edits, Family, Keys, Rejection, Role, Row, RowDefaults, capacity, general};
use crate::config::{ConfigError, DeviceConfig};
use crate::fields::{self, PodRules, RequestError};
use crate::object::{Container, Node, Pod};
use crate::register::Problem;

/// All compute units of a device, in percent.
const ALL: u32 = 100;

pub(super) fn rows(config: &DeviceConfig) -> Result<Vec<Row>, ConfigError> {
    let Some(amd) = &config.amd else {
        return Ok(Vec::new());
    };
    Ok(vec![Row {
        word: "AMD".to_owned(),
        resources: vec![
            (Role::Count, amd.resource_count_name.clone()),
            (Role::Memory, amd.resource_memory_name.clone()),
            (Role::Cores, amd.resource_core_name.clone()),
        ],
        memory_unit_mib: 1,
        defaults: RowDefaults {
            memory_mib: 0,
            cores: ALL,
            most_cores: 0,
        },
        keys: Keys {
            register: Some("hami.io/node-amd-register".to_owned()),
            to_allocate: Some("hami.io/amd-devices-to-allocate".to_owned()),
            allocated: Some("hami.io/amd-devices-allocated".to_owned()),
            use_ids: vec!["amd.com/use-gpu-uuid".to_owned()],
            nouse_ids: vec!["amd.com/nouse-gpu-uuid".to_owned()],
            use_types: vec!["amd.com/use-gputype".to_owned()],
            nouse_types: vec!["amd.com/nouse-gputype".to_owned()],
            ..Keys::default()
        },
        family: Box::new(AmdFamily),
    }])
}

#[derive(Debug)]
struct AmdFamily;

impl AmdFamily {
    /// A percentage of a device's compute units.
    fn percent(row: &Row, container: &Container) -> Result<u32, RequestError> {
        let resource = row.resource(Role::Cores);
        let Some(percent) = fields::whole(container, resource)? else {
            return Ok(row.defaults.cores);
        };
        match u32::try_from(percent) {
            Ok(percent @ 1..=ALL) => Ok(percent),
            _ => {
                let name = resource.unwrap_or_default();
                let problem = format!(
                    "{name} must be an integer percentage between 1 and 100, got {percent}"
                );
                Err(fields::wrong_amount(container, name, problem))
            }
        }
    }
}

impl Family for AmdFamily {
    fn ask(
        &self,
        row: &Row,
        container: &Container,
        pod: &Pod,
        rules: &PodRules,
    ) -> Result<Option<Ask>, RequestError> {
        let Some(mut ask) = general::ask(row, container, pod, rules)? else {
            return Ok(None);
        };
        ask.compute = Compute::Percent(Self::percent(row, container)?);
        Ok(Some(ask))
    }

    fn devices(&self, row: &Row, node: &Node) -> Result<Vec<Device>, Problem> {
        if capacity::of(node, row.resource(Role::Count)) == 0 {
            // There is no handshake that shows the agent; the kubelet's capacity does.
            return Ok(Vec::new());
        }
        let registered = general::registered(row, node)?;
        Ok(registered
            .iter()
            .map(|registered| {
                let mut device = registered.device(&row.word);
                // RDNA devices mask their units in pairs, and report so.
                let step = registered
                    .custom_info
                    .as_ref()
                    .and_then(|info| info.get("cuPerWGP")?.as_u64())
                    .and_then(|step| u32::try_from(step).ok());
                device.core_step = step.unwrap_or(1).max(1);
                device
            })
            .collect())
    }

    fn type_field(&self, row: &Row, grant: &Grant, node: Option<NodeView<'_>>) -> String {
        node.and_then(|node| node.device(&grant.device))
            .map(|device| device.device().model.clone())
            .filter(|model| !model.is_empty())
            .unwrap_or_else(|| row.word.clone())
    }

    fn admit(&self, row: &Row, container: &Container, _pod: &Pod) -> Result<Edits, Rejection> {
        let edits = general::admit(row, container)?;
        if general::count(row, container)?.is_some() {
            Self::percent(row, container)?;
        }
        Ok(edits)
    }
}
