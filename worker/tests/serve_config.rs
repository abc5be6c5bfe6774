//! `worker-orcd config`: flags come before the environment, which comes before the file.

use std::path::PathBuf;
use std::process::Output;

use support::{assert_fails, run, worker};

mod support;

fn file(name: &str, text: &str) -> String {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("a temporary file");
    path.to_str().expect("UTF-8").to_owned()
}

fn config(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = worker(&[&["config"], arguments].concat());
    command.envs(variables.iter().copied());
    command.output().expect("the worker starts")
}

#[track_caller]
fn lines(output: &Output) -> Vec<String> {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn each_value_has_its_origin() {
    let path = file(
        "layers.toml",
        "model = 'a.gguf'\nmax_queued = 7\nmax-sequences = 8\nport = 1\nstrict = true\nalias = ['x', 'y']\n",
    );
    let arguments = ["--config", &path, "--port", "3"];
    let variables = [("WORKER_PORT", "2"), ("WORKER_MAX_QUEUED", "9")];

    let found = lines(&config(&arguments, &variables));

    for line in [
        "model = \"a.gguf\" # file",
        "# host = \"127.0.0.1\" # default",
        "port = 3 # flag",
        "max-queued = 9 # environment WORKER_MAX_QUEUED",
        "max-sequences = 8 # file",
        "strict = true # file",
        "alias = [\"x\", \"y\"] # file",
        "# context is not set",
        "# itl-target-ms is not set",
    ] {
        assert!(
            found.iter().any(|other| other == line),
            "{line}: {found:#?}"
        );
    }
}

#[test]
fn what_is_printed_is_a_file_that_says_the_same() {
    let source = file("source.toml", "worker-id = '007'\n");
    let drafts = "--alias x,y --itl-target-ms 20 --drain-seconds 5 --draft-ngram --draft-max 4";
    for arguments in [
        "a.gguf".to_owned(),
        format!("a.gguf {drafts}"),
        "--unix /run/x --worker-id true --strict".to_owned(),
        format!("--config {source}"),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let first = lines(&config(&arguments, &[]));
        let path = file("again.toml", &first.join("\n"));

        let second = lines(&config(&["--config", &path], &[]));

        let values = |lines: &[String]| -> Vec<String> {
            let without_source = |line: &String| match line.rsplit_once(" # ") {
                Some((value, _)) => value.to_owned(),
                None => line.clone(),
            };
            let is_value = |line: &&String| !line.starts_with("# config ");
            lines.iter().filter(is_value).map(without_source).collect()
        };
        assert_eq!(values(&first), values(&second));
    }
}

#[test]
fn the_model_is_one_option_with_two_forms() {
    let twice = run(&["config", "a.gguf", "--model", "b.gguf"]);
    assert_fails(&twice, 2, "the model is given twice");
    let path = file("model.toml", "model = 'a.gguf'\n");
    let arguments = ["--config", &path, "--model", "b.gguf"];
    let found = lines(&config(&arguments, &[("WORKER_MODEL", "c.gguf")]));
    let model = "model = \"b.gguf\" # flag".to_owned();
    assert!(found.contains(&model), "{found:#?}");
}

#[test]
fn where_to_listen_is_one_option() {
    let path = file("unix.toml", "unix = '/run/x'\nmodel = 'a.gguf'\n");
    let found = lines(&config(&["--config", &path, "--port", "3"], &[]));
    assert!(
        found.contains(&"# unix is not set".to_owned()),
        "{found:#?}"
    );
    let path = file("port.toml", "port = 4\n");
    let found = lines(&config(&["--config", &path, "--unix", "/run/y"], &[]));
    assert!(
        found.contains(&"# port = 8080 # default".to_owned()),
        "{found:#?}"
    );
}

#[test]
fn a_flag_overrides_a_variable_of_the_other_form() {
    for (flag, value, variable, line) in [
        ("--unix", "/run/x", "WORKER_PORT", "# port = 8080 # default"),
        ("--port", "3", "WORKER_UNIX", "# unix is not set"),
        (
            "--host",
            "127.0.0.2",
            "WORKER_UNIX",
            "host = \"127.0.0.2\" # flag",
        ),
    ] {
        let found = lines(&config(&[flag, value], &[(variable, "4")]));
        assert!(found.contains(&line.to_owned()), "{line}: {found:#?}");
    }
    let both = [("WORKER_UNIX", "/run/x"), ("WORKER_PORT", "4")];
    assert_fails(&config(&[], &both), 2, "cannot be used with");
}

#[test]
fn options_that_need_each_other_may_have_different_sources() {
    let path = file("draft.toml", "draft-ngram = true\n");
    let found = lines(&config(&["--config", &path, "--draft-max", "3"], &[]));
    assert!(
        found.contains(&"draft-max = 3 # flag".to_owned()),
        "{found:#?}"
    );
    let alone = run(&["config", "--draft-max", "3"]);
    assert_fails(&alone, 2, "required arguments were not provided");
}

#[test]
fn files_with_mistakes_are_refused() {
    for (text, part) in [
        ("zeta = 1\n", "the key 'zeta' is unknown"),
        ("config = 'x'\n", "the key 'config' is unknown"),
        (
            "port = true\n",
            "the key 'port' cannot be a value of type boolean",
        ),
        (
            "strict = 1\n",
            "the key 'strict' cannot be a value of type integer",
        ),
        (
            "alias = [['x']]\n",
            "the key 'alias' cannot be a value of type array",
        ),
        ("port = 70000\n", "70000 is not in 0..=65535"),
        ("port = 1\nport = 2\n", "wrong.toml: line 2: duplicate key"),
        ("port = 1\n\nhost = \n", "wrong.toml: line 3: "),
    ] {
        let path = file("wrong.toml", text);
        assert_fails(&run(&["config", "--config", &path]), 2, part);
    }
    assert_fails(&run(&["config", "--config", "/nowhere"]), 1, "/nowhere");
    assert_fails(&run(&["serve"]), 2, "the model is missing");
}

#[test]
fn a_variable_for_keys_must_have_one() {
    for lines in ["", "# none\n"] {
        let mut command = worker(&["serve", "a.gguf"]);
        let output = command.env("WORKER_API_KEYS", lines).output();
        let output = output.expect("the worker starts");
        assert_fails(&output, 1, "WORKER_API_KEYS: has no key");
    }
}
