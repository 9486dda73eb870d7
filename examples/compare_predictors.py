"""Is a predictor good enough to schedule by? ``python examples/compare_predictors.py``.

Two cheap ones are fitted to a part of the embedded LLM's answers and order the rest: by the length of
the prompt, and by what kind of prompt it is. FCFS and the oracle stand beside them.
"""

import numpy as np

from experiments.compare import Setup, compare
from experiments.table import render
from predictor.embedded import TEST_SEED, read_rollout
from predictor.rows import prompt_ids, scenarios_of
from predictor.train import split_by_prompt
from sim import StaticBatching
from traces import Estimates
from traces.arrivals import Arrivals


def main() -> None:
    answers = read_rollout()
    split = split_by_prompt(prompt_ids(answers), scenarios_of(answers), TEST_SEED)
    seen, trace = answers.take(split.train), answers.take(split.test)

    line = np.polyfit(seen.prompt_tokens, seen.output_tokens, 1)
    mean_of = {kind: seen.output_tokens[seen.scenario == kind].mean() for kind in set(seen.scenario)}
    estimates = {
        "prompt-length": Estimates("prompt-length", trace.request_id, np.polyval(line, trace.prompt_tokens)),
        "scenario": Estimates("scenario", trace.request_id, [mean_of[kind] for kind in trace.scenario]),
    }
    policies = ("fcfs", "sjf", *(f"shortest,predictor={name}" for name in estimates))
    server = {"batching": StaticBatching(batch_size=8), "latency": "roofline,model=smollm2-135m,device=l4"}
    setup = Setup(policies, seeds=(0, 1, 2, 3, 4), arrivals=Arrivals("poisson", rate=8.0), server=server)
    print(render(compare(trace, setup, estimates)))


if __name__ == "__main__":
    main()
