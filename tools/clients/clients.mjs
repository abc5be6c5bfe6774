// Unmodified npm clients against a running server: node clients.mjs URL MODEL, in a folder with openai, ai and
// @ai-sdk/openai-compatible.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { embedMany, generateText, jsonSchema, streamText, tool } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const [url, model] = process.argv.slice(2);
const messages = [{ role: "user", content: "What is the capital of France?" }];
const endless = [{ role: "user", content: "Count from one to one million." }];
const cityOf = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };

async function waitUntilIdle() {
  for (let attempt = 0; attempt < 600; attempt++) {
    const health = await (await fetch(`${url}/health`)).json();
    if (health.running === 0 && health.waiting === 0) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  assert.fail("a request still runs");
}

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const asked = { model, messages, temperature: 0, max_completion_tokens: 24 };
const provider = createOpenAICompatible({ name: "worker", baseURL: `${url}/v1`, apiKey: "none" });
const sdk = { model: provider(model), messages, temperature: 0, maxOutputTokens: 24, maxRetries: 0 };

const cases = {
  async "openai: chat and stream agree"() {
    const answer = await client.chat.completions.create(asked);
    const text = answer.choices[0].message.content;
    assert.match(text, /Paris/);
    let joined = "";
    for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
      joined += chunk.choices[0]?.delta?.content ?? "";
    }
    assert.equal(joined, text);
  },
  async "openai: responses"() {
    const answer = await client.responses.create({ model, input: messages[0].content, temperature: 0, max_output_tokens: 24 });
    assert.match(answer.output_text, /Paris/);
    const types = [];
    const hello = { model, input: "Say hello.", stream: true, max_output_tokens: 16 };
    for await (const event of await client.responses.create(hello)) {
      types.push(event.type);
    }
    assert.equal(types[0], "response.created");
    assert.match(types.at(-1), /^response\.(completed|incomplete)$/);
  },
  async "openai: tools"() {
    const definition = { type: "function", function: { name: "get_weather", parameters: cityOf } };
    const answer = await client.chat.completions.create({ ...asked, tools: [definition] });
    assert.match(answer.choices[0].finish_reason, /^(stop|length|tool_calls)$/);
    const forced = { ...asked, max_completion_tokens: 200, tools: [definition], tool_choice: "required" };
    const choice = (await client.chat.completions.create(forced)).choices[0];
    assert.equal(choice.finish_reason, "tool_calls");
    assert.equal(typeof JSON.parse(choice.message.tool_calls[0].function.arguments).city, "string");
  },
  async "openai: embeddings"() {
    const { data } = await client.embeddings.create({ model, input: ["one", "two"] });
    const squares = data.map(({ embedding }) => embedding.reduce((sum, value) => sum + value * value, 0));
    assert.ok(squares.length === 2 && squares.every((square) => Math.abs(square - 1) < 1e-4), String(squares));
  },
  async "openai: errors"() {
    const missing = client.chat.completions.create({ ...asked, model: "none" });
    await assert.rejects(missing, (error) => error.status === 404 && error.code === "model_not_found");
  },
  async "openai: cancellation"() {
    const stream = await client.chat.completions.create({ model, messages: endless, stream: true, ignore_eos: true });
    for await (const _ of stream) break;
    stream.controller.abort();
    await waitUntilIdle();
  },
  async "ai: text and stream agree"() {
    const { text, usage } = await generateText(sdk);
    assert.match(text, /Paris/);
    assert.ok(usage.outputTokens > 0);
    let joined = "";
    for await (const delta of streamText(sdk).textStream) joined += delta;
    assert.equal(joined, text);
  },
  async "ai: tools"() {
    const tools = { get_weather: tool({ description: "Get the weather", inputSchema: jsonSchema(cityOf) }) };
    const { finishReason } = await generateText({ ...sdk, tools });
    assert.match(finishReason, /^(stop|length|tool-calls)$/);
    const forced = await generateText({ ...sdk, maxOutputTokens: 200, tools, toolChoice: "required" });
    assert.equal(forced.finishReason, "tool-calls");
    assert.equal(typeof forced.toolCalls[0].input.city, "string");
  },
  async "ai: embeddings"() {
    const { embeddings } = await embedMany({ model: provider.textEmbeddingModel(model), values: ["one", "two"] });
    assert.equal(embeddings.length, 2);
    assert.equal(embeddings[0].length, embeddings[1].length);
  },
  async "ai: errors"() {
    await assert.rejects(generateText({ ...sdk, model: provider("none") }), (error) => error.statusCode === 404);
  },
  async "ai: cancellation"() {
    const abort = new AbortController();
    const onError = () => {};
    const { textStream } = streamText({ ...sdk, messages: endless, maxOutputTokens: 4000, abortSignal: abort.signal, onError });
    for await (const _ of textStream) break;
    abort.abort();
    await waitUntilIdle();
  },
};

for (const [name, run] of Object.entries(cases)) {
  await run();
  console.log(`ok  ${name}`);
}
console.log(`${Object.keys(cases).length} passed, 0 failed`);
