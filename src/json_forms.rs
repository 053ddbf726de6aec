//! How the status of a store is written in JSON: durations in seconds, times in milliseconds since
//! 1970, timestamps as strings. Written as numbers, timestamps would exceed 2^53, above which many
//! JSON readers round.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::timestamp::Timestamp;

/// A duration, in seconds.
#[derive(Serialize, Deserialize)]
struct Seconds(f64);

impl From<&Duration> for Seconds {
    fn from(duration: &Duration) -> Self {
        Self(duration.as_secs_f64())
    }
}

impl TryFrom<Seconds> for Duration {
    type Error = std::time::TryFromFloatSecsError;

    fn try_from(seconds: Seconds) -> Result<Self, Self::Error> {
        Self::try_from_secs_f64(seconds.0)
    }
}

/// A time, in milliseconds since 1970.
#[derive(Serialize, Deserialize)]
struct Millis(u64);

impl From<&SystemTime> for Millis {
    fn from(moment: &SystemTime) -> Self {
        let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

impl TryFrom<Millis> for SystemTime {
    type Error = &'static str;

    fn try_from(millis: Millis) -> Result<Self, Self::Error> {
        UNIX_EPOCH.checked_add(Duration::from_millis(millis.0)).ok_or("time out of range")
    }
}

/// A timestamp, as displayed.
#[derive(Serialize, Deserialize)]
struct Text(String);

impl From<&Timestamp> for Text {
    fn from(ts: &Timestamp) -> Self {
        Self(ts.to_string())
    }
}

impl TryFrom<Text> for Timestamp {
    type Error = crate::timestamp::ParseTimestampError;

    fn try_from(text: Text) -> Result<Self, Self::Error> {
        text.0.parse()
    }
}

/// Makes the module `$name` for `#[serde(with)]`: it serializes a field of the type `$value` as a
/// `$form`.
macro_rules! shown {
    ($name:ident, $value:ty, $form:ty) => {
        pub(crate) mod $name {
            use super::*;

            pub fn serialize<S: Serializer>(value: &$value, serializer: S) -> Result<S::Ok, S::Error> {
                <$form>::from(value).serialize(serializer)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$value, D::Error> {
                <$value>::try_from(<$form>::deserialize(deserializer)?).map_err(D::Error::custom)
            }
        }
    };
}

/// Like `shown!`, for a field of the type `Option<$value>`.
macro_rules! shown_or_none {
    ($name:ident, $value:ty, $form:ty) => {
        pub(crate) mod $name {
            use super::*;

            #[allow(clippy::ref_option, reason = "the signature that serde calls")]
            pub fn serialize<S: Serializer>(value: &Option<$value>, serializer: S) -> Result<S::Ok, S::Error> {
                value.as_ref().map(<$form>::from).serialize(serializer)
            }

            pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<$value>, D::Error> {
                let form = Option::<$form>::deserialize(deserializer)?;
                form.map(<$value>::try_from).transpose().map_err(D::Error::custom)
            }
        }
    };
}

shown!(millis, SystemTime, Millis);
shown!(seconds, Duration, Seconds);
shown!(text, Timestamp, Text);
shown_or_none!(seconds_or_none, Duration, Seconds);
shown_or_none!(text_or_none, Timestamp, Text);
