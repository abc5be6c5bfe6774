#!/usr/bin/env python3
"""Compares `worker-orcd load` with an asyncio script on Python's `openai`, in turns with the same server: load.py WORKER
MODEL [NAME=NUMBER…]. Each line of a turn has tokens per second, the median time between tokens, and the processor time
of the client and of the server. `./dev test --long` leaves the Python for it in .cache/python/openai."""

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from openai import AsyncOpenAI

NUMBERS = {"threads": 1, "streams": 4, "requests": 32, "tokens": 64, "turns": 7, "kv-tokens": 16384}
PROMPT = "Request {}: count from one to one hundred in words.\n"
TICKS = os.sysconf("SC_CLK_TCK")


async def complete(client, model, prompt, tokens, between):
    """Streams one answer. Returns its number of tokens, and appends the times between them."""
    stream = await client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=tokens,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    count, last, usage = 0, None, None
    async for chunk in stream:
        now = time.perf_counter()
        usage = chunk.usage or usage
        ids = [token for choice in chunk.choices for token in choice.model_extra.get("token_ids") or []]
        if ids and last is not None:
            between.extend([(now - last) / len(ids)] * len(ids))
        if ids:
            last = now
        count += len(ids)
    assert usage is not None and usage.completion_tokens == count, (usage, count)
    return count


async def script(url, numbers):
    """The same requests as `worker-orcd load`. Returns tokens, seconds, and times between tokens."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client:
        model = (await client.models.list()).data[0].id
        requests, between = iter(range(numbers["requests"])), []

        async def one_after_the_other():
            done = 0
            for number in requests:
                done += await complete(client, model, PROMPT.format(number), numbers["tokens"], between)
            return done

        begin = time.perf_counter()
        counts = await asyncio.gather(*(one_after_the_other() for _ in range(numbers["streams"])))
        return sum(counts), time.perf_counter() - begin, between


def tool(worker, url, numbers):
    arguments = ["--requests", numbers["requests"], "--concurrency", numbers["streams"], "--max-tokens", numbers["tokens"]]
    command = [worker, "load", "--json", "--url", url, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def processor_s(usage):
    return usage.ru_utime + usage.ru_stime


def server_s(process):
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def main():
    worker, model, *rest = sys.argv[1:]
    numbers = dict(NUMBERS)
    for name, value in (text.split("=") for text in rest):
        assert name in numbers, name
        numbers[name] = int(value)
    options = ["--backend", "host", "--port", "0", "--log", "off", "--context", "2048"]
    options += ["--threads", str(numbers["threads"]), "--kv-tokens", str(numbers["kv-tokens"])]
    command = [worker, "serve", model, *options]
    rows = {"load": [], "script": []}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = server.stdout.readline().removeprefix("listening on ").strip()
            print(" ".join(f"{name}={value}" for name, value in numbers.items()), flush=True)
            tool(worker, url, {**numbers, "requests": numbers["streams"]})  # warms up
            for turn in range(1, numbers["turns"] + 1):
                for name in rows:
                    who = resource.RUSAGE_CHILDREN if name == "load" else resource.RUSAGE_SELF
                    client, engine = processor_s(resource.getrusage(who)), server_s(server.pid)
                    if name == "load":
                        report = tool(worker, url, numbers)
                        rate, between = report["tokens_per_second"], report["itl_ms"]["p50"]
                    else:
                        count, seconds, times = asyncio.run(script(url, numbers))
                        rate, between = count / seconds, 1e3 * statistics.median(times)
                    client, engine = processor_s(resource.getrusage(who)) - client, server_s(server.pid) - engine
                    rows[name].append((rate, between))
                    print(
                        f"turn {turn}: {name:6} {rate:7.1f} tokens/s, between tokens p50 {between:6.2f} ms, processor time: "
                        f"client {client:.2f} s, server {engine:.2f} s; load average {os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
        finally:
            server.kill()
    rates, between = ({name: statistics.median(column) for name, column in zip(rows, columns)} for columns in (
        [[row[0] for row in rows[name]] for name in rows], [[row[1] for row in rows[name]] for name in rows]))  # fmt: skip
    for what, values, unit in [("rate", rates, "tokens/s"), ("between tokens p50", between, "ms")]:
        change = 100 * (values["load"] / values["script"] - 1)
        print(f"medians, {what}: load {values['load']:.2f}, script {values['script']:.2f} {unit}; {change:+.1f} %")


main()
