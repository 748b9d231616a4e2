//! ResourceClaims, their templates and DeviceClasses that name our driver: what it could never give is refused when it
//! is written, by the same code with which the driver reads it. Changes nothing.

use kube_api::shares::template;
use kube_api::shares::written::{self, Written};
use serde_json::Value;

use crate::admit::{Admission, Admitted, among, namespace};
use crate::context::{Context, Operation};
use crate::denied::Denied;

/// The kind that the API server calls so.
pub(crate) fn kind(resource: &str) -> Option<Written> {
    match resource {
        "resourceclaims" | "ResourceClaim" => Some(Written::Claim),
        "resourceclaimtemplates" | "ResourceClaimTemplate" => Some(Written::Template),
        "deviceclasses" | "DeviceClass" => Some(Written::Class),
        _ => None,
    }
}

impl Admission {
    /// Checks an object that may name our driver.
    ///
    /// # Errors
    ///
    /// It is refused: the text names the field, what was read and what is accepted.
    pub fn claim(
        &self,
        kind: Written,
        object: &Value,
        context: &Context<'_>,
    ) -> Result<Admitted, Denied> {
        let settings = self.settings();
        if among(&settings.exempt_namespaces, namespace(object, context)) {
            return Ok(Admitted::default());
        }
        // An object from before this check must remain deletable: finalizers are removed by an update.
        let is_same = |old: &Value| old.get("spec") == object.get("spec");
        if context.operation != Operation::Create && context.old.is_some_and(is_same) {
            return Ok(Admitted::default());
        }
        let name = object.pointer("/metadata/name").and_then(Value::as_str);
        if kind == Written::Template
            && name.is_some_and(template::is_ours)
            && !among(&settings.own_accounts, context.user)
        {
            return Err(Denied::pod(
                "metadata.name",
                format!(
                    "names that begin with {} are those of the templates that vgpu's scheduler makes for pods; give it \
                     another name",
                    template::PREFIX
                ),
            ));
        }
        let warnings = written::check(kind, object)
            .map_err(|refused| Denied::pod(refused.path, refused.why.to_string()))?;
        Ok(Admitted {
            warnings,
            ..Admitted::default()
        })
    }
}
