#!/usr/bin/env python3
"""Unmodified client libraries against a running server: chat, streams, tools, errors, cancellation.

    clients.py LIBRARY URL MODEL

LIBRARY is openai, anthropic, langchain or litellm. The server has one model of that name. Each library runs the same
cases as far as it has them; the first failure ends the run with an exception.
"""

import json
import sys
import time
import urllib.request

LIBRARY, URL, MODEL = sys.argv[1:4]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ENDLESS = [{"role": "user", "content": "Count from one to one million."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False
        },
    },
}
CASES = []


def case(function):
    CASES.append(function)
    return function


def expect(is_true, *shown):
    if not is_true:
        raise AssertionError(" ".join(map(str, shown)))


def raises(kind, status, call):
    """Returns the error that `call` must raise."""
    try:
        call()
    except kind as error:
        expect(getattr(error, "status_code", status) == status, error)
        return error
    raise AssertionError(f"no {kind.__name__}")


def expect_weather(choice):
    """Of a choice that had to call a tool: it has, and the arguments are those of the schema."""
    expect(choice.finish_reason == "tool_calls", choice)
    for call in choice.message.tool_calls:
        expect(call.function.name == "get_weather", call)
        expect(isinstance(json.loads(call.function.arguments)["city"], str), call)


def wait_until_idle():
    """A client that has left is noticed: nothing runs any more."""
    for _ in range(600):
        with urllib.request.urlopen(f"{URL}/health") as answer:
            health = json.load(answer)
        if health["running"] == 0 and health["waiting"] == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"still running: {health}")


def openai_cases():
    import openai

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)
    asked = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_completion_tokens": 24}

    @case
    def models():
        expect(client.models.list().data[0].id == MODEL)
        expect(client.models.retrieve(MODEL).id == MODEL)

    @case
    def chat_and_stream_agree():
        answer = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
        text = answer.choices[0].message.content
        expect("Paris" in text, text)
        expect(answer.usage.completion_tokens == len(answer.choices[0].logprobs.content), answer.usage)
        chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        joined = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        expect(joined == text, joined, text)
        expect(chunks[-1].usage.total_tokens == answer.usage.total_tokens, chunks[-1])
        expect([chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1))
        with client.chat.completions.stream(**asked) as stream:
            expect(stream.get_final_completion().choices[0].message.content == text)

    @case
    def choices_and_stops():
        answer = client.chat.completions.create(**(asked | {"temperature": 1, "seed": 7}), n=3, stop=["."])
        expect([choice.index for choice in answer.choices] == [0, 1, 2])
        expect(all("." not in choice.message.content for choice in answer.choices))

    @case
    def text_completions():
        answer = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=8, echo=True)
        expect(answer.choices[0].text.startswith("The capital of France is"), answer)
        chunks = client.completions.create(model=MODEL, prompt="One two three", max_tokens=4, stream=True)
        expect([chunk.choices[0].finish_reason for chunk in chunks][-1] in ("stop", "length"))

    @case
    def embeddings():
        texts = ["What is the capital of France?", "one two"]
        answer = client.embeddings.create(model=MODEL, input=texts)  # asks for base64, and decodes it
        expect([entry.index for entry in answer.data] == [0, 1], answer)
        floats = client.embeddings.create(model=MODEL, input=texts[1], encoding_format="float").data[0].embedding
        # Another batch has other orders of summation.
        expect(max(abs(a - b) for a, b in zip(answer.data[1].embedding, floats, strict=True)) < 1e-3)
        expect(abs(sum(value * value for value in floats) - 1) < 1e-4)
        expect(len(client.embeddings.create(model=MODEL, input="one", dimensions=8).data[0].embedding) == 8)
        raises(openai.BadRequestError, 400, lambda: client.embeddings.create(model=MODEL, input=""))

    @case
    def suffix():
        error = raises(openai.BadRequestError, 400, lambda: client.completions.create(model=MODEL, prompt="a", suffix="b"))
        expect(error.param == "suffix", error)

    @case
    def responses():
        answer = client.responses.create(model=MODEL, input="What is the capital of France?", temperature=0)
        expect("Paris" in answer.output_text, answer)
        events = list(client.responses.create(model=MODEL, input="Say hello.", stream=True, max_output_tokens=16))
        expect(events[0].type == "response.created", events[0])
        expect(events[-1].type in ("response.completed", "response.incomplete"), events[-1])
        deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        expect(deltas == events[-1].response.output_text, deltas)

    @case
    def tools():
        call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
        history = [
            *QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        ]
        answer = client.chat.completions.create(**(asked | {"messages": history}), tools=[WEATHER])
        expect(answer.choices[0].finish_reason in ("stop", "length", "tool_calls"), answer)
        forced = asked | {"max_completion_tokens": 200, "tools": [WEATHER], "tool_choice": "required"}
        expect_weather(client.chat.completions.create(**forced).choices[0])
        with client.chat.completions.stream(**forced) as stream:
            expect_weather(stream.get_final_completion().choices[0])
        call = {"type": "function", "name": "get_weather"}
        function = {"type": "function", "strict": False, **WEATHER["function"]}
        answer = client.responses.create(model=MODEL, input="Hello", tools=[function], tool_choice=call, temperature=0)
        expect([item.name for item in answer.output if item.type == "function_call"] == ["get_weather"], answer)

    @case
    def errors():
        create = client.chat.completions.create
        error = raises(openai.NotFoundError, 404, lambda: create(**(asked | {"model": "none"})))
        expect(error.code == "model_not_found", error)
        error = raises(openai.BadRequestError, 400, lambda: create(**(asked | {"temperature": 3})))
        expect(error.param == "temperature", error)
        long = [{"role": "user", "content": "one two " * 5000}]
        error = raises(openai.BadRequestError, 400, lambda: create(**(asked | {"messages": long})))
        expect(error.code == "context_length_exceeded", error)

    @case
    def cancellation():
        stream = client.chat.completions.create(model=MODEL, messages=ENDLESS, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        wait_until_idle()
        late = client.with_options(timeout=0.5)
        endless = lambda: late.chat.completions.create(model=MODEL, messages=ENDLESS, extra_body={"ignore_eos": True})
        raises(openai.APITimeoutError, None, endless)
        wait_until_idle()


def anthropic_cases():
    import anthropic

    client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0)
    # Its newest version has no argument for the temperature.
    asked = {"model": MODEL, "messages": QUESTION, "max_tokens": 24, "extra_body": {"temperature": 0}}

    @case
    def message_and_stream_agree():
        answer = client.messages.create(**asked)
        expect("Paris" in answer.content[0].text, answer)
        expect(answer.stop_reason in ("end_turn", "max_tokens"), answer)
        with client.messages.stream(**asked) as stream:
            expect("".join(stream.text_stream) == answer.content[0].text)
            expect(stream.get_final_message().usage.output_tokens == answer.usage.output_tokens)
        counted = client.messages.count_tokens(model=MODEL, messages=QUESTION).input_tokens
        used = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
        expect(counted == used, counted, answer.usage)

    @case
    def tools():
        tool = WEATHER["function"]
        tool = {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
        use = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Paris"}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
        history = [*QUESTION, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        answer = client.messages.create(**(asked | {"messages": history}), tools=[tool], system="Be brief.")
        expect(answer.stop_reason in ("end_turn", "max_tokens", "tool_use"), answer)
        forced = asked | {"max_tokens": 200, "tools": [tool], "tool_choice": {"type": "any"}}
        answer = client.messages.create(**forced)
        with client.messages.stream(**forced) as stream:
            for message in (answer, stream.get_final_message()):
                uses = [block for block in message.content if block.type == "tool_use"]
                expect(message.stop_reason == "tool_use" and uses, message)
                expect(all(isinstance(use.input["city"], str) for use in uses), uses)

    @case
    def errors():
        raises(anthropic.NotFoundError, 404, lambda: client.messages.create(**(asked | {"model": "none"})))
        error = raises(anthropic.BadRequestError, 400, lambda: client.messages.create(**(asked | {"stop_sequences": [""]})))
        expect(error.body["error"]["type"] == "invalid_request_error", error.body)

    @case
    def cancellation():
        with client.messages.stream(model=MODEL, messages=ENDLESS, max_tokens=1000) as stream:
            next(iter(stream.text_stream))
        wait_until_idle()


def langchain_cases():
    from langchain_core.messages import HumanMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    chat = ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=24, max_retries=0)

    @case
    def answers_and_streams_agree():
        answer = chat.invoke([HumanMessage(QUESTION[0]["content"])])
        expect("Paris" in answer.content, answer)
        expect(answer.usage_metadata["output_tokens"] > 0, answer)
        expect("".join(chunk.content for chunk in chat.stream(QUESTION[0]["content"])) == answer.content)
        expect([batch.content for batch in chat.batch([QUESTION[0]["content"]] * 2)] == [answer.content] * 2)

    @case
    def tools():
        answer = chat.bind_tools([WEATHER]).invoke("What is the weather in Paris?")
        expect(answer.response_metadata["finish_reason"] in ("stop", "length", "tool_calls"), answer)
        forced = chat.model_copy(update={"max_tokens": 200}).bind_tools([WEATHER], tool_choice="required")
        calls = forced.invoke("What is the weather in Paris?").tool_calls
        expect(calls and all(isinstance(call["args"]["city"], str) for call in calls), calls)

    @case
    def embeddings():
        # Without its own tokenizer, which is that of OpenAI's models.
        options = {"model": MODEL, "check_embedding_ctx_length": False}
        vectors = OpenAIEmbeddings(base_url=f"{URL}/v1", api_key="none", **options).embed_documents(["one", "two"])
        expect(len(vectors) == 2 and len(vectors[0]) == len(vectors[1]))

    @case
    def errors():
        import openai

        raises(openai.NotFoundError, 404, lambda: chat.model_copy(update={"model_name": "none"}).invoke("hi"))

    @case
    def cancellation():
        endless = chat.model_copy(update={"max_tokens": 1500, "extra_body": {"ignore_eos": True}})
        stream = endless.stream(ENDLESS[0]["content"])
        next(stream)
        stream.close()
        wait_until_idle()


def litellm_cases():
    import litellm

    asked = {"model": f"openai/{MODEL}", "messages": QUESTION, "api_base": f"{URL}/v1", "api_key": "none",
             "temperature": 0, "max_tokens": 24, "num_retries": 0}

    @case
    def chat_and_stream_agree():
        answer = litellm.completion(**asked)
        text = answer.choices[0].message.content
        expect("Paris" in text, answer)
        chunks = litellm.completion(**asked, stream=True)
        expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text)

    @case
    def tools():
        answer = litellm.completion(**asked, tools=[WEATHER])
        expect(answer.choices[0].finish_reason in ("stop", "length", "tool_calls"), answer)
        forced = asked | {"max_tokens": 200, "tools": [WEATHER], "tool_choice": "required"}
        expect_weather(litellm.completion(**forced).choices[0])

    @case
    def embeddings():
        options = {key: asked[key] for key in ("model", "api_base", "api_key")}
        answer = litellm.embedding(input=["one", "two"], encoding_format="float", **options)
        expect([entry["index"] for entry in answer.data] == [0, 1], answer)

    @case
    def errors():
        raises(litellm.NotFoundError, 404, lambda: litellm.completion(**(asked | {"model": "openai/none"})))
        raises(litellm.BadRequestError, 400, lambda: litellm.completion(**asked, top_p=3))

    @case
    def cancellation():
        stream = litellm.completion(**(asked | {"messages": ENDLESS, "max_tokens": 1500}), stream=True)
        next(iter(stream))
        stream.completion_stream.response.close() if hasattr(stream.completion_stream, "response") else None
        del stream
        wait_until_idle()


globals()[f"{LIBRARY}_cases"]()
for function in CASES:
    begin = time.monotonic()
    function()
    print(f"ok  {LIBRARY}: {function.__name__} ({time.monotonic() - begin:.1f} s)", flush=True)
print(f"{len(CASES)} passed, 0 failed")
