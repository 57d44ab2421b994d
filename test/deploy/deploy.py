#!/usr/bin/env python3
"""
deploy.py [--seconds N] [--pictures FOLDER]

deploy/ with the real programs: a loaded server is scraped by Prometheus, through metrics_server.py and through postgres_exporter. Prints TAP.
- every query of the board and of the rules returns data, and names only metrics that dsv3_metrics_text() has;
- both ways give the same metrics, labels and numbers;
- promtool finds nothing wrong with metrics, rules, and what the rules' own test expects.
With --pictures the board's charts are drawn from what was scraped. Run it inside test/with_server.sh.
"""
import argparse
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPLOY = os.path.join(TOP, "deploy")
NAME = re.compile(r"\bdsv3_[a-z0-9_]+")
count = failed = 0


def ok(good, name, detail=""):
    global count, failed
    count += 1
    failed += not good
    print(f"{'ok' if good else 'not ok'} {count} - {name}", flush=True)
    if not good and detail:
        print("\n".join("# " + line for line in str(detail).splitlines()[:20]), flush=True)


def psql(sql, check=True):
    return subprocess.run(["psql", "-XAtq", "-c", sql], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=check).stdout


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(url, accept=""):
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=20) as answer:
        return answer.read().decode()


def wait_for(url):
    for _ in range(300):
        try:
            return get(url)
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit(f"Bail out! nothing answers at {url}")


class Load(threading.Thread):
    """A role that asks again and again, mostly with a beginning that is cached, sometimes for what must fail."""

    def __init__(self, role, tokens):
        super().__init__(daemon=True)
        self.role, self.tokens, self.stop = role, tokens, threading.Event()

    def run(self):
        n = 0
        while not self.stop.is_set():
            n += 1
            text = "repeat('too long ', 100000)" if n % 7 == 0 else "repeat('the same instruction for every row. ', 6)"
            psql(f"SET ROLE {self.role}; SELECT dsv3_generate({text}, 'row ' || i, max_tokens => {self.tokens}, options => "
                 "'{\"on_error\": \"null\"}') FROM generate_series(1, 4) AS i", check=False)


class Prometheus:
    def __init__(self, folder, targets):
        self.url = f"http://127.0.0.1:{free_port()}"
        config = os.path.join(folder, "prometheus.yml")
        jobs = [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()]
        with open(config, "w", encoding="utf-8") as file:
            json.dump({"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": jobs,
                       "rule_files": [os.path.join(DEPLOY, "rules.yml")]}, file)
        self.process = subprocess.Popen(["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                                         f"--web.listen-address={self.url[7:]}"],
                                        stdout=open(f"{folder}/prometheus.log", "w", encoding="utf-8"), stderr=subprocess.STDOUT)
        wait_for(self.url + "/-/ready")

    def api(self, path, **arguments):
        try:
            return json.loads(get(f"{self.url}/api/v1/{path}?" + urllib.parse.urlencode(arguments)))["data"]
        except urllib.error.HTTPError as error:
            return {"result": [], "error": error.read().decode()}


def promtool(*arguments, text=None):
    result = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, cwd=DEPLOY, check=False)
    return result.returncode == 0, result.stdout + result.stderr


def samples(text):
    """name{labels} -> value, of dsv3's own metrics."""
    out = {}
    for line in text.splitlines():
        match = re.match(r"(dsv3_\w+)\{(.*)\} (\S+)$", line)
        if match:
            labels = tuple(sorted(label for label in re.findall(r'(\w+="(?:[^"\\]|\\.)*")', match[2]) if not label.startswith("server=")))
            out[match[1], labels] = float(match[3])
    return out


def filled_in(expression, layer, interval):
    for variable, value in (("$__rate_interval", interval), ("$model", ".*"), ("$instance", ".*"), ("$layer", layer)):
        expression = expression.replace(variable, value)
    return expression


def check_board(prometheus, board, names, layer):
    panels = board["panels"]
    ok(len({panel["id"] for panel in panels}) == len(panels), "panels have numbers of their own")
    ok(any(variable["type"] == "datasource" for variable in board["templating"]["list"]), "the board asks for its data source")
    for panel in panels:
        for target in panel["targets"]:
            expression = filled_in(target["expr"], layer, "20s")
            data = prometheus.api("query", query=expression)
            values = [float(result["value"][1]) for result in data["result"]]
            ok(values and not all(math.isnan(value) for value in values), f"data for \"{panel['title']}\": {target['legendFormat']}",
               f"{expression}\n{data}")
            unknown = set(NAME.findall(target["expr"])) - names
            ok(not unknown, f"metrics of \"{panel['title']}\": {target['legendFormat']}", unknown)


def check_rules(prometheus, names):
    for group in prometheus.api("rules")["groups"]:
        for rule in group["rules"]:
            ok(rule["health"] == "ok", f"rule {rule['name']}", rule.get("lastError"))
    with open(os.path.join(DEPLOY, "rules.yml"), encoding="utf-8") as file:
        unknown = {name for name in NAME.findall(file.read()) if not name.startswith("dsv3_recorded") and name != "dsv3_alerts"}
    # Names of views and functions in the descriptions are not metrics.
    objects = psql("SELECT proname FROM pg_proc UNION SELECT relname FROM pg_class").split()
    unknown -= names.union(objects)
    ok(not unknown, "metrics of the rules", unknown)


def check_ways(text, exporter):
    """What postgres_exporter gives, against the function."""
    own, other = samples(text), samples(exporter)
    ok(len(other) > 100, "postgres_exporter has the metrics", sorted({key[0] for key in other}))
    ok(not set(other) - set(own), "all of them are those of dsv3_metrics_text()", sorted(set(other) - set(own))[:8])
    left = {name for name, _ in set(own) - set(other)}
    ok(left <= {"dsv3_build_info", "dsv3_engine_steps_total", "dsv3_engine_preemptions_total", "dsv3_request_success_total"},
       "but for some of the engine's own", left)
    different = [(key, own[key], other[key]) for key in other if key in own and not math.isclose(own[key], other[key], rel_tol=1e-9)]
    ok(not different, "and have the same numbers", different[:8])


def check_page():
    """dsv3_routing_html() in a browser: it draws all of its data, and a click does what it should."""
    with tempfile.TemporaryDirectory() as folder:
        page = psql("SELECT dsv3_routing_html('Which river </script><i>flows</i> through Graz?')")
        clicked = "<script>document.querySelectorAll('#map tr')[2].click()</script></body>"
        file = os.path.join(folder, "routing.html")
        with open(file, "w", encoding="utf-8") as out:
            out.write(page.replace("</body>", clicked))
        result = subprocess.run(["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--virtual-time-budget=5000",
                                 "--user-data-dir=" + folder, "--dump-dom", "file://" + file], capture_output=True, text=True, timeout=120, check=False)
        data = json.loads(re.search(r'id="data">([^<]*)<', page)[1])
        drawn = result.stdout
        per_token = len(data["layers"][0]["chosen"][0])
        ok(drawn.count('class="chosen"') == len(data["tokens"]) * per_token, "the browser draws each choice of a layer", drawn[-2000:] + result.stderr)
        ok(drawn.count("<th>layer ") == len(data["layers"]), "and each layer of a token")
        ok(">Token 3: expert, score, score with bias<" in drawn, "a click chooses a token")
        ok("<i>flows" not in drawn, "texts of tokens are texts")


def draw(prometheus, board, layer, begin, end, folder):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    os.makedirs(folder, exist_ok=True)
    shown = [panel for panel in board["panels"] if panel["id"] <= 12]
    figure, axes = plt.subplots(6, 2, figsize=(13, 19), constrained_layout=True)
    for axis, panel in zip(axes.flat, shown):
        series = []
        for target in panel["targets"]:
            data = prometheus.api("query_range", query=filled_in(target["expr"], layer, "8s"), start=begin, end=end, step=1)
            for result in data["result"]:
                legend = target["legendFormat"]
                for key, value in result["metric"].items():
                    legend = legend.replace("{{" + key + "}}", value)
                series.append((legend, [(float(t) - begin, float(v)) for t, v in result["values"]]))
        if panel["type"] == "heatmap":
            series.sort(key=lambda s: int(s[0].split("-")[0]))
            axis.imshow([[v for _, v in points] for _, points in series], aspect="auto", origin="lower", cmap="Oranges",
                        extent=(series[0][1][0][0], series[0][1][-1][0], -0.5, len(series) - 0.5))
            axis.set_ylabel("group of experts")
        else:
            for legend, points in series[:12]:
                axis.plot([t for t, _ in points], [v for _, v in points], label=legend)
            axis.set_ylim(bottom=0)
            axis.legend(fontsize=8, ncol=2)
        axis.set_title(panel["title"].replace("$layer", layer), fontsize=11)
        axis.set_xlabel("seconds")
    figure.savefig(os.path.join(folder, "monitoring.png"), dpi=70)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--pictures")
    arguments = parser.parse_args()
    for role in ("reports", "search"):
        psql(f"CREATE ROLE {role}; GRANT EXECUTE ON FUNCTION dsv3_generate(text, text, text, int, float8, bigint, jsonb) TO {role}")
    psql("CREATE ROLE monitor LOGIN IN ROLE pg_monitor")
    begin = time.time()
    loads = [Load("reports", 12), Load("search", 4)]
    for load in loads:
        load.start()
    children = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            own, other = (f"127.0.0.1:{free_port()}" for _ in range(2))
            children.append(subprocess.Popen([sys.executable, os.path.join(DEPLOY, "metrics_server.py"), "--listen", own, "user=monitor"]))
            children.append(subprocess.Popen(
                ["prometheus-postgres-exporter", "--extend.query-path=" + os.path.join(DEPLOY, "postgres_exporter.yml"),
                 "--web.listen-address=" + other, "--log.level=error", "--disable-default-metrics", "--disable-settings-metrics"],
                env={**os.environ, "DATA_SOURCE_NAME": f"host={os.environ['PGHOST']} user=monitor dbname={os.environ['PGDATABASE']} sslmode=disable"},
                stderr=open(f"{folder}/exporter.log", "w", encoding="utf-8")))
            for address in (own, other):
                wait_for(f"http://{address}/metrics")
            prometheus = Prometheus(folder, {"dsv3": own})
            children.append(prometheus.process)
            time.sleep(arguments.seconds)
            with open(os.path.join(DEPLOY, "grafana.json"), encoding="utf-8") as file:
                board = json.load(file)
            layer = psql("SELECT min(layer) FROM dsv3_stat_experts").strip()
            names = {name for name, _ in samples(psql("SELECT dsv3_metrics_text()"))}
            ok(all(target["health"] == "up" for target in prometheus.api("targets")["activeTargets"]), "scraped, as OpenMetrics",
               prometheus.api("targets"))
            check_board(prometheus, board, names, layer)
            check_rules(prometheus, names)
            end = time.time()
            for load in loads:
                load.stop.set()
            for load in loads:
                load.join()
            time.sleep(2.5)  # the engine's counters are a second old at most
            text = get(f"http://{own}/metrics")
            check_ways(text, get(f"http://{other}/metrics"))
            good, said = promtool("check", "metrics", text=text)
            ok(good, "promtool check metrics", said)
            ok(get(f"http://{own}/metrics", "application/openmetrics-text").endswith("# EOF\n"), "OpenMetrics for who asks for it")
            check_page()
            for command in (("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")):
                good, said = promtool(*command)
                ok(good, "promtool " + " ".join(command), said)
            if arguments.pictures:
                draw(prometheus, board, layer, begin, end, arguments.pictures)
        finally:
            for child in children:
                child.terminate()
            for child in children:
                child.wait()
    print(f"1..{count}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
