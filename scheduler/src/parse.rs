//! Values of flags as people and Go programs write them: times, and addresses to connect to. Text in, value out.

use std::time::Duration;

use axum::http::Uri;

/// Why a flag's value cannot be read: what is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FlagError {
    #[error("expected HOST:PORT, such as vgpu-monitor.kube-system.svc:31993")]
    HostPort,
    #[error("expected an address such as https://127.0.0.1:10259/healthz")]
    HealthAddress,
    #[error("expected a time such as 15m, 1h30m, 900s or 500ms")]
    Duration,
    #[error("expected at least 1s")]
    Interval,
    #[error("expected 100ms to 100s, so that a reservation of 300 s is renewed in time")]
    RenewInterval,
}

/// `HOST:PORT`.
pub(crate) fn host_port(text: &str) -> Result<String, FlagError> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    match port.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(1..)) => Ok(text.to_owned()),
        _ => Err(FlagError::HostPort),
    }
}

/// The address of a health check: `https://127.0.0.1:10259/healthz`.
pub(crate) fn health_address(text: &str) -> Result<Uri, FlagError> {
    let address: Uri = text.parse().map_err(|_| FlagError::HealthAddress)?;
    match (address.scheme_str(), address.host()) {
        (Some("http" | "https"), Some(_)) => Ok(address),
        _ => Err(FlagError::HealthAddress),
    }
}

/// A time of at least a second.
pub(crate) fn interval(text: &str) -> Result<Duration, FlagError> {
    match duration(text)? {
        time if time < Duration::from_secs(1) => Err(FlagError::Interval),
        time => Ok(time),
    }
}

/// How often the assigner checks its reservations: `20s`, `1m30s`; a bare number is milliseconds, as in the reference.
pub(crate) fn renew_interval(text: &str) -> Result<Duration, FlagError> {
    let interval = match text.parse::<u32>() {
        Ok(milliseconds) => Duration::from_millis(milliseconds.into()),
        Err(_) => duration(text)?,
    };
    // A proposal lasts a minute, and its pod must be seen within that time.
    let allowed = Duration::from_millis(100)..=Duration::from_secs(100);
    if allowed.contains(&interval) {
        Ok(interval)
    } else {
        Err(FlagError::RenewInterval)
    }
}

/// `15m`, `1h30m`, `900s`, `500ms`, as Go writes them; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, FlagError> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let mut sum = 0.0;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(FlagError::Duration);
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .ok_or(FlagError::Duration)?;
        let (number, unit) = rest.split_at(digits);
        let number: f64 = number.parse().map_err(|_| FlagError::Duration)?;
        let end = unit
            .find(|letter: char| letter.is_ascii_digit() || letter == '.')
            .unwrap_or(unit.len());
        let (unit, after) = unit.split_at(end);
        sum += number
            * match unit {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return Err(FlagError::Duration),
            };
        rest = after;
    }
    Duration::try_from_secs_f64(sum).map_err(|_| FlagError::Duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_go_writes_them() {
        let read = |text| duration(text).map(|time| time.as_millis());

        assert_eq!(read("15m"), Ok(900_000));
        assert_eq!(read("1h30m"), Ok(5_400_000));
        assert_eq!(read("1.5s"), Ok(1_500));
        assert_eq!(read("500ms"), Ok(500));
        assert_eq!(read("30"), Ok(30_000));
        for wrong in ["", "m", "15", "15x", "-5s", "1h-", "s15"] {
            assert_eq!(read(wrong).is_err(), wrong != "15", "{wrong}");
        }
    }

    #[test]
    fn a_monitors_address_needs_a_port() {
        assert_eq!(host_port("a.svc:31993"), Ok("a.svc:31993".into()));
        assert_eq!(host_port("[::1]:1"), Ok("[::1]:1".into()));
        for wrong in ["", "a", ":1", "a:", "a:x", "a:0", "a:70000"] {
            assert!(host_port(wrong).is_err(), "{wrong}");
        }
        assert!(interval("500ms").is_err());
        assert_eq!(interval("2s"), Ok(Duration::from_secs(2)));
    }
}
