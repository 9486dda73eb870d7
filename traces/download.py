"""Public traces by name: fetched once, checked by SHA-256, kept in the user's cache."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from traces.errors import InputError
from traces.files import cache_folder


@dataclass(frozen=True)
class Public:
    """A published file.

    Attributes:
        url: of one commit of its repository, so that it cannot change.
        sha256: of its bytes.
        size: bytes.
        licence: under which its publisher gives it away.
        about: what it is, in a few words.
    """

    url: str
    sha256: str
    size: int
    licence: str
    about: str

    @property
    def file(self) -> str:
        """The file's own name."""
        return self.url.rsplit("/", 1)[1]


RAW = "https://raw.githubusercontent.com"
AZURE = f"{RAW}/Azure/AzurePublicDataset/b469a113cedca53ddc3bdea71a143dc4b7d8700c/data"
MOONCAKE = f"{RAW}/kvcache-ai/Mooncake/3b5a594133958449a1feaf1c9e0fc1b553e34a28/FAST25-release/traces"
VIDUR = f"{RAW}/microsoft/vidur/7d47513363ec447a741ac5e47241580b47724fbf/data/processed_traces"
LENGTHS = f"{RAW}/openshift-psap/performance-dashboard/71007029fb5bced1d79808e7e64dc4c2af82ea55"

CATALOGUE: dict[str, Public] = {
    "azure-2023-code": Public(
        f"{AZURE}/AzureLLMInferenceTrace_code.csv",
        "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        320_117,
        "CC-BY-4.0",
        "code completion at Azure, an hour of 2023: 8,819 requests, very bursty",
    ),
    "azure-2023-conv": Public(
        f"{AZURE}/AzureLLMInferenceTrace_conv.csv",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        719_188,
        "CC-BY-4.0",
        "conversation at Azure, an hour of 2023: 19,366 requests",
    ),
    "mooncake-conversation": Public(
        f"{MOONCAKE}/conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        3_029_533,
        "Apache-2.0",
        "long conversations at Moonshot, with prefix hashes: 12,031 requests in ticks of 3 s",
    ),
    "mooncake-synthetic": Public(
        f"{MOONCAKE}/synthetic_trace.jsonl",
        "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        1_136_313,
        "Apache-2.0",
        "long documents on drawn arrivals, with prefix hashes: 3,993 requests",
    ),
    "arxiv-summarization": Public(
        f"{VIDUR}/arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
        "9d3580538d915ca75e4aaaa54590b42dbb17abc6d74c8913310cf07c232adcdc",
        884_932,
        "MIT",
        "lengths of arXiv papers and abstracts, no arrivals: 28,257 requests",
    ),
    "deepseek-r1": Public(
        f"{LENGTHS}/datasets/summaries/deepseek-r1.csv",
        "bddc93e4bff296c930cb3c8eb31b9cd136bf5e208c469e779d5179daf900cf30",
        40_110,
        "Apache-2.0",
        "lengths of long reasoning, no arrivals: 4,388 requests",
    ),
    "openorca": Public(
        f"{LENGTHS}/mlperf-data/summaries/llama2-70b-99.csv",
        "83b5ef2099a14a72e886f6c63c331137e2ce1e514ba59f131a3dee5ed84d6916",
        184_082,
        "Apache-2.0",
        "lengths of MLPerf's Llama 2 workload, no arrivals: 24,576 requests",
    ),
}


def fetch(
    name: str,
    folder: str | Path | None = None,
    mirror: str | None = None,
    catalogue: Mapping[str, Public] = CATALOGUE,
) -> Path:
    """The path of a public trace; it is downloaded only if the cache lacks it or holds other bytes.

    Args:
        name: in the catalogue.
        folder: where to keep it; None: ``traces`` in the user's cache.
        mirror: a URL that has the file under its own name, for sites without a way to its publisher.
        catalogue: what there is.

    Raises:
        InputError: no such name, nobody answers, or what comes is not the file that is expected.
    """
    if name not in catalogue:
        near = get_close_matches(name, catalogue, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(catalogue)}"
        raise InputError(f"no public trace is called {name!r}; {hint}")
    import pooch

    public = catalogue[name]
    url = public.url if mirror is None else f"{mirror.rstrip('/')}/{public.file}"
    place = cache_folder() / "traces" if folder is None else Path(folder)
    # It would tell of every download on its own; the command says what is to be said.
    pooch.get_logger().setLevel(logging.ERROR)
    try:
        place.mkdir(parents=True, exist_ok=True)
        # Named by what it is, so that files of one name from two publishers stay apart.
        found = pooch.retrieve(
            url, f"sha256:{public.sha256}", f"{name}-{public.file}", place, downloader=_checked(name, public)
        )
    except OSError as error:  # requests' errors are OSErrors too
        raise InputError(
            f"cannot fetch {name} from {url} ({_reason(error, url)}); if this machine is offline, fetch the "
            f"file elsewhere and put it to {place / f'{name}-{public.file}'}"
        ) from error
    return Path(found)


def _checked(name: str, public: Public) -> Callable[[str, Any, Any], None]:
    """Downloads the file into a temporary one that is gone if it is not the one that is meant."""
    import pooch

    def download(url: str, file: Any, pup: Any) -> None:
        pooch.HTTPDownloader()(url, file, pup)
        found = pooch.file_hash(str(file), alg="sha256")
        if found != public.sha256:
            raise InputError(
                f"what {url} gave is not {name}: its SHA-256 is {found}, and should be {public.sha256}; "
                "nothing was kept"
            )

    return download


def _reason(error: OSError, url: str) -> str:
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answers {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.ConnectionError):
        return f"no connection to {urlsplit(url).netloc}"
    return str(error).strip().split("\n")[0] or type(error).__name__
