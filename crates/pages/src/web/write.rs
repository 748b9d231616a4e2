//! The pages that change objects. A refusal shows the user's text again with the reason, so that no text is lost.

use std::fmt::Display;

use axum::Form;
use axum::extract::multipart::MultipartRejection;
use axum::extract::rejection::FormRejection;
use axum::extract::{Multipart, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use kube_api::results;
use serde::Deserialize;
use serde_json::Value;

use super::read::{PageParameters, QueryResult, kind, plain};
use super::{Site, code, print, shown};
use crate::board::{identity, text};
use crate::kind::Kind;
use crate::pages::{
    ComparePage, ConfirmPage, DataPage, EditPage, Editor, NavSection, TemplateLink,
};
use crate::source::{Compare, Refused};
use crate::view::address;
use crate::view::compare::compared;
use crate::yaml::{self, YamlError};

/// A text from a form.
#[derive(Debug, Deserialize)]
pub(super) struct Written {
    text: String,
}

/// The template that a new object starts with.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Begun {
    template: String,
}

/// The address of an object: `-` stands for no namespace.
type Where = Path<(String, String, String)>;

fn place(plural: &str, namespace: &str) -> Result<(Kind, String), Refused> {
    let kind = kind(plural)?;
    let namespace = if kind.is_namespaced() { namespace } else { "" };
    Ok((kind, namespace.to_owned()))
}

/// The height of the editor for a text, in lines.
fn lines(text: &str) -> usize {
    (text.lines().count() + 2).clamp(12, 40)
}

/// The page that shows an object after a change.
fn home(kind: Kind, namespace: &str, name: &str, done: &str) -> String {
    let (path, asked) = match kind {
        Kind::Pods => (address::pod(namespace, name), ""),
        Kind::Nodes => (address::node(name), ""),
        _ => (address::list(kind), name),
    };
    let name = if asked.is_empty() { name } else { asked };
    format!(
        "{path}{}",
        address::query(&[("done", done), ("name", name)])
    )
}

fn refusal(why: impl Display) -> Refused {
    Refused::new(400, why.to_string())
}

/// The text of a form, or why it cannot be read.
fn sent(form: Result<Form<Written>, FormRejection>) -> Result<String, Refused> {
    match form {
        // A form ends its lines with CR LF.
        Ok(Form(written)) => Ok(written.text.replace("\r\n", "\n")),
        Err(rejection) => Err(Refused::new(
            rejection.status().as_u16(),
            format!(
                "the text cannot be read: {}; at most {} MiB are read",
                rejection.body_text(),
                super::MOST_TEXT >> 20
            ),
        )),
    }
}

/// The editor again, with the text that was refused.
fn again(mut page: EditPage, text: String, refused: &Refused) -> Response {
    tracing::debug!(code = refused.code, why = %refused.message, "a text was refused");
    page.editor.lines = lines(&text);
    page.editor.text = text;
    page.editor.error = refused.message.clone();
    print(code(refused), &page)
}

// ---- New objects.

fn new_page(site: &Site, kind: Kind, template: &str) -> EditPage {
    let templates = kind.templates();
    let chosen = templates
        .iter()
        .find(|known| known.id == template)
        .or(templates.first());
    let text = chosen.map_or("", |chosen| chosen.text).to_owned();
    let link = |known: &crate::kind::Template| TemplateLink {
        title: known.title,
        href: format!(
            "{}{}",
            address::new(kind),
            address::query(&[("template", known.id)])
        ),
        current: if chosen.is_some_and(|chosen| chosen.id == known.id) {
            "true"
        } else {
            "false"
        },
    };
    let heading = format!("New {}", kind.singular());
    EditPage {
        shell: site.shell(&heading, NavSection::Objects),
        editor: Editor {
            heading,
            help: "generateName gives each created object a new name; write name instead to choose one."
                .to_owned(),
            lines: lines(&text),
            text,
            button: format!("Create {}", kind.singular()),
            action: address::new(kind),
            back: address::list(kind),
            templates: if templates.len() > 1 {
                templates.iter().map(link).collect()
            } else {
                Vec::new()
            },
            ..Editor::default()
        },
    }
}

pub(super) async fn new(
    State(site): State<Site>,
    Path(plural): Path<String>,
    query: QueryResult<Begun>,
) -> Response {
    let begun = plain(query);
    match kind(&plural) {
        Ok(kind) => shown(&new_page(&site, kind, &begun.template)),
        Err(refused) => site.problem(&refused),
    }
}

pub(super) async fn create(
    State(site): State<Site>,
    Path(plural): Path<String>,
    form: Result<Form<Written>, FormRejection>,
) -> Response {
    let kind = match kind(&plural) {
        Ok(kind) => kind,
        Err(refused) => return site.problem(&refused),
    };
    let page = new_page(&site, kind, "");
    let text = match sent(form) {
        Ok(text) => text,
        Err(refused) => return again(page, String::new(), &refused),
    };
    match create_text(&site, kind, &text).await {
        Ok(made) => {
            site.wait_for(kind, &made).await;
            let (namespace, name) = identity(&made);
            Redirect::to(&home(kind, &namespace, &name, "created")).into_response()
        }
        Err(refused) => again(page, text, &refused),
    }
}

async fn create_text(site: &Site, kind: Kind, text: &str) -> Result<Value, Refused> {
    let mut object = yaml::read(text).map_err(refusal)?;
    is_of(kind, &object)?;
    if kind.is_namespaced()
        && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata
            .entry("namespace")
            .or_insert_with(|| "default".into());
    }
    site.source().create(kind, object).await
}

/// Refuses a text of another kind, which would otherwise be stored under a wrong name.
fn is_of(kind: Kind, object: &Value) -> Result<(), Refused> {
    let said = text(object, "/kind");
    if said.is_empty() || said == kind.name() {
        return Ok(());
    }
    Err(refusal(format!(
        "the text is of kind {said}; this page takes {}",
        kind.name()
    )))
}

// ---- Existing objects.

fn edit_page(site: &Site, kind: Kind, namespace: &str, name: &str) -> EditPage {
    let heading = format!("Edit {} {name}", kind.singular());
    EditPage {
        shell: site.shell(&heading, NavSection::Objects),
        editor: Editor {
            heading,
            help: if kind == Kind::Pods {
                "Little except labels and annotations of an existing pod can be changed. Its scheduling results are not shown here, and stay as they are."
                    .to_owned()
            } else {
                String::new()
            },
            button: "Save".to_owned(),
            action: address::edit(kind, namespace, name),
            back: match kind {
                Kind::Pods => address::pod(namespace, name),
                Kind::Nodes => address::node(name),
                _ => address::list(kind),
            },
            delete: address::delete(kind, namespace, name),
            ..Editor::default()
        },
    }
}

/// The part of an object that a user edits: without its managed fields and the results of scheduling.
fn editable(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.retain(|key, _| !results::is_result(key));
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    object
}

/// Puts back the results that [`editable`] took out, except those that the text contains itself.
fn with_results(object: &mut Value, current: &Value) {
    let kept: Vec<(String, Value)> = current
        .pointer("/metadata/annotations")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(key, _)| results::is_result(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if kept.is_empty() {
        return;
    }
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let annotations = metadata
        .entry("annotations")
        .or_insert_with(|| Value::Object(serde_json::Map::new()));
    if annotations.is_null() {
        *annotations = Value::Object(serde_json::Map::new());
    }
    if let Some(annotations) = annotations.as_object_mut() {
        for (key, value) in kept {
            annotations.entry(key).or_insert(value);
        }
    }
}

pub(super) async fn edit(
    State(site): State<Site>,
    Path((plural, namespace, name)): Where,
) -> Response {
    let found = async {
        let (kind, namespace) = place(&plural, &namespace)?;
        let object = site.source().get(kind, &namespace, &name).await?;
        let mut page = edit_page(&site, kind, &namespace, &name);
        page.editor.text = yaml::write(&editable(object));
        page.editor.lines = lines(&page.editor.text);
        Ok(page)
    };
    match found.await {
        Ok(page) => shown(&page),
        Err(refused) => site.problem(&refused),
    }
}

pub(super) async fn save(
    State(site): State<Site>,
    Path((plural, namespace, name)): Where,
    form: Result<Form<Written>, FormRejection>,
) -> Response {
    let (kind, namespace) = match place(&plural, &namespace) {
        Ok(place) => place,
        Err(refused) => return site.problem(&refused),
    };
    let page = edit_page(&site, kind, &namespace, &name);
    let text = match sent(form) {
        Ok(text) => text,
        Err(refused) => return again(page, String::new(), &refused),
    };
    match save_text(&site, kind, &namespace, &name, &text).await {
        Ok(saved) => {
            site.wait_for(kind, &saved).await;
            Redirect::to(&home(kind, &namespace, &name, "saved")).into_response()
        }
        Err(refused) => again(page, text, &refused),
    }
}

async fn save_text(
    site: &Site,
    kind: Kind,
    namespace: &str,
    name: &str,
    text: &str,
) -> Result<Value, Refused> {
    let mut object = yaml::read(text).map_err(refusal)?;
    is_of(kind, &object)?;
    let (said_namespace, said_name) = identity(&object);
    let same_namespace = said_namespace == namespace || said_namespace.is_empty();
    if said_name != name || !same_namespace {
        let said = if said_name.is_empty() {
            "nothing"
        } else {
            &said_name
        };
        return Err(refusal(format!(
            "metadata.name or metadata.namespace says {said}, and this page edits {name}: a name cannot be changed; create a new object for another name"
        )));
    }
    let current = site.source().get(kind, namespace, name).await?;
    with_results(&mut object, &current);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        && kind.is_namespaced()
    {
        metadata
            .entry("namespace")
            .or_insert_with(|| namespace.into());
    }
    let saved = site.source().replace(kind, object).await;
    saved.map_err(|refused| match refused.code {
        409 => Refused::new(
            409,
            format!(
                "{}. Another client changed it since this page was opened: copy your change, open the page again, and repeat it there",
                refused.message
            ),
        ),
        _ => refused,
    })
}

fn delete_page(site: &Site, kind: Kind, namespace: &str, name: &str) -> ConfirmPage {
    let what = match kind {
        Kind::Nodes => "The pods on it stay, although their node does not exist any more.",
        Kind::Namespaces => "Everything in it is deleted too.",
        _ => "This cannot be undone.",
    };
    ConfirmPage {
        shell: site.shell(&format!("Delete {name}"), NavSection::Objects),
        question: format!("Delete {} {name}?", kind.singular()),
        what: what.to_owned(),
        button: format!("Delete {name}"),
        action: address::delete(kind, namespace, name),
        back: match kind {
            Kind::Pods => address::pod(namespace, name),
            Kind::Nodes => address::node(name),
            _ => address::list(kind),
        },
        error: String::new(),
    }
}

pub(super) async fn ask_delete(
    State(site): State<Site>,
    Path((plural, namespace, name)): Where,
) -> Response {
    match place(&plural, &namespace) {
        Ok((kind, namespace)) => shown(&delete_page(&site, kind, &namespace, &name)),
        Err(refused) => site.problem(&refused),
    }
}

pub(super) async fn delete(
    State(site): State<Site>,
    Path((plural, namespace, name)): Where,
) -> Response {
    let (kind, namespace) = match place(&plural, &namespace) {
        Ok(place) => place,
        Err(refused) => return site.problem(&refused),
    };
    match site.source().delete(kind, &namespace, &name).await {
        Ok(()) => {
            site.wait(|board| board.version_of(kind, &namespace, &name).is_none())
                .await;
            let asked = address::query(&[("done", "deleted"), ("name", &name)]);
            Redirect::to(&format!("{}{asked}", address::list(kind))).into_response()
        }
        Err(refused) => {
            let page = ConfirmPage {
                error: refused.message.clone(),
                ..delete_page(&site, kind, &namespace, &name)
            };
            print(code(&refused), &page)
        }
    }
}

// ---- The scheduler's configuration.

fn configuration_page(site: &Site) -> EditPage {
    EditPage {
        shell: site.shell("Scheduler configuration", NavSection::Configuration),
        editor: Editor {
            heading: "Scheduler configuration".to_owned(),
            help: "A KubeSchedulerConfiguration. Its profiles name the plugins with their weights; its extenders are called over HTTP. Only profiles and extenders are applied; other fields stay as they are. A configuration that cannot run is refused, and the present one stays."
                .to_owned(),
            button: "Apply configuration".to_owned(),
            action: "/page/configuration".to_owned(),
            back: "/".to_owned(),
            ..Editor::default()
        },
    }
}

pub(super) async fn configuration(
    State(site): State<Site>,
    query: QueryResult<PageParameters>,
) -> Response {
    let asked: PageParameters = plain(query);
    match site.source().configuration().await {
        Ok(configuration) => {
            let mut page = configuration_page(&site);
            page.shell = asked.tell(page.shell);
            let with_gpus = site.source().configuration_for_gpus();
            let (configuration, lacks_gpus) = match with_gpus {
                Some(with_gpus) if asked.template == "gpu" => (with_gpus, false),
                other => (configuration, other.is_some()),
            };
            page.editor.lacks_gpus = lacks_gpus;
            page.editor.text = yaml::write(&configuration);
            page.editor.lines = lines(&page.editor.text);
            shown(&page)
        }
        Err(refused) => site.problem(&refused),
    }
}

pub(super) async fn configure(
    State(site): State<Site>,
    form: Result<Form<Written>, FormRejection>,
) -> Response {
    let page = configuration_page(&site);
    let text = match sent(form) {
        Ok(text) => text,
        Err(refused) => return again(page, String::new(), &refused),
    };
    let done = match yaml::read(&text).map_err(refusal) {
        Ok(configuration) => site.source().configure(configuration).await,
        Err(refused) => Err(refused),
    };
    match done {
        Ok(()) => Redirect::to("/page/configuration?done=configured").into_response(),
        Err(refused) => again(page, text, &refused),
    }
}

// ---- Import, export, reset.

pub(super) async fn data(State(site): State<Site>, query: QueryResult<PageParameters>) -> Response {
    let asked: PageParameters = plain(query);
    shown(&DataPage {
        shell: asked.tell(site.shell("Import and export", NavSection::Data)),
        error: String::new(),
        text: String::new(),
        replace: false,
    })
}

/// The form of an import.
#[derive(Debug, Default)]
struct Import {
    file: String,
    text: String,
    replace: bool,
}

async fn import_form(form: Result<Multipart, MultipartRejection>) -> Result<Import, Refused> {
    let wrong = |status: StatusCode, text: String| {
        let most = super::MOST_IMPORT >> 20;
        let text = format!("the form cannot be read: {text}; at most {most} MiB are read");
        Refused::new(status.as_u16(), text)
    };
    let mut form = form.map_err(|error| wrong(error.status(), error.body_text()))?;
    let mut import = Import::default();
    loop {
        let field = form.next_field().await;
        let Some(field) = field.map_err(|error| wrong(error.status(), error.body_text()))? else {
            return Ok(import);
        };
        let name = field.name().unwrap_or_default().to_owned();
        let text = field.text().await;
        let text = text.map_err(|error| wrong(error.status(), error.body_text()))?;
        match name.as_str() {
            "file" => import.file = text,
            "text" => import.text = text.replace("\r\n", "\n"),
            "replace" => import.replace = text == "true",
            _ => {}
        }
    }
}

/// Parses an export. JSON is read by the faster parser.
fn state(text: &str) -> Result<Value, YamlError> {
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str::<Value>(text)
    {
        return Ok(value);
    }
    yaml::read(text)
}

pub(super) async fn import(
    State(site): State<Site>,
    form: Result<Multipart, MultipartRejection>,
) -> Response {
    /// A longer text is not shown again: a browser would choke on it, and the user has it as a file.
    const MOST_SHOWN: usize = 1 << 20;
    let (done, mut text, replace) = match import_form(form).await {
        Ok(import) => {
            let text = if import.file.trim().is_empty() {
                import.text
            } else {
                import.file
            };
            let done = if text.trim().is_empty() {
                Err(refusal(
                    "there is nothing to import: choose a file, or paste an export".to_owned(),
                ))
            } else {
                match state(&text).map_err(refusal) {
                    Ok(state) => site.source().import(state, import.replace).await,
                    Err(refused) => Err(refused),
                }
            };
            (done, text, import.replace)
        }
        Err(refused) => (Err(refused), String::new(), false),
    };
    match done {
        Ok(()) => Redirect::to("/?done=imported").into_response(),
        Err(refused) => {
            if text.len() > MOST_SHOWN {
                text.clear();
            }
            let page = DataPage {
                shell: site.shell("Import and export", NavSection::Data),
                error: refused.message.clone(),
                text,
                replace,
            };
            print(code(&refused), &page)
        }
    }
}

/// The requested format of an export.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    format: String,
}

pub(super) async fn export(State(site): State<Site>, query: QueryResult<Wanted>) -> Response {
    let wanted = plain(query);
    match site.source().export().await {
        Ok(state) => {
            let (name, kind, text) = if wanted.format == "yaml" {
                ("export.yml", "application/yaml", yaml::write(&state))
            } else {
                let text = serde_json::to_string_pretty(&state).unwrap_or_default();
                ("export.json", "application/json", text)
            };
            let headers = [
                (header::CONTENT_TYPE, kind.to_owned()),
                (
                    header::CONTENT_DISPOSITION,
                    format!("attachment; filename=\"{name}\""),
                ),
            ];
            (headers, text).into_response()
        }
        Err(refused) => site.problem(&refused),
    }
}

fn reset_page(site: &Site) -> ConfirmPage {
    ConfirmPage {
        shell: site.shell("Reset", NavSection::Data),
        question: "Reset everything?".to_owned(),
        what: "All objects and the scheduler's configuration return to their state at the start of the simulator. Export first to keep the present state."
            .to_owned(),
        button: "Reset everything".to_owned(),
        action: "/page/reset".to_owned(),
        back: "/page/data".to_owned(),
        error: String::new(),
    }
}

pub(super) async fn ask_reset(State(site): State<Site>) -> Response {
    shown(&reset_page(&site))
}

pub(super) async fn reset(State(site): State<Site>) -> Response {
    match site.source().reset().await {
        Ok(()) => Redirect::to("/?done=reset").into_response(),
        Err(refused) => {
            let page = ConfirmPage {
                error: refused.message.clone(),
                ..reset_page(&site)
            };
            print(code(&refused), &page)
        }
    }
}

// ---- Comparison.

/// The form of a comparison.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Question {
    configuration: String,
    add_nodes: String,
    drain: String,
    /// Not empty if the box is ticked.
    anew: String,
}

fn compare_page(site: &Site, question: Question) -> ComparePage {
    ComparePage {
        shell: site.shell("Compare", NavSection::Compare),
        error: String::new(),
        configuration: question.configuration,
        add_nodes: question.add_nodes,
        drain: question.drain,
        anew: !question.anew.is_empty(),
        compared: None,
    }
}

pub(super) async fn ask_compare(State(site): State<Site>) -> Response {
    if !site.source().can_compare() {
        return site.problem(&Refused::new(
            404,
            "this server cannot compare configurations",
        ));
    }
    shown(&compare_page(&site, Question::default()))
}

pub(super) async fn compare(
    State(site): State<Site>,
    form: Result<Form<Question>, FormRejection>,
) -> Response {
    let question = match form {
        Ok(Form(question)) => question,
        Err(rejection) => return site.problem(&refusal(rejection.body_text())),
    };
    let done = match asked(&question) {
        Ok(asked) => site.source().compare(asked).await,
        Err(refused) => Err(refused),
    };
    let mut page = compare_page(&site, question);
    match done {
        Ok(comparison) => {
            page.compared = Some(compared(&comparison));
            shown(&page)
        }
        Err(refused) => {
            page.error = refused.message.clone();
            print(code(&refused), &page)
        }
    }
}

fn asked(question: &Question) -> Result<Compare, Refused> {
    let mut asked = Compare::default();
    if !question.configuration.trim().is_empty() {
        let configuration = yaml::read(&question.configuration.replace("\r\n", "\n"));
        let configuration = configuration.map_err(refusal)?;
        asked
            .configurations
            .push(("with this configuration".to_owned(), configuration));
    }
    let nodes = question.add_nodes.trim();
    if !nodes.is_empty() {
        asked.add_nodes = nodes.parse().map_err(|_| {
            refusal(format!(
                "{nodes:?} is no number of nodes; write a whole number such as 2"
            ))
        })?;
    }
    let names = question.drain.split([',', ' ', '\n', '\r']);
    asked.drain = names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect();
    if asked == Compare::default() {
        return Err(refusal(
            "there is nothing to compare with: write a configuration, a number of nodes to add, or nodes to drain"
                .to_owned(),
        ));
    }
    asked.anew = !question.anew.is_empty();
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_are_left_out_of_the_text_and_put_back() {
        let key = format!("{}{}", results::PREFIX, results::FILTER);
        let mut current = json!({ "metadata": { "name": "p", "managedFields": [], "annotations": { "a": "b" } } });
        current["metadata"]["annotations"][&key] = json!("{}");

        let mut text = editable(current.clone());
        assert_eq!(
            text,
            json!({ "metadata": { "name": "p", "annotations": { "a": "b" } } })
        );

        text["metadata"]["annotations"]["a"] = json!("c");
        with_results(&mut text, &current);
        assert_eq!(text["metadata"]["annotations"][&key], "{}");
        assert_eq!(text["metadata"]["annotations"]["a"], "c");
    }

    #[test]
    fn results_come_back_where_the_text_has_no_annotations() {
        let key = format!("{}{}", results::PREFIX, results::FILTER);
        let mut current = json!({ "metadata": { "name": "p", "annotations": {} } });
        current["metadata"]["annotations"][&key] = json!("{}");
        let mut text = json!({ "metadata": { "name": "p", "annotations": null } });

        with_results(&mut text, &current);

        assert_eq!(text["metadata"]["annotations"][&key], "{}");
    }

    #[test]
    fn a_question_without_a_run_is_refused() {
        assert!(asked(&Question::default()).is_err());
        let question = Question {
            add_nodes: "two".into(),
            ..Question::default()
        };
        assert!(asked(&question).unwrap_err().message.contains("\"two\""));
        let question = Question {
            drain: "n1, n2\nn3".into(),
            ..Question::default()
        };
        assert_eq!(asked(&question).unwrap().drain, ["n1", "n2", "n3"]);
        let question = Question {
            anew: "on".into(),
            ..question
        };
        assert!(asked(&question).unwrap().anew);
        let question = Question {
            anew: "on".into(),
            ..Question::default()
        };
        assert!(asked(&question).is_err());
    }
}
