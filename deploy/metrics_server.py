#!/usr/bin/env python3
"""
metrics_server.py [--listen ADDRESS:PORT] [CONNECTION STRING]

Serves dsv3_metrics_text() to Prometheus at /metrics. It asks psql for each scrape, so it needs nothing but psql and the environment or the
connection string that psql understands, and holds no connection. Listens on 127.0.0.1:9817 unless told otherwise; there is no TLS and no
password here, so put what has both before it, or leave it on the loopback address.

When the server cannot be asked the scrape fails with status 503, which Prometheus shows as up == 0.
"""
import argparse
import http.server
import os
import subprocess

TYPES = {"openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
         "prometheus": "text/plain; version=0.0.4; charset=utf-8"}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.split("?")[0] != "/metrics":
            self.send_error(404)
            return
        form = "openmetrics" if "openmetrics" in self.headers.get("Accept", "") else "prometheus"
        try:
            result = subprocess.run(["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.server.connection,
                                     "-c", f"SELECT dsv3_metrics_text('{form}')"],
                                    stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=True,
                                    env={**os.environ, "PGCLIENTENCODING": "UTF8", "PGCONNECT_TIMEOUT": "5"})
        except (subprocess.SubprocessError, OSError) as error:
            self.log_error("%s", getattr(error, "stderr", b"") or error)
            self.send_error(503)
            return
        # psql ends the value with one line break too many, and nothing may follow "# EOF".
        body = result.stdout.rstrip(b"\n") + b"\n"
        self.send_response(200)
        self.send_header("Content-Type", TYPES[form])
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code="-", size="-"):
        pass


def main():
    parser = argparse.ArgumentParser(description="Serves dsv3_metrics_text() to Prometheus.")
    parser.add_argument("--listen", default="127.0.0.1:9817")
    parser.add_argument("connection", nargs="?", default="")
    arguments = parser.parse_args()
    host, _, port = arguments.listen.rpartition(":")
    server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
    server.connection = arguments.connection
    server.serve_forever()


if __name__ == "__main__":
    main()
