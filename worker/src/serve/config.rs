//! Where the options of `serve` come from: flags, the environment, a TOML file, defaults, in this order.
//!
//! A key of the file has the name of its flag, with `-` or `_`. What the file says and neither flag nor
//! environment does is put among the arguments, which are then parsed once more: a value is checked the same way
//! wherever it comes from.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use toml::{Table, Value};

use crate::failure::{Failure, Outcome};

/// Lets the arguments of a command come from the environment: `--max-queued` from `WORKER_MAX_QUEUED`. `flags` are
/// those of its command line, which override it.
pub fn with_environment(command: Command, flags: &ArgMatches) -> Command {
    let is_flag = |id: &&str| flags.value_source(id) == Some(ValueSource::CommandLine);
    command.mut_args(|argument| match option_name(&argument) {
        Some(name) if !rivals(argument.get_id().as_str()).iter().any(is_flag) => {
            let variable = format!("WORKER_{}", name.replace('-', "_").to_uppercase());
            argument.env(variable).hide_env(true)
        }
        _ => argument,
    })
}

/// Where to listen is one option with two forms, and so is the model: the other form of an argument.
fn rivals(id: &str) -> &'static [&'static str] {
    match id {
        "model" => &["model_file"],
        "unix" => &["host", "port"],
        "host" | "port" => &["unix"],
        _ => &[],
    }
}

/// The name of an argument in the file, and as a flag; None for those that only a command line has.
fn option_name(argument: &Arg) -> Option<String> {
    let name = argument.get_long().unwrap_or(argument.get_id().as_str());
    // The flag --model is another form of the argument.
    let is_known = !["help", "version"].contains(&name) && argument.get_id() != "model_file";
    is_known.then(|| name.to_owned())
}

/// The arguments of a command with those of its configuration file. `arguments` begin after the command's name.
pub fn with_file(
    command: &Command,
    found: &ArgMatches,
    arguments: &[OsString],
) -> Outcome<Vec<OsString>> {
    let is_argument = |id| found.value_source(id) == Some(ValueSource::CommandLine);
    if is_argument("model") && is_argument("model_file") {
        let message = "the model is given twice: as an argument, and by --model";
        return Err(Failure::usage(message));
    }
    let Some(path) = found.get_one::<std::path::PathBuf>("config") else {
        return Ok(arguments.to_vec());
    };
    let text = fs::read_to_string(path).map_err(|error| Failure::file(path, &error))?;
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| wrong(path, &syntax_error(&text, &error)))?;
    let is_given = |id: &str| {
        let source = found.value_source(id);
        source.is_some_and(|source| source != ValueSource::DefaultValue)
    };
    let mut all = Vec::new();
    for (key, value) in &table {
        let name = key.replace('_', "-");
        let known = command.get_arguments().find(|argument| {
            option_name(argument).is_some_and(|known| known == name && known != "config")
        });
        let argument = known.ok_or_else(|| wrong(path, &format!("the key '{key}' is unknown")))?;
        let id = argument.get_id().as_str();
        if !is_given(id) && !rivals(id).iter().any(|id| is_given(id)) {
            let items = flags(argument, value).ok_or_else(|| {
                let kind = value.type_str();
                wrong(
                    path,
                    &format!("the key '{key}' cannot be a value of type {kind}"),
                )
            })?;
            all.extend(items.into_iter().map(OsString::from));
        }
    }
    all.extend_from_slice(arguments);
    Ok(all)
}

/// On one line, with the number of the line that it is about.
fn syntax_error(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(1, |before| before.matches('\n').count() + 1);
    format!("line {line}: {}", error.message())
}

fn wrong(path: &Path, message: &str) -> Failure {
    Failure::usage(format!("{}: {message}", path.display()))
}

/// The command line that says the same.
fn flags(argument: &Arg, value: &Value) -> Option<Vec<String>> {
    if let Value::Array(list) = value {
        let each = list.iter().map(|item| match item {
            Value::Array(_) => None,
            item => flags(argument, item),
        });
        let each: Option<Vec<_>> = each.collect();
        return each.map(|each| each.concat());
    }
    let takes_value = argument.get_action().takes_values();
    let text = match value {
        Value::Boolean(on) if !takes_value => {
            let flag = argument.get_long()?;
            return Some(if *on {
                vec![format!("--{flag}")]
            } else {
                Vec::new()
            });
        }
        Value::String(text) if takes_value => text.clone(),
        Value::Integer(number) if takes_value => number.to_string(),
        _ => return None,
    };
    Some(vec![match argument.get_long() {
        Some(flag) => format!("--{flag}={text}"),
        None => text,
    }])
}

/// One line an option, "port = 9000 # flag": what is in force, and where it comes from. As a file it says the same:
/// defaults are comments, and so is the name of the file. `given` is what was found without the file, `found` with it.
pub fn describe(command: &Command, given: &ArgMatches, found: &ArgMatches) -> String {
    let mut text = String::new();
    for argument in command.get_arguments() {
        let Some(name) = option_name(argument) else {
            continue;
        };
        let id = match argument.get_id().as_str() {
            "model" if found.value_source("model_file").is_some() => "model_file",
            id => id,
        };
        let source = |matches: &ArgMatches| matches.value_source(id);
        let origin = match (source(given), source(found)) {
            (Some(ValueSource::EnvVariable), _) => {
                let variable = argument.get_env().unwrap_or_default();
                format!("environment {}", variable.to_string_lossy())
            }
            (Some(ValueSource::CommandLine), _) => "flag".to_owned(),
            (_, Some(ValueSource::CommandLine)) => "file".to_owned(),
            _ => "default".to_owned(),
        };
        let takes_value = argument.get_action().takes_values();
        let values: Vec<String> = match found.get_raw(id) {
            Some(values) => values
                .map(|value| toml_value(&value.to_string_lossy(), takes_value))
                .collect(),
            None => Vec::new(),
        };
        if !values.is_empty() && (origin == "default" || name == "config") {
            text += "# ";
        }
        let is_list = matches!(argument.get_action(), clap::ArgAction::Append);
        text += &match (values.as_slice(), is_list) {
            ([], _) => format!("# {name} is not set\n"),
            ([value], false) => format!("{name} = {value} # {origin}\n"),
            (values, _) => format!("{name} = [{}] # {origin}\n", values.join(", ")),
        };
    }
    text
}

fn toml_value(text: &str, takes_value: bool) -> String {
    let is_number = text
        .parse::<i64>()
        .is_ok_and(|number| number.to_string() == text);
    match is_number || !takes_value {
        true => text.to_owned(),
        false => Value::from(text).to_string(),
    }
}
