"""Sends requests of given lengths at given times, and measures their tokens."""

import http.client
import json
import random
import threading
import time
import urllib.parse


class Sent:
    """One streamed completion of a model, by default the only one. Times are seconds of a common clock; `failure` is empty if it
    was answered."""

    def __init__(self, due_s, prompt_tokens, answer_tokens, kind="", model=None):
        self.due_s, self.prompt_tokens, self.answer_tokens, self.kind = due_s, prompt_tokens, answer_tokens, kind
        self.model = model
        self.token_s, self.failure = [], "not sent"

    @property
    def ttft_s(self):
        return self.token_s[0] - self.due_s

    @property
    def latency_s(self):
        return self.token_s[-1] - self.due_s

    @property
    def tpot_s(self):
        return (self.token_s[-1] - self.token_s[0]) / max(1, len(self.token_s) - 1)

    def send(self, url, seed, clock_s):
        rng = random.Random(seed)
        body = {"prompt": [rng.randrange(10, 250) for _ in range(self.prompt_tokens)], "max_tokens": self.answer_tokens,
                "temperature": 0, "ignore_eos": True, "stream": True, **({"model": self.model} if self.model else {})}
        try:
            connection = http.client.HTTPConnection(urllib.parse.urlsplit(url).netloc, timeout=300)
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                self.failure = f"{answer.status}: {json.loads(answer.read())['error']['message']}"
                return
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        self.failure = event["error"]["message"]
                        return
                    choice = event["choices"][0]
                    if choice["text"] or not choice["finish_reason"]:  # else it closes the answer
                        self.token_s.append(time.monotonic() - clock_s)
            self.failure = "" if self.token_s else "no token"
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            self.failure = repr(error)


def run(url, requests, clock_s=None):
    """Sends all requests at their times, also after others have failed, and waits for their ends. The clock begins now by
    default."""
    clock_s = time.monotonic() if clock_s is None else clock_s
    threads = []
    for number, request in enumerate(requests):
        time.sleep(max(0.0, clock_s + request.due_s - time.monotonic()))
        threads.append(threading.Thread(target=request.send, args=(url, number, clock_s)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def summary(requests):
    """Times of one kind of requests, in ms, and how many were not answered."""
    done = [request for request in requests if not request.failure]
    ttft, tpot = [1000 * r.ttft_s for r in done], [1000 * r.tpot_s for r in done if len(r.token_s) > 1]
    return {"sent": len(requests), "not_answered": len(requests) - len(done),
            **{f"{name}_{label}_ms": percentile(values, share) for name, values in (("ttft", ttft), ("tpot", tpot))
               for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))},
            "tokens_per_s": sum(len(r.token_s) for r in done) / max((r.token_s[-1] for r in done), default=1)}
