//! Checks amounts of resources in objects: they are quantities as Kubernetes writes them, not negative, and whole
//! numbers if they count things. Texts that are not quantities are refused in the words of an API server's decoder,
//! other amounts in the words of its validation.

use serde_json::Value;

use crate::cluster::Cluster;
use crate::pod::CONTAINER_LISTS;
use crate::status::Status;
use crate::target::Target;

/// Resources that are counted in whole numbers, besides extended resources.
const COUNTED: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

impl Cluster {
    /// Refuses amounts that an API server refuses, unless this cluster accepts any.
    pub(crate) fn check_amounts(&self, target: &Target, object: &Value) -> Result<(), Status> {
        if self.0.options.any_amount {
            return Ok(());
        }
        validate(target, object)
    }
}

/// Checks every amount in an object of the kinds that have amounts.
fn validate(target: &Target, object: &Value) -> Result<(), Status> {
    if !target.resource.group.is_empty() {
        return Ok(());
    }
    let at = |path: &str| {
        check(
            target,
            object.pointer(path),
            &path.trim_start_matches('/').replace('/', "."),
        )
    };
    match target.resource.plural.as_str() {
        "nodes" => {
            at("/status/capacity")?;
            at("/status/allocatable")
        }
        "persistentvolumes" => at("/spec/capacity"),
        "persistentvolumeclaims" => {
            at("/spec/resources/requests")?;
            at("/spec/resources/limits")?;
            at("/status/capacity")
        }
        "resourcequotas" => at("/spec/hard"),
        "pods" => {
            at("/spec/overhead")?;
            at("/spec/resources/requests")?;
            at("/spec/resources/limits")?;
            for list in CONTAINER_LISTS {
                let containers = object["spec"][list].as_array();
                for (index, container) in containers.into_iter().flatten().enumerate() {
                    for part in ["requests", "limits"] {
                        let path = format!("spec.{list}[{index}].resources.{part}");
                        check(target, container["resources"].get(part), &path)?;
                    }
                }
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn check(target: &Target, amounts: Option<&Value>, path: &str) -> Result<(), Status> {
    let unreadable = |path: &str, why: &str| {
        let (version, kind) = (&target.version, &target.resource.kind);
        Status::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {kind}: {path}: {why}"
        ))
    };
    let amounts = match amounts {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Object(amounts)) => amounts,
        Some(_) => return Err(unreadable(path, "not a map of resources to quantities")),
    };
    for (name, value) in amounts {
        let field = format!("{path}[{name}]");
        let text = match value {
            // Go reads null as absent.
            Value::Null => continue,
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => {
                return Err(unreadable(
                    &field,
                    "a quantity is a text such as \"500m\" or \"16Gi\"",
                ));
            }
        };
        let Some(amount) = Amount::read(&text) else {
            let why = format!(
                "\"{}\": quantities must match the regular expression \
                 '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$', such as 500m, 4 or 16Gi",
                text.chars().take(60).collect::<String>()
            );
            return Err(unreadable(&field, &why));
        };
        let invalid =
            |why: &str| Err(target.invalid(&field, format!("Invalid value: \"{text}\": {why}")));
        if amount.negative {
            return invalid("must be greater than or equal to 0");
        }
        if amount.fraction && is_counted(name) {
            return invalid("must be an integer");
        }
    }
    Ok(())
}

/// Whether a resource is counted in whole numbers: some of Kubernetes' own, and all extended ones.
fn is_counted(name: &str) -> bool {
    let extended = name.split_once('/').is_some_and(|(domain, _)| {
        domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io")
    });
    COUNTED.contains(&name) || extended && !name.starts_with("requests.")
}

/// The checked properties of an amount.
#[derive(Debug, PartialEq, Eq)]
struct Amount {
    negative: bool,
    /// Whether it has a fraction.
    fraction: bool,
}

impl Amount {
    fn read(text: &str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = unsigned
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + part.len() == 0 || part.contains('.') {
            return None;
        }
        let power = match suffix {
            "n" => -9,
            "u" => -6,
            "m" => -3,
            "" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi" | "Ei" => 0,
            "k" => 3,
            "M" => 6,
            "G" => 9,
            "T" => 12,
            "P" => 15,
            "E" => 18,
            _ => exponent(suffix)?,
        };
        let digits = format!("{whole}{part}");
        let zero = digits.bytes().all(|digit| digit == b'0');
        // The number of digits after the point, once the exponent has moved it.
        let behind = i64::try_from(part.len()).ok()?.saturating_sub(power);
        let behind = usize::try_from(behind).unwrap_or(0).min(digits.len());
        let rest = digits.get(digits.len() - behind..).unwrap_or_default();
        let binary = suffix.ends_with('i');
        Some(Self {
            negative: text.starts_with('-') && !zero,
            // A fraction of a binary unit, such as 1.5Ki, is whole if the unit is large enough. This is not checked,
            // because counted resources are not written that way.
            fraction: !binary && rest.bytes().any(|digit| digit != b'0'),
        })
    }
}

/// `e3` or `E-3`.
fn exponent(suffix: &str) -> Option<i64> {
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let signless = digits.strip_prefix(['+', '-']).unwrap_or(digits);
    let plain = !signless.is_empty() && signless.bytes().all(|digit| digit.is_ascii_digit());
    if plain {
        digits.parse::<i32>().ok().map(i64::from)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        for right in [
            "0", "4", "4.", ".5", "+1", "1.5", "500m", "16Gi", "3k", "1e3", "1E-3", "1E", "12e6",
            "7n",
        ] {
            assert!(Amount::read(right).is_some(), "{right}");
        }
        for wrong in [
            "", ".", "-", "1.2.3", "4 Gi", " 4", "abc", "1gi", "1KI", "1e+", "Gi", "1Gi2", "١",
        ] {
            assert!(Amount::read(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn negative_and_broken_numbers_are_distinguished() {
        let read = |text| Amount::read(text).map(|amount| (amount.negative, amount.fraction));

        assert_eq!(read("-1"), Some((true, false)));
        assert_eq!(read("-0"), Some((false, false)));
        assert_eq!(read("1.5"), Some((false, true)));
        assert_eq!(read("1.0"), Some((false, false)));
        assert_eq!(read("1.5k"), Some((false, false)));
        assert_eq!(read("500m"), Some((false, true)));
        assert_eq!(read("2000m"), Some((false, false)));
        assert_eq!(read("1e-3"), Some((false, true)));
    }
}
