//! The time available to templates, and its formatting.

/// A moment as a wall clock shows it. Templates that print the date get it from here, so that a
/// rendering depends on nothing but what is passed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub unix_seconds: i64,
    /// What the wall clock is ahead of UTC, in seconds.
    pub utc_offset_seconds: i32,
}

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A date and a time of day.
struct Civil {
    year: i64,
    month: i64,       // 1…12
    day: i64,         // 1…31
    day_of_year: i64, // 1…366
    weekday: i64,     // 0 is Sunday
    second_of_day: i64,
}

impl Clock {
    /// Prints the moment as `strftime` does in the C locale. A directive this does not know is
    /// returned as the error.
    pub(super) fn format(&self, format: &str) -> Result<String, char> {
        let at = self.civil();
        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next().unwrap_or('%');
            let padded = directive != '-';
            if !padded {
                directive = chars.next().unwrap_or('%');
            }
            self.directive(&at, directive, padded, &mut out)?;
        }
        Ok(out)
    }

    fn civil(&self) -> Civil {
        // A clock past any calendar shows the calendar's end.
        let limit = 250_000_000_000;
        let seconds = self
            .unix_seconds
            .clamp(-limit, limit)
            .saturating_add(self.utc_offset_seconds.into());
        let days = seconds.div_euclid(86_400);
        let (year, month, day) = date_of(days);
        Civil {
            year,
            month,
            day,
            day_of_year: days - days_to(year, 1, 1) + 1,
            weekday: (days + 4).rem_euclid(7),
            second_of_day: seconds.rem_euclid(86_400),
        }
    }

    fn directive(
        &self,
        at: &Civil,
        directive: char,
        padded: bool,
        out: &mut String,
    ) -> Result<(), char> {
        let (hour, minute, second) = (
            at.second_of_day / 3600,
            at.second_of_day / 60 % 60,
            at.second_of_day % 60,
        );
        let hour12 = (hour + 11) % 12 + 1;
        let mut number = |value: i64, width: usize| {
            let width = if padded { width } else { 1 };
            out.push_str(&format!("{value:0width$}"));
        };
        match directive {
            'Y' => number(at.year, 1),
            'y' => number(at.year.rem_euclid(100), 2),
            'm' => number(at.month, 2),
            'd' => number(at.day, 2),
            'H' => number(hour, 2),
            'I' => number(hour12, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'j' => number(at.day_of_year, 3),
            'w' => number(at.weekday, 1),
            'u' => number((at.weekday + 6) % 7 + 1, 1),
            'f' => number(0, 6),
            's' => number(self.unix_seconds, 1),
            _ => return self.text_directive(at, directive, out),
        }
        Ok(())
    }

    fn text_directive(&self, at: &Civil, directive: char, out: &mut String) -> Result<(), char> {
        let day = DAYS[usize::try_from(at.weekday).unwrap_or_default() % 7];
        let month = MONTHS[usize::try_from(at.month - 1).unwrap_or_default() % 12];
        let nested = match directive {
            'F' => "%Y-%m-%d",
            'T' | 'X' => "%H:%M:%S",
            'R' => "%H:%M",
            'D' | 'x' => "%m/%d/%y",
            'c' => "%a %b %e %H:%M:%S %Y",
            _ => "",
        };
        match directive {
            'A' => out.push_str(day),
            'a' => out.push_str(&day[..3]),
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(&month[..3]),
            'p' => out.push_str(if at.second_of_day < 43_200 {
                "AM"
            } else {
                "PM"
            }),
            'e' => out.push_str(&format!("{:2}", at.day)),
            // What Python prints for a time without a zone.
            'z' | 'Z' => {}
            '%' => out.push('%'),
            'n' => out.push('\n'),
            't' => out.push('\t'),
            _ if !nested.is_empty() => out.push_str(&self.format(nested)?),
            other => return Err(other),
        }
        Ok(())
    }
}

/// Days from 1970-01-01 to a date (H. Hinnant, "chrono-compatible low-level date algorithms").
fn days_to(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The (year, month, day) that many days after 1970-01-01.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_seconds: i64) -> Clock {
        Clock {
            unix_seconds,
            utc_offset_seconds: 0,
        }
    }

    #[test]
    fn known_moments_print_as_in_python() {
        assert_eq!(
            at(0).format("%d %b %Y %A %j"),
            Ok("01 Jan 1970 Thursday 001".into())
        );
        assert_eq!(
            at(1_709_210_096).format("%Y-%m-%d %H:%M:%S %p %a %B %-d %-I %y"),
            Ok("2024-02-29 12:34:56 PM Thu February 29 12 24".into())
        );
        assert_eq!(
            at(-1).format("%F %T %e %%"),
            Ok("1969-12-31 23:59:59 31 %".into())
        );
        assert_eq!(at(0).format("%Q"), Err('Q'));
    }

    #[test]
    fn weekdays_count_from_sunday_or_from_monday() {
        let of_day = |day: i64| at(day * 86_400).format("%a %w %u");

        assert_eq!(of_day(0), Ok("Thu 4 4".into()));
        assert_eq!(of_day(2), Ok("Sat 6 6".into()));
        assert_eq!(of_day(3), Ok("Sun 0 7".into()));
        assert_eq!(of_day(4), Ok("Mon 1 1".into()));
    }

    #[test]
    fn the_offset_moves_the_date() {
        let clock = Clock {
            unix_seconds: 86_399,
            utc_offset_seconds: 3600,
        };

        assert_eq!(clock.format("%d %H"), Ok("02 00".into()));
    }

    #[test]
    fn extreme_moments_do_not_overflow() {
        for seconds in [i64::MIN, i64::MAX] {
            for utc_offset_seconds in [i32::MIN, i32::MAX] {
                let clock = Clock {
                    unix_seconds: seconds,
                    utc_offset_seconds,
                };
                assert!(clock.format("%Y-%m-%d %c").is_ok());
            }
        }
    }
}
