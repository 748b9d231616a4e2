//! The webhook's own certificate authority as values: making, reading and judging a CA, and signing
//! with it.
//!
//! The caller passes the time in, and stores the results: nothing here reads a clock or uses the
//! network.

use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;

/// A certificate is valid from this long before it was made, because the API server's clock may be
/// behind.
pub const BACKDATED: SignedDuration = SignedDuration::from_hours(1);

/// How long the CA and the certificates last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// A CA. It is replaced when a third of it is left.
    pub ca: SignedDuration,
    /// A serving certificate. It is replaced when a third of it is left.
    pub serving: SignedDuration,
    /// How long a CA stays trusted after it was replaced.
    pub overlap: SignedDuration,
    /// The time between a CA's arrival in every `caBundle` and the first certificate signed by it
    /// that is shown: the API servers learn of a changed `caBundle` by a watch.
    pub settle: SignedDuration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            ca: SignedDuration::from_hours(365 * 24),
            serving: SignedDuration::from_hours(30 * 24),
            overlap: SignedDuration::from_hours(24),
            settle: SignedDuration::from_secs(30),
        }
    }
}

/// Why lifetimes contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LifetimesError {
    /// A CA or a certificate ends too soon after it has settled.
    #[error(
        "a new CA settles for {:#}; CA ({:#}) and certificate ({:#}) must live more than three times as long",
        .0.settle, .0.ca, .0.serving
    )]
    SettleTooLong(Lifetimes),
    /// The old CA is not trusted any more when certificates of the new one are first shown.
    #[error(
        "a replaced CA is trusted for {:#}, which is not longer than the {:#} for which a new one settles",
        .0.overlap, .0.settle
    )]
    OverlapTooShort(Lifetimes),
}

impl Lifetimes {
    /// Returns these lifetimes if they are consistent.
    ///
    /// # Errors
    ///
    /// One of them is too short for another; the text names both.
    pub fn checked(self) -> Result<Self, LifetimesError> {
        let longest = (self.ca / 3).min(self.serving / 3);
        if self.settle >= longest {
            return Err(LifetimesError::SettleTooLong(self));
        }
        if self.overlap <= self.settle {
            return Err(LifetimesError::OverlapTooShort(self));
        }
        Ok(self)
    }
}

/// Why a CA cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A key of the Secret is absent or not text.
    #[error("{0} is missing or is not text")]
    Missing(&'static str),
    /// Not a certificate.
    #[error("{0} is not a certificate in PEM")]
    Certificate(&'static str),
    /// A certificate that may sign nothing.
    #[error("{0} is a certificate, but not a CA's")]
    NotACa(&'static str),
    /// Not a private key.
    #[error("{0} is not a private key in PEM that can be used (ECDSA, Ed25519 or RSA in PKCS#8)")]
    Key(&'static str),
    /// The private key belongs to another certificate.
    #[error("ca.key is not the key of ca.crt")]
    Mismatch,
    /// It has expired.
    #[error("ca.crt expired at {0}")]
    Expired(Timestamp),
    /// It is not valid yet: a clock is wrong, or was.
    #[error("ca.crt is not valid before {0}")]
    NotYet(Timestamp),
}

/// A CA's certificate, with its period of validity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaCertificate {
    pem: String,
    not_before: Timestamp,
    not_after: Timestamp,
}

/// A CA that can sign.
pub struct Authority {
    certificate: CaCertificate,
    key_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate for the port, with its key and its expiry.
pub struct Serving {
    /// PEM.
    pub certificate: String,
    /// PEM.
    pub key: String,
    /// When it was made.
    pub made: Timestamp,
    /// When it expires.
    pub not_after: Timestamp,
}

impl CaCertificate {
    /// Reads the first certificate of the PEM. `place` names the source in errors.
    ///
    /// # Errors
    ///
    /// It is not a certificate, or not a CA's.
    pub fn read(pem: &str, place: &'static str) -> Result<Self, Broken> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|_| Broken::Certificate(place))?;
        Self::of(&der, place)
    }

    /// The CA certificates in a PEM with several blocks, up to the first block that is not PEM.
    /// Other certificates are skipped.
    #[must_use]
    pub fn read_all(pem: &str) -> Vec<Self> {
        CertificateDer::pem_slice_iter(pem.as_bytes())
            .map_while(Result::ok)
            .filter_map(|der| Self::of(&der, "").ok())
            .collect()
    }

    fn of(der: &CertificateDer<'_>, place: &'static str) -> Result<Self, Broken> {
        let (_, parsed) =
            x509_parser::parse_x509_certificate(der).map_err(|_| Broken::Certificate(place))?;
        if !parsed.is_ca() {
            return Err(Broken::NotACa(place));
        }
        let at = |seconds| Timestamp::from_second(seconds).map_err(|_| Broken::Certificate(place));
        Ok(Self {
            // Encoded again, so that text around the certificate in the PEM does not get into a
            // caBundle.
            pem: to_pem(der),
            not_before: at(parsed.validity().not_before.timestamp())?,
            not_after: at(parsed.validity().not_after.timestamp())?,
        })
    }

    /// The certificate as PEM, ending in a line break.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// When it expires.
    #[must_use]
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// When it was made, as far as the certificate shows.
    #[must_use]
    pub fn made(&self) -> Timestamp {
        self.not_before
            .saturating_add(BACKDATED)
            .unwrap_or(Timestamp::MAX)
    }

    /// Whether less than a third of its life is left.
    #[must_use]
    pub fn is_due(&self, now: Timestamp) -> bool {
        is_due(self.made(), self.not_after, now)
    }

    fn judge(&self, now: Timestamp) -> Result<(), Broken> {
        if now >= self.not_after {
            return Err(Broken::Expired(self.not_after));
        }
        // A clock slightly behind the one that made the CA is no reason to replace it.
        if self.not_before > now.saturating_add(BACKDATED).unwrap_or(Timestamp::MAX) {
            return Err(Broken::NotYet(self.not_before));
        }
        Ok(())
    }
}

/// Whether less than a third of the time between the two is left.
fn is_due(from: Timestamp, to: Timestamp, now: Timestamp) -> bool {
    now.duration_until(to) < from.duration_until(to) / 3
}

impl Authority {
    /// Makes a new CA.
    ///
    /// # Errors
    ///
    /// The system provides no random numbers.
    pub fn make(now: Timestamp, lifetimes: &Lifetimes) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let (not_before, not_after) = validity(now, lifetimes.ca);
        let mut params = CertificateParams::default();
        params.not_before = date(not_before);
        params.not_after = date(not_after);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params.distinguished_name = DistinguishedName::new();
        // The name contains the time, so that a person can tell two CAs in one caBundle apart.
        let made = now.strftime("%Y-%m-%dT%H:%M:%SZ");
        params
            .distinguished_name
            .push(DnType::CommonName, format!("vgpu-webhook CA {made}"));
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            certificate: CaCertificate {
                pem: to_pem(certificate.der()),
                not_before,
                not_after,
            },
            key_pem: key.serialize_pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Reads a CA from its two PEMs, if it can sign at `now`.
    ///
    /// # Errors
    /// See [`Broken`].
    pub fn read(certificate: &str, key: &str, now: Timestamp) -> Result<Self, Broken> {
        let certificate = CaCertificate::read(certificate, "ca.crt")?;
        certificate.judge(now)?;
        let key_pair = KeyPair::from_pem(key).map_err(|_| Broken::Key("ca.key"))?;
        let der = CertificateDer::from_pem_slice(certificate.pem.as_bytes())
            .map_err(|_| Broken::Certificate("ca.crt"))?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&der).map_err(|_| Broken::Certificate("ca.crt"))?;
        if parsed.public_key().raw != key_pair.subject_public_key_info() {
            return Err(Broken::Mismatch);
        }
        let issuer =
            Issuer::from_ca_cert_der(&der, key_pair).map_err(|_| Broken::Certificate("ca.crt"))?;
        Ok(Self {
            certificate,
            key_pem: key.to_owned(),
            issuer,
        })
    }

    /// Its certificate.
    #[must_use]
    pub fn certificate(&self) -> &CaCertificate {
        &self.certificate
    }

    /// Its private key, PEM. Written to the Secret and nowhere else.
    #[must_use]
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// Signs a certificate for a server with these names, with a new key. It expires no later than
    /// the CA.
    ///
    /// # Errors
    ///
    /// A name is not a DNS name or an IP address, or the system provides no random numbers.
    pub fn sign(
        &self,
        names: &[String],
        now: Timestamp,
        lifetimes: &Lifetimes,
    ) -> Result<Serving, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        let (not_before, not_after) = validity(now, lifetimes.serving);
        let not_after = not_after.min(self.certificate.not_after);
        params.not_before = date(not_before.max(self.certificate.not_before));
        params.not_after = date(not_after);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.distinguished_name = DistinguishedName::new();
        // A service's full name may be longer than the 64 characters of a common name; clients
        // check only the alternative names.
        params
            .distinguished_name
            .push(DnType::CommonName, "vgpu-webhook");
        Ok(Serving {
            certificate: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
            made: now,
            not_after,
        })
    }
}

impl Serving {
    /// Whether less than a third of its life is left.
    #[must_use]
    pub fn is_due(&self, now: Timestamp) -> bool {
        is_due(self.made, self.not_after, now)
    }
}

/// The CA that the replicas agree on, and the CAs that signed until recently.
pub struct Agreed {
    /// The CA that signs.
    pub current: Authority,
    /// The replaced CAs that are still trusted, the newest first.
    pub old: Vec<CaCertificate>,
    /// When the newest of those was replaced.
    pub since: Timestamp,
}

/// How many replaced CAs are kept; there are several only after several accidents in one day.
const OLD: usize = 4;

impl Agreed {
    /// Replaces whatever was there by a new CA.
    ///
    /// # Errors
    ///
    /// The system provides no random numbers.
    pub fn anew(
        old: Vec<CaCertificate>,
        now: Timestamp,
        lifetimes: &Lifetimes,
    ) -> Result<Self, rcgen::Error> {
        let mut agreed = Self {
            current: Authority::make(now, lifetimes)?,
            old: Vec::new(),
            since: now,
        };
        agreed.trust(old, now);
        Ok(agreed)
    }

    /// Also trusts those of these CAs that are valid, up to `OLD` of them.
    pub fn trust(&mut self, more: Vec<CaCertificate>, now: Timestamp) {
        let before = std::mem::take(&mut self.old);
        for certificate in more.into_iter().chain(before) {
            let known = self.trusted().any(|known| *known == certificate);
            if self.old.len() < OLD && !known && certificate.judge(now).is_ok() {
                self.old.push(certificate);
            }
        }
        self.since = now;
    }

    /// The CAs that are trusted: the current one, then the old ones.
    pub fn trusted(&self) -> impl Iterator<Item = &CaCertificate> {
        std::iter::once(self.current.certificate()).chain(&self.old)
    }

    /// [`Agreed::trusted`] as one PEM, as a `caBundle` holds it.
    #[must_use]
    pub fn bundle(&self) -> String {
        self.trusted().map(CaCertificate::pem).collect()
    }

    /// Whether the replaced CAs may be dropped: the newest was replaced long enough ago.
    #[must_use]
    pub fn old_are_over(&self, now: Timestamp, lifetimes: &Lifetimes) -> bool {
        !self.old.is_empty() && self.since.duration_until(now) >= lifetimes.overlap
    }
}

fn validity(now: Timestamp, lifetime: SignedDuration) -> (Timestamp, Timestamp) {
    // A certificate stores no fractions of a second.
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    (
        now.saturating_sub(BACKDATED).unwrap_or(Timestamp::MIN),
        now.saturating_add(lifetime).unwrap_or(Timestamp::MAX),
    )
}

fn date(at: Timestamp) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(at.as_second()).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn to_pem(der: &CertificateDer<'_>) -> String {
    let lines = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", der.as_ref()), lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn noon() -> Timestamp {
        "2026-11-21T12:00:00.123456789Z".parse().unwrap()
    }

    fn make() -> Authority {
        Authority::make(noon(), &Lifetimes::default()).unwrap()
    }

    #[test]
    fn a_ca_is_read_as_it_was_written_while_it_is_valid() {
        let made = make();
        let (certificate, key) = (made.certificate().pem(), made.key_pem());
        let at = |now| Authority::read(certificate, key, now).map(|read| read.certificate);
        let end = made.certificate().not_after();

        assert_eq!(at(noon()).unwrap(), *made.certificate());
        assert_eq!(end.as_second(), (noon() + HOUR * (365 * 24)).as_second());
        assert_eq!(made.certificate().made().as_second(), noon().as_second());
        assert!(at(end - SignedDuration::from_secs(1)).is_ok());
        assert_eq!(at(end).unwrap_err(), Broken::Expired(end));
        // A clock that is an hour behind is tolerated; one that is a day behind is not.
        assert!(at(noon() - HOUR * 2 + SignedDuration::from_secs(1)).is_ok());
        assert!(matches!(
            at(noon() - HOUR * 24).unwrap_err(),
            Broken::NotYet(_)
        ));
    }

    #[test]
    fn a_ca_is_due_when_a_third_of_it_is_left() {
        let made = make();
        let days = |days: i32| noon() + HOUR * (24 * days);

        assert!(!made.certificate().is_due(days(0)));
        assert!(!made.certificate().is_due(days(243)));
        assert!(made.certificate().is_due(days(244)));
        assert!(made.certificate().is_due(days(1000)));
    }

    #[test]
    fn lifetimes_that_do_not_go_together_are_refused() {
        let usual = Lifetimes::default();
        let short = SignedDuration::from_secs(80);

        assert!(usual.checked().is_ok());
        assert!(Lifetimes { ca: short, ..usual }.checked().is_err());
        let serving = short;
        assert!(Lifetimes { serving, ..usual }.checked().is_err());
        let overlap = usual.settle;
        assert!(Lifetimes { overlap, ..usual }.checked().is_err());
    }

    #[test]
    fn a_certificate_does_not_outlive_its_ca() {
        let made = make();
        let names = ["a.b.svc".to_owned(), "2001:db8::1".to_owned()];
        let end = made.certificate().not_after();

        let usual = made.sign(&names, noon(), &Lifetimes::default()).unwrap();
        assert_eq!(
            usual.not_after.as_second(),
            (noon() + HOUR * (30 * 24)).as_second()
        );
        let late = made
            .sign(&names, end - HOUR, &Lifetimes::default())
            .unwrap();
        assert_eq!(late.not_after, end);
        let wrong = made.sign(&["no\u{e4}me".to_owned()], noon(), &Lifetimes::default());
        assert!(wrong.is_err());
    }

    #[test]
    fn only_cas_that_are_valid_are_kept_once_and_not_for_ever() {
        let lifetimes = Lifetimes::default();
        let cas: Vec<_> = (0..6).map(|_| make().certificate().clone()).collect();
        let ended = Authority::make(noon() - HOUR * (400 * 24), &lifetimes).unwrap();
        let mut old = vec![ended.certificate().clone(), cas[0].clone()];
        old.extend(cas.clone());

        let agreed = Agreed::anew(old, noon(), &lifetimes).unwrap();

        assert_eq!(agreed.old, cas[..4]);
        assert_eq!(CaCertificate::read_all(&agreed.bundle()).len(), 5);
        assert!(!agreed.old_are_over(noon() + HOUR * 23, &lifetimes));
        assert!(agreed.old_are_over(noon() + HOUR * 25, &lifetimes));
    }

    #[test]
    fn text_around_a_certificate_stays_out_of_the_bundle() {
        let made = make();
        let pem = format!(
            "a note\n{}another",
            made.certificate().pem().replace('\n', "\r\n")
        );

        assert_eq!(CaCertificate::read(&pem, "x").unwrap(), *made.certificate());
        assert_eq!(CaCertificate::read_all(&pem.repeat(2)).len(), 2);
    }

    proptest! {
        #[test]
        fn no_text_and_no_bytes_make_the_reading_panic(
            text in "\\PC*",
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            at in 0_usize..700,
            with in any::<u8>(),
        ) {
            let now = noon();
            prop_assert!(Authority::read(&text, &text, now).is_err());
            let junk = pem::encode(&pem::Pem::new("CERTIFICATE", bytes));
            prop_assert!(Authority::read(&junk, &junk, now).is_err());
            drop(CaCertificate::read_all(&format!("{junk}{text}{junk}")));
            // One byte of a good one.
            let made = make();
            let parsed = pem::parse(made.certificate().pem()).unwrap();
            let mut der = parsed.into_contents();
            if let Some(byte) = der.get_mut(at) {
                *byte = with;
            }
            let changed = pem::encode(&pem::Pem::new("CERTIFICATE", der));
            drop(Authority::read(&changed, made.key_pem(), now));
        }
    }
}
