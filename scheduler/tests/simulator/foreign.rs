//! Pages of other sites in a browser on this machine: the requests that they may not make.

use serde_json::json;

use super::wire::{Served, node};

#[tokio::test]
async fn a_page_of_another_site_changes_nothing() {
    let served = Served::start(None).await;
    let import = json!({ "nodes": [node("n")] });
    assert_eq!(served.import(&import).await.code(), 200);
    let before = served.export().await;
    let empty = json!({}).to_string();
    // Requests that a form or a fetch without a preflight can send, and requests that they cannot.
    let requests = [
        ("POST", "/api/v1/schedulerconfiguration", "text/plain", ""),
        ("POST", "/api/v1/import?replace=true", "text/plain", ""),
        (
            "POST",
            "/api/v1/import?replace=true",
            "application/json",
            &empty,
        ),
        ("PUT", "/api/v1/reset", "text/plain", ""),
        ("DELETE", "/api/v1/nodes/n", "text/plain", ""),
        (
            "POST",
            "/api/v1/namespaces",
            "application/json",
            r#"{"metadata":{"name":"x"}}"#,
        ),
        (
            "POST",
            "/page/reset",
            "application/x-www-form-urlencoded",
            "",
        ),
    ];
    for origin in ["http://evil.example", "http://localhost:8080", "null"] {
        for (method, path, kind, body) in requests {
            let headers = [("Origin", origin), ("Content-Type", kind)];
            let answer = served
                .send(method, path, &headers, Some(body.as_bytes()))
                .await;
            assert_eq!(answer.code(), 403, "{method} {path} of {origin}");
            assert!(answer.message().contains(origin), "{}", answer.message());
        }
    }
    assert_eq!(served.export().await, before);

    let ours = [
        ("Origin", "http://localhost:3000"),
        ("Content-Type", "application/json"),
    ];
    let answer = served
        .send("POST", "/api/v1/import", &ours, Some(b"{}"))
        .await;
    assert_eq!(answer.code(), 200);
    assert_eq!(
        answer.all("access-control-allow-origin"),
        ["http://localhost:3000"]
    );
}

#[tokio::test]
async fn a_name_that_points_at_this_machine_is_not_served() {
    let served = Served::start(None).await;
    for path in [
        "/",
        "/api/v1/export",
        "/api/v1/nodes",
        "/api/v1/listwatchresources",
        "/page/events",
    ] {
        let rebound = [("Host", "evil.example:1212"), ("Accept", "text/html")];
        let answer = served.send("GET", path, &rebound, None).await;
        assert_eq!(answer.code(), 403, "{path}");
        assert!(answer.message().contains("evil.example:1212"));
    }
    let rebound = [
        ("Host", "evil.example:1212"),
        ("Origin", "http://evil.example:1212"),
    ];
    assert_eq!(
        served
            .send("PUT", "/api/v1/reset", &rebound, None)
            .await
            .code(),
        403
    );
    for host in ["localhost:1212", "127.0.0.1:1212", "[::1]:1212"] {
        let answer = served
            .send("GET", "/api/v1/export", &[("Host", host)], None)
            .await;
        assert_eq!(answer.code(), 200, "{host}");
    }
}
