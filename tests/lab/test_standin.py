"""The stand-in engine on a lab host under systemd, held against what the real one was seen to do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from . import Host, Lab

pytestmark = pytest.mark.lab

UNIT = """\
[Service]
Type=exec
KillMode=mixed
Environment={environment}
ExecStart={engine}/bin/python -m sglang.launch_server --model-path /models/k26 --served-model-name kimi-k2.6 \
  --port 30001 {arguments}
"""
PIPELINE = "--tp-size 1 --pp-size 8 --attention-backend triton --disable-cuda-graph"
# Answers `STATUS BODY`; status 0 is no answer.
REQUEST = """\
import sys, urllib.error, urllib.request
try:
    answer = urllib.request.urlopen(urllib.request.Request(sys.argv[1], sys.stdin.buffer.read() or None), timeout=5)
    print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(0, error)
"""
STREAMS = """\
import concurrent.futures, json, urllib.request
body = json.dumps({"prompt": "x", "max_tokens": 300, "stream": True}).encode()
def stream(number):
    try:
        with urllib.request.urlopen("http://127.0.0.1:30001/v1/completions", body) as answer:
            return answer.read().endswith(b"data: [DONE]\\n\\n")
    except Exception:
        return False
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(stream, range(8))))
"""


@dataclass
class Engine:
    """One unit of the stand-in on a host."""

    host: Host

    def start(self, arguments: str, environment: str = "", engine: str = "/opt/sglang") -> None:
        fast = f"STANDIN_LOAD_SECONDS=0.2 STANDIN_GPU_RELEASE_SECONDS=0.05 STANDIN_DRAIN_POLL_SECONDS=0.2 {environment}"
        text = UNIT.format(arguments=arguments, environment=fast, engine=engine)
        self.host.put("/etc/systemd/system/engine.service", text)
        self.host.run("systemctl daemon-reload; systemctl start engine")

    def ask(self, path: str, body: object = None) -> tuple[int, str]:
        argv = ["python3", "-c", REQUEST, f"http://127.0.0.1:30001{path}"]
        status, _, text = self.host.run(
            argv, input="" if body is None else json.dumps(body)
        ).stdout.partition(" ")
        return int(status), text.strip()

    def show(self, *names: str) -> list[str]:
        words = [f"-p{name}" for name in names]
        return sorted(self.host.run(["systemctl", "show", "engine", *words]).stdout.split())

    @property
    def log(self) -> str:
        invocation = self.host.run("systemctl show engine -P InvocationID").stdout.strip()
        entries = f"journalctl -a -o cat _SYSTEMD_INVOCATION_ID={invocation} + INVOCATION_ID={invocation}"
        return self.host.run(entries).stdout

    def until(self, words: str, seconds: float = 10) -> str:
        """The log, once it holds the words."""
        end = time.monotonic() + seconds
        while words not in (log := self.log):
            assert time.monotonic() < end, f"{words!r} never came:\n{log}"
            time.sleep(0.05)
        return log

    def stop(self) -> None:
        self.host.run("systemctl stop engine; systemctl reset-failed engine", check=False)


@pytest.fixture
def engine(lab: Lab) -> Iterator[Engine]:
    engine = Engine(lab.host("ct200"))
    yield engine
    engine.host.run("systemctl kill -s KILL engine", check=False)
    engine.stop()


def memory(host: Host) -> set[int]:
    words = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"
    return {int(line) for line in host.run(words).stdout.splitlines()}


def test_says_what_it_is_and_serves(engine: Engine) -> None:
    assert engine.ask("/health")[0] == 0
    engine.start("--tp-size 8 --enable-metrics --max-running-requests 4")
    log = engine.until("The server is fired up and ready to roll!")
    steps = """STAND-IN.*server_args=ServerArgs\\(model_path='/models/k26'.* TP0\\] Init torch distributed begin
        Load weight begin. avail mem=.*shards: 100% Completed \\| 8/8.*Load weight end. elapsed=.*KV Cache is allocated
        Memory pool end.*Capture cuda graph begin.*Capture cuda graph end.*max_total_num_tokens=.*Uvicorn running on
        Prefill batch, #new-seq: 1.*ready to roll"""
    assert re.search(".*".join(step.strip() for step in steps.splitlines()), log, re.DOTALL)
    for path in ("/health", "/health_generate", "/v1/models", "/get_model_info", "/model_info", "/get_load"):
        assert engine.ask(path)[0] == 200, path
    assert json.loads(engine.ask("/server_info")[1])["tp_size"] == 8
    assert json.loads(engine.ask("/v1/loads")[1])["aggregate"]["total_reqs"] == 0
    assert "sglang:num_running_reqs{" in engine.ask("/metrics")[1]
    assert engine.ask("/ready") == (404, '{"detail": "Not Found"}')  # comes with 0.5.20


def test_generates_in_every_form(engine: Engine) -> None:
    engine.start("--tp-size 1")
    engine.until("ready to roll")
    chat = {"model": "kimi-k2.6", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    answer = json.loads(engine.ask("/v1/chat/completions", chat)[1])
    assert answer["usage"]["completion_tokens"] == 5 and answer["choices"][0]["message"]["content"]
    streamed = {**chat, "stream": True, "stream_options": {"include_usage": True}}
    events = [line[6:] for line in engine.ask("/v1/chat/completions", streamed)[1].splitlines() if line]
    assert events[-1] == "[DONE]" and json.loads(events[-2])["usage"]["completion_tokens"] == 5
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    constrained = {**chat, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    content = json.loads(engine.ask("/v1/chat/completions", constrained)[1])["choices"][0]["message"][
        "content"
    ]
    assert json.loads(content) == {"n": 1}
    native = {"text": "hi", "sampling_params": {"max_new_tokens": 3}}
    assert json.loads(engine.ask("/generate", native)[1])["meta_info"]["completion_tokens"] == 3
    assert engine.ask("/v1/completions", {})[0] == 400
    assert engine.ask("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 10**6}})[0] == 400


def test_gpu_memory_follows_the_processes(engine: Engine) -> None:
    engine.start("--tp-size 4 --pp-size 2", "STANDIN_GPU_RELEASE_SECONDS=0.5")
    engine.until("ready to roll")
    assert min(memory(engine.host)) > 80000
    query = "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv,noheader"
    assert "sglang::scheduler_PP1_TP3" in engine.host.run(query).stdout
    engine.stop()
    assert min(memory(engine.host)) > 80000 and engine.host.run(query).stdout == ""
    time.sleep(0.6)
    assert memory(engine.host) == {4}


def test_nvidia_smi_breaks_as_told(lab: Lab) -> None:
    host = lab.host("ct200")
    assert "STAND-IN" in host.run("nvidia-smi").stdout
    host.put("/run/standin-nvidia-smi/fail", "")
    host.put("/run/standin-nvidia-smi/missing-3", "")
    assert host.run("nvidia-smi -L", check=False).returncode == 9
    host.run("rm /run/standin-nvidia-smi/fail")
    assert len(host.run("nvidia-smi -L").stdout.splitlines()) == 7
    host.run("rm /run/standin-nvidia-smi/missing-3")


@pytest.mark.parametrize(("kind", "done"), [("mixed", 8), ("control-group", 0)])
def test_streams_survive_a_stop_only_with_the_right_kill_mode(engine: Engine, kind: str, done: int) -> None:
    engine.start("--tp-size 2")
    engine.until("ready to roll")
    drop = f"mkdir -p /run/systemd/system/engine.service.d; printf '[Service]\\nKillMode={kind}\\n' \
        >/run/systemd/system/engine.service.d/kill.conf; systemctl daemon-reload"
    engine.host.run(drop)
    engine.host.put("/root/streams.py", STREAMS)
    stopped = "python3 /root/streams.py & sleep 0.7; systemctl stop engine; wait"
    assert engine.host.run(stopped).stdout.strip() == str(done)
    engine.host.run("rm -r /run/systemd/system/engine.service.d")


def test_graceful_stop_ends_as_in_its_release(engine: Engine) -> None:
    engine.start("--tp-size 2")
    engine.until("ready to roll")
    engine.host.run("systemctl stop engine")
    assert "Remaining number of requests 0" in engine.log
    assert engine.show("Result", "ExecMainStatus") == ["ExecMainStatus=9", "Result=signal"]


def test_pipeline_bug_is_in_the_file_and_goes_with_it(engine: Engine) -> None:
    engine.start(PIPELINE)
    log = engine.until("Received sigquit from a child process")
    assert re.search(r"\[\S+ \S+ PP[2-7]\] Scheduler hit an exception: Traceback", log)
    assert "IndexError: list index out of range" in log and "layers/attention/triton_backend.py" in log
    assert not re.search(r"PP[01]\] Scheduler hit an exception", log)
    engine.stop()
    engine.start(PIPELINE.replace("--pp-size 8", "--pp-size 2"))
    engine.until("ready to roll")
    engine.stop()
    file = "/opt/sglang/lib/python3.11/site-packages/sglang/srt/layers/attention/triton_backend.py"
    original = engine.host.get(file)
    fix = "get_value_buffer(model_runner.token_to_kv_pool.start_layer)"
    engine.host.put(file, original.replace("get_value_buffer(0)", fix))
    engine.start(PIPELINE)
    engine.until("ready to roll")
    engine.host.put(file, original)
    engine.stop()
    engine.start(PIPELINE, engine="/opt/sglang-fixed")
    engine.until("ready to roll")


@pytest.mark.parametrize(
    ("kind", "words", "result"),
    [
        ("exit-1", "STAND-IN", "exit-code"),
        ("oom", "torch.OutOfMemoryError: CUDA out of memory", "signal"),
        ("kv-no-room", "Not enough memory. Please try to increase --mem-fraction-static", "signal"),
        ("scheduler-killed", "crashed with exit code -9. Triggering SIGQUIT", "signal"),
        ("self-kill", "Load weight begin", "signal"),
    ],
)
def test_fails_as_told(engine: Engine, kind: str, words: str, result: str) -> None:
    engine.start("--tp-size 2", f"STANDIN_FAIL={kind}")
    engine.until(words)
    end = time.monotonic() + 10
    while engine.show("Result") != [f"Result={result}"]:
        assert time.monotonic() < end, engine.log
        time.sleep(0.1)


def test_bad_answers(engine: Engine) -> None:
    engine.host.put("/etc/standin-fail", "exit-1 --pp-size\nwrong-model --tp-size\n")
    engine.start("--tp-size 2")
    engine.until("ready to roll")
    assert json.loads(engine.ask("/v1/models")[1])["data"][0]["id"] == "some-other-model"
    engine.host.run("rm /etc/standin-fail")
    engine.stop()
    engine.start("--tp-size 2", "STANDIN_FAIL=empty-text")
    engine.until("ready to roll")
    answer = json.loads(engine.ask("/v1/completions", {"prompt": "x", "max_tokens": 4})[1])
    assert answer["choices"][0]["text"] == "" and answer["usage"]["completion_tokens"] == 0


def test_taken_port_is_noticed_only_after_loading(engine: Engine) -> None:
    engine.host.run("systemd-run -q --unit other python3 -m http.server --bind 127.0.0.1 30001; sleep 0.5")
    engine.start("--tp-size 2", "STANDIN_PORT_HANG_SECONDS=0.5")
    log = engine.until("Initialization failed. warmup error")
    assert "address already in use" in log.partition("Memory pool end")[2]
    engine.host.run("systemctl stop other")


def test_flags_are_the_release_s(engine: Engine) -> None:
    engine.start("--tp-size 2 --attn-dp-size 2")
    engine.until("launch_server.py: error: unrecognized arguments: --attn-dp-size 2")
    assert engine.show("ExecMainStatus") == ["ExecMainStatus=2"]
    engine.stop()
    engine.start("--tp 2")
    engine.until("unrecognized arguments: --tp 2")
    engine.stop()
    engine.host.put("/root/engine.yaml", 'api-key: "se\'cr\\"et"\nenable-metrics: true\n', 0o600)
    engine.start("--tp-size 2 --config /root/engine.yaml")
    engine.until("ready to roll")
    assert engine.ask("/v1/models") == (401, '{"error": "Unauthorized"}')
    assert engine.ask("/metrics")[0] == 200


def test_log_can_be_large_and_ugly(engine: Engine) -> None:
    engine.start("--tp-size 2", "STANDIN_LOG_GARBAGE=1 STANDIN_LOG_MEGABYTES=1")
    assert len(engine.until("ready to roll")) > 2_000_000


def test_memory_of_somebody_else_stands_in_the_way(engine: Engine) -> None:
    engine.host.run("systemd-run -q --unit hog standin-gpu-hold 1 50000; sleep 0.3")
    engine.start("--tp-size 2")
    engine.until("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")
    engine.host.run("systemctl stop hog")
