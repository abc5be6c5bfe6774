"""Changes of the requests that schemathesis makes: short answers, no deadline, whose passing is a
504, and no model that is not loaded, which is a 503."""

import schemathesis


@schemathesis.hook
def before_call(context, case, kwargs):
    body = case.body
    if isinstance(body, dict):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if isinstance(body.get(name), int) and body[name] > 8:
                body[name] = 8
        if isinstance(body.get("deadline_ms"), int):
            body["deadline_ms"] = None
        if body.get("model") == "second":
            body["model"] = "smol"
