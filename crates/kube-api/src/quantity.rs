//! Amounts as Kubernetes writes them: `3000`, `3k`, `16Gi`, `500m`, `1e3`. Never rounds: a fraction is an error or
//! none.
//!
//! The grammar is that of `k8s.io/apimachinery`'s `resource.Quantity`.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// The number of bytes in a MiB.
pub(crate) const MIB: u64 = 1 << 20;

/// An amount as it was written. JSON may have it as a text or as a number; null is 0, as in Go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Quantity(pub String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AmountVisitor)
    }
}

struct AmountVisitor;

impl de::Visitor<'_> for AmountVisitor {
    type Value = Quantity;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an amount such as \"16Gi\", \"500m\" or 3000")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Quantity, E> {
        Ok(Quantity(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<Quantity, E> {
        Ok(Quantity(text))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Quantity, E> {
        Ok(Quantity(number.to_string()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Quantity, E> {
        Ok(Quantity("0".to_owned()))
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Quantity {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<u64> for Quantity {
    fn from(number: u64) -> Self {
        Self(number.to_string())
    }
}

impl Quantity {
    /// The amount.
    ///
    /// # Errors
    ///
    /// The text is not a Kubernetes quantity, or is out of range.
    pub fn parse(&self) -> Result<Amount, QuantityError> {
        Amount::parse(&self.0)
    }
}

/// How an amount was written, which decides its unit for a memory resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// `3000`, `3k`, `500m`, `1e3`.
    Decimal,
    /// `16Gi`, `512Mi`.
    Binary,
}

/// An exact amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Amount {
    /// In billionths.
    nano: i128,
    /// How it was written.
    pub form: Form,
}

/// Why a text is not an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It contains characters that an amount cannot have.
    #[error("{0:?} is no amount; write a number such as 3000, 3k, 16Gi or 500m")]
    Malformed(String),
    /// It is larger than 2^63 - 1.
    #[error("{0:?} is larger than 9223372036854775807, the most that Kubernetes counts")]
    TooLarge(String),
    /// It is finer than a billionth.
    #[error("{0:?} is finer than a thousand millionth, the least that Kubernetes counts")]
    TooFine(String),
}

const NANO: i128 = 1_000_000_000;
const NANO_DIGITS: i32 = 9;
const MOST: i128 = i64::MAX as i128;

/// The factor of the digits: a power of ten, or of two.
enum Scale {
    Ten(i32),
    Two(u32),
}

impl Amount {
    /// Reads a text.
    ///
    /// # Errors
    ///
    /// The text is not a Kubernetes quantity, or is out of range.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let malformed = || QuantityError::Malformed(shortened(text));
        let too_large = || QuantityError::TooLarge(shortened(text));
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = rest
            .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
            .unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(malformed());
        }
        let scale = scale(suffix).ok_or_else(malformed)?;
        let fraction = fraction.trim_end_matches('0');
        let mut digits: i128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            digits = digits
                .checked_mul(10)
                .and_then(|digits| digits.checked_add(i128::from(digit - b'0')))
                .ok_or_else(too_large)?;
        }
        let places = i32::try_from(fraction.len()).map_err(|_| malformed())?;
        let (form, exponent, digits) = match scale {
            Scale::Ten(power) => (Form::Decimal, power.saturating_sub(places), digits),
            Scale::Two(power) => (
                Form::Binary,
                -places,
                digits.checked_mul(1 << power).ok_or_else(too_large)?,
            ),
        };
        let exponent = exponent.saturating_add(NANO_DIGITS);
        let nano = if digits == 0 {
            0
        } else if exponent >= 0 {
            power_of_ten(exponent)
                .and_then(|power| digits.checked_mul(power))
                .ok_or_else(too_large)?
        } else {
            let too_fine = || QuantityError::TooFine(shortened(text));
            let power = power_of_ten(-exponent).ok_or_else(too_fine)?;
            if digits % power != 0 {
                return Err(too_fine());
            }
            digits / power
        };
        if nano > MOST * NANO {
            return Err(too_large());
        }
        Ok(Self {
            nano: if negative { -nano } else { nano },
            form,
        })
    }

    /// The amount as a whole number; `None` if it has a fraction.
    pub fn whole(self) -> Option<i128> {
        (self.nano % NANO == 0).then_some(self.nano / NANO)
    }

    /// The smallest whole number that is not below it.
    pub fn rounded_up(self) -> i128 {
        self.nano.div_euclid(NANO) + i128::from(self.nano.rem_euclid(NANO) > 0)
    }

    /// In thousandths; `None` if it is finer.
    pub fn milli(self) -> Option<i128> {
        let milli = NANO / 1000;
        (self.nano % milli == 0).then_some(self.nano / milli)
    }

    /// In billionths.
    pub fn nano(self) -> i128 {
        self.nano
    }

    /// Whether it is below 0.
    pub fn is_negative(self) -> bool {
        self.nano < 0
    }

    /// Whether it is 0.
    pub fn is_zero(self) -> bool {
        self.nano == 0
    }
}

fn power_of_ten(exponent: i32) -> Option<i128> {
    10_i128.checked_pow(u32::try_from(exponent).ok()?)
}

fn scale(suffix: &str) -> Option<Scale> {
    Some(match suffix {
        "n" => Scale::Ten(-9),
        "u" => Scale::Ten(-6),
        "m" => Scale::Ten(-3),
        "" => Scale::Ten(0),
        "k" => Scale::Ten(3),
        "M" => Scale::Ten(6),
        "G" => Scale::Ten(9),
        "T" => Scale::Ten(12),
        "P" => Scale::Ten(15),
        "E" => Scale::Ten(18),
        "Ki" => Scale::Two(10),
        "Mi" => Scale::Two(20),
        "Gi" => Scale::Two(30),
        "Ti" => Scale::Two(40),
        "Pi" => Scale::Two(50),
        "Ei" => Scale::Two(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
                return None;
            }
            Scale::Ten(exponent.parse().ok()?)
        }
    })
}

/// The part of a text that fits into an error.
pub(crate) fn shortened(text: &str) -> String {
    const MOST_LETTERS: usize = 64;
    match text.char_indices().nth(MOST_LETTERS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
