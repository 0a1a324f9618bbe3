//! Brings a chat request's messages into the form that chat templates are written for.

use serde_json::{json, Map, Value};

use crate::boundary::Failure;

/// What a template does with message content; found by probing it at load (`template.rs`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TemplateShape {
    /// Iterates over content parts itself, so arrays are handed over as they are.
    pub takes_parts: bool,
    /// Only reads parts: plain strings must be wrapped into one.
    pub needs_parts: bool,
    /// Writes tool calls only when content is none.
    pub tool_calls_need_none: bool,
    /// Joins a call's arguments to text, so they must stay JSON text.
    pub arguments_as_text: bool,
}

/// Names under which clients send a message's reasoning; the first is the one templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

pub fn prepare(messages: Value, shape: TemplateShape) -> Result<Value, Failure> {
    let Value::Array(messages) = messages else {
        return Err(Failure::invalid("messages must be an array"));
    };
    if messages.is_empty() {
        return Err(Failure::invalid("messages must not be empty"));
    }
    let prepared = messages
        .into_iter()
        .enumerate()
        .map(|(i, message)| match message {
            Value::Object(fields) => prepare_message(i, fields, shape),
            _ => Err(Failure::invalid(format!("messages[{i}] must be an object"))),
        })
        .collect::<Result<Vec<Value>, Failure>>()?;
    Ok(Value::Array(prepared))
}

fn prepare_message(
    index: usize,
    mut fields: Map<String, Value>,
    shape: TemplateShape,
) -> Result<Value, Failure> {
    // Client libraries send null for what is absent; templates ask "is defined".
    fields.retain(|_, value| !value.is_null());
    alias_reasoning(&mut fields);
    if let Some(calls) = fields.get_mut("tool_calls") {
        convert_arguments(calls, shape.arguments_as_text);
    }
    let has_calls = matches!(fields.get("tool_calls"), Some(Value::Array(c)) if !c.is_empty());
    let content = match fields.get_mut("content").map(Value::take) {
        None => Value::String(String::new()),
        Some(Value::Array(parts)) => {
            let parts = text_parts(index, parts)?;
            if shape.takes_parts {
                parts
                    .into_iter()
                    .map(|text| json!({"type": "text", "text": text}))
                    .collect()
            } else {
                Value::String(parts.concat())
            }
        }
        Some(Value::String(text)) => Value::String(text),
        Some(_) => {
            return Err(Failure::invalid(format!(
                "messages[{index}].content must be a string or an array of parts"
            )))
        }
    };
    let content = match content {
        Value::String(text) if text.is_empty() && has_calls && shape.tool_calls_need_none => {
            Value::Null
        }
        Value::String(text) if shape.needs_parts => json!([{"type": "text", "text": text}]),
        other => other,
    };
    fields.insert("content".to_string(), content);
    Ok(Value::Object(fields))
}

fn alias_reasoning(fields: &mut Map<String, Value>) {
    let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name)).cloned() else {
        return;
    };
    fields
        .entry("thinking")
        .or_insert_with(|| reasoning.clone());
    fields.insert("reasoning_content".to_string(), reasoning);
}

/// The API carries arguments as JSON text; templates print them as an object, but a few join text.
fn convert_arguments(calls: &mut Value, as_text: bool) {
    let Value::Array(calls) = calls else {
        return;
    };
    for call in calls {
        let Some(arguments) = call.pointer_mut("/function/arguments") else {
            continue;
        };
        match arguments {
            Value::String(_) if as_text => {}
            Value::String(text) if text.trim().is_empty() => *arguments = json!({}),
            Value::String(text) => {
                if let Ok(Value::Object(object)) = serde_json::from_str::<Value>(text) {
                    *arguments = Value::Object(object);
                }
            }
            other => {
                if as_text {
                    *other = Value::String(other.to_string());
                }
            }
        }
    }
}

/// The text of every part, in order. This product serves text only, so other kinds are refused.
fn text_parts(index: usize, parts: Vec<Value>) -> Result<Vec<String>, Failure> {
    parts
        .into_iter()
        .enumerate()
        .map(|(j, part)| {
            let place = || format!("messages[{index}].content[{j}]");
            let kind = part.get("type").and_then(Value::as_str).unwrap_or("text");
            let field = match kind {
                "text" | "input_text" | "output_text" => "text",
                "refusal" => "refusal",
                other => {
                    return Err(Failure::invalid(format!(
                        "{} has type \"{other}\"; only text parts are supported",
                        place()
                    )))
                }
            };
            match part.get(field) {
                Some(Value::String(text)) => Ok(text.clone()),
                _ => Err(Failure::invalid(format!(
                    "{}.{field} must be a string",
                    place()
                ))),
            }
        })
        .collect()
}
