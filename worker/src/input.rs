//! Input of commands: text, JSON and lines of JSON.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::failure::{Failure, Outcome};

/// Text of a file; "-" is stdin.
pub fn text(path: &Path) -> Outcome<String> {
    let mut text = String::new();
    let read = if path.as_os_str() == "-" {
        io::stdin().read_to_string(&mut text)
    } else {
        File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    read.map_err(|error| Failure::file(path, &error))?;
    Ok(text)
}

/// One JSON value of a file; "-" is stdin.
pub fn json<T: DeserializeOwned>(path: &Path) -> Outcome<T> {
    serde_json::from_str(&text(path)?)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Answers each line of JSON with a line of JSON, in order, without waiting for the next. A line that fails is
/// answered with its error, and the command fails at the end.
pub fn answer_lines<In: DeserializeOwned, Out: Serialize>(
    path: &Path,
    mut answer: impl FnMut(In) -> Outcome<Out>,
) -> Outcome {
    let reader: Box<dyn BufRead> = if path.as_os_str() == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(
            File::open(path).map_err(|error| Failure::file(path, &error))?,
        ))
    };
    let (mut failed, mut total) = (0, 0);
    for line in reader.lines() {
        let line = line.map_err(|error| Failure::file(path, &error))?;
        if line.trim().is_empty() {
            continue;
        }
        total += 1;
        let answered = serde_json::from_str(&line)
            .map_err(|error| Failure::new(format!("request {total}: {error}")))
            .and_then(&mut answer)
            .and_then(|out| Ok(serde_json::to_value(out)?));
        let value = match answered {
            Ok(value) => value,
            Err(failure) if failure.is_interrupted() => return Err(failure),
            Err(failure) => {
                failed += 1;
                serde_json::json!({ "error": failure.to_string() })
            }
        };
        print_json(&value)?;
    }
    if failed > 0 {
        return Err(Failure::new(format!("{failed} of {total} requests failed")));
    }
    Ok(())
}

/// One JSON value as a line on stdout.
pub fn print_json(value: &impl Serialize) -> Outcome {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, value)?;
    out.write_all(b"\n")?;
    out.flush()?;
    Ok(())
}
