#!/usr/bin/env python3
"""
sql_overhead.py [--rounds N] [--tokens N]

What SQL adds to the engine. The same requests go, in turn, through `SELECT dsv3_generate(...)` on a running server (psql's own
\\timing, so the client's round trip is included) and to an engine process started here and spoken to over its socket, frame by
frame. Both run the same executable on the same model with the same number of threads, and the one whose turn it is not is idle.
Run by `make bench` (or test/with_server.sh -m MODEL bench/sql_overhead.py).

Each round asks for 1 token and for N tokens. Time to the first token is the first; time per token is the difference over N - 1.
The table shows medians, and the median of the differences within each round, which is what the bars are about:
at most 3 % of the time per token and at most 2 ms to the first token. Exit status 1 when a bar is missed or two answers differ.
"""
import argparse
import os
import select
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time

MAGIC, VERSION = 0x33565344, 1
CONFIG, READY, SUBMIT, DELTA, DONE, FAIL = 1, 2, 3, 5, 6, 7
KIND, PROMPT, MAX_TOKENS, TEMPERATURE, SEED, ROLE, PRIORITY, SCOPE = 1, 2, 8, 9, 14, 21, 20, 25
TEXT, OUTPUT_TOKENS, ERROR = 40, 45, 61
MODEL_PATH, THREADS, DEVICE, KV_BYTES, WEIGHTS, MAX_REQUESTS = 80, 81, 82, 83, 84, 85
GENERATE = 1


class Engine:
    """An engine process and the frames to and from it (src/common/protocol.h)."""

    def __init__(self, executable, settings):
        ours, theirs = socket.socketpair()
        # The engine expects its socket as descriptor 3.
        shell = f'exec 3<&{theirs.fileno()} && exec "$0" engine'
        self.process = subprocess.Popen(["bash", "-c", shell, executable], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        theirs.close()
        self.socket = ours
        self.buffer = b""
        self.request = 0
        self.send(CONFIG, 0, self.text(MODEL_PATH, settings["model_path"]) + self.text(DEVICE, settings["device"])
                  + self.text(WEIGHTS, settings["weights"]) + self.u32(THREADS, int(settings["threads"]))
                  + self.field(KV_BYTES, struct.pack("<Q", int(settings["kv_cache_size"]) << 20)) + self.u32(MAX_REQUESTS, 8))
        kind, fields = self.receive(120)
        if kind != READY:
            raise SystemExit(f"engine: {fields.get(ERROR, b'').decode()}")

    @staticmethod
    def field(tag, value):
        return struct.pack("<HI", tag, len(value)) + value

    def text(self, tag, value):
        return self.field(tag, value.encode())

    def u32(self, tag, value):
        return self.field(tag, struct.pack("<I", value))

    def send(self, kind, request, body):
        self.socket.sendall(struct.pack("<IHHIIQ", MAGIC, VERSION, kind, len(body), 0, request) + body)

    def receive(self, seconds=60):
        while True:
            if len(self.buffer) >= 24:
                magic, version, kind, length, _, _ = struct.unpack_from("<IHHIIQ", self.buffer)
                if magic != MAGIC or version != VERSION:
                    raise SystemExit("engine: not a frame")
                if len(self.buffer) >= 24 + length:
                    body, self.buffer = self.buffer[24:24 + length], self.buffer[24 + length:]
                    fields, at = {}, 0
                    while at < len(body):
                        tag, size = struct.unpack_from("<HI", body, at)
                        fields[tag] = body[at + 6:at + 6 + size]
                        at += 6 + size
                    return kind, fields
            if not select.select([self.socket], [], [], seconds)[0]:
                raise SystemExit("engine: silent")
            data = self.socket.recv(1 << 16)
            if not data:
                raise SystemExit("engine: ended: " + self.process.stderr.read().decode(errors="replace"))
            self.buffer += data

    def generate(self, prompt, tokens):
        """(milliseconds, text)"""
        self.request += 1
        body = (self.u32(KIND, GENERATE) + self.u32(ROLE, 10) + self.u32(PRIORITY, 0)
                + self.text(SCOPE, "bench") + self.text(PROMPT, prompt)
                + self.u32(MAX_TOKENS, tokens) + self.field(TEMPERATURE, struct.pack("<d", 0)) + self.field(SEED, struct.pack("<q", 0)))
        start, text = time.perf_counter(), b""
        self.send(SUBMIT, self.request, body)
        while True:
            kind, fields = self.receive()
            text += fields.get(TEXT, b"")
            if kind == FAIL:
                raise SystemExit(f"engine: {fields.get(ERROR, b'').decode()}")
            if kind == DONE:
                return (time.perf_counter() - start) * 1000, text.decode()

    def close(self):
        self.socket.close()
        self.process.wait(10)


class Server:
    """One session of psql, which times each statement."""

    def __init__(self):
        # psql writes into a pipe in blocks unless told otherwise.
        self.psql = subprocess.Popen(["stdbuf", "-oL", "psql", "-XAtq", "-v", "ON_ERROR_STOP=1"], stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, text=True)
        self.ask("SET dsv3.temperature = 0")

    def ask(self, statement):
        """(milliseconds, result)"""
        self.psql.stdin.write(f"\\timing on\n{statement};\n\\timing off\n\\echo <end>\n")
        self.psql.stdin.flush()
        lines = []
        while True:
            line = self.psql.stdout.readline()
            if not line:
                raise SystemExit("psql ended")
            if line == "<end>\n":
                break
            lines.append(line)
        at = max(i for i, line in enumerate(lines) if line.startswith("Time: "))
        return float(lines[at].split()[1]), "".join(lines[:at])[:-1]

    def generate(self, prompt, tokens):
        return self.ask(f"SELECT dsv3_generate($bench${prompt}$bench$, max_tokens => {tokens}, seed => 0)")


def main():
    parser = argparse.ArgumentParser(usage="sql_overhead.py [--rounds N] [--tokens N]")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()

    server = Server()
    names = ["model_path", "device", "weights", "threads", "kv_cache_size"]
    values = server.ask("SELECT " + ", ".join(f"(SELECT setting FROM pg_settings WHERE name = 'dsv3.{name}')" for name in names))[1]
    settings = dict(zip(names, values.split("|")))
    executable = shutil.which("dsv3")  # with_server.sh puts the server's programs first
    engine = Engine(executable, settings)

    first, each, differing = [], [], 0
    for number in range(-1, options.rounds):
        # A new prompt each round, so that no cache of an earlier one answers.
        prompt = f"Round {number + 2}. Tell me about the harbour of Rotterdam, its ships and its people."
        times = {}
        # Who goes first changes, and so does what the caches hold.
        sides = [("sql", server), ("engine", engine)] if number % 2 else [("engine", engine), ("sql", server)]
        for tokens in (1, options.tokens):
            answers = {}
            for name, side in sides:
                times[name, tokens], answers[name] = side.generate(prompt, tokens)
            differing += answers["sql"] != answers["engine"]
        if number >= 0:  # the first round warms both up
            first.append((times["engine", 1], times["sql", 1]))
            each.append(tuple((times[name, options.tokens] - times[name, 1]) / (options.tokens - 1) for name in ("engine", "sql")))
    engine.close()

    def row(title, pairs, bar_ms, bar_percent):
        direct = statistics.median(a for a, b in pairs)
        sql = statistics.median(b for a, b in pairs)
        added = statistics.median(b - a for a, b in pairs)
        percent = 100 * added / direct
        met = added <= bar_ms if bar_ms is not None else percent <= bar_percent
        bar = f"{bar_ms:.0f} ms" if bar_ms is not None else f"{bar_percent:.0f} %"
        print(f"{title:<22}{direct:>10.3f}{sql:>10.3f}{added:>10.3f}{percent:>9.2f} %{bar:>8}  {'met' if met else 'MISSED'}")
        return met

    print(f"{options.rounds} rounds, {options.tokens} tokens, model {os.path.basename(settings['model_path'])}, "
          f"weights {settings['weights']}, threads {settings['threads']}; milliseconds")
    print(f"{'':<22}{'engine':>10}{'SQL':>10}{'added':>10}{'added':>11}{'bar':>8}")
    good = row("to the first token", first, 2, None)
    good = row("per token", each, None, 3) and good
    print("answers equal on both sides" if differing == 0 else f"{differing} answers DIFFER")
    return 0 if good and differing == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
