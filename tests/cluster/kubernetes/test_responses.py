import msgspec
import pytest

from holdfast.api.schema.violations import Cause
from holdfast.cluster import errors
from holdfast.cluster.errors import ClusterError, Invalid
from holdfast.cluster.kubernetes.responses import error_from_status

from .faulty import status


def refused(code: int, body: object = b"", retry_after_s: float | None = None) -> ClusterError:
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return error_from_status(
        "create jobs.batch ml/x", code=code, body=content, source="the file", retry_after_s=retry_after_s
    )


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (405, "MethodNotAllowed", errors.BadRequest),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (409, "", errors.Conflict),
        (410, "Expired", errors.Expired),
        (410, "Gone", errors.Expired),
        (413, "RequestEntityTooLarge", errors.BadRequest),
        (415, "UnsupportedMediaType", errors.BadRequest),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (503, "ServiceUnavailable", errors.ServerError),
        (504, "Timeout", errors.ServerError),
        (302, "", errors.ServerError),
        (599, "", errors.ServerError),
    ],
)
def test_every_answer_has_its_error(code: int, reason: str, kind: type[ClusterError]) -> None:
    for body in (status(code, reason, "because"), b"<html>because</html>"):
        error = refused(code, body)
        if isinstance(body, dict) or reason != "AlreadyExists":
            assert type(error) is kind
        assert error.code == code
        assert str(error).startswith("create jobs.batch ml/x: ")


def test_the_server_s_words_are_passed_on_in_one_line() -> None:
    error = refused(409, status(409, "Conflict", "the object\nhas  been modified"))
    assert str(error) == "create jobs.batch ml/x: the object has been modified"


def test_a_message_that_quotes_a_whole_object_is_shortened_in_its_middle() -> None:
    line = str(refused(422, status(422, "Invalid", f"patch: Invalid value: {'x' * 100_000}: unknown field colour")))
    assert line.startswith("create jobs.batch ml/x: patch: Invalid value: xxx")
    assert line.endswith("xxx: unknown field colour")
    assert len(line) < 1300


def test_what_is_not_a_status_is_named_by_its_code_and_not_quoted() -> None:
    assert str(refused(502, b"<html><b>token=abc</b></html>")) == (
        "create jobs.batch ml/x: the server answered 502 Bad Gateway"
    )
    assert str(refused(500, b'{"kind":"Status","message":"\xff"}')).endswith("500 Internal Server Error")
    assert str(refused(599, b"")) == "create jobs.batch ml/x: the server answered 599"
    assert str(refused(500, {"kind": "Pod", "message": "hello"})).endswith("500 Internal Server Error")


def test_invalid_names_every_field() -> None:
    causes = [
        {"field": "spec.parallelism", "message": "must be positive", "reason": "FieldValueInvalid"},
        {"field": "spec.template", "message": "required", "reason": "FieldValueRequired"},
    ]
    error = refused(422, status(422, "Invalid", "Job is invalid", details={"name": "x", "causes": causes}))
    assert isinstance(error, Invalid)
    assert error.causes == (
        Cause("spec.parallelism", "must be positive", "FieldValueInvalid"),
        Cause("spec.template", "required", "FieldValueRequired"),
    )


def test_forbidden_names_the_account_the_right_and_what_helps() -> None:
    message = 'jobs.batch is forbidden: User "jane" cannot create resource "jobs" in the namespace "ml"'
    line = str(refused(403, status(403, "Forbidden", message)))
    assert message in line
    assert "Role or ClusterRole" in line


def test_a_quota_is_not_taken_for_a_lack_of_rights() -> None:
    message = 'jobs.batch "x" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1, used: 4, limited: 4'
    assert str(refused(403, status(403, "Forbidden", message))) == f"create jobs.batch ml/x: not permitted: {message}"


def test_unauthorized_says_where_the_credentials_are() -> None:
    line = str(refused(401, status(401, "Unauthorized", "Unauthorized")))
    assert "wrong or has expired" in line
    assert "renew it in the file" in line


def test_a_kind_that_is_not_served_differs_from_an_object_that_is_missing() -> None:
    assert str(refused(404, b"404 page not found\n")).endswith("the server does not serve this kind")
    assert str(refused(404, status(404, "NotFound", 'jobs "x" not found'))).endswith('jobs "x" not found')


def test_a_redirect_is_not_followed_and_asks_about_the_address() -> None:
    assert "is the server in the file an API server?" in str(refused(302, b"<html>sign in</html>"))


def test_how_long_to_wait_is_passed_on() -> None:
    assert refused(429, retry_after_s=7.0).retry_after_s == 7.0
