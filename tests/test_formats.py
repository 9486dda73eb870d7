"""Every public format is told from its content and read as its publisher means it.

Truth: rows written here after each format's description, and the counts and means of the reference data's
manifest. Lengths of texts are checked with a tokenizer that counts words.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traces import InputError, Trace, read_trace, write_trace

TINY_LM = Path(__file__).parent / "data" / "tiny_lm"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer whose tokens are the words of a text."""
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    path.write_text(
        json.dumps({"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": model})
    )
    return str(path)


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def put(folder: Path, text: str, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_text(text)
    return path


BURST_1 = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,0,0,0,API log\n45,GPT-4,10,7,17,API log\n"
)
BURST_3 = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "100.5,b-1,3,GPT-4,4,5,9,Conversation log\n101.0,,0,GPT-4,6,7,13,API log\n"
    "102.0,a-2,1,GPT-4,8,9,17,Conversation log\n103.0,b-1,1,GPT-4,8,9,17,Conversation log\n"
)


def test_burstgpt_names_failed_requests(tmp_path: Path) -> None:
    path = put(tmp_path, BURST_1)
    with pytest.raises(InputError, match="line 3, column 'Response tokens': '0' means a failed request"):
        read_trace(path)
    trace = read_trace(path, on_error="skip")
    assert trace.arrival_s.tolist() == [0.0, 40.0]
    assert trace.output_tokens.tolist() == [18, 7]
    assert trace.extra["Model"].tolist() == ["ChatGPT", "GPT-4"]
    assert trace.metadata["dropped"]["count"] == 1


def test_burstgpt_with_sessions(tmp_path: Path) -> None:
    trace = read_trace(put(tmp_path, BURST_3))
    assert trace.metadata["format"] == "burstgpt"
    assert trace.arrival_s.tolist() == [0.0, 0.5, 1.5, 2.5]
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [0, -1, 1, 0]
    assert trace.extra["Session ID"].tolist() == ["b-1", None, "a-2", "b-1"]
    assert trace.extra["Elapsed time"].tolist() == [3, 0, 1, 1]


CHAT = [
    {
        "id": "c1",
        "conversations": [
            {"from": "human", "value": "one two"},
            {"from": "gpt", "value": "three four five"},
            {"from": "human", "value": "six"},
            {"from": "gpt", "value": "seven"},
            {"from": "human", "value": "never answered"},
        ],
    },
    {"id": "c2", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b c"}]},
]


def test_sharegpt_counts_the_history(tmp_path: Path, words: str) -> None:
    path = put(tmp_path, json.dumps(CHAT))
    with pytest.raises(InputError, match=r"has the text .* but no token counts; count them with --tokenizer"):
        read_trace(path)
    trace = read_trace(path, tokenizer=words)
    assert trace.request_id.tolist() == ["c1/0", "c1/1", "c2/0"]
    # The second prompt is sent with what was said before it: 2 + 3 + 1 words.
    assert trace.prompt_tokens.tolist() == [2, 6, 1]
    assert trace.output_tokens.tolist() == [3, 1, 2]
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [0, 0, 1]
    assert trace.prompt is not None
    assert trace.prompt.tolist() == ["one two", "six", "a"]
    assert trace.metadata["arrivals"] == "absent"
    assert trace.metadata["tokenizer"] == words


def test_chats_of_messages(tmp_path: Path, words: str) -> None:
    chats = [
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "x y"}]},
                {"role": "assistant", "content": {"answer": "z\u2028z"}},
            ]
        },
        {"messages": [{"role": "assistant", "content": "no prompt"}]},
        {"messages": "none"},
    ]
    path = put(tmp_path, lines(*chats))
    with pytest.raises(InputError, match="line 2, column 'prompt': is missing"):
        read_trace(put(tmp_path, lines(*chats[:2])), tokenizer=words)
    trace = read_trace(put(tmp_path, lines(*chats)), tokenizer=words, on_error="skip")
    assert trace.prompt_tokens.tolist() == [4]
    assert trace.output_tokens.tolist() == [2]
    assert trace.metadata["dropped"]["count"] == 2
    assert path.exists()


def test_alpaca_eval(tmp_path: Path, words: str) -> None:
    rows = [
        {"dataset": "d", "instruction": "do it", "output": "done", "generator": "g"},
        {"dataset": "d", "instruction": "again", "output": "", "generator": "g"},
    ]
    path = put(tmp_path, json.dumps(rows))
    with pytest.raises(InputError, match="entry 2, column 'output': '' has no token"):
        read_trace(path, tokenizer=words)
    trace = read_trace(path, tokenizer=words, on_error="skip")
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([2], [1])
    assert trace.metadata["format"] == "alpaca-eval"
    assert trace.extra["generator"].tolist() == ["g"]


def test_vllm_custom_and_aiperf_texts(tmp_path: Path, words: str) -> None:
    custom = read_trace(put(tmp_path, lines({"prompt": "a b", "output_tokens": 9})), tokenizer=words)
    assert (custom.prompt_tokens.tolist(), custom.output_tokens.tolist()) == ([2], [9])
    timed = lines(
        {"timestamp": 1000, "text_input": "a b c", "output_length": 9, "session_id": "x"},
        {"timestamp": 1250, "text_input": "a", "output_length": 8, "session_id": "y"},
    )
    trace = read_trace(put(tmp_path, timed), tokenizer=words)
    assert trace.arrival_s.tolist() == [0.0, 0.25]
    assert trace.prompt_tokens.tolist() == [3, 1]
    assert trace.session_id is not None
    assert trace.session_id.tolist() == [0, 1]
    assert trace.extra["session_name"].tolist() == ["x", "y"]


def test_samples_in_a_list_are_no_text(tmp_path: Path, words: str) -> None:
    path = put(tmp_path, lines({"prompt": "a", "response": ["b", "c"]}))
    with pytest.raises(InputError, match=r"column 'response': .* is not a text"):
        read_trace(path, tokenizer=words)


def test_forelen_folder_of_unequal_splits(tmp_path: Path, words: str) -> None:
    put(tmp_path, "user_prompt_content,response_content,target_length\na b,x,7\n", "train.csv")
    (tmp_path / "test.csv.gz").write_bytes(
        gzip.compress(b"id,user_prompt_content,target_length,model\n9,a b c,8,m\n")
    )
    trace = read_trace(tmp_path, tokenizer=words)
    assert trace.extra["split"].tolist() == ["test", "train"]
    assert trace.prompt_tokens.tolist() == [3, 2]
    assert trace.output_tokens.tolist() == [8, 7]
    assert trace.response is not None
    assert trace.response.tolist() == [None, "x"]
    assert trace.extra["model"].tolist() == ["m", None]
    assert trace.metadata["arrivals"] == "absent"
    one = read_trace(tmp_path / "train.csv", tokenizer=words)
    assert one.metadata["format"] == "forelen"


def batch(name: str, status: int, usage: dict[str, int] | None) -> dict[str, Any]:
    return {"id": "r", "custom_id": name, "response": {"status_code": status, "body": {"usage": usage}}}


def test_openai_batch(tmp_path: Path) -> None:
    good = batch("a", 200, {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7})
    path = put(tmp_path, lines(good, batch("b", 429, None)))
    with pytest.raises(InputError, match=r"line 2: is a failed request \(status 429\)"):
        read_trace(path)
    trace = read_trace(path, on_error="skip")
    assert trace.request_id.tolist() == ["a"]
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([3], [4])
    assert trace.metadata["arrivals"] == "absent"
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}
    with pytest.raises(InputError, match="is the input of a batch"):
        read_trace(put(tmp_path, lines(asked)))


def test_access_log_of_json(tmp_path: Path) -> None:
    rows = [
        {"ts": 1700000000123, "usage": {"prompt_tokens": 3, "completion_tokens": 4}, "id": "x"},
        {"ts": 1700000000623, "usage": {"prompt_tokens": 5, "completion_tokens": 6}, "id": "y"},
    ]
    trace = read_trace(put(tmp_path, lines(*rows)))
    assert trace.metadata["format"] == "access-log"
    assert trace.arrival_s.tolist() == [0.0, 0.5]
    assert trace.prompt_tokens.tolist() == [3, 5]
    assert trace.request_id.tolist() == ["x", "y"]


def test_access_log_of_text(tmp_path: Path) -> None:
    log = (
        "INFO 2026-01-02 03:04:05,250 started\n"
        "INFO 2026-01-02 03:04:06,250 done request_id=a prompt_tokens=3 completion_tokens=4\n"
        "INFO 2026-01-02 03:04:06,500 done request_id=b prompt_tokens=5, completion_tokens=6\n"
    )
    trace = read_trace(put(tmp_path, log))
    assert trace.arrival_s.tolist() == [0.0, 0.25]
    assert trace.output_tokens.tolist() == [4, 6]
    assert trace.request_id.tolist() == ["a", "b"]
    assert trace.metadata["other_lines"] == 1
    web = (
        '1.2.3.4 - - [16/Nov/2023:23:59:59 +0100] "POST /v1" 200 prompt_tokens=3 completion_tokens=4\n'
        '1.2.3.4 - - [17/Nov/2023:00:00:01 +0100] "POST /v1" 200 prompt_tokens=3 completion_tokens=x\n'
    )
    with pytest.raises(InputError, match="line 2, column 'completion_tokens': 'x' is not a number"):
        read_trace(put(tmp_path, web))
    assert read_trace(put(tmp_path, web.replace("=x", "=5"))).arrival_s.tolist() == [0.0, 2.0]


def test_llmservingsim(tmp_path: Path) -> None:
    flat = {"input_toks": 3, "output_toks": 4, "arrival_time_ns": 1500, "input_tok_ids": [1, 2, 3]}
    trace = read_trace(put(tmp_path, lines(flat, {**flat, "arrival_time_ns": 1_000_001_500})))
    assert trace.arrival_s.tolist() == [0.0, 1.0]
    assert trace.extra == {}
    session = {"session_id": "s", "arrival_time_ns": 1, "sub_requests": []}
    with pytest.raises(InputError, match="line 2: is a session whose calls each wait"):
        read_trace(put(tmp_path, lines(flat, session)))


def test_ragpulse_and_lmcache(tmp_path: Path, words: str) -> None:
    row = {"timestamp": "27", "input_length": 9, "output_length": 2, "session_id": "17-x"}
    text = lines(row | {"hash_ids": {"sys_prompt": [1]}}, row | {"timestamp": "29", "hash_ids": {}})
    trace = read_trace(put(tmp_path, text + "\n"))
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert trace.hash_ids is None
    assert trace.metadata["left_out"] == ["hash_ids"]
    run = {"timestamp": 1_760_000_000_000_000, "input": "a b", "output": "c"}
    trace = read_trace(put(tmp_path, lines(run, run | {"timestamp": 1_760_000_000_500_000})), tokenizer=words)
    assert trace.arrival_s.tolist() == [0.0, 0.5]
    assert trace.prompt_tokens.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("session_id,round_idx,prefix_len,input_len,output_len\n1,0,0,5,6\n", "a closed loop"),
        ("prompt_size,token_size,prompt_time,token_time\n1,2,3,4\n", "measured latencies"),
        ("Of all I know,\nlittle, and that late, is\nof use to me\n", "is running text and no table"),
        ("one line\nand another\n", "is running text and no table"),
        ("# Traces of 2024\n\n12 of them, and more\n", "is running text and no table"),
        ("<html>\n<p>404</p>\n", "is running text and no table"),
        ('{"timing_events": []}\n', "TraceLab session log"),
        ('{"prompt": "\\ud800", "output_tokens": 1}\n', "half a character"),
        ('[{"a": 1}]', "has no column for prompt_tokens"),
        ("[" * 100_000, "in no format known here"),
        ('{"a":' * 100_000, "recursion"),
    ],
)
def test_refused_with_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_trace(put(tmp_path, text))


def test_tokenizers_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, lines({"prompt": "a", "output_tokens": 1}))
    (tmp_path / "tokenizer.json").write_text("{}")
    for name in (str(tmp_path), str(tmp_path / "trace.txt")):
        with pytest.raises(InputError, match="no tokenizer"):
            read_trace(path, tokenizer=name)
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        read_trace(path, tokenizer=str(tmp_path.parent))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"pip install 'estp\[predictor\]'"):
        read_trace(path, tokenizer="another")


def test_standard_input_of_any_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(np.arange(2), np.array([0.0, 1.0]), np.array([1, 2]), np.array([3, 4]), metadata={"a": 1})
    write_trace(trace, tmp_path / "t.parquet")
    for packed in (False, True):
        data = (tmp_path / "t.parquet").read_bytes()
        monkeypatch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(data) if packed else data))
        )
        again = read_trace("-")
        assert again.metadata == {"a": 1}
        assert again.arrival_s.tolist() == [0.0, 1.0]


# Counts and means of prompt and output tokens, from the manifest.
FIGURES = [
    ("1_traces/inference_perf/trace.csv", 20, 577.0, 83.7),
    ("1_traces/lengths_only/deepseek-r1.csv", 4388, 803.8, 4043.4),
    ("1_traces/lengths_only/llama2-70b-99_openorca.csv", 24576, 222.3, 218.9),
    ("1_traces/splitwise_sim/test_trace.csv", 3, 2730.7, 18.7),
    (
        "1_traces/vidur_processed/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        28257,
        2588.1,
        291.4,
    ),
    ("3_latency/llmservingsim_bench/RTXPRO6000/Llama-3.1-8B/vllm/requests.jsonl", 300, 857.5, 652.5),
]


@pytest.mark.parametrize(("name", "requests", "prompts", "outputs"), FIGURES)
def test_published_lengths(reference: Path, name: str, requests: int, prompts: float, outputs: float) -> None:
    trace = read_trace(reference / "data" / name)
    assert len(trace) == requests
    assert trace.prompt_tokens.mean() == pytest.approx(prompts, abs=0.05)
    assert trace.output_tokens.mean() == pytest.approx(outputs, abs=0.05)


def test_published_failures(reference: Path) -> None:
    folder = reference / "data/1_traces"
    # 17 of the 400 rows failed; the means count them as 0.
    trace = read_trace(folder / "burstgpt/BurstGPT_1.head400.csv", on_error="skip")
    assert len(trace) == 383
    assert trace.metadata["dropped"]["count"] == 17
    assert trace.prompt_tokens.sum() / 400 == pytest.approx(520.5, abs=0.05)
    assert trace.output_tokens.sum() / 400 == pytest.approx(276.5, abs=0.05)
    # 745 conversations have no prompt and 74 no answer.
    trace = read_trace(folder / "lengths_only/sharegpt-vicuna.csv", on_error="skip")
    assert len(trace) == 81494 - 745 - 74
    assert sorted(trace.metadata["dropped"]["reasons"].values()) == [74, 745]


# Records of the texts, from the manifest; characters are what a count of them was made from.
TEXTS = [
    ("1_traces/sharegpt_format/dummy_conversation.json", 1000, None, None),
    ("2_text/alpaca_eval/FuseChat-Qwen-2.5-7B-Instruct/model_outputs.json", 805, 164.9, 2173.9),
    ("2_text/alpaca_eval/Meta-Llama-3.1-8B-Instruct-Turbo/model_outputs.json", 805, 164.9, 2181.9),
    ("2_text/arena_hard/v2.0_model_answer_o3-mini-2025-01-31.head150.jsonl", 150, 1781.9, 4700.7),
    ("2_text/arena_hard/v0.1_model_answer_gpt-3.5-turbo-0125.head100.jsonl", 100, 415.9, 1466.1),
    ("2_text/gsm8k/test.jsonl", 1319, 239.9, 292.9),
]


@pytest.mark.parametrize(("name", "records", "prompts", "answers"), TEXTS)
def test_published_texts(
    reference: Path, name: str, records: int, prompts: float | None, answers: float | None, words: str
) -> None:
    trace = read_trace(reference / "data" / name, tokenizer=words)
    assert len(trace) == records
    if prompts is not None:
        assert trace.prompt is not None
        assert trace.response is not None
        assert np.mean([len(text) for text in trace.prompt]) == pytest.approx(prompts, abs=0.05)
        assert np.mean([len(text) for text in trace.response]) == pytest.approx(answers, abs=0.05)


def test_every_published_file_reads_or_is_refused(reference: Path, words: str) -> None:
    files = [file for file in sorted((reference / "data").rglob("*")) if file.is_file()]
    read, refused = [], []
    for file in files:
        try:
            read_trace(file, on_error="skip", tokenizer=words)
            read.append(file)
        except InputError as error:
            refused.append((str(file), str(error)))
    assert all(said.startswith(file) and len(said) < 1500 for file, said in refused)
    assert len(read) >= 21
    # Nothing but traces and answered prompts is taken for a trace.
    assert not [file for file in read if file.suffix in (".md", ".txt", ".yaml")]
    assert not [file for file in read if "3_latency" in str(file) and "requests" not in file.name]


def test_embedded_style_tokenizer_is_a_folder(tmp_path: Path) -> None:
    trace = read_trace(
        put(tmp_path, lines({"prompt": "how many", "output_tokens": 1})), tokenizer=str(TINY_LM)
    )
    assert trace.prompt_tokens[0] >= 2
