"""The app's responses to unknown pages. They have the same headers as the pages."""

from collections.abc import Iterator

import pytest

from tests.airflow.browser import TestClient, make_app

PAGE = "/dags/d/runs/r/tasks/t/-1/manifest"


def broken(number: int) -> None:
    raise RuntimeError("a secret of the API server")


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = make_app()
    app.add_api_route("/broken/{number}", broken)
    with TestClient(app, raise_server_exceptions=False, follow_redirects=False) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nothing", 404),
        ("GET", f"{PAGE}/", 404),  # no redirect before sign-in
        ("GET", "//elsewhere.example/", 404),
        ("POST", PAGE, 405),
        ("GET", "/broken/one", 422),
        ("GET", "/broken/1", 500),
    ],
)
def test_every_response_has_the_headers_of_the_pages(client: TestClient, method: str, path: str, expected: int) -> None:
    answer = client.request(method, path)
    assert answer.status_code == expected
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert answer.headers["cache-control"] == "no-store"
    assert "location" not in answer.headers
    assert "secret" not in answer.text
