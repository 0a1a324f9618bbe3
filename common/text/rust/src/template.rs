//! Chat templates: Jinja2 as `transformers` sets it up, on minijinja.

use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Rest;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};
use serde_json::{json, Value as Json};

use crate::boundary::{Failure, Status};
use crate::config::TokenizerConfig;
use crate::messages::{prepare, TemplateShape};
use crate::methods;
use crate::python;
use crate::source;
use crate::stack::on_deep_stack;

/// Instructions one rendering may take. A conversation of a thousand messages takes about a
/// million; a template that loops on is stopped within seconds.
const RENDER_FUEL: u64 = 20_000_000;

/// What to render, as JSON text; empty means absent.
pub struct ChatInput<'a> {
    pub messages: &'a str,
    pub tools: &'a str,
    pub kwargs: &'a str,
    pub add_generation_prompt: bool,
    pub unix_seconds: f64,
}

/// A message that the template itself raised, to be shown word for word.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for Raised {}

fn raise_exception(message: Value) -> Result<Value, Error> {
    let text = python::to_str(&message)?;
    Err(Error::new(ErrorKind::InvalidOperation, text.clone()).with_source(Raised(text)))
}

/// The names with which a folder's templates are stored and picked.
const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Immutable after construction; `render` may be called from any thread.
pub struct ChatTemplates {
    environment: Environment<'static>,
    shapes: Vec<(String, TemplateShape)>,
    special_tokens: Vec<(String, String)>,
}

impl ChatTemplates {
    /// `jinja` is the text of chat_template.jinja, which wins over the configuration's entry.
    pub fn from_config(config: &[u8], jinja: Option<&str>) -> Result<Self, Failure> {
        let config = TokenizerConfig::parse(config)?;
        let special_tokens = config
            .roles()
            .map(|(role, content)| (role.to_string(), content.to_string()))
            .collect();
        let sources = match jinja {
            Some(source) => vec![(DEFAULT.to_string(), source.to_string())],
            None => config_templates(&config)?,
        };
        Self::build(sources, special_tokens)
    }

    fn build(
        sources: Vec<(String, String)>,
        special_tokens: Vec<(String, String)>,
    ) -> Result<Self, Failure> {
        let names = sources
            .iter()
            .map(|(name, _)| name.clone())
            .collect::<Vec<_>>();
        let environment = compile(sources)?;
        let mut templates = ChatTemplates {
            environment,
            shapes: Vec::new(),
            special_tokens,
        };
        for name in names {
            let shape = templates.probe(&name);
            templates.shapes.retain(|(known, _)| *known != name);
            templates.shapes.push((name, shape));
        }
        Ok(templates)
    }

    pub fn render(&self, input: &ChatInput) -> Result<String, Failure> {
        let tools = match parse(input.tools, "tools")? {
            Json::Array(tools) if !tools.is_empty() => Json::Array(tools),
            Json::Array(_) | Json::Null => Json::Null,
            _ => return Err(Failure::invalid("tools must be an array")),
        };
        let kwargs = match parse(input.kwargs, "chat_template_kwargs")? {
            Json::Object(kwargs) => kwargs,
            Json::Null => serde_json::Map::new(),
            _ => return Err(Failure::invalid("chat_template_kwargs must be an object")),
        };
        let (name, shape) = self.pick(!tools.is_null())?;
        let messages = prepare(parse(input.messages, "messages")?, shape)?;
        let mut context = Context::new(&self.special_tokens, input.unix_seconds);
        for (key, value) in &kwargs {
            context.set(key, to_value(value));
        }
        context.set("messages", to_value(&messages));
        context.set("tools", to_value(&tools));
        if !kwargs.contains_key("documents") {
            context.set("documents", Value::from(()));
        }
        context.set(
            "add_generation_prompt",
            Value::from(input.add_generation_prompt),
        );
        self.run(name, context)
    }

    /// On a stack of its own: values that a template has nested are compared, hashed and dropped
    /// by recursion, as deep as the fuel reaches.
    fn run(&self, name: &str, context: Context) -> Result<String, Failure> {
        on_deep_stack(|| {
            self.environment
                .get_template(name)
                .and_then(|template| template.render(context.into_value()))
                .map_err(|e| Failure::invalid(describe(&e)))
        })?
    }

    fn pick(&self, with_tools: bool) -> Result<(&str, TemplateShape), Failure> {
        let find = |wanted: &str| self.shapes.iter().find(|(name, _)| name == wanted);
        let found = if with_tools {
            find(TOOL_USE).or_else(|| find(DEFAULT))
        } else {
            find(DEFAULT)
        };
        found
            .map(|(name, shape)| (name.as_str(), *shape))
            .ok_or_else(|| {
                let names: Vec<&str> = self.shapes.iter().map(|(name, _)| name.as_str()).collect();
                Failure::invalid(format!(
                    "the model has chat templates ({}) but none named \"default\"",
                    names.join(", ")
                ))
            })
    }

    /// Renders small made-up chats to see how the template reads content.
    fn probe(&self, name: &str) -> TemplateShape {
        const TEXT: &str = "tandem-probe-text";
        const CALL: &str = "tandem_probe_call";
        let try_render = |messages: Json| {
            let mut context = Context::new(&self.special_tokens, 0.0);
            context.set("messages", to_value(&messages));
            context.set("tools", Value::from(()));
            context.set("documents", Value::from(()));
            context.set("add_generation_prompt", Value::from(false));
            self.run(name, context).unwrap_or_default()
        };
        let user = |content: Json| json!([{"role": "user", "content": content}]);
        let string = try_render(user(json!(TEXT)));
        let parts = try_render(user(json!([{"type": "text", "text": TEXT}])));
        // A template that prints the array as it is shows the keys of its parts.
        let keys = |text: &str| text.matches("'type'").count() + text.matches("\"type\"").count();
        let takes_parts = parts.contains(TEXT) && keys(&parts) <= keys(&string);
        let needs_parts = takes_parts && !string.contains(TEXT);
        let question = if needs_parts {
            json!([{"type": "text", "text": TEXT}])
        } else {
            json!(TEXT)
        };
        let shows_call = |content: Json, arguments: Json| {
            let text = try_render(json!([
                {"role": "user", "content": question},
                {"role": "assistant", "content": content, "tool_calls": [
                    {"id": "call00001", "type": "function",
                     "function": {"name": CALL, "arguments": arguments}}]}
            ]));
            text.contains(CALL) && !text.contains("None")
        };
        let object = json!({"key": "value"});
        let forms = [
            (json!(""), object.clone()),
            (Json::Null, object.clone()),
            (json!(""), json!(object.to_string())),
            (Json::Null, json!(object.to_string())),
        ];
        // A template that shows no call in any form is not helped by another form.
        let form = forms
            .into_iter()
            .find(|(content, arguments)| shows_call(content.clone(), arguments.clone()));
        TemplateShape {
            takes_parts,
            needs_parts,
            tool_calls_need_none: matches!(&form, Some((Json::Null, _))),
            arguments_as_text: matches!(&form, Some((_, Json::String(_)))),
        }
    }
}

/// `chat_template` is one template or a list of named ones.
fn config_templates(config: &TokenizerConfig) -> Result<Vec<(String, String)>, Failure> {
    let wrong = || {
        Failure::corrupt(
            "tokenizer_config.json: chat_template must be a string or a list of \
             {\"name\", \"template\"} objects",
        )
    };
    let templates = match config.root.get("chat_template") {
        Some(Json::String(source)) => vec![(DEFAULT.to_string(), source.clone())],
        Some(Json::Array(items)) => items
            .iter()
            .map(|item| {
                let field = |name: &str| item.get(name).and_then(Json::as_str);
                match (field("name"), field("template")) {
                    (Some(name), Some(source)) => Ok((name.to_string(), source.to_string())),
                    _ => Err(wrong()),
                }
            })
            .collect::<Result<Vec<_>, _>>()?,
        Some(Json::Null) | None => Vec::new(),
        Some(_) => return Err(wrong()),
    };
    if templates.is_empty() {
        return Err(Failure::new(
            Status::NotFound,
            "the model has no chat template",
        ));
    }
    Ok(templates)
}

fn parse(text: &str, what: &str) -> Result<Json, Failure> {
    if text.is_empty() {
        return Ok(Json::Null);
    }
    serde_json::from_str(text).map_err(|e| Failure::invalid(format!("{what} is not JSON: {e}")))
}

/// Compiles on a thread of its own: the compiler recurses along chains of operators.
fn compile(sources: Vec<(String, String)>) -> Result<Environment<'static>, Failure> {
    let internal = |what: String| Failure::new(Status::Internal, what);
    let worker = std::thread::Builder::new()
        .stack_size(source::COMPILE_STACK_BYTES)
        .spawn(move || {
            let mut environment = new_environment()?;
            for (name, text) in sources {
                let text = source::prepare(&text)?;
                environment
                    .add_template_owned(name.clone(), text)
                    .map_err(|e| {
                        Failure::corrupt(format!(
                            "chat template \"{name}\" does not compile: {}",
                            describe(&e)
                        ))
                    })?;
            }
            Ok(environment)
        })
        .map_err(|e| internal(format!("cannot start a thread: {e}")))?;
    worker
        .join()
        .map_err(|_| internal("the template compiler panicked".to_string()))?
}

fn new_environment() -> Result<Environment<'static>, Failure> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|e| Failure::new(Status::Internal, e.to_string()))?;
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(RENDER_FUEL));
    minijinja_contrib::add_to_environment(&mut environment);
    environment.set_unknown_method_callback(methods::unknown_method);
    environment.set_formatter(format_value);
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", |value: &Value| python::to_str(value));
    environment.add_filter("default", methods::default_filter);
    environment.add_filter("d", methods::default_filter);
    environment.add_filter("e", methods::escape_filter);
    environment.add_filter("escape", methods::escape_filter);
    environment.add_filter("int", methods::int_filter);
    environment.add_filter("float", methods::float_filter);
    environment.add_test("iterable", methods::is_iterable);
    environment.add_test("sequence", methods::is_sequence);
    environment.add_test("callable", methods::is_callable);
    environment.add_function("raise_exception", raise_exception);
    Ok(environment)
}

fn format_value(out: &mut Output, _: &mut State, value: &Value) -> Result<(), Error> {
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&python::to_str(value)?),
    };
    written.map_err(|_| Error::new(ErrorKind::WriteFailure, "output failed"))
}

/// The variables of one rendering, later ones over earlier ones.
struct Context(Vec<(String, Value)>);

impl Context {
    fn new(special_tokens: &[(String, String)], unix_seconds: f64) -> Self {
        let mut context = Context(Vec::new());
        let now = move |format: String, _: Rest<Value>| python::strftime(unix_seconds, &format);
        context.set("strftime_now", Value::from_function(now));
        for (role, content) in special_tokens {
            context.set(role, Value::from(content.as_str()));
        }
        context
    }

    fn set(&mut self, name: &str, value: Value) {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_string(), value));
    }

    fn into_value(self) -> Value {
        Value::from_pairs(self.0)
    }
}

/// JSON as template values, keys in their order. The JSON parser has limited the depth.
fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (None, Some(u)) => Value::from(u),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => Value::from(items.iter().map(to_value).collect::<Vec<Value>>()),
        Json::Object(fields) => Value::from_pairs(
            fields
                .iter()
                .map(|(key, value)| (key.clone(), to_value(value))),
        ),
    }
}

/// A template's own message word for word; any other error with its line.
fn describe(error: &Error) -> String {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            return raised.0.clone();
        }
        source = inner.source();
    }
    let detail = error.detail().map_or(String::new(), |d| format!(": {d}"));
    let line = error
        .line()
        .map_or(String::new(), |l| format!(" (line {l})"));
    format!("chat template: {}{detail}{line}", error.kind())
}
