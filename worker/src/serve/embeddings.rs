//! `/v1/embeddings`.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use worker_cuda::Token;
use worker_cuda::generate::Prompt;
use worker_cuda::generate::service::{MAX_CHOICES, Pooling, Request};

use super::app::App;
use super::error::ApiError;
use super::fields::{Fields, tokens, wrong_type};
use super::gate::Visitor;
use super::generation::{PROMPT_TOKEN_BYTES, Parts, accept, blocking, collect};
use super::input::{Input, check_unknown, with_ignored};
use super::names::Names;
use super::parameters::{HARMLESS, check_model, order};
use super::routes::json_body;

/// Most inputs of a request.
pub const MAX_INPUTS: usize = 2048;

/// Inputs of a request that the service has at once.
const MAX_RUNNING: usize = MAX_CHOICES as usize;

/// `POST /v1/embeddings`.
pub async fn embeddings(
    Input {
        app,
        visitor,
        mut fields,
    }: Input,
) -> Result<Response, ApiError> {
    check_model(&mut fields, &app)?;
    fields.skip(&HARMLESS);
    let form = Form::read(&mut fields)?;
    let dimensions = fields.integer("dimensions", 1..=u32::MAX.into())?;
    let inputs = inputs(&mut fields)?;
    let mut request = Request::embedding(Prompt::Tokens(Vec::new()), Pooling::Last);
    order(&mut fields, &app, &visitor.caller, &mut request)?;
    let ignored = check_unknown(&app, fields.unknown())?;
    request.pooling = Some(pooling(&app)?);
    let width = u64::from(app.service.limits().embedding_length);
    let dimensions = dimensions.unwrap_or(width);
    if dimensions > width {
        let message = format!("dimensions is {dimensions}, embeddings of this model have {width}");
        return Err(ApiError::invalid("dimensions", message));
    }
    let asked = Asked {
        request,
        form,
        dimensions: dimensions as usize,
        param: match inputs.len() {
            1 => |_| "input".to_owned(),
            _ => |index| format!("input[{index}]"),
        },
    };
    let body = asked.answer(&app, &visitor, inputs).await?;
    Ok(with_ignored(json_body(body), ignored))
}

/// A text or tokens, or a list of such.
fn inputs(fields: &mut Fields) -> Result<Vec<Prompt>, ApiError> {
    const WANTED: &str = "a string or a list of token ids";
    let list = match fields.required("input")? {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(list) => list,
        other => return Err(wrong_type("input".into(), WANTED, &other)),
    };
    if list.first().is_none_or(Value::is_number) {
        return Ok(vec![Prompt::Tokens(tokens("input", Value::Array(list))?)]);
    }
    if list.len() > MAX_INPUTS {
        let message = format!(
            "input has a length of {}, at most {MAX_INPUTS} is accepted",
            list.len()
        );
        return Err(ApiError::invalid("input", message));
    }
    let input = |(index, value)| {
        let name = format!("input[{index}]");
        match value {
            Value::String(text) => Ok(Prompt::Text(text)),
            Value::Array(_) => tokens(&name, value).map(Prompt::Tokens),
            other => Err(wrong_type(name, WANTED, &other)),
        }
    };
    list.into_iter().enumerate().map(input).collect()
}

fn pooling(app: &App) -> Result<Pooling, ApiError> {
    app.model.pooling.ok_or_else(|| {
        let message = "the file of this model does not state how tokens become one embedding; start the server with \
                       --pooling mean, last or first";
        ApiError::unsupported("model", message)
    })
}

/// A request that was understood.
struct Asked {
    /// That of each input, without its tokens.
    request: Request,
    form: Form,
    dimensions: usize,
    /// The name of an input in errors.
    param: fn(usize) -> String,
}

impl Asked {
    /// The body of the answer.
    async fn answer(
        &self,
        app: &Arc<App>,
        visitor: &Visitor,
        inputs: Vec<Prompt>,
    ) -> Result<String, ApiError> {
        let param = self.param;
        let named = move |index, error| Names::new(&[("messages", &param(index))]).restore(error);
        let now = || app.service.clock().now();
        let end = self.request.deadline.map(|deadline| now() + deadline);
        let inputs: Vec<Vec<Token>> = blocking({
            let app = Arc::clone(app);
            move || {
                let inputs = inputs.iter().enumerate();
                let encode = |(index, input)| {
                    let tokens = app.encode(input).map_err(|error| named(index, error))?;
                    match tokens.is_empty() {
                        true => {
                            let name = param(index);
                            let message = format!("{name} has no tokens");
                            Err(ApiError::invalid(name, message))
                        }
                        false => Ok(tokens),
                    }
                };
                inputs.map(encode).collect()
            }
        })
        .await?;
        let token_count: usize = inputs.iter().map(Vec::len).sum();
        let bytes =
            FRAME_BYTES + inputs.len() * (FRAME_BYTES + self.form.max_bytes(self.dimensions));
        if let Some(room) = &visitor.room {
            room.set(token_count * PROMPT_TOKEN_BYTES + bytes)?;
        }

        let mut body = String::with_capacity(bytes);
        body.push_str(r#"{"object":"list","data":["#);
        let mut waiting = inputs.into_iter().enumerate().peekable();
        let mut running = VecDeque::new();
        loop {
            while running.len() < MAX_RUNNING
                && let Some((index, input)) = waiting.peek()
            {
                let mut request = self.request.clone();
                request.deadline = end.map(|end| end.saturating_sub(now()));
                match accept(app, visitor, request, input.clone()) {
                    Ok(accepted) => running.push_back((*index, accepted)),
                    // There is room when one of its own inputs has ended.
                    Err(error) if is_queue_full(&error) && !running.is_empty() => break,
                    Err(error) => return Err(named(*index, error)),
                }
                waiting.next();
            }
            let Some((index, mut accepted)) = running.pop_front() else {
                break;
            };
            let parts = collect(app, &mut accepted, Parts::new(1, false, None)).await;
            let mut values = parts.map_err(|error| named(index, error))?.embedding;
            values.truncate(self.dimensions);
            normalize(&mut values);
            let comma = if index == 0 { "" } else { "," };
            let frame = format!(r#"{comma}{{"object":"embedding","index":{index},"embedding":"#);
            body.push_str(&frame);
            self.form.write(&values, &mut body);
            body.push('}');
        }
        let usage = json!({ "prompt_tokens": token_count, "total_tokens": token_count });
        let model = Value::from(app.model.id());
        body.push_str(&format!(r#"],"model":{model},"usage":{usage}}}"#));
        Ok(body)
    }
}

fn is_queue_full(error: &ApiError) -> bool {
    ["queue_full", "tenant_queue_full"].contains(&error.code())
}

/// Bytes of what is around an embedding, and around all of them, without the name of the model.
const FRAME_BYTES: usize = 128;

/// Gives a vector the length 1.
fn normalize(values: &mut [f32]) {
    let squares = values.iter().map(|value| f64::from(*value).powi(2));
    let length = squares.sum::<f64>().sqrt();
    if length > 0.0 {
        for value in values {
            *value = (f64::from(*value) / length) as f32;
        }
    }
}

/// How embeddings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A list of numbers.
    Numbers,
    /// The little-endian bytes of f32.
    Base64,
}

impl Form {
    fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        match fields.string("encoding_format")?.as_deref() {
            None | Some("float") => Ok(Self::Numbers),
            Some("base64") => Ok(Self::Base64),
            Some(_) => {
                let message = "encoding_format must be \"float\" or \"base64\"";
                Err(ApiError::invalid("encoding_format", message))
            }
        }
    }

    /// At most the bytes of an embedding.
    fn max_bytes(self, dimensions: usize) -> usize {
        match self {
            Self::Numbers => dimensions * "-1.23456789e-12,".len(),
            Self::Base64 => (dimensions * size_of::<f32>()).div_ceil(3) * 4 + 2,
        }
    }

    fn write(self, values: &[f32], out: &mut String) {
        match self {
            Self::Numbers => {
                // As f32: the digits of a Value are those of f64.
                let list = serde_json::to_string(values);
                out.push_str(&list.unwrap_or_else(|_| unreachable!("numbers have a form")));
            }
            Self::Base64 => {
                out.push('"');
                let bytes: Vec<u8> = values
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect();
                STANDARD.encode_string(&bytes, out);
                out.push('"');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_its_definition() {
        // RFC 4648, section 10.
        let texts = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let encoded = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        for (text, encoded) in texts.iter().zip(encoded) {
            let mut out = String::new();
            STANDARD.encode_string(text, &mut out);
            assert_eq!(out, encoded);
        }
    }

    #[test]
    fn an_embedding_takes_no_more_than_is_reserved() {
        let values = [-1.175_494_4e-38, -0.001_234_567_8, -1.0, f32::MIN_POSITIVE];
        for form in [Form::Numbers, Form::Base64] {
            let mut out = String::new();
            form.write(&values, &mut out);
            assert!(out.len() <= form.max_bytes(values.len()), "{out}");
        }
    }

    #[test]
    fn vectors_of_zeros_stay_and_long_ones_do_not_overflow() {
        let mut values = [0.0; 3];
        normalize(&mut values);
        assert_eq!(values, [0.0; 3]);
        let mut values = [3.0, 4.0].map(|value| value * 2f32.powi(100));
        normalize(&mut values);
        assert_eq!(values, [0.6, 0.8]);
    }
}
