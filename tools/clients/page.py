#!/usr/bin/env python3
"""Drives the page of a server in Chromium: page.py URL [PID [FAILING]]. It keeps a conversation, shows errors, chats,
stops an answer, loads and unloads the model "second", and logs no error; when the server with this process id has
ended, it shows that. FAILING is the program of a server that fails: worker/examples/failing_server.rs."""

import os
import signal
import subprocess
import sys

from playwright.sync_api import expect, sync_playwright

url = sys.argv[1]
STREAM = """data: {"choices": [{"delta": {"reasoning_content": "hm, "}}]}

data: {"choices": [{"delta": {"content": "yes"}}]}

data: [DONE]

"""


def check_history(page):
    """What the page sends and shows, with answers that are written here."""
    asked = []

    def chat(route):
        asked.append(route.request.post_data_json["messages"])
        if len(asked) == 2:
            route.fulfill(status=503, json={"error": {"message": "the queue is full"}})
        else:
            route.fulfill(body=STREAM, content_type="text/event-stream")

    page.route("**/v1/chat/completions", chat)
    page.goto(url)
    for question in "abc":
        page.fill("#text", question)
        page.click("#send")
        expect(page.locator("#send")).to_be_enabled()
    expect(page.locator(".assistant").first).to_have_text("hm, yes")
    expect(page.locator(".error")).to_have_text("the queue is full")
    history = [(message["role"], message["content"]) for message in asked[2]]
    assert history == [("user", "a"), ("assistant", "yes"), ("user", "c")], history

    refusal = {"error": {"message": "this role has no path"}}
    page.route("**/health", lambda route: route.fulfill(status=403, json=refusal))
    expect(page.locator("#state")).to_have_text("this role has no path")

    failed = {"status": "unavailable", "state": "failed", "model": "m", "running": 0, "waiting": 0}
    page.route("**/health", lambda route: route.fulfill(status=503, json=failed))
    expect(page.locator("#state[data-ok=false]")).to_have_text("failed")
    check_memory(page, failed)
    page.close()
    print("ok  page: history, errors, memory, and an engine that has failed")


def check_memory(page, health):
    """The bar of the memory, with the size of the device and without."""
    lines = ['worker_vram_purpose_bytes{purpose="weights"} 1048576', 'worker_vram_purpose_bytes{purpose="kv"} 3145728']
    page.route("**/metrics", lambda route: route.fulfill(body="\n".join(lines)))
    for total, label, share, text in [
        (None, "Device memory, weights of what is used", 0.25, "4.0 MiB: weights 1.0 MiB, kv 3.0 MiB"),
        (8 << 20, "Device memory, used of all", 0.5, "4.0 MiB of 8.0 MiB: weights 1.0 MiB, kv 3.0 MiB"),
    ]:
        health["vram_bytes_total"] = total
        expect(page.locator("#memory-label")).to_have_text(label)
        expect(page.locator("#memory-text")).to_have_text(text)
        assert page.evaluate("document.querySelector('#memory').value") == share


def check_failure(page, program):
    """An engine that has failed, of a server that runs."""
    with subprocess.Popen([program], stdout=subprocess.PIPE, text=True) as server:
        try:
            page.goto(server.stdout.readline().removeprefix("listening on ").strip())
            expect(page.locator("#state[data-ok=false]")).to_have_text("failed")
            page.fill("#text", "hello")
            page.click("#send")
            expect(page.locator(".error")).to_contain_text("two steps of the engine failed")
            expect(page.locator("#send")).to_be_enabled()
            expect(page.locator("#text")).to_have_value("hello")
        finally:
            server.kill()
    page.close()
    print("ok  page: a server whose engine fails")


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    check_history(browser.new_page())
    if len(sys.argv) > 3:
        check_failure(browser.new_page(), sys.argv[3])
    page = browser.new_page()
    problems = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)

    page.goto(url)
    expect(page.locator("#state")).to_have_text("ready")
    page.fill("#temperature", "0")
    page.fill("#text", "What is the capital of France?")
    page.click("#send")
    expect(page.locator(".assistant").first).to_contain_text("Paris")
    expect(page.locator("#send")).to_be_enabled()
    print("ok  page: chat")

    page.fill("#text", "Write a very long story about a dragon and a knight.")
    page.click("#send")
    expect(page.locator(".assistant").nth(1)).not_to_be_empty()
    page.click("#stop")
    expect(page.locator("#send")).to_be_enabled()
    expect(page.locator("#state")).to_have_text("ready")
    assert page.locator(".error").count() == 0
    print("ok  page: stop")

    model = page.locator("#models li")
    expect(model).to_contain_text("second: unloaded")
    page.evaluate("""() => {
        window.shares = [];
        const progress = document.querySelector("#models progress");
        new MutationObserver(() => window.shares.push(progress.value)).observe(progress, { attributeFilter: ["value"] });
    }""")
    model.locator("button").click()
    expect(model).to_contain_text("second: ready")
    shares = page.evaluate("window.shares")
    assert shares == sorted(shares) and shares[-1] == 1, shares
    model.locator("button").click()
    expect(model).to_contain_text("second: unloaded")
    print("ok  page: a model is loaded and unloaded")

    page.evaluate("fetch('http://example.invalid/').catch(() => {})")
    assert any("Content Security Policy" in problem for problem in problems), problems
    problems = [problem for problem in problems if "Content Security Policy" not in problem]
    assert not problems, problems
    print("ok  page: no error, and no other server")
    if len(sys.argv) > 2:
        os.kill(int(sys.argv[2]), signal.SIGKILL)
        expect(page.locator("#state")).to_have_text("no answer")
        print("ok  page: a server that has ended")
    browser.close()
print("passed, 0 failed")
